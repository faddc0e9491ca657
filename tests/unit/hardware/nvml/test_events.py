"""Event sets: who is in them, what comes out, and how they end."""

import time
from collections.abc import Iterator
from typing import Any

import pynvml
import pytest

from node_agent.errors import DeviceLost, DriverUnavailable, HardwareError, NotSupported
from node_agent.hardware.nvml import events
from node_agent.hardware.nvml.events import EventSet
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.nvml.translate import Calls
from node_agent.hardware.provider import EventKind, HardwareEvent
from node_agent.hardware.simulated import SimulatedNode
from node_agent.hardware.simulated.events import Event


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "WAIT_SECONDS", 0.05)


@pytest.fixture
def watched(session: Session) -> Iterator[EventSet]:
    """The events of all eight GPUs."""
    watched = EventSet(session, Calls())
    assert watched.open(session.gpus) == {}
    yield watched
    watched.close()


def report(node: SimulatedNode, gpu: int, event_type: int) -> None:
    """Let the driver report an event other than an Xid."""
    driver = node.faults._driver
    with driver.changed:
        driver.report(Event(gpu=node.faults.gpu(gpu), type=event_type))


def event_sets(node: SimulatedNode) -> int:
    return len(node.faults._driver.event_sets)


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """The arguments of each call of an NVML function from now on."""
    made: list[Any] = []
    real = getattr(pynvml, name)

    def call(*args: Any) -> Any:
        made.append(args)
        return real(*args)

    call.__name__ = name
    monkeypatch.setattr(pynvml, name, call)
    return made


def test_an_xid_is_a_fault_of_its_gpu(watched: EventSet, node: SimulatedNode, session: Session) -> None:
    node.faults.xid(5, 94)
    assert watched.wait() == [HardwareEvent(kind=EventKind.FAULT, gpu=session.gpus[5], code=94)]


def test_an_xid_confined_to_a_partition_names_it(watched: EventSet, node: SimulatedNode, session: Session) -> None:
    node.faults.xid(5, 94, instance=7, compute_instance=0)
    assert watched.wait() == [
        HardwareEvent(kind=EventKind.FAULT, gpu=session.gpus[5], code=94, instance=7, compute_instance=0)
    ]


def test_events_come_one_after_another_in_order(watched: EventSet, node: SimulatedNode) -> None:
    for code in (31, 43, 79):
        node.faults.xid(0, code)
    assert [event.code for _ in range(3) for event in watched.wait()] == [31, 43, 79]


def test_nothing_happens_is_no_event_and_no_error(watched: EventSet) -> None:
    began = time.monotonic()
    assert watched.wait() == []
    assert 0.04 <= time.monotonic() - began < 20


@pytest.mark.parametrize(
    "event_type",
    [pynvml.nvmlEventTypeDoubleBitEccError, pynvml.nvmlEventMigConfigChange, pynvml.nvmlEventTypeGpuRecoveryAction],
)
def test_other_events_ask_for_another_look(
    watched: EventSet, node: SimulatedNode, session: Session, event_type: int
) -> None:
    report(node, 2, event_type)
    assert watched.wait() == [HardwareEvent(kind=EventKind.CHANGED, gpu=session.gpus[2])]


@pytest.mark.parametrize("event_type", [pynvml.nvmlEventTypePState, pynvml.nvmlEventTypeClock])
def test_what_happens_all_the_time_is_not_asked_for(watched: EventSet, node: SimulatedNode, event_type: int) -> None:
    report(node, 2, event_type)
    assert watched.wait() == []


def test_only_gpus_that_were_asked_for_are_watched(session: Session, node: SimulatedNode) -> None:
    watched = EventSet(session, Calls())
    watched.open(session.gpus[:2])
    node.faults.xid(2, 79)
    node.faults.xid(1, 31)
    assert [event.gpu for event in watched.wait()] == [session.gpus[1]]
    assert watched.wait() == []
    watched.close()


