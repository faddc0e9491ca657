"""From hardware events and readings to the board that everything else believes."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping

import pytest
from msgspec.structs import replace

from node_agent.errors import DeviceLost, HardwareError, NotSupported
from node_agent.hardware.provider import EventKind, GpuReadings, HardwareEvent, RecoveryAction
from node_agent.health import watcher
from node_agent.health.board import HealthBoard
from node_agent.health.chart import Chart, Course
from node_agent.health.looks import LastLooks
from node_agent.health.verdicts import Verdicts
from node_agent.health.watcher import HealthWatcher
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Cause, DeviceHealth, Reason, Severity
from node_agent.model.inventory import Inventory
from node_agent.model.links import Link, LinkGraph, pair
from node_agent.model.partition import Instance, Placement
from tests.fakes.hardware import FIT, FakeEvents, FakeReadings
from tests.unit.deviceplugin.conftest import node

A, B, C = (GpuUuid(f"GPU-{number}") for number in range(3))


class Ward:
    """A watcher over three GPUs, with everything around it."""

    def __init__(
        self,
        probe_seconds: float = 0.02,
        inventory: Inventory | None = None,
        before: Mapping[GpuUuid, Chart] | None = None,
    ) -> None:
        self.inventory: Latest[Inventory] = Latest(inventory or node(3))
        self.events, self.readings = FakeEvents(), FakeReadings()
        self.board = HealthBoard(Verdicts(probe_seconds=probe_seconds), before)
        self.looks, self.rescans = LastLooks(), 0
        self.watcher = HealthWatcher(
            inventory=self.inventory,
            events=self.events,
            readings=self.readings,
            board=self.board,
            on_change=self._rescan,
            looks=self.looks,
        )

    def _rescan(self) -> None:
        self.rescans += 1

    async def until(self, gpu: GpuUuid, *reasons: Reason) -> DeviceHealth:
        async with asyncio.timeout(30):
            async for report in self.board.report.watch():
                if {cause.reason for cause in report.of(gpu).causes} == set(reasons):
                    break
        return self.board.report.value.of(gpu)


def xid(code: int, gpu: GpuUuid | None = A) -> HardwareEvent:
    return HardwareEvent(kind=EventKind.FAULT, gpu=gpu, code=code)


@pytest.fixture
async def ward() -> AsyncIterator[Ward]:
    ward = Ward()
    async with running(ward.watcher.run()):
        yield ward


async def test_a_fatal_xid_withdraws_that_gpu_only(ward: Ward) -> None:
    ward.readings.set(A, GpuReadings(recovery_action=None))
    ward.events.happen(xid(79))

    health = await ward.until(A, Reason.XID)

    assert health.withdrawn
    assert health.causes[0].code == 79
    assert "Xid 79" in health.causes[0].message
    await ward.until(B)
    assert not ward.board.report.value.of(B).causes


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 109])
async def test_an_applications_own_fault_leaves_the_gpu_in_service(ward: Ward, code: int) -> None:
    ward.readings.set(A, GpuReadings(recovery_action=None))
    ward.readings.set(B, GpuReadings(recovery_action=None))
    ward.events.happen(xid(code), xid(79, B))

    await ward.until(B, Reason.XID)

    assert not ward.board.report.value.of(A).causes


async def test_a_gpu_comes_back_by_itself_when_no_recovery_is_due(ward: Ward) -> None:
    ward.readings.set(A, GpuReadings(recovery_action=RecoveryAction.RESET))
    ward.events.happen(xid(79))
    await ward.until(A, Reason.RECOVERY, Reason.XID)

    ward.readings.set(A, FIT)

    assert not (await ward.until(A)).withdrawn


async def test_a_changed_recovery_action_is_read_at_once() -> None:
    ward = Ward(probe_seconds=60)
    async with running(ward.watcher.run()):
        await asyncio.sleep(0.05)
        ward.readings.set(A, GpuReadings(recovery_action=RecoveryAction.RESET))
        ward.events.happen(xid(154))
        await ward.until(A, Reason.RECOVERY)


async def test_a_gpu_stays_out_while_its_probe_fails(ward: Ward) -> None:
    ward.readings.set(A, HardwareError("nvmlDeviceGetTemperature: Unknown Error"))
    ward.events.happen(xid(79))

    health = await ward.until(A, Reason.QUERY_FAILED, Reason.XID)

    assert any("Unknown Error" in cause.message for cause in health.causes)


async def test_a_driver_that_cannot_name_a_recovery_action_never_clears_an_xid(ward: Ward) -> None:
    ward.readings.set(A, GpuReadings(recovery_action=None))
    ward.events.happen(xid(79))
    await ward.until(A, Reason.XID)
    await asyncio.sleep(0.1)

    assert ward.board.report.value.of(A).withdrawn


async def test_a_storm_of_an_applications_faults_is_worth_no_look_at_the_gpu() -> None:
    ward = Ward(probe_seconds=60)
    async with running(ward.watcher.run()):
        await ward.until(C)
        looks = ward.readings.looks
        ward.events.happen(*(xid(31) for _ in range(1000)), xid(154))
        async with asyncio.timeout(30):
            while ward.readings.looks == looks:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert ward.readings.looks == looks + 3


async def test_a_lost_gpu_found_by_a_probe_is_withdrawn_and_comes_back(ward: Ward) -> None:
    ward.readings.set(B, DeviceLost("GPU is lost"))
    assert (await ward.until(B, Reason.LOST)).withdrawn

    ward.readings.set(B, FIT)
    await ward.until(B)


async def test_an_event_that_names_no_gpu_is_taken_for_all(ward: Ward) -> None:
    ward.events.happen(HardwareEvent(kind=EventKind.LOST, gpu=None))
    for gpu in (A, B, C):
        ward.readings.set(gpu, DeviceLost("GPU is lost"))
        await ward.until(gpu, Reason.LOST)
    assert ward.rescans == 1


async def test_a_board_without_events_is_unwatched_but_healthy() -> None:
    ward = Ward()
    ward.events.refusals = {A: NotSupported("no events"), B: HardwareError("Unknown Error")}
    async with running(ward.watcher.run()):
        health = await ward.until(B, Reason.EVENTS_FAILED)

    assert "Unknown Error" in health.causes[0].message
    (cause,) = ward.board.report.value.of(A).causes
    assert (cause.reason, cause.severity) == (Reason.NOT_MONITORED, Severity.NONE)


async def test_a_gpu_that_nobody_has_looked_at_is_not_fit_for_work() -> None:
    assert HealthBoard().report.value.of(A).withdrawn


async def test_a_gpu_is_looked_at_as_soon_as_it_is_there() -> None:
    ward = Ward(probe_seconds=60, inventory=Inventory())
    ward.readings.set(A, GpuReadings(row_remap_failed=True))
    async with running(ward.watcher.run()):
        await asyncio.sleep(0.05)
        ward.inventory.set(node(3))
        await ward.until(A, Reason.ROW_REMAP)
        await ward.until(B)


async def test_a_gpu_that_was_away_is_looked_at_again_before_it_is_fit_for_work(ward: Ward) -> None:
    await ward.until(C)
    ward.inventory.set(node(2, generation=2))
    await ward.until(C, Reason.NOT_PROBED)
    ward.inventory.set(node(3, generation=3))
    await ward.until(C)


async def test_listening_that_fails_from_the_start_withdraws_every_gpu_until_it_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watcher, "USELESS_SECONDS", 0.1)
    ward = Ward()
    ward.events.failure = HardwareError("event set failed")
    async with running(ward.watcher.run()):
        await ward.until(A, Reason.EVENTS_FAILED)
        await ward.until(B, Reason.EVENTS_FAILED)
        assert ward.rescans
        ward.events.failure = None
        await ward.until(A)
        await ward.until(B)


async def test_listening_that_breaks_off_once_withdraws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "USELESS_SECONDS", 0.1)
    ward = Ward()
    async with running(ward.watcher.run()):
        await asyncio.sleep(0.3)
        ward.events.happen(HardwareError("the driver was opened anew"))
        await asyncio.sleep(0.1)
        assert ward.rescans == 1
        assert not ward.board.report.value.of(A).causes


async def test_without_a_gpu_nothing_is_subscribed_to() -> None:
    ward = Ward(inventory=Inventory())
    async with running(ward.watcher.run()):
        await asyncio.sleep(0.05)
    assert ward.events.subscriptions == []


async def test_news_from_a_probe_are_worth_one_look_at_the_driver(ward: Ward) -> None:
    ward.readings.set(A, HardwareError("nvmlDeviceGetTemperature: Unknown Error"))
    await ward.until(A, Reason.QUERY_FAILED)
    await asyncio.sleep(0.1)
    assert ward.rescans == 1


async def test_an_unwatched_gpu_is_subscribed_again_until_it_is_watched() -> None:
    ward = Ward()
    ward.events.refusals = {A: HardwareError("Unknown Error"), B: DeviceLost("GPU is lost")}
    ward.readings.set(B, DeviceLost("GPU is lost"))
    async with running(ward.watcher.run()):
        await ward.until(A, Reason.EVENTS_FAILED)
        await ward.until(B, Reason.LOST)
        ward.events.refusals = {}
        ward.readings.set(B, FIT)
        await ward.until(A)
        await ward.until(B)
        assert len(ward.events.subscriptions) == 2


async def test_a_changed_inventory_is_subscribed_to_anew(ward: Ward) -> None:
    ward.inventory.set(node(2, generation=2))
    async with asyncio.timeout(30):
        while len(ward.events.subscriptions) < 2:
            await asyncio.sleep(0.02)
    assert ward.events.subscriptions == [{A, B, C}, {A, B}]


async def test_a_failing_wait_is_subscribed_again_with_pauses_not_in_a_hot_loop() -> None:
    ward = Ward()
    ward.events.failure = HardwareError("event set failed")
    async with running(ward.watcher.run()):
        await asyncio.sleep(0.8)
        assert len(ward.events.subscriptions) == 2
        ward.events.failure = None
        ward.readings.set(A, GpuReadings(recovery_action=None))
        ward.events.happen(xid(79))
        await ward.until(A, Reason.XID)

    assert ward.events.closed == 1


async def test_every_xid_is_counted_whatever_it_means(ward: Ward) -> None:
    ward.readings.set(A, GpuReadings(recovery_action=None))
    ward.events.happen(xid(31), xid(31), xid(31, B), xid(79))
    await ward.until(A, Reason.XID)
    assert ward.board.counts == {(A, 31): 2, (B, 31): 1, (A, 79): 1}


async def test_a_gpu_over_which_the_driver_hangs_is_out_and_then_all_are(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "HANG_SECONDS", 0.1)
    monkeypatch.setattr(watcher, "BLIND_SECONDS", 0.3)
    await ward.until(C)
    ward.readings.hanging = B
    health = await ward.until(B, Reason.QUERY_FAILED)
    assert "has not answered" in health.causes[0].message
    assert not ward.board.report.value.of(A).causes

    for gpu in (A, C):
        await ward.until(gpu, Reason.QUERY_FAILED)

    ward.readings.hanging = None
    for gpu in (A, B, C):
        await ward.until(gpu)


async def test_a_watch_that_fails_takes_every_gpu_out() -> None:
    ward = Ward()
    ward.events.happen(RuntimeError("a mistake of our own"))
    with pytest.raises(ExceptionGroup):
        await ward.watcher.run()
    assert [ward.board.report.value.of(gpu).causes[-1].reason for gpu in (A, B, C)] == [Reason.EVENTS_FAILED] * 3


async def test_a_fault_that_is_remembered_is_there_from_the_first_moment() -> None:
    cause = Cause(reason=Reason.XID, severity=Severity.WITHDRAWN, message="Xid 79", since=5.0, code=79)
    ward = Ward(before={A: Chart(causes=(cause,), courses={cause.key: Course(boot="")})})
    ward.readings.set(A, GpuReadings(recovery_action=None))
    async with running(ward.watcher.run()):
        await ward.until(B)
        health = await ward.until(A, Reason.XID)
    assert health.causes[0].since == 5.0


async def test_a_storm_of_faults_is_worth_a_few_looks_a_second(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "REST_SECONDS", 0.1)
    await ward.until(C)
    looks, began = ward.readings.looks, time.monotonic()
    for _ in range(20):
        ward.events.happen(xid(8))
        await asyncio.sleep(0.02)
    rests = (time.monotonic() - began) / 0.1
    assert ward.readings.looks - looks <= 3 * (2 + rests)


async def test_an_nvlink_fault_is_confined_to_the_links_of_the_gpu() -> None:
    links = LinkGraph(links={pair(A, B): Link(nvlinks=4), pair(A, C): Link()})
    ward = Ward(inventory=replace(node(3), links=links))
    ward.readings.set(A, GpuReadings(recovery_action=None))
    async with running(ward.watcher.run()):
        await ward.until(C)
        ward.events.happen(xid(74))
        await ward.until(A, Reason.XID)
    report = ward.board.report.value
    assert (report.of(A).withdrawn, report.of_group((A, B)).withdrawn, report.of_group((A, C)).withdrawn) == (
        False,
        True,
        False,
    )


async def test_what_was_wrong_with_an_instance_ends_with_it_whoever_has_removed_it() -> None:
    """Its number is used again, and older drivers never say that an Xid is over."""
    ward = Ward()

    def cut(*starts: int) -> Inventory:
        found = tuple(
            Instance(gpu=A, id=number, profile="3g.71gb", placement=Placement(start=start, length=4), slices=3)
            for number, start in enumerate(starts)
        )
        return replace(node(3), generation=ward.inventory.value.generation + 1, instances={A: found})

    def sick() -> set[int | None]:
        causes = ward.board.report.value.known_of(A).causes
        return {cause.instance.id for cause in causes if cause.instance is not None}

    async def seen(*expected: int) -> None:
        async with asyncio.timeout(30):
            async for _ in ward.board.report.watch():
                if sick() == set(expected):
                    return

    ward.readings.set(A, GpuReadings(recovery_action=None))
    ward.inventory.set(cut(0, 4))
    async with running(ward.watcher.run()):
        ward.events.happen(*(replace(xid(95), instance=number, compute_instance=0) for number in (0, 1)))
        await seen(0, 1)
        ward.inventory.set(replace(cut(), unlisted={A: "it does not tell"}))
        await asyncio.sleep(0.05)
        ward.inventory.set(cut(0, 4))
        await asyncio.sleep(0.05)
        assert sick() == {0, 1}, "who does not tell has removed nothing"
        ward.inventory.set(cut(0, 0))
        await seen(0)
        ward.inventory.set(cut())
        await seen()
