"""Shared GPUs at the kubelet: what it lists and is given, before, while and after the way of sharing changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent.allocation.checkpoint import Checkpoint
from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.allocation.ledger import Ledger
from node_agent.config.settings import SharingRule
from node_agent.deviceplugin.holding import SOON_SECONDS, LimitDoor
from node_agent.deviceplugin.selection import Selection
from node_agent.errors import KubeletError
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kubelet.embedded import EmbeddedKubelet
from node_agent.kubelet.podresources import PodDevices
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Reason, Severity
from node_agent.topology.preferred import Policy
from tests.unit.deviceplugin.conftest import RESOURCE, World, node, served

FOUR = SharingRule(strategy="time-slicing", shares=4)
SHARED = Selection(sharing=(FOUR,))
XID = Cause(reason=Reason.XID, severity=Severity.WITHDRAWN, message="Xid 79", since=0.0, code=79)


@asynccontextmanager
async def door(
    world: World, kubelet: EmbeddedKubelet, folder: Path, every_seconds: float = 0.05
) -> AsyncIterator[Ledger]:
    """The ledger and its door for limits, which follows the kubelet's pods closely."""
    with Lane("files") as lane:
        checkpoint = Checkpoint(folder / "ledger.json")
        async with (
            PodDevices(kubelet.pod_resources_socket) as pods,
            Ledger(checkpoint=checkpoint, lane=lane, boot_id="boot") as ledger,
        ):
            await ledger.reconcile(Door.CLAIM, [])
            limits = LimitDoor(
                ledger=ledger,
                held=pods.held,
                inventory=world.inventory,
                every_seconds=every_seconds,
                admission_seconds=0.1,
            )
            world.grants, world.take_by, world.asked = ledger.grants, limits.take, limits.held
            async with kubelet.running(), running(limits.run()):
                await limits.synced.wait()
                yield ledger


@asynccontextmanager
async def at_work(
    world: World, kubelet: EmbeddedKubelet, folder: Path, selection: Selection, every_seconds: float = 0.05
) -> AsyncIterator[Ledger]:
    world.selection = Latest(selection)
    async with door(world, kubelet, folder, every_seconds) as ledger, served(world, kubelet):
        yield ledger


async def until(kubelet: EmbeddedKubelet, *healthy: str, listed: int | None = None) -> None:
    async with asyncio.timeout(30):
        while (view := kubelet.view(RESOURCE)).healthy != set(healthy) or view.capacity != (listed or len(healthy)):
            await asyncio.sleep(0.01)


def shares(gpu: int, *numbers: int) -> list[str]:
    return [f"GPU-{gpu}::{number}" for number in numbers]


async def test_each_share_is_a_device_and_each_gpu_is_named_once(
    world: World, kubelet: EmbeddedKubelet, tmp_path: Path
) -> None:
    async with at_work(world, kubelet, tmp_path, SHARED):
        await kubelet.until(RESOURCE, allocatable=32)
        ids, response = await kubelet.admit("pod", RESOURCE, 9)
    assert len(ids) == 9
    assert len({device.name for device in response.cdi_devices}) == len(response.cdi_devices) == 8


async def test_pods_have_different_shares_of_one_gpu_at_once(
    world: World, kubelet: EmbeddedKubelet, tmp_path: Path
) -> None:
    world.inventory.set(node(1))
    async with at_work(world, kubelet, tmp_path, SHARED) as ledger:
        await kubelet.until(RESOURCE, allocatable=4)
        for number in range(4):
            await kubelet.admit(f"pod-{number}", RESOURCE, 1)
        assert {holder.id for holder in ledger.holders_of(GpuUuid("GPU-0"))} == {
            f"{RESOURCE}/GPU-0::{number}" for number in range(4)
        }
        with pytest.raises(KubeletError, match="0 are free"):
            await kubelet.admit("one-too-many", RESOURCE, 1)


