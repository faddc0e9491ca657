"""One GPU's state: what a reset and a reload leave of it, what its load adds up to, and its MIG devices."""

import uuid
from typing import Any

import msgspec
import pynvml
import pytest

from node_agent.hardware.simulated import gpu as module
from node_agent.hardware.simulated import load_profile
from node_agent.hardware.simulated.gpu import Process, SimulatedGpu, build_gpus
from tests.unit.hardware.simulated.support import profile_of_one

VOLATILE, AGGREGATE = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def alone(board: str) -> SimulatedGpu:
    (gpu,) = build_gpus(profile_of_one(board))
    return gpu


def aged(board: str = "h200-sxm") -> SimulatedGpu:
    """A GPU to which all sorts of things have happened."""
    gpu = alone(board)
    gpu.lost = True
    gpu.recovery_action = 1
    gpu.compute_mode = 3
    gpu.ecc_pending = 0
    gpu.ecc_errors[1, VOLATILE, 2] = 3
    gpu.ecc_errors[1, AGGREGATE, 2] = 5
    gpu.remapping.pending = gpu.remapping.failure = True
    gpu.retirement_pending = True
    gpu.processes.append(Process(pid=1))
    if gpu.mig:
        gpu.mig.set_mode(True)
        gpu.mig.create(gpu.mig.table.profiles[0].id)
    return gpu


# Reset and reload


def test_a_reset_ends_what_is_passing() -> None:
    gpu = aged()
    gpu.reset()
    assert gpu.reachable
    assert (gpu.recovery_action, gpu.processes, gpu.remapping.pending, gpu.retirement_pending) == (0, [], False, False)
    assert gpu.ecc_errors == {(1, AGGREGATE, 2): 5}
    assert gpu.ecc_current == 0
    assert gpu.mig is not None
    assert gpu.mig.instances == {}


def test_a_reset_keeps_what_lasts() -> None:
    gpu = aged()
    gpu.reset()
    assert gpu.remapping.failure
    assert gpu.compute_mode == 3
    assert gpu.mig_enabled


@pytest.mark.parametrize(
    ("board", "keeps"), [("h200-sxm", False), ("b200-sxm", False), ("a100-sxm4-40gb", True), ("a30", True)]
)
def test_a_reload_keeps_mig_on_boards_that_store_it(board: str, keeps: bool) -> None:
    gpu = aged(board)
    gpu.lost = False
    gpu.reload()
    assert gpu.mig_enabled == keeps
    assert gpu.mig is not None
    assert gpu.mig.instances == {}
    assert gpu.compute_mode == pynvml.NVML_COMPUTEMODE_DEFAULT


def test_a_reload_does_not_mend_a_lost_gpu() -> None:
    gpu = aged("v100-sxm2-16gb")
    gpu.reload()
    assert gpu.lost
    assert gpu.recovery_action == 1


# Load


def test_busy_time_is_weighted_by_the_load(clock: Clock) -> None:
    gpu = alone("h200-sxm")
    gpu.reload()
    clock.now += 10
    gpu.set_load(0.5)
    clock.now += 10
    gpu.set_load(1.0)
    clock.now += 10
    gpu.set_load(0.0)
    clock.now += 10
    assert gpu.seconds == 40
    assert gpu.busy_seconds == 15


def test_a_reload_starts_the_count_again(clock: Clock) -> None:
    gpu = alone("h200-sxm")
    gpu.set_load(1.0)
    clock.now += 10
    gpu.reload()
    clock.now += 2
    assert (gpu.seconds, gpu.busy_seconds) == (2, 2)


# Identity


def test_a_profile_may_give_a_uuid() -> None:
    profile = profile_of_one("l4")
    place = msgspec.structs.replace(profile.gpus[0], uuid="GPU-bf0881b6-032a-11f0-825b-000000000000")
    (gpu,) = build_gpus(msgspec.structs.replace(profile, gpus=(place,)))
    assert gpu.uuid == "GPU-bf0881b6-032a-11f0-825b-000000000000"


def test_ids_depend_on_the_node_and_the_bus() -> None:
    profile = profile_of_one("l4")
    renamed = msgspec.structs.replace(profile, name="another")
    (one,), (other,) = build_gpus(profile), build_gpus(renamed)
    assert one.uuid != other.uuid
    assert one.serial != other.serial


@pytest.mark.parametrize(
    ("board", "has"), [("h200-sxm", True), ("gb200", True), ("a100-sxm4-40gb", False), ("l4", False)]
)
def test_only_boards_of_a_fabric_belong_to_one(board: str, has: bool) -> None:
    assert (alone(board).fabric is not None) == has


# MIG devices


def test_mig_devices_come_in_the_order_of_their_slots() -> None:
    gpu = alone("h200-sxm")
    assert gpu.mig is not None
    gpu.mig.set_mode(True)
    first, second = gpu.mig.create(9), gpu.mig.create(9)
    gpu.mig.create_compute(second, 2)
    gpu.mig.create_compute(first, 2)
    assert [device.compute.slot for device in gpu.mig_devices()] == [0, 1]
    assert [device.instance for device in gpu.mig_devices()] == [second, first]


def test_a_mig_devices_uuid_is_a_name_based_one() -> None:
    gpus = build_gpus(load_profile("a30-2"))
    for device in gpus[1].mig_devices():
        assert uuid.UUID(device.uuid.removeprefix("MIG-")).version == 5
        assert device.gpu is gpus[1]


def test_a_process_belongs_to_the_device_of_its_ids() -> None:
    gpu = build_gpus(load_profile("a30-2"))[1]
    device, other, *_ = gpu.mig_devices()
    mine = Process(pid=1, instance=device.instance.id, compute_instance=0)
    elsewhere: list[Any] = [
        Process(pid=2),
        Process(pid=3, instance=device.instance.id, compute_instance=1),
        Process(pid=4, instance=other.instance.id, compute_instance=0),
    ]
    gpu.processes += [mine, *elsewhere]
    assert device.processes == [mine]
    assert gpu.gpu.processes == [mine, *elsewhere]
