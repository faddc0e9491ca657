"""GPUs that are shared. Users met: a list so long that the kubelet dropped it and showed none (B14), counts under two
names at once after a change (B15), two shares of one card although another was free (B17), an id that was repeated in
the environment until no program could start (B18), requests for more than one share that were a surprise (B21), and a
setting that nobody had asked for, which failed every pod on cards without it (B60).
"""

import asyncio
import bisect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from node_agent.agent.agent import Agent
from node_agent.cdi.names import qualified
from node_agent.config.settings import Settings, Sharing, SharingRule
from node_agent.errors import KubeletError
from node_agent.hardware.simulated.tree.smi import refuse, time_slice
from node_agent.kit.tasks import running
from node_agent.kubelet.embedded import RECEIVE_LIMIT
from node_agent.model.gpu import GpuUuid
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from tests.fakes.api_server import ApiServer
from tests.fakes.names import GPU_RESOURCE, KIND
from tests.faults.claims import Cluster
from tests.faults.conftest import PATIENCE, Place, Simulate, until

FOUR = SharingRule(strategy="time-slicing", shares=4)
SHARED = f"{GPU_RESOURCE}.shared"


@pytest.fixture
def l4(simulate: Simulate) -> Place:
    """Two L4."""
    return simulate("l4-2")


def shared(place: Place, *rules: SharingRule) -> Settings:
    return place.with_settings(sharing=Sharing(rules=rules))


@asynccontextmanager
async def at_work(place: Place, settings: Settings, offers: int) -> AsyncIterator[Agent]:
    """The agent beside the kubelet, which has so many devices to give out."""
    async with place.kubelet.running(), place.agent(settings) as agent:
        await place.allocatable(offers)
        await until(lambda: agent.ledger.trouble is None)
        yield agent


def cards(ids: object) -> list[str]:
    assert isinstance(ids, list | tuple)
    return sorted(name.partition("::")[0] for name in ids)


# B14: very many replicas


async def test_16384_replicas_of_eight_gpus_are_refused_before_registering_and_other_resources_go_on(
    h200: Place,
) -> None:
    other = replace(FOUR, devices=("7",), resource=SHARED)
    async with h200.kubelet.running(), h200.agent(shared(h200, other, replace(FOUR, shares=16384))):
        await h200.kubelet.until(SHARED, allocatable=4, timeout=PATIENCE)
        await h200.trouble("has 114688 devices, whose list takes")
        found = next(one for one in (await h200.status()).resources if one.name == GPU_RESOURCE)
        assert found.trouble is not None
        assert "the kubelet takes 4194304: offer fewer, by fewer replicas a GPU or under several names" in found.trouble
        assert GPU_RESOURCE not in h200.kubelet.resources.value


async def test_the_largest_number_that_fits_is_offered_even_when_all_of_it_becomes_unhealthy(l4: Place) -> None:
    """Of one GPU, so that the list is made but twice."""
    most = largest(l4.uuid(0))
    settings = replace(shared(l4, replace(FOUR, shares=most)), exclude=("1",))
    async with l4.kubelet.running(), l4.agent(settings):
        await l4.kubelet.until(GPU_RESOURCE, allocatable=most, timeout=60)
        l4.node.faults.xid(0, 79)
        view = await l4.kubelet.until(GPU_RESOURCE, allocatable=0, timeout=60)
        assert (view.connected, view.capacity) == (True, most)


def largest(uuid: str) -> int:
    """The most replicas of which the list fits whatever becomes of it, by the kubelet's own measure."""

    def size(replicas: int) -> int:
        place = wire.TopologyInfo(nodes=[wire.NUMANode(ID=0)])
        ids = (f"{uuid}::{number}" for number in range(replicas))
        devices = [wire.Device(ID=name, health="Unhealthy", topology=place) for name in ids]
        return wire.ListAndWatchResponse(devices=devices).ByteSize()

    return bisect.bisect_right(range(131_072), RECEIVE_LIMIT, key=size) - 1


# B15: another name