async def test_shares_go_with_the_health_of_their_gpu_all_together(
    world: World, kubelet: EmbeddedKubelet, tmp_path: Path
) -> None:
    async with at_work(world, kubelet, tmp_path, SHARED):
        await kubelet.until(RESOURCE, allocatable=32)
        world.health.set(HealthReport(devices={GpuUuid("GPU-2"): DeviceHealth(causes=(XID,))}))
        view = await kubelet.until(RESOURCE, allocatable=28)
        assert set(view.devices) - view.healthy == set(shares(2, 0, 1, 2, 3))
        world.health.set(HealthReport())
        await kubelet.until(RESOURCE, allocatable=32)


async def test_a_claim_takes_all_shares_of_its_gpu_and_a_share_keeps_claims_off_its_gpu(
    world: World, kubelet: EmbeddedKubelet, tmp_path: Path
) -> None:
    world.inventory.set(node(2))
    async with at_work(world, kubelet, tmp_path, SHARED) as ledger:
        await kubelet.until(RESOURCE, allocatable=8)
        holder = Holder(door=Door.CLAIM, id="uid", name="team/claim")
        await ledger.reserve(Grant(holder=holder, holds=(Hold(device="gpu-0", gpus=(GpuUuid("GPU-0"),)),)))
        await until(kubelet, *shares(1, 0, 1, 2, 3), listed=8)
        (share,), _ = await kubelet.admit("pod", RESOURCE, 1)
        assert share == "GPU-1::0"
        assert ledger.held_gpus(Door.LIMIT) == {"GPU-1"}


async def test_one_to_four_shares_while_a_pod_has_a_gpu_and_back_while_three_shares_of_one_are_in_use(
    world: World, kubelet: EmbeddedKubelet, tmp_path: Path
) -> None:
    world.inventory.set(node(2))
    async with at_work(world, kubelet, tmp_path, Selection()) as ledger:
        await kubelet.until(RESOURCE, allocatable=2)
        (whole,), _ = await kubelet.admit("first", RESOURCE, 1)
        world.selection.set(SHARED)
        await until(kubelet, "GPU-0", *shares(0, 0, 1, 2), *shares(1, 0, 1, 2, 3), listed=9)
        assert whole == "GPU-0"
        assert kubelet.view(RESOURCE).registrations == 1

        kubelet.release("first")
        await until(kubelet, *shares(0, 0, 1, 2, 3), *shares(1, 0, 1, 2, 3))
        for number in range(8):
            await kubelet.admit(f"pod-{number}", RESOURCE, 1)
        kept = {name: ids for name, (_, ids) in kubelet.held.items() if "GPU-0::" in "".join(ids)}
        for pod in set(kubelet.held) - set(list(kept)[:3]):
            kubelet.release(pod)
        rest = [share for ids in list(kept.values())[:3] for share in ids]

        world.selection.set(Selection())
        await until(kubelet, "GPU-1", *rest, listed=5)
        for pod in list(kept)[:2]:
            kubelet.release(pod)
        await until(kubelet, "GPU-1", rest[2], listed=3)
        kubelet.release(list(kept)[2])
        await until(kubelet, "GPU-0", "GPU-1")
        assert not ledger.holders_of(GpuUuid("GPU-0"))


async def test_an_agent_that_starts_with_another_way_of_sharing_finds_what_pods_have_by_the_old_one(
    world: World, kubelet: EmbeddedKubelet, tmp_path: Path
) -> None:
    world.inventory.set(node(2))
    kubelet.held = {"a": (RESOURCE, frozenset(shares(0, 1))), "b": (RESOURCE, frozenset(shares(0, 3)))}
    async with at_work(world, kubelet, tmp_path, Selection()):
        await until(kubelet, "GPU-1", *shares(0, 1, 3), listed=4)


