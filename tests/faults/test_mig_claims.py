"""MIG devices that claims make, through the agent as it runs. Users asked for partitions on demand (F08) together with
health and MPS, which NVIDIA's driver rules out, and met containers that were given what they could not open (B30).
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from node_agent.agent.agent import Agent
from node_agent.dra import mig_sweep
from node_agent.model.partition import Instance
from node_agent.wire import dra_v1_pb2 as v1
from tests.fakes.api_server import ApiServer
from tests.fakes.names import GPU_RESOURCE
from tests.faults.claims import Cluster
from tests.faults.conftest import Simulate, until

LARGE, SMALL = "gpu-2-mig-3g-71gb-4", "gpu-2-mig-1g-18gb-0"
# The first GPU of the profile is called so, by its minor number.
CUT, SLOT = "gpu-2", 0
DEVICES = 8 + 25


@pytest.fixture
async def h200(simulate: Simulate) -> AsyncIterator[Cluster]:
    """Eight H200, of which claims cut the first."""
    place = simulate("h200-8")
    place.settings = replace(place.settings, mig_on_demand=(CUT,))
    async with ApiServer() as server:
        yield Cluster(place, server)


@asynccontextmanager
async def serving(here: Cluster, allocatable: int = 8) -> AsyncIterator[Agent]:
    async with here.serving(DEVICES) as agent:
        await here.place.allocatable(allocatable)
        yield agent


def nodes(here: Cluster, claim: v1.Claim) -> list[str]:
    """The device nodes that a claim's one device brings, without those that every container gets."""
    (device,) = json.loads(here.spec_of(claim).read_text())["devices"]
    return [node["path"] for node in device["containerEdits"]["deviceNodes"] if "/dri/" not in node["path"]]


def tainted(here: Cluster) -> set[str]:
    keeps = {"NoSchedule", "NoExecute"}
    return {name for name, one in here.devices.items() if keeps & {taint["effect"] for taint in one.get("taints", ())}}


def live(agent: Agent) -> list[Instance]:
    inventory = agent.keeper.inventory.value
    return [one for lying in inventory.instances.values() for one in lying]


def is_cut(here: Cluster) -> bool:
    return here.place.node.faults.gpu(SLOT).mig_enabled


async def test_a_claims_container_gets_its_own_partition_and_limits_do_not_get_the_gpu_meanwhile(
    h200: Cluster,
) -> None:
    async with serving(h200):
        large, small = h200.allocate("large", LARGE), h200.allocate("small", SMALL)
        answers = await h200.prepare(large, small)
        assert not any(answer.error for answer in answers.values())
        both = [nodes(h200, claim) for claim in (large, small)]
        assert [paths[0] for paths in both] == ["/dev/nvidia2"] * 2
        caps = [path for paths in both for path in paths[1:]]
        assert len(set(caps)) == len(caps) == 4
        assert all(path.startswith("/dev/nvidia-caps/nvidia-cap") for path in caps)
        await h200.place.only_withdrawn(SLOT)
        assert set((await h200.unprepare(large, small)).values()) == {""}
        assert not is_cut(h200)
        await h200.place.only_withdrawn()
        assert not h200.spec_of(large).exists()


async def test_what_a_pod_got_by_its_limit_keeps_claims_from_every_piece_of_it(h200: Cluster) -> None:
    async with serving(h200):
        await h200.place.kubelet.admit("pod", GPU_RESOURCE, 8)
        await until(lambda: len(tainted(h200)) == DEVICES)


async def test_a_trouble_of_a_partition_is_its_claims_alone_and_ends_with_it(h200: Cluster) -> None:
    async with serving(h200) as agent:
        large, small = h200.allocate("large", LARGE), h200.allocate("small", SMALL)
        await h200.prepare(large, small)
        await until(lambda: len(live(agent)) == 2)
        sick = next(one for one in live(agent) if one.profile == "3g.71gb")
        h200.place.node.faults.xid(SLOT, 95, instance=sick.id, compute_instance=0)
        await until(lambda: tainted(h200) == {LARGE})
        await h200.unprepare(large)
        await until(lambda: not tainted(h200))
        await h200.prepare(large)
        await until(lambda: len(live(agent)) == 2)
        assert not tainted(h200), "the next one of its number is another"


async def test_clients_of_mps_share_a_partition(h200: Cluster) -> None:
    config = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "MigDeviceConfig"}
    mps = {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "4Gi"}}
    async with serving(h200) as agent:
        claim = h200.allocate("a", LARGE, parameters={**config, "sharing": mps})
        answer = (await h200.prepare(claim))["a"]
        assert not answer.error
        await until(lambda: live(agent))
        (partition,) = live(agent)[0].partitions
        (daemon,) = agent.mps.states.value.values()
        assert daemon.devices == (partition.uuid,)
        (device,) = json.loads(h200.spec_of(claim).read_text())["devices"]
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M" in device["containerEdits"]["env"]
        assert (await h200.unprepare(claim))["a"] == ""
        assert not agent.mps.states.value
        assert not is_cut(h200)


