"""What a GPU measures of itself: absent is not zero, and a failed query is not an unsupported one."""

from pathlib import Path

import msgspec
import pynvml
import pytest

from node_agent.errors import DeviceLost, DriverUnavailable, HardwareError
from node_agent.hardware.nvml import partitions
from node_agent.hardware.nvml.readings import read
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.provider import GpuReadings, RecoveryAction
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.gpu import Process
from node_agent.model.partition import Piece, Placement

MIB = 1 << 20

DRAM_ERROR = (
    pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    pynvml.NVML_VOLATILE_ECC,
    pynvml.NVML_MEMORY_LOCATION_DRAM,
)

# A query of NVML, and the readings that it costs.
QUERIES = {
    "nvmlDeviceGetUtilizationRates": {"utilization"},
    "nvmlDeviceGetTemperature": {"temperature"},
    "nvmlDeviceGetPowerUsage": {"power"},
    "nvmlDeviceGetFieldValues": {"recovery_action"},
    "nvmlDeviceGetTotalEccErrors": {"uncorrected_ecc_errors"},
    "nvmlDeviceGetRemappedRows": {"row_remap_pending", "row_remap_failed"},
    "nvmlDeviceGetMemoryInfo_v2": {"memory_used"},
}


def fields(readings: GpuReadings, *, absent: bool) -> set[str]:
    names = set(GpuReadings.__dataclass_fields__) - {"failed"}
    return {name for name in names if (getattr(readings, name) is None) is absent}


def test_a_gpu_at_rest_is_read_in_bytes_degrees_watts_and_shares(session: Session) -> None:
    assert read(session, session.gpus[0]) == GpuReadings(
        memory_used=0,
        utilization=0.0,
        temperature=29,
        power=76.0,
        recovery_action=RecoveryAction.NONE,
        uncorrected_ecc_errors=0,
        row_remap_pending=False,
        row_remap_failed=False,
    )


def test_a_busy_gpu_shows_its_load(session: Session, node: SimulatedNode) -> None:
    gpu = node.faults.gpu(0)
    gpu.processes.append(Process(pid=4711, memory=512 * MIB))
    gpu.load = 0.5
    readings = read(session, session.gpus[0])
    assert readings.utilization == 0.5
    assert readings.memory_used == 512 * MIB
    assert readings.power is not None
    assert readings.power > 76.0


def test_broken_memory_shows(session: Session, node: SimulatedNode) -> None:
    node.faults.gpu(1).remapping.failure = True
    node.faults.gpu(2).remapping.pending = True
    node.faults.gpu(3).ecc_errors[DRAM_ERROR] = 2
    assert read(session, session.gpus[1]).row_remap_failed is True
    assert read(session, session.gpus[2]).row_remap_pending is True
    assert read(session, session.gpus[2]).row_remap_failed is False
    assert read(session, session.gpus[3]).uncorrected_ecc_errors == 2


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("none", RecoveryAction.NONE),
        ("gpu-reset", RecoveryAction.RESET),
        ("bus-reset", RecoveryAction.RESET),
        ("node-reboot", RecoveryAction.REBOOT),
        ("system-reboot", RecoveryAction.REBOOT),
        ("drain-p2p", RecoveryAction.DRAIN),
        ("drain-and-reset", RecoveryAction.DRAIN_AND_RESET),
        ("recover-imex-domain", RecoveryAction.OTHER),
    ],
)
def test_the_recovery_action_is_the_drivers(
    session: Session, node: SimulatedNode, action: str, expected: RecoveryAction
) -> None:
    node.faults.recovery_action(4, action)
    assert read(session, session.gpus[4]).recovery_action is expected


def test_a_recovery_action_that_nobody_knows_yet_is_still_one(session: Session, node: SimulatedNode) -> None:
    node.faults.gpu(4).recovery_action = 42
    assert read(session, session.gpus[4]).recovery_action is RecoveryAction.OTHER


