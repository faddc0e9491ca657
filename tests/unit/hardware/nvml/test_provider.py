"""What the provider adds to the blocking functions: threads, and an event loop that never waits for the driver."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node_agent.errors import DeviceLost, DriverUnavailable, HardwareError
from node_agent.hardware.nvml import events as nvml_events
from node_agent.hardware.nvml import provider as nvml_provider
from node_agent.hardware.nvml.provider import NvmlProvider
from node_agent.hardware.provider import EventKind, HardwareEvent
from node_agent.hardware.simulated import SimulatedNode
from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import DriverInfo
from node_agent.model.partition import Piece


@pytest.fixture
async def uuids(nvml: NvmlProvider) -> list[GpuUuid]:
    return [gpu.uuid for gpu in (await nvml.discovery.scan()).gpus]


@pytest.fixture
async def freed(node: SimulatedNode) -> AsyncIterator[None]:
    """Lets go of hanging calls at the end."""
    yield
    node.faults.clear()


async def until_busy(nvml: NvmlProvider, call: str) -> None:
    async with asyncio.timeout(30):
        while nvml.discovery.busy is None or nvml.discovery.busy.call != call:
            await asyncio.sleep(0.01)


async def test_everything_may_be_asked_from_the_event_loop(nvml: NvmlProvider, uuids: list[GpuUuid]) -> None:
    assert len(uuids) == 8
    assert len((await nvml.topology.links(uuids)).links) == 28
    assert (await nvml.readings.read(uuids[0])).temperature == 29
    offered = await nvml.partitioning.profiles(uuids[0])
    await nvml.partitioning.set_mode(uuids[0], True)
    piece = Piece(profile=offered[0].name, placement=offered[0].placements[0])
    made = await nvml.partitioning.create(uuids[0], piece)
    assert await nvml.partitioning.instances(uuids[0]) == (made,)
    await nvml.partitioning.destroy(uuids[0], piece)
    assert await nvml.partitioning.instances(uuids[0]) == ()


async def test_the_event_loop_goes_on_while_a_call_hangs(
    nvml: NvmlProvider, uuids: list[GpuUuid], node: SimulatedNode, freed: None
) -> None:
    node.faults.hang("nvmlDeviceGetMinorNumber", seconds=120)
    scan = asyncio.create_task(nvml.discovery.scan())
    await until_busy(nvml, "nvmlDeviceGetMinorNumber")
    began = time.monotonic()
    await asyncio.sleep(0.05)
    assert time.monotonic() - began < 20
    assert nvml.discovery.busy is not None
    assert nvml.discovery.busy.seconds >= 0.05
    node.faults.clear()
    assert len((await scan).gpus) == 8
    assert nvml.discovery.busy is None


async def test_events_arrive_while_a_call_hangs(
    nvml: NvmlProvider, uuids: list[GpuUuid], node: SimulatedNode, freed: None
) -> None:
    await nvml.events.subscribe(uuids)
    node.faults.hang("nvmlDeviceGetTemperature", seconds=120)
    reading = asyncio.create_task(nvml.readings.read(uuids[0]))
    await until_busy(nvml, "nvmlDeviceGetTemperature")
    node.faults.xid(6, 119)
    async with asyncio.timeout(30):
        assert await nvml.events.next() == HardwareEvent(kind=EventKind.FAULT, gpu=uuids[6], code=119)
    node.faults.clear()
    await reading


async def test_the_call_that_hangs_longest_is_the_one_that_shows(
    nvml: NvmlProvider, uuids: list[GpuUuid], node: SimulatedNode, freed: None
) -> None:
    await nvml.events.subscribe(uuids)
    node.faults.hang("nvmlDeviceGetTemperature", seconds=120)
    reading = asyncio.create_task(nvml.readings.read(uuids[0]))
    await until_busy(nvml, "nvmlDeviceGetTemperature")
    waiting = asyncio.create_task(nvml.events.next())
    await asyncio.sleep(0.05)
    assert nvml.discovery.busy is not None
    assert nvml.discovery.busy.call == "nvmlDeviceGetTemperature"
    waiting.cancel()
    node.faults.clear()
    await reading


async def test_after_an_event_a_gpu_is_asked_for_everything(
    nvml: NvmlProvider, uuids: list[GpuUuid], node: SimulatedNode
) -> None:
    await nvml.readings.read(uuids[0])
    await nvml.events.subscribe(uuids)
    node.faults.link(0, 4, up=False)
    assert (before := (await nvml.readings.read(uuids[0])).links) is not None
    node.faults.xid(5, 74)
    async with asyncio.timeout(30):
        await nvml.events.next()

    assert (after := (await nvml.readings.read(uuids[0])).links) is not None
    assert (list(before.down), list(after.down)) == ([], [4])


async def test_waiting_without_a_subscription_is_an_error(nvml: NvmlProvider) -> None:
    with pytest.raises(HardwareError, match="nobody has subscribed"):
        await nvml.events.next()


async def test_an_event_that_comes_to_a_cancelled_wait_is_kept_for_the_next(
    nvml: NvmlProvider, uuids: list[GpuUuid], node: SimulatedNode
) -> None:
    await nvml.events.subscribe(uuids)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(nvml.events.next(), 0.05)
    node.faults.xid(0, 79)
    async with asyncio.timeout(30):
        assert (await nvml.events.next()).code == 79


async def test_an_event_that_comes_to_a_cancelled_wait_is_told_at_once_to_who_waits_by_now(
    nvml: NvmlProvider, uuids: list[GpuUuid], node: SimulatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_events, "WAIT_SECONDS", 20.0)
    await nvml.events.subscribe(uuids)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(nvml.events.next(), 0.05)
    waiting = asyncio.create_task(nvml.events.next())
    await asyncio.sleep(0.05)
    node.faults.xid(0, 79)
    async with asyncio.timeout(10):
        assert (await waiting).code == 79


async def test_what_the_old_subscription_still_held_is_told_after_a_new_one(
    nvml: NvmlProvider, uuids: list[GpuUuid], node: SimulatedNode
) -> None:
    await nvml.events.subscribe(uuids)
    node.faults.xid(0, 79)
    await nvml.events.subscribe(uuids[1:])
    async with asyncio.timeout(30):
        assert (await nvml.events.next()).gpu == uuids[0]


async def test_a_new_subscription_replaces_the_last(
    nvml: NvmlProvider, uuids: list[GpuUuid], node: SimulatedNode
) -> None:
    await nvml.events.subscribe(uuids)
    await nvml.events.subscribe(uuids[1:])
    node.faults.xid(0, 79)
    node.faults.xid(1, 31)
    async with asyncio.timeout(30):
        assert (await nvml.events.next()).gpu == uuids[1]


async def test_a_subscription_that_fails_leaves_the_last_one_in_force(
    nvml: NvmlProvider, uuids: list[GpuUuid], node: SimulatedNode
) -> None:
    await nvml.events.subscribe(uuids)
    node.faults.fail("nvmlEventSetCreate", "UNKNOWN", times=1)
    with pytest.raises(HardwareError):
        await nvml.events.subscribe(uuids[1:])
    node.faults.xid(0, 79)
    async with asyncio.timeout(30):
        assert (await nvml.events.next()).gpu == uuids[0]


async def test_a_lost_gpu_is_told_and_the_others_go_on(
    nvml: NvmlProvider, uuids: list[GpuUuid], node: SimulatedNode
) -> None:
    await nvml.events.subscribe(uuids)
    node.faults.lose(3)
    async with asyncio.timeout(30):
        assert await nvml.events.next() == HardwareEvent(kind=EventKind.LOST, gpu=uuids[3])
        node.faults.xid(4, 31)
        assert await nvml.events.next() == HardwareEvent(kind=EventKind.FAULT, gpu=uuids[4], code=31)
    with pytest.raises(DeviceLost):
        await nvml.readings.read(uuids[3])


async def test_a_driver_reloaded_underneath_ends_the_subscription_and_takes_a_new_one(
    nvml: NvmlProvider, uuids: list[GpuUuid], node: SimulatedNode
) -> None:
    await nvml.events.subscribe(uuids)
    node.faults.driver("loaded", version="590.48.01")
    with pytest.raises(HardwareError):
        await asyncio.wait_for(nvml.events.next(), 5)
    with pytest.raises(DriverUnavailable):
        await nvml.discovery.scan()
    assert (await nvml.discovery.scan()).driver == DriverInfo(version="590.48.01", cuda="13.0", library="13.590.48.01")
    assert await nvml.events.subscribe(uuids) == {}
    node.faults.xid(2, 79)
    async with asyncio.timeout(30):
        assert (await nvml.events.next()).gpu == uuids[2]


async def test_opening_the_library_anew_waits_for_the_wait_for_events(
    nvml: NvmlProvider, uuids: list[GpuUuid], node: SimulatedNode
) -> None:
    await nvml.events.subscribe(uuids)
    waiting = asyncio.create_task(nvml.events.next())
    await until_busy(nvml, "nvmlEventSetWait_v2")
    node.faults.fail("nvmlDeviceGetCount_v2", "UNINITIALIZED", times=1)
    with pytest.raises(DriverUnavailable):
        await nvml.discovery.scan()
    assert len((await nvml.discovery.scan()).gpus) == 8
    with pytest.raises(HardwareError, match="subscribe again"):
        await asyncio.wait_for(waiting, 5)


async def test_closing_without_a_subscription_is_no_trouble(nvml: NvmlProvider) -> None:
    await nvml.events.close()
    await nvml.events.close()


async def test_a_provider_shuts_the_library_down_at_its_end(node: SimulatedNode, tmp_path: Path) -> None:
    async with NvmlProvider(sysfs=tmp_path) as provider:
        found = await provider.discovery.scan()
        await provider.events.subscribe([gpu.uuid for gpu in found.gpus])
    driver = node.faults._driver
    assert driver._initialised == 0
    assert driver.event_sets == {}


async def test_a_provider_that_was_never_asked_ends_as_well(node: SimulatedNode, tmp_path: Path) -> None:
    async with NvmlProvider(sysfs=tmp_path):
        pass
    assert node.faults._driver._initialised == 0


async def test_a_hanging_call_does_not_hold_up_the_end(
    node: SimulatedNode,
    tmp_path: Path,
    freed: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(nvml_provider, "_END_SECONDS", 0.1)
    began = time.monotonic()
    async with NvmlProvider(sysfs=tmp_path) as provider:
        node.faults.hang("nvmlInitWithFlags", seconds=120)
        scan = asyncio.create_task(provider.discovery.scan())
        await until_busy(provider, "nvmlInit")
    assert time.monotonic() - began < 20
    assert "NVML is not shut down: a call hangs" in caplog.messages
    node.faults.clear()
    await asyncio.wait([scan])
