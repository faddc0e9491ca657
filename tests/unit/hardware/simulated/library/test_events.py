"""Events: who asks, what is reported, how a wait ends."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import gpu, gpus

XID, SBE, DBE, MIG, RECOVERY = (
    pynvml.nvmlEventTypeXidCriticalError,
    pynvml.nvmlEventTypeSingleBitEccError,
    pynvml.nvmlEventTypeDoubleBitEccError,
    pynvml.nvmlEventMigConfigChange,
    pynvml.nvmlEventTypeGpuRecoveryAction,
)
NOBODY = 0xFFFFFFFF
PATIENCE_MS = 5000


def watching(*indices: int, mask: int = XID) -> Any:
    """An event set with the given GPUs."""
    event_set = pynvml.nvmlEventSetCreate()
    for index in indices:
        pynvml.nvmlDeviceRegisterEvents(gpu(index), mask, event_set)
    return event_set


def waited(event_set: Any, fault: Callable[[], object]) -> tuple[Any, float]:
    """The outcome of a wait that a fault ends from another thread, and how long after the fault it came."""
    at: list[float] = []

    def strike() -> None:
        at.append(time.monotonic())
        fault()

    timer = threading.Timer(0.1, strike)
    timer.start()
    try:
        outcome: Any = pynvml.nvmlEventSetWait(event_set, PATIENCE_MS)
    except pynvml.NVMLError as error:
        outcome = error
    ended = time.monotonic()
    timer.join()
    return outcome, ended - at[0]


# What is asked for


@pytest.mark.parametrize(
    ("profile", "has", "lacks"),
    [
        ("h200-8", XID | SBE | DBE | MIG | RECOVERY, 0),
        ("v100-8", XID | SBE | DBE, MIG | RECOVERY),
        ("l40s-8", XID | SBE | DBE | RECOVERY, MIG),
        ("gb10-1", XID, SBE | DBE | MIG),
    ],
)
def test_boards_differ_in_what_they_report(simulate: Simulate, profile: str, has: int, lacks: int) -> None:
    simulate(profile)
    supported = pynvml.nvmlDeviceGetSupportedEventTypes(gpu(0))
    assert supported & has == has
    assert supported & lacks == 0


def test_one_unsupported_event_refuses_them_all(simulate: Simulate) -> None:
    node = simulate("v100-8")
    event_set = pynvml.nvmlEventSetCreate()
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(gpu(0), XID | MIG, event_set)
    node.faults.xid(0, 79)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait(event_set, 0)


def test_a_guest_reports_nothing(simulate: Simulate) -> None:
    simulate("vgpu-1")
    with pytest.raises(pynvml.NVMLError_NotSupported):
        watching(0)


def test_a_mig_device_is_watched_through_its_gpu(simulate: Simulate) -> None:
    simulate("a30-2")
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), 0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(device, XID, pynvml.nvmlEventSetCreate())


def test_masks_of_several_registrations_add_up(h200: SimulatedNode) -> None:
    event_set = watching(0, mask=XID)
    pynvml.nvmlDeviceRegisterEvents(gpu(0), RECOVERY, event_set)
    h200.faults.recovery_action(0, "gpu-reset")
    seen = [pynvml.nvmlEventSetWait(event_set, 0).eventType for _ in range(2)]
    assert sorted(seen) == sorted([XID, RECOVERY])


# What is reported


def test_an_xid_says_which_gpu_and_what(h200: SimulatedNode) -> None:
    event_set = watching(*range(8))
    h200.faults.xid(5, 48)
    event = pynvml.nvmlEventSetWait(event_set, 0)
    assert (event.eventType, event.eventData) == (XID, 48)
    assert (event.gpuInstanceId, event.computeInstanceId) == (NOBODY, NOBODY)
    assert pynvml.nvmlDeviceGetUUID(event.device) == pynvml.nvmlDeviceGetUUID(gpu(5))


def test_an_xid_may_name_the_instance_that_it_hit(h200: SimulatedNode) -> None:
    event_set = watching(0)
    h200.faults.xid(0, 94, instance=9, compute_instance=0)
    event = pynvml.nvmlEventSetWait(event_set, 0)
    assert (event.gpuInstanceId, event.computeInstanceId) == (9, 0)


def test_events_come_in_order_one_at_a_time(h200: SimulatedNode) -> None:
    event_set = watching(0, 1)
    for index, code in ((0, 31), (1, 43), (0, 79)):
        h200.faults.xid(index, code)
    assert [pynvml.nvmlEventSetWait(event_set, 0).eventData for _ in range(3)] == [31, 43, 79]
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait(event_set, 0)


def test_every_set_gets_its_own_copy(h200: SimulatedNode) -> None:
    sets = [watching(0), watching(0)]
    h200.faults.xid(0, 79)
    assert [pynvml.nvmlEventSetWait(event_set, 0).eventData for event_set in sets] == [79, 79]


def test_other_gpus_and_other_events_are_not_reported(h200: SimulatedNode) -> None:
    event_set = watching(0, mask=DBE)
    h200.faults.xid(0, 48)
    h200.faults.xid(1, 48)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait(event_set, 0)


def test_what_happened_before_is_not_reported(h200: SimulatedNode) -> None:
    h200.faults.xid(0, 79)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait(watching(0), 0)


def test_a_change_of_the_recovery_action_is_announced_twice(h200: SimulatedNode) -> None:
    event_set = watching(0, mask=XID | RECOVERY)
    h200.faults.recovery_action(0, "gpu-reset")
    events = [pynvml.nvmlEventSetWait(event_set, 0) for _ in range(2)]
    assert [(event.eventType, event.eventData) for event in events] == [(RECOVERY, 0), (XID, 154)]


@pytest.mark.parametrize(("kind", "event"), [("corrected", SBE), ("uncorrected", DBE)])
def test_memory_errors_are_reported_by_kind(h200: SimulatedNode, kind: str, event: int) -> None:
    event_set = watching(0, mask=SBE | DBE)
    h200.faults.ecc(0, kind, 3)
    assert pynvml.nvmlEventSetWait(event_set, 0).eventType == event
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait(event_set, 0)


def test_making_instances_is_reported(h200: SimulatedNode) -> None:
    event_set = watching(0, mask=MIG)
    pynvml.nvmlDeviceSetMigMode(gpu(0), 1)
    instance = pynvml.nvmlDeviceCreateGpuInstance(gpu(0), 9)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert {pynvml.nvmlEventSetWait(event_set, 0).eventType for _ in range(5)} == {MIG}


# How a wait ends


def test_a_wait_ends_at_its_time(h200: SimulatedNode) -> None:
    started = time.monotonic()
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait(watching(0), 100)
    assert 0.09 < time.monotonic() - started < 20


def test_an_event_ends_a_wait_at_once(h200: SimulatedNode) -> None:
    event, delay = waited(watching(3), lambda: h200.faults.xid(3, 79))
    assert event.eventData == 79
    assert delay < 5


def test_other_calls_go_on_during_a_wait(h200: SimulatedNode) -> None:
    names: list[str] = []

    def ask_then_strike() -> None:
        names.append(pynvml.nvmlDeviceGetName(gpu(1)))
        h200.faults.xid(0, 31)

    outcome, _ = waited(watching(0), ask_then_strike)
    assert names == ["NVIDIA H200"]
    assert outcome.eventData == 31


@pytest.mark.parametrize("fault", ["lose", "unplug"])
def test_a_gpu_that_is_gone_ends_the_wait_without_a_name(h200: SimulatedNode, fault: str) -> None:
    outcome, delay = waited(watching(*range(8)), lambda: getattr(h200.faults, fault)(3))
    assert outcome.value == pynvml.NVML_ERROR_GPU_IS_LOST
    assert delay < 5


def test_a_lost_gpu_is_reported_again_until_the_set_is_built_without_it(h200: SimulatedNode) -> None:
    event_set = watching(*range(8))
    h200.faults.lose(3)
    for _ in range(3):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlEventSetWait(event_set, 0)
    pynvml.nvmlEventSetFree(event_set)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait(watching(0, 1, 2, 4, 5, 6, 7), 0)


def test_events_that_came_before_the_loss_are_still_read(h200: SimulatedNode) -> None:
    event_set = watching(3)
    h200.faults.lose(3, xid=True)
    assert pynvml.nvmlEventSetWait(event_set, 0).eventData == 79
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlEventSetWait(event_set, 0)


def test_a_lost_gpu_that_nobody_watches_disturbs_nobody(h200: SimulatedNode) -> None:
    event_set = watching(0)
    h200.faults.lose(3)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait(event_set, 0)


def test_a_lost_gpu_cannot_be_watched(h200: SimulatedNode) -> None:
    handle = gpu(3)
    h200.faults.lose(3)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceRegisterEvents(handle, XID, pynvml.nvmlEventSetCreate())


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (pynvml.nvmlShutdown, pynvml.NVML_ERROR_UNINITIALIZED),
        (None, pynvml.NVML_ERROR_DRIVER_NOT_LOADED),
    ],
)
def test_a_wait_ends_with_the_library_or_the_driver(h200: SimulatedNode, end: Any, code: int) -> None:
    outcome, delay = waited(watching(0), end or (lambda: h200.faults.driver("not-loaded")))
    assert outcome.value == code
    assert delay < 5


# Sets


def test_a_freed_set_is_no_more(h200: SimulatedNode) -> None:
    event_set = watching(0)
    pynvml.nvmlEventSetFree(event_set)
    for call in (pynvml.nvmlEventSetFree, lambda freed: pynvml.nvmlEventSetWait(freed, 0)):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call(event_set)


def test_sets_do_not_outlive_the_library() -> None:
    with install(SimulatedNode(load_profile("l4-2"))):
        pynvml.nvmlInit()
        event_set = watching(0, 1)
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        assert len(gpus()) == 2
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlEventSetWait(event_set, 0)
        pynvml.nvmlShutdown()