@pytest.mark.parametrize(("call", "costs"), QUERIES.items())
def test_an_unsupported_query_is_absent_and_no_failure(
    session: Session, node: SimulatedNode, call: str, costs: set[str]
) -> None:
    node.faults.fail(call, "NOT_SUPPORTED")
    node.faults.fail("nvmlDeviceGetMemoryInfo", "NOT_SUPPORTED")
    readings = read(session, session.gpus[5])
    assert fields(readings, absent=True) == costs
    assert readings.failed == {}


@pytest.mark.parametrize(("call", "costs"), QUERIES.items())
def test_a_failing_query_is_absent_and_says_why(
    session: Session, node: SimulatedNode, call: str, costs: set[str]
) -> None:
    node.faults.fail(call, "UNKNOWN", gpu=4)
    readings = read(session, session.gpus[4])
    assert fields(readings, absent=True) == costs
    assert readings.failed.keys() == costs
    assert all("NVML error 999" in why for why in readings.failed.values())
    assert read(session, session.gpus[5]).failed == {}


def test_a_field_that_fails_alone_is_a_failure(session: Session, node: SimulatedNode) -> None:
    node.faults.gpu(4).board = msgspec.structs.replace(node.faults.gpu(4).board, recovery_action=False)
    readings = read(session, session.gpus[4])
    assert readings.recovery_action is None
    assert readings.failed == {}


def test_a_lost_gpu_is_lost(session: Session, node: SimulatedNode) -> None:
    node.faults.lose(3)
    with pytest.raises(DeviceLost, match="fallen off the bus"):
        read(session, session.gpus[3])
    assert read(session, session.gpus[4]).temperature == 29


def test_a_gpu_lost_to_one_query_is_lost(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetRemappedRows", "GPU_IS_LOST", gpu=3)
    with pytest.raises(DeviceLost):
        read(session, session.gpus[3])


def test_a_gpu_that_answers_nothing_at_all_is_an_error(session: Session, node: SimulatedNode) -> None:
    for call in QUERIES:
        node.faults.fail(call, "RESET_REQUIRED", gpu=3)
    with pytest.raises(HardwareError, match=r"\(NVML error 16\): drain the GPU and reset it"):
        read(session, session.gpus[3])


def test_a_gpu_that_supports_nothing_is_read_as_knowing_nothing(session: Session, node: SimulatedNode) -> None:
    for call in (*QUERIES, "nvmlDeviceGetMemoryInfo"):
        node.faults.fail(call, "NOT_SUPPORTED")
    assert read(session, session.gpus[3]) == GpuReadings()


def test_a_driver_that_is_gone_is_said_so(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetTemperature", "DRIVER_NOT_LOADED")
    with pytest.raises(DriverUnavailable):
        read(session, session.gpus[0])


def test_the_ecc_errors_of_a_cut_gpu_are_those_of_its_partitions(session: Session, node: SimulatedNode) -> None:
    gpu = session.gpus[0]
    partitions.set_mode(session, gpu, enabled=True)
    assert read(session, gpu).uncorrected_ecc_errors is None, "nobody counts while nothing is cut"
    partitions.create(session, gpu, Piece(profile="1g.18gb", placement=Placement(start=0, length=1)))
    assert read(session, gpu).uncorrected_ecc_errors == 0
    node.faults.gpu(0).ecc_errors[DRAM_ERROR] = 1
    assert read(session, gpu).uncorrected_ecc_errors == 1


def test_a_gpu_that_shares_the_hosts_memory_has_no_memory_reading(tmp_path: Path) -> None:
    profile = load_profile("h200-8")
    boards = {name: msgspec.structs.replace(board, memory=None) for name, board in profile.boards.items()}
    with install(SimulatedNode(msgspec.structs.replace(profile, boards=boards))):
        session = Session(sysfs=tmp_path)
        session.ensure_open()
        session.refresh()
        readings = read(session, session.gpus[0])
        session.close()
    assert readings.memory_used is None
    assert readings.failed == {}
    assert readings.temperature == 29
