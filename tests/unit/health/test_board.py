"""The report that all others believe: opened, closed, cleared, counted, and what of it is to be remembered."""

import pytest
from msgspec.structs import replace

from node_agent.errors import HardwareError
from node_agent.hardware.provider import GpuReadings
from node_agent.health.board import FORGET_SECONDS, HealthBoard
from node_agent.health.chart import Chart
from node_agent.health.findings import Finding
from node_agent.health.verdicts import LOST, Verdicts
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import HEALTHY, Instance, Reason, Severity
from tests.fakes.hardware import FIT

A, B = GpuUuid("GPU-A"), GpuUuid("GPU-B")
ECC, PENDING = (
    Finding(reason=Reason.ECC, message="2 errors"),
    Finding(reason=Reason.RESET_NEEDED, message="a row waits"),
)


def xid(code: int) -> Finding:
    return Finding(reason=Reason.XID, message=f"Xid {code}", code=code)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> HealthBoard:
    """Of a GPU that was looked at and found fit."""
    board = HealthBoard(clock=clock)
    board.probed(A, FIT)
    return board


def reasons(board: HealthBoard, gpu: GpuUuid = A) -> list[str]:
    return [cause.reason for cause in board.report.value.known_of(gpu).causes]


def test_a_gpu_that_nobody_has_looked_at_is_not_fit_for_work() -> None:
    assert HealthBoard().report.value.of(A).withdrawn


def test_a_cause_seen_again_keeps_its_time_and_takes_the_new_message(board: HealthBoard, clock: Clock) -> None:
    board.open(A, ECC)
    clock.now = 200.0
    board.open(A, Finding(reason=Reason.ECC, message="3 errors"))
    (cause,) = board.report.value.of(A).causes
    assert (cause.reason, cause.since, cause.message) == (Reason.ECC, 100.0, "3 errors")


def test_a_device_is_as_bad_as_its_worst_cause_and_healthy_when_the_last_is_closed(board: HealthBoard) -> None:
    board.open(A, PENDING)
    assert not board.report.value.of(A).withdrawn
    board.open(A, Finding(reason=Reason.MPS, message="died"))
    assert board.report.value.of(A).withdrawn
    board.close(A, Reason.MPS)
    assert board.report.value.of(A).severity is Severity.DEGRADED
    board.probed(A, FIT)
    assert board.report.value.of(A) == HEALTHY


def test_a_probe_says_whether_it_found_anything_new(board: HealthBoard) -> None:
    assert board.probed(A, GpuReadings(row_remap_pending=True))
    assert not board.probed(A, GpuReadings(row_remap_pending=True))
    assert not board.probed(A, FIT)
    assert board.probed(A, HardwareError("no answer"))


def test_a_fact_about_one_gpu_leaves_the_others_alone(board: HealthBoard) -> None:
    board.probed(B, FIT)
    board.open(A, LOST)
    assert reasons(board, B) == []


@pytest.mark.parametrize(
    ("reason", "code", "left"),
    [
        (None, None, []),
        (Reason.XID, None, [Reason.ECC]),
        (Reason.XID, 48, [Reason.XID, Reason.ECC]),
        (None, 48, [Reason.XID, Reason.ECC]),
        (Reason.ECC, None, [Reason.XID, Reason.XID]),
        (Reason.LOST, None, [Reason.XID, Reason.XID, Reason.ECC]),
    ],
)
def test_an_operator_clears_what_he_names_and_is_told_what_that_was(
    board: HealthBoard, reason: Reason | None, code: int | None, left: list[Reason]
) -> None:
    for finding in (xid(79), xid(48), ECC):
        board.open(A, finding)
    before = board.report.value.of(A).causes

    cleared = board.clear(A, reason, code)

    assert reasons(board) == left
    assert set(cleared) == set(before) - set(board.report.value.of(A).causes)


def test_clearing_a_gpu_that_nobody_knows_makes_it_known_to_nobody(board: HealthBoard) -> None:
    assert board.clear(B, Reason.ECC) == ()
    assert B not in board.report.value.devices


