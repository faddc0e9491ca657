"""The figures that people want to see of a GPU: absent is not zero, and one that fails costs itself alone."""

from pathlib import Path

import pynvml
import pytest

from node_agent.errors import DeviceLost
from node_agent.hardware.figures import Figures, Memory
from node_agent.hardware.nvml import partitions
from node_agent.hardware.nvml.readings import Reader
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.simulated import SimulatedNode
from node_agent.hardware.simulated.gpu import Process
from node_agent.model.gpu import GpuUuid
from node_agent.model.partition import Piece, Placement
from tests.unit.hardware.nvml.test_readings import looking_at

MIB = 1 << 20

# A call of NVML, and the figures that it costs.
CALLS = {
    "nvmlDeviceGetMemoryInfo_v2": {"memory"},
    "nvmlDeviceGetClockInfo": {"sm_clock", "memory_clock"},
    "nvmlDeviceGetUtilizationRates": {"memory_utilization"},
    "nvmlDeviceGetEncoderUtilization": {"encoder_utilization"},
    "nvmlDeviceGetDecoderUtilization": {"decoder_utilization"},
}


def figures(session: Session, gpu: GpuUuid) -> Figures:
    found = Reader(session).read(gpu, figures=True).figures
    assert found is not None
    return found


def absent(found: Figures) -> set[str]:
    return {name for name in Figures.__struct_fields__ if getattr(found, name) is None}


def test_a_gpu_at_rest_has_a_figure_for_everything(session: Session) -> None:
    found = figures(session, session.gpus[0])
    assert not absent(found)
    assert (found.sm_clock, found.memory_clock, found.memory_temperature) == (345, 3201, 31)
    assert found.memory == Memory(total=143771 * MIB, used=0, free=143071 * MIB, reserved=700 * MIB)
    assert (found.memory_utilization, found.encoder_utilization, found.decoder_utilization) == (0, 0, 0)
    assert not found.partitions


def test_a_gpu_at_work_shows_it(session: Session, node: SimulatedNode) -> None:
    before = figures(session, session.gpus[4])
    node.faults.load(4, 1.0)
    node.faults.gpu(4).processes.append(Process(pid=1, memory=1000 * MIB))
    found = figures(session, session.gpus[4])
    assert (found.sm_clock, found.memory_utilization) == (1980, 0.6)
    assert found.memory is not None
    assert found.memory.used == 1000 * MIB
    assert found.energy is not None
    assert before.energy is not None
    assert found.energy >= before.energy


def test_errors_are_counted_for_now_and_for_ever(session: Session, node: SimulatedNode) -> None:
    node.faults.ecc(4, "corrected", 3)
    node.faults.gpu(4).clear_ecc_errors(pynvml.NVML_VOLATILE_ECC)
    node.faults.ecc(4, "uncorrected", 2)
    found = figures(session, session.gpus[4])
    assert (found.corrected_errors, found.corrected_errors_ever) == (0, 3)
    assert (found.uncorrected_errors, found.uncorrected_errors_ever) == (2, 2)


@pytest.mark.parametrize(("call", "costs"), CALLS.items())
def test_a_call_that_fails_costs_its_own_figures_and_says_why(
    session: Session, node: SimulatedNode, call: str, costs: set[str]
) -> None:
    node.faults.fail(call, "UNKNOWN", gpu=4)
    found = figures(session, session.gpus[4])
    assert absent(found) == costs == found.failed.keys()
    assert all("NVML error 999" in why for why in found.failed.values())


def test_fields_that_fail_as_a_whole_cost_all_figures_that_come_by_them(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetFieldValues", "UNKNOWN", gpu=4)
    found = figures(session, session.gpus[4])
    assert {"energy", "memory_temperature", "nvlink_sent"} < found.failed.keys()
    assert found.sm_clock == 345


def test_what_a_driver_does_not_know_is_absent_and_no_failure(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetClockInfo", "NOT_SUPPORTED", gpu=4)
    found = figures(session, session.gpus[4])
    assert absent(found) == {"sm_clock", "memory_clock"}
    assert not found.failed


def test_a_gpu_lost_to_a_figure_is_lost(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetClockInfo", "GPU_IS_LOST", gpu=3)
    with pytest.raises(DeviceLost):
        figures(session, session.gpus[3])


def test_a_gpu_in_partitions_has_the_memory_of_each_and_no_utilization(session: Session, node: SimulatedNode) -> None:
    gpu = session.gpus[4]
    partitions.set_mode(session, gpu, True)
    made = [
        partitions.create(session, gpu, Piece(profile="1g.18gb", placement=Placement(start=start, length=1)))
        for start in (0, 1)
    ]
    node.faults.gpu(4).processes.append(Process(pid=1, memory=100 * MIB, instance=made[1].id, compute_instance=0))
    found = figures(session, gpu)
    first, second = (found.partitions[instance.partitions[0].uuid] for instance in made)
    assert (first.used, second.used) == (0, 100 * MIB)
    assert first.total == 16384 * MIB
    assert {"memory_utilization", "encoder_utilization", "decoder_utilization"} < absent(found)
    assert not found.failed


def test_a_board_without_links_has_no_figures_of_them(tmp_path: Path) -> None:
    with looking_at("l4-2", tmp_path) as (_, session):
        found = figures(session, session.gpus[0])
    assert {"nvlink_sent", "nvlink_received", "nvlink_replays"} < absent(found)
    assert not found.failed
