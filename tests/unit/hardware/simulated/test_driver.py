"""The driver's own state: users, visible GPUs, handles of instances, faults on calls, and those who follow it."""

import threading
import time
from collections.abc import Iterator

import pytest

from node_agent.hardware.simulated import load_profile
from node_agent.hardware.simulated.driver import CallFault, Driver
from node_agent.hardware.simulated.events import Event
from node_agent.hardware.simulated.returns import NvmlReturn


@pytest.fixture
def free_driver() -> Driver:
    """A driver of eight GPUs with one user."""
    driver = Driver(load_profile("h200-8"))
    driver.initialise()
    return driver


@pytest.fixture
def driver(free_driver: Driver) -> Iterator[Driver]:
    """The same, held as the library and the faults hold it."""
    with free_driver.changed:
        yield free_driver


def refusal(call: object, *arguments: object) -> str:
    assert callable(call)
    with pytest.raises(NvmlReturn) as refused:
        call(*arguments)
    return refused.value.name


def test_the_first_user_finds_the_gpus_and_the_last_one_leaves_them(driver: Driver) -> None:
    driver.gpus[0].plugged = False
    driver.initialise()
    assert len(driver.visible) == 8
    driver.shut_down()
    driver.shut_down()
    assert refusal(driver.shut_down) == "UNINITIALIZED"
    driver.initialise()
    assert driver.visible == driver.gpus[1:]


def test_a_gpu_that_is_not_visible_has_no_valid_handle(driver: Driver) -> None:
    handle = driver.handle(driver.gpus[0])
    driver.visible = driver.gpus[1:]
    assert refusal(driver.device, handle) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("lack", ["lost", "plugged"])
def test_a_gpu_that_cannot_be_reached_is_lost(driver: Driver, lack: str) -> None:
    handle = driver.handle(driver.gpus[0])
    setattr(driver.gpus[0], lack, lack == "lost")
    assert refusal(driver.device, handle) == "GPU_IS_LOST"


def test_handles_lead_to_what_lives_now(driver: Driver) -> None:
    gpu = driver.gpus[0]
    assert gpu.mig is not None
    gpu.mig.set_mode(True)
    instance = gpu.mig.create(9)
    gpu.mig.create_compute(instance, 2)
    (device,) = gpu.mig_devices()
    handles = driver.handle(gpu), driver.mig_handle(device), driver.instance_handle(gpu, instance)
    compute = driver.compute_handle(device)
    assert driver.device(handles[0]) is gpu
    assert driver.device(handles[1]) == device
    assert driver.instance(handles[2]).instance is instance
    assert driver.compute_instance(compute) == device
    gpu.mig.set_mode(False)
    assert refusal(driver.device, handles[1]) == "INVALID_ARGUMENT"
    assert refusal(driver.instance, handles[2]) == "INVALID_ARGUMENT"
    assert refusal(driver.compute_instance, compute) == "INVALID_ARGUMENT"


def test_event_sets_are_numbered_anew_each_time(driver: Driver) -> None:
    first, second = driver.create_event_set(), driver.create_event_set()
    assert first != second
    driver.free_event_set(driver.event_set(first))
    assert refusal(driver.event_set, first) == "INVALID_ARGUMENT"
    assert driver.event_set(second) is not None
    assert driver.create_event_set() not in (first, second)


def test_an_event_reaches_the_sets_that_want_it(driver: Driver) -> None:
    wanting, other = (driver.event_set(driver.create_event_set()) for _ in range(2))
    wanting.register(driver.gpus[0], 0x8)
    other.register(driver.gpus[0], 0x2)
    event = Event(gpu=driver.gpus[0], type=0x8, data=79)
    driver.report(event)
    assert list(wanting.queue) == [event]
    assert list(other.queue) == []


def test_a_set_knows_that_one_of_its_gpus_is_gone(driver: Driver) -> None:
    event_set = driver.event_set(driver.create_event_set())
    event_set.register(driver.gpus[0], 0x8)
    assert not event_set.has_lost
    driver.gpus[1].lost = True
    assert not event_set.has_lost
    driver.gpus[0].lost = True
    assert event_set.has_lost


# Faults on calls


def test_a_fault_hits_its_call_and_its_gpu_only(driver: Driver) -> None:
    fault = CallFault(call="nvmlDeviceGetName", gpu=driver.gpus[0], error="UNKNOWN")
    assert fault.hits("nvmlDeviceGetName", driver.gpus[0])
    assert not fault.hits("nvmlDeviceGetName", driver.gpus[1])
    assert not fault.hits("nvmlDeviceGetName", None)
    assert not fault.hits("nvmlDeviceGetUUID", driver.gpus[0])


def test_a_fault_without_a_gpu_hits_all(driver: Driver) -> None:
    fault = CallFault(call="nvmlDeviceGetName", error="UNKNOWN")
    assert all(fault.hits("nvmlDeviceGetName", gpu) for gpu in (*driver.gpus, None))


def test_a_fault_that_is_used_up_hits_nothing(driver: Driver) -> None:
    driver.call_faults.append(CallFault(call="nvmlInitWithFlags", error="UNKNOWN", times=1))
    assert refusal(driver.meet_fault, "nvmlInitWithFlags", None) == "UNKNOWN"
    driver.meet_fault("nvmlInitWithFlags", None)


def test_a_call_can_hang_and_then_fail(driver: Driver) -> None:
    driver.call_faults.append(CallFault(call="nvmlInitWithFlags", error="TIMEOUT", hang_seconds=0.05))
    started = time.monotonic()
    assert refusal(driver.meet_fault, "nvmlInitWithFlags", None) == "TIMEOUT"
    assert time.monotonic() - started >= 0.05


def test_nobody_else_waits_for_a_hanging_call(free_driver: Driver) -> None:
    driver = free_driver
    driver.call_faults.append(CallFault(call="nvmlInitWithFlags", hang_seconds=30))
    waiter = threading.Thread(target=driver.meet_fault, args=("nvmlInitWithFlags", None))
    waiter.start()
    assert driver.changed.acquire(timeout=30)
    driver.clear_call_faults()
    driver.changed.release()
    waiter.join(timeout=30)
    assert not waiter.is_alive()
    assert driver.call_faults == []


# The module


@pytest.mark.parametrize(
    ("module", "at_init", "in_use"),
    [
        ("not-loaded", "DRIVER_NOT_LOADED", "DRIVER_NOT_LOADED"),
        ("version-mismatch", "LIB_RM_VERSION_MISMATCH", "UNKNOWN"),
    ],
)
def test_a_module_that_does_not_serve_says_why(driver: Driver, module: str, at_init: str, in_use: str) -> None:
    driver.load(module)
    assert refusal(driver.require_usable) == in_use
    driver.shut_down()
    assert refusal(driver.initialise) == at_init


def test_users_of_the_old_module_must_start_again(driver: Driver) -> None:
    driver.load("loaded")
    assert refusal(driver.require_usable) == "UNKNOWN"
    driver.shut_down()
    driver.initialise()
    driver.require_usable()


def test_a_module_keeps_its_version_unless_told(driver: Driver) -> None:
    driver.load("loaded")
    assert driver.version == "580.95.05"
    driver.load("loaded", "590.1")
    assert driver.version == "590.1"


def test_followers_hear_of_every_change_of_the_hardware(driver: Driver) -> None:
    heard: list[str] = []
    driver.followers.append(lambda: heard.append(driver.module))
    driver.load("not-loaded")
    driver.load("loaded")
    driver.hardware_changed()
    assert heard == ["not-loaded", "loaded", "loaded"]
