"""What a GPU measures of itself: absent is not zero, and a failed query is not an unsupported one."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pynvml
import pytest

from node_agent.errors import DeviceLost, DriverUnavailable, HardwareError
from node_agent.hardware.nvml import partitions
from node_agent.hardware.nvml import readings as module
from node_agent.hardware.nvml.readings import Reader
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.provider import Fabric, GpuLinks, GpuReadings, PcieLink, RecoveryAction, Throttle
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.gpu import Process
from node_agent.model.gpu import GpuUuid
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
    "nvmlDeviceGetTotalEccErrors": {"uncorrected_ecc_errors"},
    "nvmlDeviceGetMemoryInfo_v2": {"memory_used"},
    "nvmlDeviceGetGpuFabricInfoV": {"fabric"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"throttles"},
    "nvmlDeviceGetNvLinkState": {"links"},
    "nvmlDeviceGetFieldValues": {"recovery_action", "row_remap_pending", "row_remap_failed", "links"},
}

# These have an older form, which is asked where they are missing.
OLDER = (
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)

# What an H200 does not have.
ABSENT = {"pages_retired_for_single_bits", "pages_retired_for_double_bits", "page_retirement_pending"}

HEALTHY = GpuReadings(
    memory_used=0,
    utilization=0.0,
    temperature=29,
    power=76.0,
    recovery_action=RecoveryAction.NONE,
    uncorrected_ecc_errors=0,
    row_remap_pending=False,
    row_remap_failed=False,
    links=GpuLinks(up=18),
    fabric=Fabric(joined=True),
    pcie=PcieLink(generation=5, width=16, max_generation=5, max_width=16),
    throttles=frozenset(),
)


def read(session: Session, gpu: GpuUuid) -> GpuReadings:
    """A first look at a GPU, which asks for everything."""
    return Reader(session).read(gpu)


@contextmanager
def looking_at(profile: str, sysfs: Path) -> Iterator[tuple[SimulatedNode, Session]]:
    """Another node than that of the fixtures."""
    with install(SimulatedNode(load_profile(profile))) as node:
        session = Session(sysfs=sysfs)
        session.ensure_open()
        session.refresh()
        yield node, session
        session.close()


def fields(readings: GpuReadings, *, absent: bool) -> set[str]:
    names = set(GpuReadings.__struct_fields__) - {"failed", "figures"}
    return {name for name in names if (getattr(readings, name) is None) is absent}


def test_a_gpu_at_rest_is_read_in_bytes_degrees_watts_and_shares(session: Session) -> None:
    assert read(session, session.gpus[0]) == HEALTHY


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


def test_a_board_that_retires_pages_counts_them_by_their_cause(tmp_path: Path) -> None:
    with looking_at("v100-8", tmp_path) as (node, session):
        node.faults.retire_pages(1, "single-bit", [0x1000, 0x2000])
        node.faults.retire_pages(1, "double-bit", [0x3000])
        whole, retired = (Reader(session).read(gpu) for gpu in session.gpus[:2])
    assert (whole.pages_retired_for_single_bits, whole.pages_retired_for_double_bits) == (0, 0)
    assert whole.page_retirement_pending is False
    assert (retired.pages_retired_for_single_bits, retired.pages_retired_for_double_bits) == (2, 1)
    assert retired.page_retirement_pending is True
    assert retired.row_remap_pending is None


@pytest.mark.parametrize(
    ("reason", "throttle"),
    [
        ("sw-power-cap", Throttle.POWER_CAP),
        ("hw-slowdown", Throttle.SLOWDOWN),
        ("sw-thermal-slowdown", Throttle.SOFTWARE_THERMAL),
        ("hw-thermal-slowdown", Throttle.HARDWARE_THERMAL),
        ("hw-power-brake-slowdown", Throttle.POWER_BRAKE),
    ],
)
def test_a_gpu_says_why_it_holds_its_clocks_back(
    session: Session, node: SimulatedNode, reason: str, throttle: Throttle
) -> None:
    node.faults.slow_down(2, [reason])
    assert read(session, session.gpus[2]).throttles == frozenset({throttle})


def test_an_older_driver_says_so_by_an_older_name(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetCurrentClocksEventReasons", "FUNCTION_NOT_FOUND")
    node.faults.slow_down(2, ["hw-slowdown", "hw-thermal-slowdown"])
    assert read(session, session.gpus[2]).throttles == frozenset({Throttle.SLOWDOWN, Throttle.HARDWARE_THERMAL})


def test_the_pcie_link_is_read_with_whether_the_gpu_was_at_work(session: Session, node: SimulatedNode) -> None:
    node.faults.pcie(0, generation=4, width=8)
    node.faults.load(1, 0.9)
    node.faults.load(2, 0.2)
    links = [read(session, gpu).pcie for gpu in session.gpus[:3]]
    assert links[0] == PcieLink(generation=4, width=8, max_generation=5, max_width=16)
    assert links[1] == PcieLink(generation=5, width=16, max_generation=5, max_width=16, at_work=True)
    assert links[2] is not None
    assert not links[2].at_work


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("not-supported", None),
        ("not-started", Fabric(joined=False)),
        ("in-progress", Fabric(joined=False)),
        ("completed", Fabric(joined=True)),
    ],
)
def test_the_fabric_is_absent_still_to_be_joined_or_joined(
    session: Session, node: SimulatedNode, state: str, expected: Fabric | None
) -> None:
    node.faults.fabric(3, state=state)
    readings = read(session, session.gpus[3])
    assert readings.fabric == expected
    assert readings.failed == {}


def test_a_fabric_in_trouble_says_what_is_wrong_with_it(session: Session, node: SimulatedNode) -> None:
    node.faults.fabric(0, status="INVALID_STATE")
    node.faults.fabric(1, health_mask=0x199)
    fabrics = [read(session, gpu).fabric for gpu in session.gpus[:2]]
    assert fabrics[0] is not None
    assert (fabrics[0].joined, len(fabrics[0].troubles)) == (False, 1)
    assert "NVML error 29" in fabrics[0].troubles[0]
    assert fabrics[1] == Fabric(joined=True, troubles=("its bandwidth is degraded", "a route is unhealthy"))


# What is not asked at each look


def test_what_changes_slowly_is_asked_again_after_a_while(
    session: Session, node: SimulatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLOW_SECONDS", 0.05)
    reader, gpu = Reader(session), session.gpus[0]
    reader.read(gpu)
    node.faults.fabric(0, state="in-progress")
    node.faults.slow_down(0, ["hw-slowdown"])

    at_once = reader.read(gpu)
    time.sleep(0.06)
    later = reader.read(gpu)

    assert (at_once.fabric, later.fabric) == (Fabric(joined=True), Fabric(joined=False))
    assert at_once.throttles == later.throttles == frozenset({Throttle.SLOWDOWN})


def test_a_reader_that_forgets_asks_for_everything(session: Session, node: SimulatedNode) -> None:
    reader, gpu = Reader(session), session.gpus[0]
    reader.read(gpu)
    node.faults.link(0, 3, up=False)

    reader.forget()

    assert (links := reader.read(gpu).links) is not None
    assert links.down.keys() == {3}


def test_a_slow_query_that_went_wrong_is_tried_again_at_the_next_look(session: Session, node: SimulatedNode) -> None:
    reader, gpu = Reader(session), session.gpus[0]
    node.faults.fail("nvmlDeviceGetCurrPcieLinkWidth", "UNKNOWN", times=2)

    assert [list(reader.read(gpu).failed) for _ in range(3)] == [["pcie"], ["pcie"], []]


def test_a_library_that_was_opened_anew_is_asked_for_everything(session: Session, node: SimulatedNode) -> None:
    reader, gpu = Reader(session), session.gpus[0]
    reader.read(gpu)
    node.faults.fabric(0, state="in-progress")
    session.close()
    session.ensure_open()
    session.refresh()

    assert reader.read(gpu).fabric == Fabric(joined=False)


@pytest.mark.parametrize("rescanned", [False, True])
def test_a_gpu_that_was_away_is_asked_for_everything(session: Session, node: SimulatedNode, rescanned: bool) -> None:
    reader, gpu = Reader(session), session.gpus[0]
    reader.read(gpu)
    node.faults.lose(0)
    if rescanned:
        session.refresh()
    with pytest.raises(DeviceLost):
        reader.read(gpu)
    node.faults.restore(0)
    session.refresh()
    node.faults.fabric(0, state="in-progress")

    assert reader.read(gpu).fabric == Fabric(joined=False)


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
    for missing in (call, *OLDER):
        node.faults.fail(missing, "NOT_SUPPORTED")
    readings = read(session, session.gpus[5])
    assert fields(readings, absent=True) == costs | ABSENT
    assert readings.failed == {}


@pytest.mark.parametrize(("call", "costs"), QUERIES.items())
def test_a_failing_query_is_absent_and_says_why(
    session: Session, node: SimulatedNode, call: str, costs: set[str]
) -> None:
    node.faults.fail(call, "UNKNOWN", gpu=4)
    readings = read(session, session.gpus[4])
    assert fields(readings, absent=True) == costs | ABSENT
    assert readings.failed.keys() - ABSENT == costs
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


@pytest.mark.parametrize("call", QUERIES)
def test_a_gpu_lost_to_one_query_is_lost(session: Session, node: SimulatedNode, call: str) -> None:
    node.faults.fail(call, "GPU_IS_LOST", gpu=3)
    with pytest.raises(DeviceLost):
        read(session, session.gpus[3])


def test_a_gpu_that_answers_nothing_at_all_is_an_error(session: Session, node: SimulatedNode) -> None:
    for call in QUERIES:
        node.faults.fail(call, "RESET_REQUIRED", gpu=3)
    with pytest.raises(HardwareError, match=r"\(NVML error 16\): drain the GPU and reset it"):
        read(session, session.gpus[3])


def test_a_gpu_that_supports_nothing_is_read_as_knowing_nothing(session: Session, node: SimulatedNode) -> None:
    for call in (*QUERIES, *OLDER):
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