async def test_who_has_the_whole_gpu_and_who_has_shares_of_it_are_both_found_after_a_restart(
    world: World, kubelet: EmbeddedKubelet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world.inventory.set(node(1))
    kubelet.held = {"share": (RESOURCE, frozenset(shares(0, 1))), "whole": (RESOURCE, frozenset({"GPU-0"}))}
    async with at_work(world, kubelet, tmp_path, SHARED) as ledger:
        await until(kubelet, "GPU-0", *shares(0, 0, 1, 2), listed=5)
        assert len(ledger.holders_of(GpuUuid("GPU-0"))) == 2
    assert "a pod has what another holds: end one of the two" not in caplog.messages


async def test_a_freed_share_that_is_given_out_again_before_the_list_has_changed_is_fine(
    world: World, kubelet: EmbeddedKubelet, tmp_path: Path
) -> None:
    world.inventory.set(node(1))
    kubelet.held = {"old": (RESOURCE, frozenset(shares(0, 3)))}
    async with at_work(world, kubelet, tmp_path, Selection(), every_seconds=60.0) as ledger:
        await until(kubelet, *shares(0, 3), listed=2)
        # What is new is looked at twice; the next look is a minute away.
        await asyncio.sleep(SOON_SECONDS + 0.5)
        kubelet.release("old")
        ids, _ = await kubelet.admit("new", RESOURCE, 1)
        assert ids == shares(0, 3)
        await asyncio.sleep(SOON_SECONDS + 0.5)
        assert [holder.id for holder in ledger.holders_of(GpuUuid("GPU-0"))] == [f"{RESOURCE}/GPU-0::3"]


async def test_packed_shares_fill_a_gpu_before_the_next_one(
    world: World, kubelet: EmbeddedKubelet, tmp_path: Path
) -> None:
    async with at_work(world, kubelet, tmp_path, replace(SHARED, policy=Policy.PACKED)):
        await kubelet.until(RESOURCE, allocatable=32)
        taken = [(await kubelet.admit(f"pod-{number}", RESOURCE, 1))[0][0] for number in range(5)]
    assert taken == [*shares(0, 0, 1, 2, 3), "GPU-1::0"]


async def test_distinct_shares_of_one_request_are_refused_where_too_few_gpus_are_free(
    world: World, kubelet: EmbeddedKubelet, tmp_path: Path
) -> None:
    world.inventory.set(node(2))
    async with at_work(world, kubelet, tmp_path, replace(SHARED, policy=Policy.DISTINCT)):
        await kubelet.until(RESOURCE, allocatable=8)
        ids, _ = await kubelet.admit("two", RESOURCE, 2)
        assert {share.partition("::")[0] for share in ids} == {"GPU-0", "GPU-1"}
        with pytest.raises(KubeletError, match="each on another GPU, and too few GPUs have one left"):
            await kubelet.admit("three", RESOURCE, 3)


async def test_shares_under_mps_are_offered_only_while_their_daemon_answers(
    world: World, kubelet: EmbeddedKubelet, tmp_path: Path
) -> None:
    world.inventory.set(node(2))
    mps = replace(FOUR, strategy="mps", devices=("0",))
    async with at_work(world, kubelet, tmp_path, Selection(sharing=(mps,))):
        await until(kubelet, "GPU-1", listed=5)
        world.daemons.set({GpuUuid("GPU-0"): "it is starting"})
        await asyncio.sleep(0.05)
        assert kubelet.view(RESOURCE).healthy == {"GPU-1"}
        world.daemons.set({GpuUuid("GPU-0"): None})
        await until(kubelet, "GPU-1", *shares(0, 0, 1, 2, 3))
        world.daemons.set({GpuUuid("GPU-0"): "it is dead"})
        await until(kubelet, "GPU-1", listed=5)


async def test_a_list_that_is_too_large_is_not_offered_and_the_next_one_is(
    world: World, kubelet: EmbeddedKubelet, tmp_path: Path
) -> None:
    many = Selection(sharing=(replace(FOUR, shares=20_000),))
    world.selection = Latest(many)
    async with kubelet.running(), served(world, kubelet) as plugin:
        async with asyncio.timeout(30):
            async for trouble in plugin.trouble.watch():
                if trouble is not None:
                    break
        assert f"{RESOURCE} has 160000 devices, whose list takes" in str(trouble)
        assert "the kubelet takes 4194304: offer fewer" in str(trouble)
        assert RESOURCE not in kubelet.resources.value
        world.selection.set(SHARED)
        await kubelet.until(RESOURCE, allocatable=32)
        assert plugin.trouble.value is None
        world.selection.set(many)
        await kubelet.until(RESOURCE, allocatable=0)
