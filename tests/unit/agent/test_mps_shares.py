"""Shares under MPS, from the configuration to the container: an agent over a simulated node and its daemons."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from node_agent.agent.agent import Agent
from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.config.settings import Settings, Sharing, SharingRule
from node_agent.errors import KubeletError
from node_agent.hardware.simulated.mps import FAULTS
from node_agent.kit.alone import alone
from node_agent.model.gpu import GpuUuid
from node_agent.model.partition import DeviceUuid, Partition
from node_agent.sharing.mps.plan import daemon_key
from node_agent.sharing.mps.records import Record, Records
from tests.unit.agent.conftest import Place

GIB = 1 << 30
RESOURCE = "nvidia.com/gpu"


def by_mps(place: Place, *devices: str, shares: int = 4) -> Settings:
    """These GPUs of the first two are shared by MPS; there are no others."""
    rule = SharingRule(strategy="mps", shares=shares, devices=devices, fail_requests_greater_than_one=True)
    others = tuple(str(number) for number in range(2, 8))
    return replace(place.settings(), exclude=others, sharing=Sharing(rules=(rule,)))


@asynccontextmanager
async def sharing(place: Place, settings: Settings) -> AsyncIterator[Agent]:
    """An agent and its kubelet; at the end nothing is shared any more."""
    async with place.kubelet.running(), place.agent(settings) as agent:
        yield agent
        # What a kubelet lists as held is learned again after it was given back.
        for pod in tuple(place.kubelet.held):
            place.kubelet.release(pod)
        for holder in tuple(agent.ledger.grants.value):
            await agent.ledger.release(holder)
        await agent.live.apply(replace(settings, sharing=Sharing()), agent.keeper.inventory.value)
        async with asyncio.timeout(60):
            while Records(settings.paths.state_dir / "mps").all():
                await asyncio.sleep(0.05)
        assert mode(place, 0) == 0


def mode(place: Place, number: int) -> int:
    return place.simulated.node.faults.gpu(number).compute_mode


def uuid(place: Place, number: int) -> GpuUuid:
    return GpuUuid(place.simulated.node.faults.gpu(number).uuid)


def daemon(settings: Settings, gpu: DeviceUuid) -> int:
    process = Records(settings.paths.state_dir / "mps").all()[daemon_key([gpu])].process
    assert process is not None
    return process.pid


async def test_a_container_gets_the_pipe_and_the_limits_of_its_gpus_own_daemon(place: Place) -> None:
    settings = by_mps(place, "0", "1")
    async with sharing(place, settings):
        await place.kubelet.until(RESOURCE, allocatable=8)
        assert [mode(place, number) for number in (0, 1)] == [3, 3]
        pipes = {}
        for pod in ("a", "b"):
            (share,), container = await place.kubelet.admit(pod, RESOURCE, 1)
            assert container.envs == {
                "CUDA_MPS_PIPE_DIRECTORY": "/run/nvidia-mps",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={143771 // 4}M",
            }
            mounts = {mount.container_path: mount.host_path for mount in container.mounts}
            assert mounts.keys() == {"/run/nvidia-mps", "/dev/shm"}
            assert os.path.exists(f"{mounts['/run/nvidia-mps']}/control")
            pipes[share.partition("::")[0]] = mounts["/run/nvidia-mps"]
            place.kubelet.release(pod)
        assert len(set(pipes.values())) == len(pipes)


async def test_a_gpu_beside_them_that_is_not_shared_is_given_without(place: Place) -> None:
    async with sharing(place, replace(by_mps(place, "0"), exclude=())):
        await place.kubelet.until(RESOURCE, allocatable=11)
        _, container = await place.kubelet.admit("a", RESOURCE, 1)
        assert bool(container.mounts) == ("CUDA_MPS_PIPE_DIRECTORY" in container.envs)


async def test_shares_are_offered_only_while_their_daemon_answers(place: Place) -> None:
    settings = by_mps(place, "0")
    faults = settings.container_driver_root / FAULTS
    faults.write_text('{"ready_after": -1}')
    async with sharing(place, settings):
        view = await place.kubelet.until(RESOURCE, allocatable=1)
        shares = view.devices.keys() - view.healthy
        assert shares == {f"{uuid(place, 0)}::{number}" for number in range(4)}
        faults.write_text("{}")
        os.kill(await started(settings, uuid(place, 0)), signal.SIGKILL)
        await place.kubelet.until(RESOURCE, allocatable=5)
        os.kill(daemon(settings, uuid(place, 0)), signal.SIGKILL)
        await place.kubelet.until(RESOURCE, allocatable=1)
        await place.kubelet.until(RESOURCE, allocatable=5)


async def started(settings: Settings, gpu: GpuUuid) -> int:
    while True:
        await asyncio.sleep(0.05)
        record = Records(settings.paths.state_dir / "mps").all().get(daemon_key([gpu]))
        if record is not None and record.process is not None:
            return record.process.pid


async def test_more_than_one_share_for_a_container_is_refused_with_the_reason(place: Place) -> None:
    async with sharing(place, by_mps(place, "0", "1", shares=10)):
        await place.kubelet.until(RESOURCE, allocatable=20)
        with pytest.raises(KubeletError, match="2 were asked for and at most 1 can be had: it is shared by MPS"):
            await place.kubelet.admit("a", RESOURCE, 2)


async def until_said(agent: Agent, is_it: Callable[[set[str | None]], bool]) -> None:
    """Await that this keeps shares from being offered: at first their daemon has not been started."""
    async with asyncio.timeout(60):
        async for offer in agent.plugins[RESOURCE].offer.watch():
            if is_it({one.trouble for one in offer.devices if one.shared is not None}):
                return


async def test_a_rule_that_the_gpu_cannot_serve_costs_that_gpu_and_says_why(place: Place) -> None:
    async with sharing(place, by_mps(place, "0", shares=49)) as agent:
        view = await place.kubelet.until(RESOURCE, allocatable=1)
        assert len(view.devices) == 50
        too_many = {"49 shares of gpu-2 are too many: it takes 48 MPS clients at once"}
        await until_said(agent, lambda troubles: troubles == too_many)
        assert mode(place, 0) == 0


@pytest.mark.parametrize("rules", [(SharingRule(strategy="time-slicing", shares=4),), ()], ids=["shares", "whole"])
async def test_what_only_clients_of_a_daemon_can_open_is_given_to_nobody_else(
    place: Place, rules: tuple[SharingRule, ...]
) -> None:
    settings = replace(by_mps(place, "0"), exclude=tuple(map(str, range(1, 8))))
    async with sharing(place, settings) as agent:
        await place.kubelet.until(RESOURCE, allocatable=4)
        (held,), _ = await place.kubelet.admit("a", RESOURCE, 1)
        await agent.live.apply(replace(settings, sharing=Sharing(rules=rules)), agent.keeper.inventory.value)
        view = await place.kubelet.until(RESOURCE, allocatable=1)
        assert view.healthy == {held}
        assert mode(place, 0) == 3
        troubles = {one.trouble for one in agent.plugins[RESOURCE].offer.value.devices}
        assert f"waits until pods have given back {RESOURCE}/{held}" in troubles
        place.kubelet.release("a")
        async with asyncio.timeout(60):
            # A list of the kubelet's that was on its way may teach the agent the grant again.
            while not place.kubelet.view(RESOURCE).healthy - {held}:
                await agent.ledger.release(f"{RESOURCE}/{held}")
                await asyncio.sleep(0.1)
        assert mode(place, 0) == 0


async def test_of_two_rules_in_a_row_the_last_one_counts(place: Place) -> None:
    settings = replace(by_mps(place, "0"), exclude=tuple(map(str, range(1, 8))))
    faults = settings.container_driver_root / FAULTS
    faults.write_text('{"ready_after": -1}')
    async with sharing(place, settings) as agent:
        await started(settings, uuid(place, 0))
        two = replace(settings, sharing=by_mps(place, "0", shares=2).sharing)
        await agent.live.apply(two, agent.keeper.inventory.value)
        await asyncio.sleep(0.3)
        faults.write_text("{}")
        os.kill(daemon(settings, uuid(place, 0)), signal.SIGKILL)
        await place.kubelet.until(RESOURCE, allocatable=2)
        _, container = await place.kubelet.admit("a", RESOURCE, 1)
        assert container.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"


async def test_where_nothing_is_shared_by_mps_no_record_is_read_for_each_pod(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Records] = []
    read = Records.all

    def counted(records: Records) -> dict[str, Record]:
        reads.append(records)
        return read(records)

    async with place.kubelet.running(), place.agent(place.settings()) as agent:
        await place.kubelet.until(RESOURCE, allocatable=8)
        await agent.limits.synced.wait()
        await asyncio.sleep(0.2)
        monkeypatch.setattr(Records, "all", counted)
        for number in range(8):
            await place.kubelet.admit(f"pod-{number}", RESOURCE, 1)
        await asyncio.sleep(0.2)
        assert reads == []


async def test_an_agent_that_comes_after_another_offers_the_shares_of_daemons_that_run(place: Place) -> None:
    settings = by_mps(place, "0", "1")
    async with place.kubelet.running(), place.agent(settings):
        await place.kubelet.until(RESOURCE, allocatable=8)
        before = {daemon(settings, uuid(place, number)) for number in (0, 1)}
    async with sharing(place, settings):
        await place.kubelet.until(RESOURCE, allocatable=8)
        assert {daemon(settings, uuid(place, number)) for number in (0, 1)} == before


async def test_a_daemon_that_cannot_start_is_tried_in_its_own_time_and_its_reason_is_told(place: Place) -> None:
    settings = by_mps(place, "0")
    faults = settings.container_driver_root / FAULTS
    faults.write_text('{"refuse": "no permission"}')
    async with sharing(place, settings) as agent:
        await place.kubelet.until(RESOURCE, allocatable=1)
        await until_said(agent, lambda troubles: any("no permission" in str(one) for one in troubles))
        faults.write_text("{}")
        await place.kubelet.until(RESOURCE, allocatable=5)


SLICES = "nvidia.com/mig-3g.71gb"


@asynccontextmanager
async def being_cut(agent: Agent, partition: Partition) -> AsyncIterator[None]:
    """While a change of layout has a partition, as another agent's does."""
    hold = Hold(device=partition.uuid, gpus=(partition.parent,), part=partition.part)
    holder = Holder(door=Door.LAYOUT, id="layout", name="another")
    await agent.ledger.reserve(Grant(holder=holder, holds=(hold,)))
    yield
    await agent.ledger.release(holder.id)