async def test_old_and_new_names_never_both_have_devices_and_the_old_one_ends_with_an_empty_list(l4: Place) -> None:
    seen: list[tuple[int, int]] = []

    async def look() -> None:
        async for _ in l4.kubelet.resources.watch():
            seen.extend([(l4.kubelet.view(GPU_RESOURCE).capacity, l4.kubelet.view(SHARED).capacity)])

    renamed = shared(l4, replace(FOUR, resource=SHARED))
    async with at_work(l4, l4.settings, offers=2) as agent, running(look()):
        await agent.live.apply(renamed, agent.keeper.inventory.value)
        await l4.kubelet.until(SHARED, allocatable=8, timeout=PATIENCE)
        await agent.live.apply(l4.settings, agent.keeper.inventory.value)
        await l4.allocatable(2)
        assert l4.kubelet.view(SHARED).capacity == 0
        await until(lambda: f"device-plugin {SHARED}" not in agent.supervisor.states.value)
        await asyncio.sleep(0.05)
    assert [seen[0], seen[-1]] == [(2, 0), (2, 0)]
    assert (0, 8) in seen
    assert all(0 in pair for pair in seen)


# B17: two shares of one card


async def test_two_shares_come_from_two_cards_and_the_answer_is_always_the_same(l4: Place) -> None:
    """Four shares of each of two GPUs, one of the second in use."""
    answers = set()
    async with at_work(l4, shared(l4, FOUR), offers=8):
        l4.kubelet.held["other"] = (GPU_RESOURCE, frozenset({f"{l4.uuid(1)}::0"}))
        for number in range(5):
            ids, _ = await l4.kubelet.admit(f"pod-{number}", GPU_RESOURCE, 2)
            l4.kubelet.release(f"pod-{number}")
            answers.add(tuple(ids))
    assert len(answers) == 1
    assert cards(answers.pop()) == sorted(l4.uuids)


# B18: one id many times


@pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations", "envvar", "volume-mounts"])
async def test_a_thousand_shares_of_one_gpu_name_it_once(l4: Place, strategy: str) -> None:
    many = replace(FOUR, shares=1000, devices=("0",))
    settings = replace(shared(l4, many), device_list_strategies=(strategy,), exclude=("1",))
    async with at_work(l4, settings, offers=1000):
        ids, response = await l4.kubelet.admit("pod", GPU_RESOURCE, 1000)
    assert len(set(ids)) == 1000
    assert str(response).count(l4.uuid(0)) == 1


async def test_three_shares_of_two_gpus_name_each_once_and_in_a_stable_order(l4: Place) -> None:
    settings = replace(shared(l4, FOUR), device_list_strategies=("cdi-cri", "envvar"))
    async with at_work(l4, settings, offers=8):
        for number in range(2):
            _, response = await l4.kubelet.admit(f"pod-{number}", GPU_RESOURCE, 3)
            assert [device.name for device in response.cdi_devices] == [
                qualified(one, KIND) for one in sorted(l4.uuids)
            ]
            assert response.envs["NVIDIA_VISIBLE_DEVICES"] == ",".join(sorted(l4.uuids))


# B21: requests for more than one share


@pytest.mark.parametrize("fails", [True, False])
async def test_two_shares_under_time_slicing_are_refused_only_where_that_was_asked_for(l4: Place, fails: bool) -> None:
    async with at_work(l4, shared(l4, replace(FOUR, fail_requests_greater_than_one=fails)), offers=8):
        await l4.kubelet.admit("one", GPU_RESOURCE, 1)
        if fails:
            with pytest.raises(KubeletError, match="2 were asked for and at most 1 can be had"):
                await l4.kubelet.admit("two", GPU_RESOURCE, 2)
        else:
            ids, _ = await l4.kubelet.admit("two", GPU_RESOURCE, 2)
            assert cards(ids) == sorted(l4.uuids)


# B60: a setting that nobody asked for


async def test_where_no_interval_is_asked_for_none_is_set(l4: Place) -> None:
    for slot in range(2):
        refuse(l4.tree, l4.uuid(slot))
    async with at_work(l4, shared(l4, FOUR), offers=8):
        await l4.kubelet.admit("pod", GPU_RESOURCE, 1)
        assert (await l4.status()).notices == ()
    assert [time_slice(l4.tree, uuid) for uuid in l4.uuids] == [None, None]


async def test_an_interval_that_a_gpu_does_not_have_is_said_and_the_shares_are_offered_all_the_same(l4: Place) -> None:
    refuse(l4.tree, l4.uuid(0))
    async with at_work(l4, shared(l4, replace(FOUR, time_slice="Short")), offers=8) as agent:
        await until(lambda: time_slice(l4.tree, l4.uuid(1)) == 1 and agent.slices.troubles.value)
        (notice,) = (await l4.status()).notices
        assert notice.startswith(f"{l4.uuid(0)} has no time slices to set to Short")
        assert (await l4.status()).ready