@pytest.mark.parametrize("call", ["nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"])
def test_a_gpu_without_events_is_not_supported_and_the_others_are_watched(
    session: Session, node: SimulatedNode, call: str
) -> None:
    node.faults.fail(call, "NOT_SUPPORTED", gpu=1)
    watched = EventSet(session, Calls())
    unwatched = watched.open(session.gpus)
    assert unwatched.keys() == {session.gpus[1]}
    assert isinstance(unwatched[session.gpus[1]], NotSupported)
    node.faults.xid(2, 79)
    assert [event.gpu for event in watched.wait()] == [session.gpus[2]]
    watched.close()


def test_a_gpu_that_reports_no_xids_is_not_supported(
    session: Session, node: SimulatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_xids(handle: Any) -> int:
        return int(pynvml.nvmlEventTypePState)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetSupportedEventTypes", without_xids)
    watched = EventSet(session, Calls())
    unwatched = watched.open(session.gpus[:1])
    assert isinstance(unwatched[session.gpus[0]], NotSupported)
    watched.close()


def test_a_failed_registration_leaves_that_gpu_out_of_a_fresh_set(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceRegisterEvents", "UNKNOWN", gpu=1)
    watched = EventSet(session, Calls())
    unwatched = watched.open(session.gpus)
    assert unwatched.keys() == {session.gpus[1]}
    assert not isinstance(unwatched[session.gpus[1]], NotSupported)
    assert event_sets(node) == 1, "the spoilt set was freed"
    node.faults.xid(7, 79)
    assert [event.gpu for event in watched.wait()] == [session.gpus[7]]
    watched.close()
    assert event_sets(node) == 0


def test_a_gpu_that_is_lost_already_is_unwatched(session: Session, node: SimulatedNode) -> None:
    node.faults.lose(3)
    watched = EventSet(session, Calls())
    assert isinstance(watched.open(session.gpus)[session.gpus[3]], DeviceLost)
    assert watched.wait() == []
    watched.close()


def test_a_set_that_cannot_be_made_is_an_error(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlEventSetCreate", "UNKNOWN")
    with pytest.raises(HardwareError, match="nvmlEventSetCreate"):
        EventSet(session, Calls()).open(session.gpus)


def test_waiting_for_nobody_asks_the_driver_nothing(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlEventSetWait_v2", "UNKNOWN")
    watched = EventSet(session, Calls())
    watched.open([])
    began = time.monotonic()
    assert watched.wait() == []
    assert time.monotonic() - began >= 0.04
    watched.close()


def test_a_gpu_that_falls_off_the_bus_is_found_though_the_driver_does_not_say_which(
    watched: EventSet, node: SimulatedNode, session: Session
) -> None:
    node.faults.lose(3)
    assert watched.wait() == [HardwareEvent(kind=EventKind.LOST, gpu=session.gpus[3])]


def test_after_a_loss_the_others_are_watched_in_a_set_without_it(
    watched: EventSet, node: SimulatedNode, session: Session
) -> None:
    node.faults.lose(3)
    watched.wait()
    assert watched.wait() == [], "the loss is told once"
    node.faults.xid(4, 31)
    assert [event.gpu for event in watched.wait()] == [session.gpus[4]]
    assert event_sets(node) == 1


def test_two_lost_gpus_are_both_found(watched: EventSet, node: SimulatedNode, session: Session) -> None:
    node.faults.lose(3)
    node.faults.lose(6)
    assert {event.gpu for event in watched.wait()} == {session.gpus[3], session.gpus[6]}


def test_the_last_words_of_a_lost_gpu_come_first_and_name_it(
    watched: EventSet, node: SimulatedNode, session: Session
) -> None:
    node.faults.lose(3, xid=True)
    assert watched.wait() == [HardwareEvent(kind=EventKind.FAULT, gpu=session.gpus[3], code=79)]
    assert [event.kind for event in watched.wait()] == [EventKind.LOST]


def test_a_lost_gpu_that_answers_what_the_library_remembers_is_found(
    watched: EventSet, node: SimulatedNode, session: Session
) -> None:
    node.faults.fail("nvmlEventSetWait_v2", "GPU_IS_LOST", times=1)
    node.faults.fail("nvmlDeviceGetMemoryInfo", "GPU_IS_LOST", gpu=2, times=1)
    assert watched.wait() == [HardwareEvent(kind=EventKind.LOST, gpu=session.gpus[2])]


def test_a_loss_that_no_gpu_admits_to_is_an_error_and_no_endless_loop(watched: EventSet, node: SimulatedNode) -> None:
    node.faults.fail("nvmlEventSetWait_v2", "GPU_IS_LOST", times=1)
    with pytest.raises(DeviceLost):
        watched.wait()


def test_a_gpu_that_fails_while_another_is_left_out_ends_the_set_after_the_loss_is_told(
    watched: EventSet, node: SimulatedNode, session: Session
) -> None:
    node.faults.lose(3)
    node.faults.fail("nvmlDeviceRegisterEvents", "UNKNOWN", gpu=5, times=1)
    assert watched.wait() == [HardwareEvent(kind=EventKind.LOST, gpu=session.gpus[3])]
    with pytest.raises(HardwareError, match="nvmlDeviceRegisterEvents"):
        watched.wait()


def test_a_failing_wait_is_an_error(watched: EventSet, node: SimulatedNode) -> None:
    node.faults.fail("nvmlEventSetWait_v2", "UNKNOWN", times=1)
    with pytest.raises(HardwareError, match="nvmlEventSetWait_v2"):
        watched.wait()


def test_an_event_whose_gpu_nobody_knows_names_none(watched: EventSet, node: SimulatedNode, session: Session) -> None:
    node.faults.xid(5, 94)
    node.faults.fail("nvmlDeviceGetUUID", "UNKNOWN", times=1)
    assert [event.gpu for event in watched.wait()] == [session.gpus[5]], "the handle is still known"
    watched._watched.clear()
    node.faults.xid(5, 94)
    node.faults.fail("nvmlDeviceGetUUID", "UNKNOWN", times=1)
    with session.guard:
        assert watched._wait(0.05) == [HardwareEvent(kind=EventKind.FAULT, gpu=None, code=94)]


def test_a_closed_set_answers_what_was_queued(watched: EventSet, node: SimulatedNode) -> None:
    node.faults.xid(0, 31)
    node.faults.xid(1, 79)
    assert [event.code for event in watched.close()] == [31, 79]
    assert event_sets(node) == 0
    assert watched.close() == []


def test_a_set_in_trouble_can_still_be_closed(watched: EventSet, node: SimulatedNode) -> None:
    node.faults.fail("nvmlEventSetWait_v2", "UNKNOWN")
    node.faults.fail("nvmlEventSetFree", "UNKNOWN")
    assert watched.close() == []


def test_a_library_opened_anew_ends_the_set(watched: EventSet, node: SimulatedNode, session: Session) -> None:
    session.close()
    session.ensure_open()
    with pytest.raises(HardwareError, match="subscribe again"):
        watched.wait()


def test_a_set_of_a_library_opened_anew_is_not_freed_twice(
    watched: EventSet, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.close()
    session.ensure_open()
    freed = counted(monkeypatch, "nvmlEventSetFree")
    watched.close()
    assert freed == []


def test_a_closed_library_cannot_be_subscribed_to(session: Session) -> None:
    session.close()
    with pytest.raises(DriverUnavailable):
        EventSet(session, Calls()).open([])


def test_a_gpu_that_cannot_be_watched_any_more_is_told_even_when_it_was_the_only_other_one(
    session: Session, node: SimulatedNode
) -> None:
    watched = EventSet(session, Calls())
    watched.open(session.gpus[:2])
    node.faults.lose(0)
    node.faults.fail("nvmlDeviceRegisterEvents", "UNKNOWN", gpu=1, times=1)
    assert watched.wait() == [HardwareEvent(kind=EventKind.LOST, gpu=session.gpus[0])]
    with pytest.raises(HardwareError, match="nvmlDeviceRegisterEvents"):
        watched.wait()
    watched.close()