async def test_a_mig_device_is_shared_by_a_daemon_of_its_own_with_parts_of_what_it_has(place: Place) -> None:
    faults = place.simulated.node.faults
    faults.cut(0, ["3g.71gb@0", "3g.71gb@4"])
    rule = SharingRule(strategy="mps", shares=2, devices=("0:0",), fail_requests_greater_than_one=True)
    settings = replace(by_mps(place), mig_strategy="mixed", sharing=Sharing(rules=(rule,)))
    settings.paths.state_dir.mkdir(parents=True)
    async with alone(settings.paths.state_dir / "layouts.lock"), sharing(place, settings) as agent:
        await place.kubelet.until(SLICES, allocatable=3)
        shared, whole = agent.keeper.inventory.value.partitions.values()
        assert mode(place, 0) == 3
        first = daemon(settings, shared.uuid)
        async with being_cut(agent, whole):
            await place.kubelet.until(SLICES, allocatable=2)
            with pytest.raises(KubeletError):
                await place.kubelet.until(SLICES, allocatable=0, timeout=0.5)
        await place.kubelet.until(SLICES, allocatable=3)
        assert daemon(settings, shared.uuid) == first, "what is cut beside it is none of its business"
        async with being_cut(agent, shared):
            await place.kubelet.until(SLICES, allocatable=1)
            async with asyncio.timeout(30):
                while Records(settings.paths.state_dir / "mps").all():
                    await asyncio.sleep(0.05)
        await place.kubelet.until(SLICES, allocatable=3)
        answers = [await place.kubelet.admit(f"pod-{number}", SLICES, 1) for number in range(3)]
        limits = {ids[0]: dict(answer.envs) for ids, answer in answers}
        assert limits.pop(whole.uuid) == {}
        assert limits.keys() == {f"{shared.uuid}::0", f"{shared.uuid}::1"}
        assert {one["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for one in limits.values()} == {f"0={71168 // 2}M"}
        os.kill(daemon(settings, shared.uuid), signal.SIGKILL)
        await place.kubelet.until(SLICES, allocatable=1)
        await place.kubelet.until(SLICES, allocatable=3)
        for number in range(3):
            place.kubelet.release(f"pod-{number}")
