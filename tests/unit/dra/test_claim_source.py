"""Claims are asked for by name; no node hears of those of others."""

from collections.abc import AsyncIterator, Mapping

import pytest

from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.dra.claim_source import NodeClaims
from node_agent.dra.operations import ClaimRef
from node_agent.errors import ClaimUnreadable, NotFound, Unavailable
from node_agent.kit.latest import Latest
from node_agent.kube.calls import Patience
from node_agent.kube.client import KubeClient
from node_agent.kube.resources import RESOURCE_CLAIMS, Object
from node_agent.model.claim import ClaimUid
from tests.fakes.api_server import ApiServer
from tests.fakes.builders import uuid

DRIVER, NODE = "gpu.nvidia.com", "n0"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
def grants() -> Latest[Mapping[str, Grant]]:
    return Latest({})


@pytest.fixture
async def claims(server: ApiServer, grants: Latest[Mapping[str, Grant]]) -> AsyncIterator[NodeClaims]:
    async with KubeClient(server.access, patience=Patience(attempt=0.5, budget=0.5, pause=0.01)) as client:
        yield NodeClaims(client, driver=DRIVER, pool=NODE, grants=grants)


def put(server: ApiServer, name: str, *, pool: str | None = NODE, driver: str = DRIVER) -> Object:
    """A claim with a device of the pool; without one, nothing is allocated to it."""
    results = [{"request": "gpus", "driver": driver, "pool": pool, "device": "gpu-0"}]
    return server.put(
        RESOURCE_CLAIMS,
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {},
            "status": {} if pool is None else {"allocation": {"devices": {"results": results}}},
        },
    )


def ref(item: Object) -> ClaimRef:
    metadata = item["metadata"]
    return ClaimRef(uid=ClaimUid(metadata["uid"]), namespace="default", name=metadata["name"])


def grant(item: Object) -> Grant:
    holder = Holder(door=Door.CLAIM, id=item["metadata"]["uid"], name=f"default/{item['metadata']['name']}")
    return Grant(holder=holder, holds=(Hold(device="gpu-0", gpus=(uuid(0),)),))


def asked(server: ApiServer) -> list[str]:
    return [f"{one.verb} {one.path.rpartition('/')[2]}" for one in server.requests]


async def test_a_claim_is_asked_for_by_its_name_each_time_it_is_prepared(server: ApiServer, claims: NodeClaims) -> None:
    item = put(server, "a")
    assert (await claims.claim(ref(item))).uid == item["metadata"]["uid"]
    assert (await claims.claim(ref(item))).of_driver(DRIVER)[0].device == "gpu-0"
    assert asked(server) == ["get a", "get a"]


async def test_a_claim_that_is_gone_replaced_or_not_allocated_is_not_prepared(
    server: ApiServer, claims: NodeClaims
) -> None:
    gone = put(server, "gone")
    server.remove(RESOURCE_CLAIMS, "gone")
    with pytest.raises(ClaimUnreadable, match="claim default/gone is gone"):
        await claims.claim(ref(gone))
    replaced = put(server, "replaced")
    server.remove(RESOURCE_CLAIMS, "replaced")
    put(server, "replaced")
    with pytest.raises(ClaimUnreadable, match="claim default/replaced was replaced"):
        await claims.claim(ref(replaced))
    with pytest.raises(ClaimUnreadable, match="claim default/idle is not allocated"):
        await claims.claim(ref(put(server, "idle", pool=None)))


async def test_of_a_claim_that_was_just_prepared_the_status_costs_no_question(
    server: ApiServer, claims: NodeClaims
) -> None:
    item = put(server, "a")
    await claims.claim(ref(item))
    held = await claims.held(grant(item))
    assert held is not None and held["metadata"]["uid"] == item["metadata"]["uid"]
    assert asked(server) == ["get a"]


async def test_what_nobody_holds_any_more_is_forgotten(server: ApiServer, claims: NodeClaims) -> None:
    kept, given_back = put(server, "a"), put(server, "b")
    for item in (kept, given_back):
        await claims.claim(ref(item))
    claims.forget_but([kept["metadata"]["uid"], "never-heard-of"])
    for item in (kept, given_back):
        await claims.held(grant(item))
    assert asked(server) == ["get a", "get b", "get b"]


async def test_a_held_claim_that_is_gone_or_replaced_is_none(server: ApiServer, claims: NodeClaims) -> None:
    item = put(server, "a")
    server.remove(RESOURCE_CLAIMS, "a")
    assert await claims.held(grant(item)) is None
    put(server, "a")
    assert await claims.held(grant(item)) is None


async def test_live_are_the_held_claims_that_are_there_and_allocated_here(
    server: ApiServer, claims: NodeClaims
) -> None:
    here, gone = put(server, "here"), put(server, "gone")
    moved, idle, replaced = put(server, "moved", pool="n1"), put(server, "idle", pool=None), put(server, "replaced")
    for name in ("gone", "replaced"):
        server.remove(RESOURCE_CLAIMS, name)
    put(server, "replaced")
    put(server, "not-held")
    live = await claims.live(map(grant, (here, gone, moved, idle, replaced)))
    assert [claim.name for claim in live] == ["here"]


async def test_who_lives_is_not_told_by_halves_where_the_server_is_away(server: ApiServer, claims: NodeClaims) -> None:
    """Whoever is missing from the answer loses its devices."""
    first, second = put(server, "a"), put(server, "b")
    server.fail(1000, verb="get", path="/b")
    with pytest.raises(Unavailable):
        await claims.live([grant(first), grant(second)])


async def test_a_404_that_speaks_of_no_claim_makes_none_of_them_gone(server: ApiServer, claims: NodeClaims) -> None:
    """So answer proxies, and servers that do not serve the kind at the moment."""
    item = put(server, "a")
    server.fail(3, verb="get", path="/a", code=404, message="404 page not found")
    with pytest.raises(NotFound, match="page not found"):
        await claims.live([grant(item)])
    with pytest.raises(NotFound):
        await claims.held(grant(item))
    with pytest.raises(NotFound):
        await claims.claim(ref(item))


async def test_all_are_those_with_devices_of_this_node_and_driver(server: ApiServer, claims: NodeClaims) -> None:
    put(server, "here")
    put(server, "elsewhere", pool="n1")
    put(server, "other", driver="other.example")
    put(server, "idle", pool=None)
    assert [claim.name for claim in await claims.all()] == ["here"]


async def test_a_claim_that_is_held_is_known_while_the_server_is_away_and_others_are_not(
    server: ApiServer, claims: NodeClaims, grants: Latest[Mapping[str, Grant]]
) -> None:
    held, new = put(server, "held"), put(server, "new")
    seen = await claims.claim(ref(held))
    grants.set({ref(held).uid: grant(held)})
    server.fail(1000, verb="get")
    assert await claims.claim(ref(held)) == seen
    with pytest.raises(Unavailable):
        await claims.claim(ref(new))
    claims.forget_but(())
    with pytest.raises(Unavailable):
        await claims.claim(ref(held))


async def test_a_claim_that_was_given_back_is_not_what_it_was(
    server: ApiServer, claims: NodeClaims, grants: Latest[Mapping[str, Grant]]
) -> None:
    """It may be allocated anew under the same uid, to another device."""
    item = put(server, "reused")
    await claims.claim(ref(item))
    grants.set({ref(item).uid: grant(item)})
    grants.set({})
    server.fail(1000, verb="get")
    with pytest.raises(Unavailable):
        await claims.claim(ref(item))