async def test_an_interval_ends_with_the_sharing_even_where_the_agent_was_killed_in_between(l4: Place) -> None:
    async with at_work(l4, shared(l4, replace(FOUR, time_slice="Long")), offers=8):
        await until(lambda: [time_slice(l4.tree, uuid) for uuid in l4.uuids] == [3, 3])
    # Nothing was undone at the end: an agent that is killed does nothing more either.
    async with at_work(l4, l4.settings, offers=2):
        await until(lambda: [time_slice(l4.tree, uuid) for uuid in l4.uuids] == [0, 0])


def time_slicing(interval: str | None = None) -> dict[str, object]:
    """A claim's configuration."""
    sharing: dict[str, object] = {"strategy": "TimeSlicing"}
    if interval is not None:
        sharing["timeSlicingConfig"] = {"interval": interval}
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}


@pytest.fixture
async def cluster(l4: Place) -> AsyncIterator[Cluster]:
    async with ApiServer() as server:
        yield Cluster(l4, server)


async def test_a_claim_that_asks_for_nothing_sets_nothing_and_one_that_asks_for_the_default_is_served(
    cluster: Cluster,
) -> None:
    refuse(cluster.place.tree, cluster.place.uuid(0))
    refuse(cluster.place.tree, cluster.place.uuid(1))
    async with cluster.serving(2):
        await cluster.prepared(cluster.allocate("silent", cluster.device_of(0)))
        await cluster.prepared(cluster.allocate("default", cluster.device_of(1), parameters=time_slicing()))
    assert [time_slice(cluster.place.tree, uuid) for uuid in cluster.place.uuids] == [None, None]


async def test_a_claim_that_asks_for_an_interval_is_refused_where_the_gpu_has_none(cluster: Cluster) -> None:
    refuse(cluster.place.tree, cluster.place.uuid(0))
    async with cluster.serving(2) as agent:
        claim = cluster.allocate("short", cluster.device_of(0), parameters=time_slicing("Short"))
        error = (await cluster.prepare(claim))["short"].error
        assert f"{cluster.place.uuid(0)} has no time slices to set to Short: not available on" in error
        assert not agent.ledger.holders_of(GpuUuid(cluster.place.uuid(0)))


async def test_a_claims_interval_is_set_before_it_is_usable_and_undone_when_it_is_given_back(cluster: Cluster) -> None:
    uuid, tree = cluster.place.uuid(0), cluster.place.tree
    async with cluster.serving(2):
        claim = cluster.allocate("short", cluster.device_of(0), parameters=time_slicing("Short"))
        await cluster.prepared(claim)
        assert time_slice(tree, uuid) == 1
        await cluster.unprepare(claim)
        assert time_slice(tree, uuid) == 0


async def test_the_next_agent_undoes_what_a_claim_had_set(cluster: Cluster) -> None:
    uuid, tree = cluster.place.uuid(0), cluster.place.tree
    async with cluster.serving(2):
        claim = cluster.allocate("long", cluster.device_of(0), parameters=time_slicing("Long"))
        await cluster.prepared(claim)
    async with cluster.serving(2):
        await asyncio.sleep(0.3)
        assert time_slice(tree, uuid) == 3
        await cluster.unprepare(claim)
        assert time_slice(tree, uuid) == 0


async def test_two_claims_on_one_gpu_that_contradict_each_other_are_both_named_and_the_first_one_stands(
    cluster: Cluster,
) -> None:
    uuid, tree = cluster.place.uuid(0), cluster.place.tree
    async with cluster.serving(2):
        name = cluster.device_of(0)
        first = cluster.allocate("first", name, share="1", parameters=time_slicing("Short"))
        same = cluster.allocate("same", name, share="2", parameters=time_slicing("Short"))
        other = cluster.allocate("other", name, share="3", parameters=time_slicing("Long"))
        await cluster.prepared(first)
        await cluster.prepared(same)
        error = (await cluster.prepare(other))["other"].error
        assert "claim default/other" in error
        assert "is held by claim default/first" in error
        assert "set to time slices of Short: time slices of Long does not go with that" in error
        await cluster.unprepare(first)
        assert time_slice(tree, uuid) == 1
        await cluster.unprepare(same)
        assert time_slice(tree, uuid) == 0
        await cluster.prepared(other)
        assert time_slice(tree, uuid) == 3
