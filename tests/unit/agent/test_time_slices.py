"""The keeper of intervals: when it sets them, when it leaves them, and the program that it finds for that."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent.agent import time_slices
from node_agent.agent.time_slices import NVML, TimeSliceKeeper, find_smi
from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.cdi.roots import DriverRoots
from node_agent.config.settings import SharingRule
from node_agent.deviceplugin.selection import Selection
from node_agent.dra.time_slice_step import STEP, time_slices_of
from node_agent.errors import HardwareError
from node_agent.hardware.simulated import SimulatedNode, load_profile
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.sharing.shares import Interval
from node_agent.sharing.time_slices import IntervalFile, TimeSlices
from tests.fakes.builders import gpu, inventory, uuid

A, B = uuid(0), uuid(1)
SHORT = Selection(sharing=(SharingRule(strategy="time-slicing", shares=4, devices=("0",), time_slice="Short"),))
TWO = inventory([gpu(0), gpu(1)])


@dataclass
class World:
    """What the keeper follows, and what it has set."""

    selection: Latest[Selection] = field(default_factory=lambda: Latest(Selection()))
    inventory: Latest[Inventory] = field(default_factory=lambda: Latest(TWO))
    grants: Latest[Mapping[str, Grant]] = field(default_factory=lambda: Latest({}))
    calls: list[tuple[GpuUuid, Interval]] = field(default_factory=list)
    failure: Exception | None = None

    async def set_interval(self, one: GpuUuid, interval: Interval) -> None:
        self.calls.append((one, interval))
        if self.failure is not None:
            raise self.failure

    @asynccontextmanager
    async def at_work(self, folder: Path) -> AsyncIterator[TimeSliceKeeper]:
        with Lane("files") as lane:
            slices = TimeSlices(set_interval=self.set_interval, file=IntervalFile(folder / "slices.json"), lane=lane)
            keeper = TimeSliceKeeper(
                slices=slices, selection=self.selection, inventory=self.inventory, grants=self.grants
            )
            async with running(keeper.run()):
                yield keeper

    async def called(self, *calls: tuple[GpuUuid, Interval]) -> None:
        """Wait for these calls, and see that there are no more."""
        async with asyncio.timeout(30):
            while len(self.calls) < len(calls):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert self.calls == list(calls)


def claimed(*gpus: GpuUuid) -> dict[str, Grant]:
    hold = Hold(device="gpu", gpus=gpus, mode=time_slices_of(Interval.LONG))
    return {"uid": Grant(holder=Holder(door=Door.CLAIM, id="uid", name="a/b"), holds=(hold,), steps={STEP: {}})}


async def test_an_interval_follows_the_configuration(tmp_path: Path) -> None:
    world = World()
    async with world.at_work(tmp_path):
        await world.called()
        world.selection.set(SHORT)
        await world.called((A, Interval.SHORT))
        world.selection.set(Selection())
        await world.called((A, Interval.SHORT), (A, Interval.DEFAULT))


async def test_nothing_is_set_before_the_gpus_were_looked_at_nor_while_the_driver_is_away(tmp_path: Path) -> None:
    world = World(selection=Latest(SHORT), inventory=Latest(Inventory()))
    async with world.at_work(tmp_path):
        await world.called()
        world.inventory.set(Inventory(generation=1, problem="the driver is not loaded"))
        await world.called()
        world.inventory.set(replace(TWO, generation=2))
        await world.called((A, Interval.SHORT))


async def test_what_a_claim_has_set_is_left_alone_until_it_is_given_back(tmp_path: Path) -> None:
    world = World(grants=Latest(claimed(A)))
    async with world.at_work(tmp_path):
        world.selection.set(SHORT)
        await world.called()
        world.grants.set(claimed(B))
        await world.called((A, Interval.SHORT))


async def test_what_failed_is_tried_again_and_what_is_set_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_slices, "RETRY_SECONDS", 0.05)
    world = World(selection=Latest(SHORT), failure=HardwareError("busy"))
    async with world.at_work(tmp_path) as keeper:
        async with asyncio.timeout(30):
            while len(world.calls) < 3:
                await asyncio.sleep(0.01)
        assert keeper.slices.troubles.value == {A: "busy"}
        world.failure = None
        async with asyncio.timeout(30):
            while keeper.slices.troubles.value:
                await asyncio.sleep(0.01)
        count = len(world.calls)
        await asyncio.sleep(0.2)
        assert len(world.calls) == count


def test_the_program_of_a_driver_with_its_own_root_gets_that_drivers_nvml_and_nothing_else(tmp_path: Path) -> None:
    root, folder = tmp_path / "driver", tmp_path / "nvml"
    SimulatedNode(load_profile("l4-2")).write_tree(root, devices="placeholder")
    for _ in range(2):
        found = find_smi(DriverRoots(driver=root), folder)
        assert found is not None
        assert (found.path, found.library_folder) == (root / "usr/bin/nvidia-smi", folder)
        assert [path.name for path in folder.iterdir()] == [NVML]
        assert (folder / NVML).resolve().is_relative_to(root)


def test_a_driver_without_the_program_has_none(tmp_path: Path) -> None:
    assert find_smi(DriverRoots(driver=tmp_path), tmp_path / "nvml") is None
