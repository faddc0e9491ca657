"""From hardware events and readings to the board that everything else believes."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from node_agent.errors import DeviceLost, HardwareError, NotSupported
from node_agent.hardware.provider import EventKind, GpuReadings, HardwareEvent, RecoveryAction
from node_agent.health import verdicts, watcher
from node_agent.health.board import HealthBoard
from node_agent.health.verdicts import Policy
from node_agent.health.watcher import HealthWatcher
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import HEALTHY, Cause, DeviceHealth, Reason, Severity
from node_agent.model.inventory import Inventory
from tests.fakes.hardware import FIT, FakeEvents, FakeReadings
from tests.unit.deviceplugin.conftest import node

A, B, C = (GpuUuid(f"GPU-{number}") for number in range(3))


class Ward:
    """A watcher over three GPUs, with everything around it."""

    def __init__(
        self, settle_seconds: float = 0.0, probe_seconds: float = 0.02, inventory: Inventory | None = None
    ) -> None:
        self.inventory: Latest[Inventory] = Latest(inventory or node(3))
        self.events, self.readings, self.board = FakeEvents(), FakeReadings(), HealthBoard()
        self.rescans = 0
        self.watcher = HealthWatcher(
            inventory=self.inventory,
            events=self.events,
            readings=self.readings,
            board=self.board,
            policy=Policy(),
            on_change=self._rescan,
            probe_seconds=probe_seconds,
            settle_seconds=settle_seconds,
        )

    def _rescan(self) -> None:
        self.rescans += 1

    async def until(self, gpu: GpuUuid, *reasons: Reason) -> DeviceHealth:
        async with asyncio.timeout(5):
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


async def test_an_xid_is_not_cleared_before_the_driver_has_made_up_its_mind() -> None:
    ward = Ward(settle_seconds=60)
    async with running(ward.watcher.run()):
        ward.events.happen(xid(79))
        await ward.until(A, Reason.XID)
        await asyncio.sleep(0.1)

    assert ward.board.report.value.of(A).withdrawn


@pytest.mark.parametrize("now", [106.0, 99.0, -3600.0, 1e9])
def test_a_clock_that_is_set_keeps_no_gpu_out(now: float) -> None:
    cause = verdicts.of_event(xid(79), Policy(), now=100.0)
    assert cause is not None
    assert verdicts.cleared_by(cause, FIT, now=now, settle_seconds=5.0)
    assert not verdicts.cleared_by(cause, FIT, now=104.0, settle_seconds=5.0)


async def test_a_storm_of_an_applications_faults_is_worth_no_look_at_the_gpu() -> None:
    ward = Ward(probe_seconds=60)
    async with running(ward.watcher.run()):
        await ward.until(C)
        looks = ward.readings.looks
        ward.events.happen(*(xid(31) for _ in range(1000)), xid(154))
        async with asyncio.timeout(5):
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
    async with asyncio.timeout(5):
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


@pytest.mark.parametrize(
    ("readings", "reason", "severity"),
    [
        (GpuReadings(recovery_action=RecoveryAction.REBOOT), Reason.RECOVERY, Severity.WITHDRAWN),
        (GpuReadings(row_remap_failed=True), Reason.ROW_REMAP, Severity.WITHDRAWN),
        (GpuReadings(row_remap_pending=True), Reason.RESET_NEEDED, Severity.DEGRADED),
        (GpuReadings(uncorrected_ecc_errors=1), Reason.ECC, Severity.WITHDRAWN),
        (GpuReadings(failed={"uncorrected_ecc_errors": "Unknown Error"}), Reason.QUERY_FAILED, Severity.WITHDRAWN),
    ],
)
def test_readings_that_tell_of_trouble_open_its_cause(
    readings: GpuReadings, reason: Reason, severity: Severity
) -> None:
    (cause,) = verdicts.of_probe(readings, now=7.0)
    assert (cause.reason, cause.severity, cause.since) == (reason, severity, 7.0)


@pytest.mark.parametrize(
    "outcome",
    [
        FIT,
        GpuReadings(),
        GpuReadings(uncorrected_ecc_errors=0),
        GpuReadings(failed={"temperature": "Unknown Error"}),
        NotSupported("none"),
    ],
)
def test_what_cannot_be_read_is_no_trouble(outcome: GpuReadings | HardwareError) -> None:
    assert verdicts.of_probe(outcome, now=0.0) == ()


def test_a_cause_seen_again_keeps_its_time_and_takes_the_new_message() -> None:
    board = HealthBoard()
    for since, message in ((1.0, "first"), (2.0, "second")):
        board.open(A, Cause(reason=Reason.ECC, severity=Severity.WITHDRAWN, message=message, since=since))
    *_, cause = board.report.value.of(A).causes
    assert (cause.reason, cause.since, cause.message) == (Reason.ECC, 1.0, "second")


def test_a_device_is_as_bad_as_its_worst_cause_and_healthy_when_the_last_is_closed() -> None:
    board = HealthBoard()
    board.close(A, lambda cause: cause.reason is Reason.NOT_PROBED)
    board.open(A, Cause(reason=Reason.RESET_NEEDED, severity=Severity.DEGRADED, message="", since=0))
    assert not board.report.value.of(A).withdrawn
    board.open(A, Cause(reason=Reason.LOST, severity=Severity.WITHDRAWN, message="", since=0))
    assert board.report.value.of(A).withdrawn
    board.close(A, lambda cause: cause.reason is Reason.LOST)
    assert board.report.value.of(A).severity is Severity.DEGRADED
    board.close(A, lambda _: True)
    assert board.report.value.of(A) == HEALTHY


async def test_every_xid_is_counted_whatever_it_means(ward: Ward) -> None:
    ward.readings.set(A, GpuReadings(recovery_action=None))
    ward.events.happen(xid(31), xid(31), xid(31, B), xid(79))
    await ward.until(A, Reason.XID)
    assert ward.board.counts == {(A, 31): 2, (B, 31): 1, (A, 79): 1}


@pytest.mark.parametrize(
    ("reason", "code", "left"),
    [
        (None, None, []),
        (Reason.XID, None, [Reason.ECC]),
        (Reason.XID, 48, [Reason.XID, Reason.ECC]),
        (Reason.ECC, None, [Reason.XID, Reason.XID]),
        (Reason.LOST, None, [Reason.XID, Reason.XID, Reason.ECC]),
    ],
)
def test_an_operator_clears_what_he_names_and_is_told_what_that_was(
    reason: Reason | None, code: int | None, left: list[Reason]
) -> None:
    board = HealthBoard()
    board.close(A, lambda _: True)
    for number in (79, 48, None):
        kind = Reason.ECC if number is None else Reason.XID
        board.open(A, Cause(reason=kind, severity=Severity.WITHDRAWN, message="", since=0, code=number))
    before = board.report.value.of(A).causes

    cleared = board.clear(A, reason, code)

    after = board.report.value.of(A).causes
    assert [cause.reason for cause in after] == left
    assert set(cleared) == set(before) - set(after)
