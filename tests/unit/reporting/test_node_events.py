"""Which Events come of which change of health, and that no storm of changes becomes one of writes."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.model.health import Cause, Instance, Reason, Severity
from node_agent.model.inventory import Inventory
from node_agent.reporting.node_events import (
    FORGET_SECONDS,
    LONGEST_NOTE,
    MOST_ENTRIES,
    Notice,
    Outbox,
    Told,
    event,
    series,
)
from tests.fakes.builders import uuid
from tests.fakes.health import NOT_PROBED, Ward, remap, xid

Happens = Callable[[Ward], None]

EPOCH = 1795996800.0
"""The time of day at which the times of what waits to be written begin."""


@pytest.fixture
def ward() -> Ward:
    return Ward()


class Teller:
    """What is told of a ward, as reason and type."""

    def __init__(self, ward: Ward, started: float = 0.0) -> None:
        self.ward, self.told = ward, Told(started)

    def notices(self) -> list[Notice]:
        return list(self.told.notices(self.ward.view.document))

    def news(self) -> list[tuple[str, str]]:
        return [(notice.type, notice.reason) for notice in self.notices()]


@pytest.fixture
def teller(ward: Ward) -> Teller:
    """Somebody who has been told that all is well."""
    teller = Teller(ward)
    assert teller.notices() == []
    return teller


@pytest.mark.parametrize(
    ("severity", "reason"),
    [(Severity.DEGRADED, "GPUDegraded"), (Severity.WITHDRAWN, "GPUWithdrawn"), (Severity.EVICTED, "GPUEvicted")],
)
def test_a_cause_that_opens_is_told_once_with_all_that_is_known(
    ward: Ward, teller: Teller, severity: Severity, reason: str
) -> None:
    ward.ail(1, xid(79, severity))
    (notice,) = teller.notices()
    assert (notice.type, notice.reason) == ("Warning", reason)
    assert notice.note == f"gpu-1 ({uuid(1)}): xid 79: Xid 79 (back when the driver asks for no recovery)"
    assert teller.notices() == []


def test_a_cause_that_only_tells_is_no_event(ward: Ward, teller: Teller) -> None:
    ward.ail(1, xid(13, Severity.NONE))
    assert teller.notices() == []


def test_each_of_several_causes_is_told_and_the_return_is_told_once(ward: Ward, teller: Teller) -> None:
    ward.ail(1, xid(79), xid(48), remap())
    assert teller.news() == [("Warning", "GPUWithdrawn")] * 2 + [("Warning", "GPUDegraded")]
    ward.ail(1)
    assert teller.news() == [("Normal", "GPURestored")]


def test_a_gpu_that_is_in_service_again_with_a_shortcoming_is_told_with_it(ward: Ward, teller: Teller) -> None:
    ward.ail(1, xid(79), remap())
    teller.notices()
    ward.ail(1, remap())
    (notice,) = teller.notices()
    assert notice.note == f"gpu-1 ({uuid(1)}): in service again; gpu-1 degraded: a row waits"


def test_one_of_two_causes_that_closes_is_no_event(ward: Ward, teller: Teller) -> None:
    ward.ail(1, xid(79), xid(48))
    teller.notices()
    ward.ail(1, xid(79))
    assert teller.notices() == []


def test_a_cause_that_gets_worse_is_told_again_and_one_that_gets_better_is_not(ward: Ward, teller: Teller) -> None:
    ward.ail(1, xid(48, Severity.DEGRADED))
    teller.notices()
    ward.ail(1, xid(48, Severity.EVICTED))
    assert teller.news() == [("Warning", "GPUEvicted")]
    ward.ail(1, xid(48, Severity.WITHDRAWN))
    assert teller.notices() == []


def test_another_message_of_the_same_cause_is_no_event(ward: Ward, teller: Teller) -> None:
    ward.ail(0, Cause(reason=Reason.ECC, severity=Severity.WITHDRAWN, message="1 error", since=1))
    teller.notices()
    ward.ail(0, Cause(reason=Reason.ECC, severity=Severity.WITHDRAWN, message="2 errors", since=1))
    assert teller.notices() == []


def test_a_cause_of_one_mig_instance_degrades_the_gpu_and_says_how_far_it_reaches(ward: Ward, teller: Teller) -> None:
    ward.ail(0, Cause(reason=Reason.ECC, severity=Severity.WITHDRAWN, message="m", since=1, instance=Instance(id=3)))
    (notice,) = teller.notices()
    assert notice.reason == "GPUDegraded"
    assert "ecc, MIG instance 3 only: m" in notice.note


def test_what_was_wrong_before_the_agent_started_is_old_news_and_its_end_is_not(ward: Ward) -> None:
    ward.ail(0, xid(79, since=1000.0))
    teller = Teller(ward, started=2000.0)
    assert teller.notices() == []
    ward.ail(0, xid(79, since=1000.0), xid(48, since=2000.0))
    assert [notice.key[-2] for notice in teller.notices()] == [48]
    ward.ail(0)
    assert teller.news() == [("Normal", "GPURestored")]


def test_what_is_wrong_when_the_agent_first_looks_is_told(ward: Ward) -> None:
    ward.ail(0, remap(since=2000.0))
    assert Teller(ward, started=2000.0).news() == [("Warning", "GPUDegraded")]


def test_what_opens_on_a_gpu_that_is_known_is_told_although_the_clock_was_set_back(ward: Ward) -> None:
    teller = Teller(ward, started=2000.0)
    assert teller.notices() == []
    ward.ail(0, xid(79, since=1000.0))
    assert teller.news() == [("Warning", "GPUWithdrawn")]


def test_a_gpu_that_is_looked_at_for_the_first_time_or_again_is_no_event(ward: Ward) -> None:
    ward.ail(0, NOT_PROBED)
    teller = Teller(ward)
    assert teller.notices() == []
    ward.ail(0)
    assert teller.notices() == []
    ward.ail(0, NOT_PROBED)
    assert teller.notices() == []


def test_a_gpu_that_goes_and_comes_back_is_told_twice(ward: Ward, teller: Teller) -> None:
    there = ward.inventory.value
    ward.ail(0, NOT_PROBED)
    ward.take(0)
    (gone,) = teller.notices()
    assert (gone.reason, gone.note) == ("GPUWithdrawn", "gpu-0 gone: the driver does not list it any more")
    ward.inventory.set(there)
    assert teller.notices() == []
    ward.ail(0)
    assert teller.news() == [("Normal", "GPURestored")]


def test_a_driver_that_goes_is_one_event_and_not_one_for_each_gpu(ward: Ward, teller: Teller) -> None:
    there = ward.inventory.value
    ward.inventory.set(Inventory(generation=5, problem="the driver is not loaded"))
    ward.ail(0, NOT_PROBED)
    ward.ail(1, NOT_PROBED)
    assert [notice.note for notice in teller.notices()] == ["the driver is not loaded"]
    assert teller.notices() == []
    ward.inventory.set(there)
    ward.ail(0)
    ward.ail(1)
    assert teller.news() == [("Normal", "GPUsKnown")]


def test_a_driver_that_is_not_there_from_the_start_is_no_event(ward: Ward) -> None:
    ward.inventory.set(Inventory())
    assert Teller(ward).notices() == []


def test_a_long_note_is_cut_to_what_the_api_server_takes(ward: Ward, teller: Teller) -> None:
    ward.ail(0, Cause(reason=Reason.ECC, severity=Severity.WITHDRAWN, message="x" * 5000, since=1))
    assert [len(notice.note) for notice in teller.notices()] == [LONGEST_NOTE]


AILMENTS = [xid(79), xid(48), xid(63, Severity.DEGRADED), xid(94, Severity.EVICTED), xid(13, Severity.NONE), remap()]


@given(st.lists(st.tuples(st.integers(0, 1), st.lists(st.sampled_from(AILMENTS), unique=True)), max_size=12))
def test_over_any_history_each_gpu_that_goes_is_warned_of_and_each_that_comes_back_is_told_once(
    history: list[tuple[int, list[Cause]]],
) -> None:
    ward = Ward()
    teller = Teller(ward)
    teller.notices()
    for index, causes in history:
        before = ward.view.document.gpus[index]
        ward.ail(index, *causes)
        after = ward.view.document.gpus[index]
        news = [notice for notice in teller.notices() if notice.key[0] == uuid(index)]
        warnings = [notice for notice in news if notice.type == "Warning"]
        back = after.in_service and not before.in_service
        well = after.health == "healthy" and before.health != "healthy"
        assert len(news) - len(warnings) == (back or well)
        assert warnings or after.in_service or not before.in_service
        assert teller.notices() == []


# What is written, and when


def notice(number: int = 0) -> Notice:
    return Notice(key=(number,), type="Warning", reason="GPUWithdrawn", note="gpu-0: xid 79")


def write(outbox: Outbox, now: float) -> list[int]:
    """Write what is due; answers the counts that were written."""
    due = outbox.due(now)
    for entry in due:
        entry.wrote(now)
    return [entry.written for entry in due]


def test_what_is_new_is_written_at_once_and_once() -> None:
    outbox = Outbox("n0")
    assert outbox.pause(0.0) == float("inf")
    outbox.add(notice(), 1.0)
    assert outbox.pause(1.0) == 0
    assert (write(outbox, 1.0), write(outbox, 1.0), outbox.pause(1.0)) == ([1], [], float("inf"))


def test_what_happens_again_and_again_is_written_at_growing_intervals_with_its_count() -> None:
    outbox, writes = Outbox("n0"), list[float]()
    for second in range(3600):
        outbox.add(notice(), second)
        if write(outbox, second):
            writes.append(second)
    assert writes[:6] == [0, 10, 30, 70, 150, 310]
    assert len(writes) < 18
    outbox.add(notice(), 3601.0)
    assert 0 < outbox.pause(3601.0) <= 300
    assert write(outbox, 4000.0) == [3601]


def test_what_could_not_be_written_for_long_is_dropped() -> None:
    outbox = Outbox("n0")
    outbox.add(notice(), 0.0)
    assert outbox.due(FORGET_SECONDS)
    assert not outbox.due(FORGET_SECONDS + 1)


def test_what_has_not_happened_for_long_is_a_new_event() -> None:
    outbox = Outbox("n0")
    outbox.add(notice(), 0.0)
    write(outbox, 0.0)
    assert write(outbox, FORGET_SECONDS + 1) == []
    outbox.add(notice(), FORGET_SECONDS + 1)
    assert write(outbox, FORGET_SECONDS + 1) == [1]


def test_more_events_than_can_be_kept_push_out_the_oldest() -> None:
    outbox = Outbox("n0")
    for number in range(1000):
        outbox.add(notice(number), 0.0)
    kept = [entry.notice.key for entry in outbox.due(0.0)]
    assert kept == [(number,) for number in range(1000 - MOST_ENTRIES, 1000)]


def test_an_event_is_about_the_node_and_says_when_it_happened() -> None:
    outbox = Outbox("n0")
    outbox.add(notice(), 0.25)
    (entry,) = outbox.due(0.25)
    made = event(entry, "n0", "uid-1", EPOCH)
    assert re.fullmatch(r"n0\.[0-9a-f]{16}", made.pop("metadata")["name"])
    assert made == {
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "n0", "uid": "uid-1"},
        "type": "Warning",
        "reason": "GPUWithdrawn",
        "note": "gpu-0: xid 79",
        "action": "HealthChanged",
        "eventTime": "2026-11-30T00:00:00.250000Z",
        "reportingController": "gpu-node-agent",
        "reportingInstance": "n0",
    }


def test_an_event_that_happened_again_has_its_count_and_its_last_time() -> None:
    outbox = Outbox("n0")
    outbox.add(notice(), 0.0)
    outbox.add(notice(), 1.0)
    (entry,) = outbox.due(1.0)
    assert (
        event(entry, "n0", "uid-1", EPOCH)["series"]
        == series(entry, EPOCH)
        == {
            "count": 2,
            "lastObservedTime": "2026-11-30T00:00:01.000000Z",
        }
    )


def test_the_longest_name_of_a_node_fits() -> None:
    node = ".".join(["n" * 62] * 4)
    outbox = Outbox(node)
    outbox.add(notice(), 0.0)
    made = event(outbox.due(0.0)[0], node, "uid-1", EPOCH)
    assert len(made["metadata"]["name"]) <= 253
    assert len(made["reportingInstance"]) <= 128