def test_every_xid_is_counted_by_gpu_and_number(board: HealthBoard) -> None:
    for gpu, code in ((A, 31), (B, 31), (A, 31), (A, 79)):
        board.count(gpu, code)
    assert board.counts == {(A, 31): 2, (A, 79): 1, (B, 31): 1}
    assert reasons(board) == []


def test_a_driver_that_makes_numbers_up_does_not_fill_the_memory(board: HealthBoard) -> None:
    for code in range(10_000):
        board.count(A, code)
    board.count(A, 0)
    assert len(board.counts) < 1000
    assert board.counts[A, 0] == 2


def test_a_gpu_that_was_away_has_to_be_looked_at_again(board: HealthBoard) -> None:
    board.open(A, xid(79))
    board.present([])
    assert reasons(board) == [Reason.XID, Reason.NOT_PROBED]
    board.present([A])
    assert reasons(board) == [Reason.XID, Reason.NOT_PROBED]


def test_a_gpu_that_stays_away_is_forgotten_with_all_that_was_known_of_it(board: HealthBoard, clock: Clock) -> None:
    board.open(A, xid(79))
    board.count(A, 79)
    board.present([])
    clock.now += FORGET_SECONDS - 1
    board.present([])
    assert board.counts == {(A, 79): 1}
    clock.now += 2
    board.present([])
    assert A not in board.report.value.devices
    assert not board.counts and not board.record.value


def test_an_operator_who_clears_a_gpu_that_is_gone_has_it_forgotten(board: HealthBoard) -> None:
    board.open(A, ECC)
    board.present(())
    assert [cause.reason for cause in board.clear(A, Reason.ECC)] == [Reason.ECC]
    assert A in board.report.value.devices
    assert [cause.reason for cause in board.clear(A)] == [Reason.NOT_PROBED]
    assert (dict(board.report.value.devices), dict(board.record.value)) == ({}, {})


def test_a_gpu_that_comes_back_in_time_is_not_forgotten(board: HealthBoard, clock: Clock) -> None:
    board.open(A, xid(79))
    for _ in range(3):
        board.present([])
        clock.now += FORGET_SECONDS - 1
        board.present([A])
    assert Reason.XID in reasons(board)


def test_the_record_changes_only_with_what_a_later_agent_has_to_know(board: HealthBoard, clock: Clock) -> None:
    board.open(A, ECC)
    before = board.record.value
    clock.now += 5
    board.probed(A, GpuReadings(uncorrected_ecc_errors=2))
    board.open(A, ECC)
    board.open(A, Finding(reason=Reason.EVENTS_FAILED, message="no events"))
    assert board.record.value is before
    board.count(A, 31)
    assert board.record.value is not before


def test_a_later_agent_knows_what_is_open_and_counts_on(board: HealthBoard, clock: Clock) -> None:
    board.open(A, xid(79))
    board.count(A, 79)
    clock.now += 1000
    later = HealthBoard(Verdicts(), board.record.value, clock)
    assert reasons(later) == [Reason.XID, Reason.NOT_PROBED]
    assert later.report.value.of(A).causes[0].since == 100.0
    later.count(A, 79)
    assert later.counts == {(A, 79): 2}


def test_what_is_remembered_of_one_gpu_says_nothing_of_the_others() -> None:
    board = HealthBoard(before={A: Chart(counts={31: 2})})
    assert reasons(board) == reasons(board, B) == [Reason.NOT_PROBED]


def test_what_was_wrong_with_an_instance_goes_with_it_and_nothing_else_does(board: HealthBoard) -> None:
    for instance in (Instance(id=1), Instance(id=1, compute=0), Instance(id=2), None):
        board.open(A, replace(xid(95), instance=instance))
    board.removed(A, 1)
    assert [cause.instance for cause in board.report.value.known_of(A).causes] == [Instance(id=2), None]
    assert board.record.value[A].causes == board.report.value.known_of(A).causes