@pytest.mark.parametrize(
    ("kind", "sharing", "error"),
    [
        ("MigDeviceConfig", {"strategy": "TimeSlicing"}, ""),
        (
            "MigDeviceConfig",
            {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
            "a MIG device has no interval of its own",
        ),
        ("GpuConfig", {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}, ""),
    ],
)
async def test_time_slices_are_for_whole_gpus(h200: Cluster, kind: str, sharing: dict[str, Any], error: str) -> None:
    """A configuration for all requests is passed over where the device is of another kind, as NVIDIA does."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing}
    async with serving(h200):
        answer = (await h200.prepare(h200.allocate("a", SMALL, parameters=parameters)))["a"]
        assert error in answer.error
        assert bool(answer.error) is bool(error)


async def test_what_others_made_is_swept_and_what_they_use_is_kept_from_claims(
    h200: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mig_sweep, "AGAIN_SECONDS", 0.1)
    async with serving(h200):
        mig = h200.place.node.faults.gpu(SLOT).mig
        assert mig is not None
        mig.set_mode(True)
        made = mig.create(next(one.id for one in mig.table.profiles if one.name == "1g.18gb"), 0)
        mig.create_compute(made, made.compute_profiles()[0].id)
        h200.place.node.faults.start_process(SLOT, 4711, instance=made.id, compute_instance=0)
        await until(lambda: SMALL in tainted(h200) and CUT in tainted(h200))
        assert LARGE not in tainted(h200)
        await h200.place.only_withdrawn(SLOT)
        h200.place.node.faults.stop_process(SLOT, 4711)
        await until(lambda: not tainted(h200) and not is_cut(h200))


async def test_an_agent_that_is_started_anew_knows_its_claims_and_sweeps_the_rest(h200: Cluster) -> None:
    async with serving(h200):
        claim = h200.allocate("a", LARGE)
        await h200.prepare(claim)
        before = nodes(h200, claim)
    async with serving(h200, allocatable=7) as agent:
        assert await h200.prepared(claim) == [LARGE]
        assert nodes(h200, claim) == before
        await until(lambda: [str(one.piece) for one in live(agent)] == ["3g.71gb at 4"])
    async with serving(h200, allocatable=7):
        await h200.unprepare(claim)
        await until(lambda: not is_cut(h200))


async def test_what_is_left_out_is_not_swept_however_wide_the_words_are(simulate: Simulate) -> None:
    place = simulate("h200-8")
    mig = place.node.faults.gpu(SLOT).mig
    assert mig is not None
    mig.set_mode(True)
    mig.create(next(one.id for one in mig.table.profiles if one.name == "1g.18gb"), 0)
    place.settings = replace(place.settings, mig_on_demand=("*",), exclude=(CUT,))
    async with ApiServer() as server:
        here = Cluster(place, server)
        async with here.serving(7 * 26) as agent:
            assert len(live(agent)) == 1
            await agent.keeper.look()
            assert len(mig.instances) == 1


async def test_a_gpu_that_becomes_the_claims_while_the_agent_runs_is_theirs_once_no_pod_has_a_part_of_it(
    h200: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mig_sweep, "AGAIN_SECONDS", 0.1)
    h200.place.settings = replace(h200.place.settings, mig_on_demand=(), mig_strategy="mixed")
    h200.place.node.faults.cut(SLOT, ["3g.71gb@0", "3g.71gb@4"])
    async with h200.serving(7 + 2) as agent:
        await h200.place.kubelet.until("nvidia.com/mig-3g.71gb", allocatable=2)
        (device, *_), _ = await h200.place.kubelet.admit("pod", "nvidia.com/mig-3g.71gb", 1)
        await until(lambda: device in h200.books.read_text())
        await agent.live.apply(replace(agent.live.settings.value, mig_on_demand=(CUT,)), agent.keeper.inventory.value)
        await until(lambda: len(live(agent)) == 1)
        await until(lambda: CUT in tainted(h200) and len(h200.devices) == DEVICES)
        h200.place.kubelet.release("pod")
        await until(lambda: not is_cut(h200) and not tainted(h200))


async def test_a_gpu_that_does_not_say_what_it_can_be_cut_to_is_nobodys_to_sweep(h200: Cluster) -> None:
    """As in a guest whose host has cut it."""
    h200.place.node.faults.cut(SLOT, ["3g.71gb@4"])
    for call in ("nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstanceProfileInfoV"):
        h200.place.node.faults.fail(call, "NOT_SUPPORTED", gpu=SLOT)
    async with h200.serving(7) as agent:
        await until(lambda: len(live(agent)) == 1 and not agent.ledger.unreconciled.value)
        await asyncio.sleep(0.5)
        assert is_cut(h200)
        assert len(live(agent)) == 1
