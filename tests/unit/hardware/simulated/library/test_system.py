"""The library as a whole: initialisation, versions, and finding GPUs."""

import ctypes

import pynvml
import pytest

from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import EVERY_PROFILE, WITH_GPUS, gpu, gpus


def same(one: object, other: object) -> bool:
    return ctypes.cast(one, ctypes.c_void_p).value == ctypes.cast(other, ctypes.c_void_p).value  # type: ignore[arg-type]


@pytest.mark.parametrize("name", EVERY_PROFILE)
def test_the_count_is_that_of_the_profile(simulate: Simulate, name: str) -> None:
    node = simulate(name)
    assert pynvml.nvmlDeviceGetCount() == len(node.profile.gpus)


@pytest.mark.parametrize("name", EVERY_PROFILE)
def test_versions_are_those_of_the_profile(simulate: Simulate, name: str) -> None:
    driver = simulate(name).profile.driver
    major, minor = driver.cuda.split(".")
    assert pynvml.nvmlSystemGetDriverVersion() == driver.version
    assert pynvml.nvmlSystemGetNVMLVersion() == f"{major}.{driver.version}"
    assert pynvml.nvmlSystemGetCudaDriverVersion() == int(major) * 1000 + int(minor) * 10
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == pynvml.nvmlSystemGetCudaDriverVersion()


def test_the_driver_branch_is_named(h200: SimulatedNode) -> None:
    assert pynvml.nvmlSystemGetDriverBranch().branch == "r580_00"


# Initialisation


def test_nothing_answers_before_the_first_init() -> None:
    with install(SimulatedNode(load_profile("l4-2"))):
        for call in (pynvml.nvmlDeviceGetCount, pynvml.nvmlSystemGetDriverVersion, pynvml.nvmlShutdown):
            with pytest.raises(pynvml.NVMLError_Uninitialized):
                call()


def test_each_init_needs_its_shutdown(h200: SimulatedNode) -> None:
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 8
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_the_library_can_be_initialised_again(h200: SimulatedNode) -> None:
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 8


@pytest.mark.parametrize("flags", [0, 1, 2, 4])
def test_flags_of_init_are_accepted(flags: int) -> None:
    with install(SimulatedNode(load_profile("none"))):
        pynvml.nvmlInitWithFlags(flags)
        assert pynvml.nvmlDeviceGetCount() == 0
        pynvml.nvmlShutdown()


@pytest.mark.parametrize(
    ("state", "error"),
    [("not-loaded", pynvml.NVMLError_DriverNotLoaded), ("version-mismatch", pynvml.NVMLError_LibRmVersionMismatch)],
)
def test_without_a_fitting_driver_init_says_why(state: str, error: type[Exception]) -> None:
    node = SimulatedNode(load_profile("l4-2"))
    node.faults.driver(state)
    with install(node):
        with pytest.raises(error):
            pynvml.nvmlInit()
        node.faults.driver("loaded")
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 2
        pynvml.nvmlShutdown()


def test_errors_carry_a_text_before_init() -> None:
    with install(SimulatedNode(load_profile("l4-2"))), pytest.raises(pynvml.NVMLError, match="Uninitialized"):
        pynvml.nvmlDeviceGetCount()


@pytest.mark.parametrize(
    ("code", "text"), [(0, "Unknown Error"), (3, "Not Supported"), (15, "GPU is lost"), (4711, "Unknown Error")]
)
def test_errors_have_their_text(h200: SimulatedNode, code: int, text: str) -> None:
    assert pynvml.nvmlErrorString(code) == text


# Handles


@pytest.mark.parametrize("name", WITH_GPUS)
def test_a_gpu_is_found_by_index_uuid_and_bus(simulate: Simulate, name: str) -> None:
    simulate(name)
    for index, handle in enumerate(gpus()):
        uuid, pci = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetPciInfo(handle)
        assert pynvml.nvmlDeviceGetIndex(handle) == index
        assert same(pynvml.nvmlDeviceGetHandleByUUID(uuid), handle)
        for bus in (pci.busId, pci.busIdLegacy, pci.busId.lower(), pci.busIdLegacy.lower()):
            assert same(pynvml.nvmlDeviceGetHandleByPciBusId(bus), handle)


def test_a_gpu_is_found_by_its_serial(h200: SimulatedNode) -> None:
    serial = pynvml.nvmlDeviceGetSerial(gpu(5))
    assert same(pynvml.nvmlDeviceGetHandleBySerial(serial), gpu(5))


@pytest.mark.parametrize("index", [8, 9, 255])
def test_an_index_past_the_count_is_invalid(h200: SimulatedNode, index: int) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(index)


def test_what_is_not_there_is_not_found(h200: SimulatedNode) -> None:
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByPciBusId("00000000:FF:00.0")
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleBySerial("0")


def test_the_domain_of_a_bus_id_counts(simulate: Simulate) -> None:
    simulate("gb200-4")
    assert same(pynvml.nvmlDeviceGetHandleByPciBusId("00000018:01:00.0"), gpu(2))
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByPciBusId("00000000:01:00.0")


def test_every_gpu_is_a_board_by_itself(h200: SimulatedNode) -> None:
    assert pynvml.nvmlDeviceOnSameBoard(gpu(0), gpu(0))
    assert not pynvml.nvmlDeviceOnSameBoard(gpu(0), gpu(1))
    assert pynvml.nvmlGetExcludedDeviceCount() == 0


def test_a_mig_device_is_found_by_its_uuid_in_both_forms(simulate: Simulate) -> None:
    simulate("a30-2")
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), 2)
    uuid = pynvml.nvmlDeviceGetUUID(device)
    parent = pynvml.nvmlDeviceGetUUID(gpu(1))
    instance = pynvml.nvmlDeviceGetGpuInstanceId(device)
    assert uuid.startswith("MIG-")
    assert same(pynvml.nvmlDeviceGetHandleByUUID(uuid), device)
    assert same(pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{parent}/{instance}/0"), device)
