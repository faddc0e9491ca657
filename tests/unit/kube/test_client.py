"""What the client makes of unusual answers; ``tests/contract/test_kube_client.py`` has what it does with usual ones."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from node_agent.errors import Expired, KubeApiError, NotFound, TooManyRequests, Unavailable
from node_agent.kube import calls as calls_module
from node_agent.kube import client as client_module
from node_agent.kube.calls import Call, Patience
from node_agent.kube.client import EventType, KubeClient, Patch, _events
from node_agent.kube.resources import DEVICE_CLASSES, EVENTS, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Object
from tests.fakes.api_server import ApiServer

HASTY = Patience(attempt=2.0, budget=2.0, pause=0.005)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(server.access, patience=HASTY) as client:
        yield client


def node(name: str, **more: Any) -> Object:
    return {"metadata": {"name": name}, **more}


async def test_a_list_is_complete_though_it_comes_in_pages(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PAGE", 2)
    for number in range(5):
        server.put(NODES, node(f"n{number}"))
    listing = await client.list(NODES)
    assert [item["metadata"]["name"] for item in listing.items] == ["n0", "n1", "n2", "n3", "n4"]
    assert [asked.query["limit"] for asked in server.requests] == ["2"] * 3
    assert listing.resource_version == str(server.store.revision.value)


async def test_a_page_that_is_late_makes_the_list_expire(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PAGE", 1)
    for number in range(3):
        server.put(NODES, node(f"n{number}"))
    server.slow(0.2, path="/nodes", verb="list")
    listing = asyncio.create_task(client.list(NODES))
    await server.until(lambda: server.requests)
    server.slow(0.2, verb="list")
    await server.until(lambda: len(server.requests) == 2)
    server.put(NODES, node("n3"))
    server.compact()
    with pytest.raises(Expired):
        await listing


async def test_a_page_that_failed_is_asked_for_again_and_not_the_whole_list(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PAGE", 1)
    for number in range(2):
        server.put(NODES, node(f"n{number}"))
    server.slow(0.0, verb="list")  # the first page comes as it should
    server.fail(verb="list", code=500)
    assert len((await client.list(NODES)).items) == 2
    assert [asked.query.get("continue") is not None for asked in server.requests] == [False, True, True]


async def test_listed_objects_say_what_they_are_in_the_version_that_was_asked_for(
    server: ApiServer, client: KubeClient
) -> None:
    server.serve("resource.k8s.io", "v1", "v1beta1")
    server.put(DEVICE_CLASSES, node("gpu.test", spec={}))
    (item,) = (await client.list(DEVICE_CLASSES.at("v1beta1"))).items
    assert (item["kind"], item["apiVersion"]) == ("DeviceClass", "resource.k8s.io/v1beta1")


async def test_selectors_and_dry_runs_are_asked_for_by_their_names(server: ApiServer, client: KubeClient) -> None:
    await client.list(RESOURCE_SLICES, fields="spec.nodeName=n0,spec.driver=a/b", labels="x=y")
    await client.create(RESOURCE_SLICES, node("a", spec={}), dry_run=True)
    listed, made = server.requests
    assert listed.query == {"fieldSelector": "spec.nodeName=n0,spec.driver=a/b", "labelSelector": "x=y", "limit": "500"}
    assert made.query == {"fieldManager": "gpu-node-agent", "dryRun": "All"}
    assert server.writes() == []


async def test_applying_takes_over_what_others_own(server: ApiServer, client: KubeClient) -> None:
    await client.patch(NODES, "n0", node("n0"), how=Patch.APPLY)
    assert server.requests[0].query == {"fieldManager": "gpu-node-agent", "force": "true"}


async def test_an_object_is_written_where_its_metadata_says(server: ApiServer, client: KubeClient) -> None:
    claim = await client.create(RESOURCE_CLAIMS, {"metadata": {"name": "a", "namespace": "ns"}, "spec": {}})
    await client.update(RESOURCE_CLAIMS, claim | {"status": {}}, subresource="status")
    assert [asked.path for asked in server.requests] == [
        "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims",
        "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/a/status",
    ]


async def test_an_update_without_a_namespace_is_a_mistake_of_ours(client: KubeClient) -> None:
    with pytest.raises(ValueError, match="is in a namespace"):
        await client.update(RESOURCE_CLAIMS, {"metadata": {"name": "a"}})


async def test_a_watch_that_is_refused_is_an_error_whichever_way_it_is_told(
    server: ApiServer, client: KubeClient
) -> None:
    server.put(NODES, node("n0"))
    server.compact()
    with pytest.raises(Expired):
        async with client.watch(NODES, "1") as events:
            await anext(events)
    server.fail(verb="watch", code=410)
    with pytest.raises(Expired):
        async with client.watch(NODES, "2000"):
            pass
    server.fail(verb="watch", code=429, retry_after=5)
    with pytest.raises(TooManyRequests) as refused:
        async with client.watch(NODES, "2000"):
            pass
    assert refused.value.retry_after == 5


async def test_an_error_event_ends_a_watch_after_what_came_before(server: ApiServer, client: KubeClient) -> None:
    async with client.watch(NODES, str(server.store.revision.value)) as events:
        await server.until(lambda: server.watches)
        server.put(NODES, node("n0"))
        server.watch_error(500)
        assert (await anext(events)).type is EventType.ADDED
        with pytest.raises(Unavailable) as refused:
            await anext(events)
    assert refused.value.code == 500


async def test_a_watch_that_breaks_says_so_and_one_that_ends_in_order_just_ends(
    server: ApiServer, client: KubeClient
) -> None:
    version = str(server.store.revision.value)
    async with client.watch(NODES, version) as events:
        await server.until(lambda: server.watches)
        server.end_watches()
        assert [event async for event in events] == []
    async with client.watch(NODES, version) as events:
        await server.until(lambda: server.watches)
        server.end_watches(clean=False)
        with pytest.raises(Unavailable, match="did not answer watch /api/v1/nodes") as broken:
            await anext(events)
    assert broken.value.code == 0


async def test_a_watch_on_which_nothing_comes_is_given_up(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "SILENCE_SECONDS", 0.05)
    async with client.watch(NODES, str(server.store.revision.value)) as events:
        with pytest.raises(Unavailable, match="nothing came for too long"):
            await anext(events)


async def test_leaving_a_watch_closes_its_connection(server: ApiServer, client: KubeClient) -> None:
    async with client.watch(NODES, str(server.store.revision.value)):
        await server.until(lambda: server.watches)
    await server.until(lambda: not server.watches)


async def test_cancelling_a_watch_closes_its_connection(server: ApiServer, client: KubeClient) -> None:
    async def watch() -> None:
        async with client.watch(NODES, str(server.store.revision.value)) as events:
            async for _ in events:
                pass

    task = asyncio.create_task(watch())
    await server.until(lambda: server.watches)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.until(lambda: not server.watches)


async def test_a_watch_leaves_other_requests_a_way(server: ApiServer, client: KubeClient) -> None:
    server.put(NODES, node("n0"))
    async with client.watch(NODES, "") as events:
        assert (await anext(events)).object["metadata"]["name"] == "n0"
        await client.get(NODES, "n0")


async def test_watches_of_many_nodes_do_not_end_together(server: ApiServer, client: KubeClient) -> None:
    for _ in range(8):
        async with client.watch(NODES, ""):
            pass
    lengths = {int(asked.query["timeoutSeconds"]) for asked in server.requests}
    assert len(lengths) > 1
    assert all(300 <= seconds <= 600 for seconds in lengths)


async def lines(*contents: Any) -> AsyncIterator[bytes]:
    for content in contents:
        yield content if isinstance(content, bytes) else json.dumps(content).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        b"\xff",
        [],
        "text",
        None,
        {},
        {"type": "ADDED"},
        {"object": {}},
        {"type": "STRANGE", "object": {}},
        {"type": ["ADDED"], "object": {}},
    ],
)
async def test_a_line_that_is_no_event_ends_the_watch_with_an_error(content: Any) -> None:
    events = _events(Call(verb="watch", path="/p"), lines({"type": "ADDED", "object": {"a": 1}}, content))
    assert (await anext(events)).object == {"a": 1}
    with pytest.raises(Unavailable, match="watch /p brought no event"):
        await anext(events)


async def test_what_is_nested_without_end_costs_no_other_object_of_the_watch() -> None:
    """Any user may put such a thing into a claim of his own, and all claims come in one stream."""
    deep = b'{"type": "ADDED", "object": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}"
    stream = _events(Call(verb="watch", path="/p"), raw_lines(deep, b'{"type": "ADDED", "object": {"b": 2}}'))
    assert [list(event.object) async for event in stream] == [["a"], ["b"]]


async def raw_lines(*content: bytes) -> AsyncIterator[bytes]:
    for line in content:
        yield line


@pytest.mark.parametrize(
    ("served", "newest"),
    [
        (("v1", "v1beta2", "v1beta1"), "v1"),
        (("v1beta1", "v1"), "v1"),
        (("v1beta2", "v1beta1"), "v1beta2"),
        (("v1beta1",), "v1beta1"),
        (("v2", "v1beta1"), "v1beta1"),
    ],
)
async def test_the_newest_version_that_both_know_is_spoken(
    server: ApiServer, client: KubeClient, served: tuple[str, ...], newest: str
) -> None:
    server.serve("resource.k8s.io", *served)
    version = await client.newest_version()
    assert version == newest
    assert (await client.list(RESOURCE_SLICES.at(version))).items == ()


@pytest.mark.parametrize(
    ("served", "said"), [((), "serves none of"), (("v2", "v1alpha3"), "serves only v1alpha3, v2 of")]
)
async def test_a_server_of_other_times_is_told_apart_from_a_broken_one(
    server: ApiServer, client: KubeClient, served: tuple[str, ...], said: str
) -> None:
    server.serve("resource.k8s.io", *served)
    with pytest.raises(NotFound, match=f"{said} resource.k8s.io, and v1, v1beta2, v1beta1 are known here"):
        await client.newest_version()
    server.fail(1000, code=500)
    async with KubeClient(server.access, patience=Patience(budget=0.05, pause=0.01)) as hasty:
        with pytest.raises(Unavailable):
            await hasty.newest_version()


async def test_a_version_that_is_served_no_more_is_not_found(server: ApiServer, client: KubeClient) -> None:
    server.put(RESOURCE_SLICES, node("a", spec={}))
    server.serve("resource.k8s.io", "v2")
    with pytest.raises(NotFound):
        await client.get(RESOURCE_SLICES, "a")


async def test_a_patch_of_a_kind_that_the_server_does_not_take_is_told(client: KubeClient) -> None:
    with pytest.raises(KubeApiError) as refused:
        await client.patch(NODES, "n0", {}, how=Patch.STRATEGIC)
    assert refused.value.code == 415


async def test_an_object_is_gone_where_the_server_says_so_by_its_name(server: ApiServer, client: KubeClient) -> None:
    server.put(NODES, node("n1"))
    assert (await client.find(NODES, "n1") or {})["metadata"]["name"] == "n1"
    assert await client.find(NODES, "n2") is None
    server.fail(path="n1", code=404, message="404 page not found")
    with pytest.raises(NotFound, match="404 page not found"):
        await client.find(NODES, "n1")
    server.serve(RESOURCE_CLAIMS.group, "v1beta1")
    with pytest.raises(NotFound):
        await client.find(RESOURCE_CLAIMS, "a", "default")


async def test_events_are_written_like_any_object(server: ApiServer, client: KubeClient) -> None:
    event = {"metadata": {"name": "a.1", "namespace": "default"}, "reason": "GpuLost", "note": "gpu-3"}
    await client.create(EVENTS, event)
    assert server.objects(EVENTS)[0]["note"] == "gpu-3"


async def test_many_requests_at_once_are_all_answered(server: ApiServer, client: KubeClient) -> None:
    await asyncio.gather(*(client.create(NODES, node(f"n{number}")) for number in range(40)))
    assert len(server.objects(NODES)) == 40
