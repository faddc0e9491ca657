"""Memory, the processes that use it, and the modes that say who may."""

import pynvml
import pytest

from node_agent.hardware.simulated import SimulatedNode
from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import WITH_GPUS, gpu, gpus

MIB = 1 << 20

TOTALS = [
    ("h200-8", 150754820096),
    ("h100-8", 85520809984),
    ("a100-80gb-8", 85899345920),
    ("a100-40gb-8", 42949672960),
    ("a100-pcie-4", 42949672960),
    ("a30-2", 25769803776),
    ("v100-8", 17179869184),
    ("l40s-8", 48305799168),
    ("t4-4", 16106127360),
    ("b200-8", 192265846784),
    ("gb200-4", 198674743296),
]

WITH_MEMORY = [name for name in WITH_GPUS if name not in ("gb10-1", "t4-4")]


@pytest.mark.parametrize(("profile", "total"), TOTALS)
def test_the_total_is_the_boards(simulate: Simulate, profile: str, total: int) -> None:
    simulate(profile)
    assert {pynvml.nvmlDeviceGetMemoryInfo(handle).total for handle in gpus()} == {total}


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_figures_add_up_in_both_forms(simulate: Simulate, name: str) -> None:
    simulate(name)
    for handle in gpus():
        old = pynvml.nvmlDeviceGetMemoryInfo(handle)
        new = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        assert old.total == new.total == old.used + old.free == new.reserved + new.used + new.free
        assert old.used == new.reserved + new.used
        assert new.reserved > 0


def test_a_process_takes_its_memory(h200: SimulatedNode) -> None:
    before = pynvml.nvmlDeviceGetMemoryInfo(gpu(0), version=pynvml.nvmlMemory_v2)
    h200.faults.start_process(0, 4711, memory=1024 * MIB)
    after = pynvml.nvmlDeviceGetMemoryInfo(gpu(0), version=pynvml.nvmlMemory_v2)
    assert (after.used - before.used, before.free - after.free) == (1024 * MIB, 1024 * MIB)
    assert after.reserved == before.reserved


def test_unified_memory_has_no_figures(simulate: Simulate) -> None:
    simulate("gb10-1")
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMemoryInfo(gpu(0), version=pynvml.nvmlMemory_v2)
    for call in (
        pynvml.nvmlDeviceGetMemoryInfo,
        pynvml.nvmlDeviceGetBAR1MemoryInfo,
        pynvml.nvmlDeviceGetMemoryBusWidth,
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call(gpu(0))


@pytest.mark.parametrize(
    ("profile", "mib"), [("h200-8", 262144), ("h100-8", 131072), ("a100-40gb-8", 65536), ("t4-4", 256)]
)
def test_bar1_is_the_boards(simulate: Simulate, profile: str, mib: int) -> None:
    simulate(profile)
    info = pynvml.nvmlDeviceGetBAR1MemoryInfo(gpu(0))
    assert info.bar1Total == mib * MIB == info.bar1Used + info.bar1Free


def test_the_bus_is_as_wide_as_the_boards(h200: SimulatedNode) -> None:
    assert pynvml.nvmlDeviceGetMemoryBusWidth(gpu(0)) == 6144


# MIG devices


def test_a_mig_device_shows_the_memory_of_its_instance(simulate: Simulate) -> None:
    simulate("a30-2")
    devices = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), index) for index in range(3)]
    assert [pynvml.nvmlDeviceGetMemoryInfo(device).total // MIB for device in devices] == [5952, 5952, 11968]
    assert [pynvml.nvmlDeviceGetBAR1MemoryInfo(device).bar1Total // MIB for device in devices] == [8192, 8192, 16384]


def test_a_mig_device_shows_its_own_processes_and_the_gpu_all(simulate: Simulate) -> None:
    node = simulate("a30-2")
    first, second = (pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), index) for index in (0, 1))
    ids = [pynvml.nvmlDeviceGetGpuInstanceId(device) for device in (first, second)]
    node.faults.start_process(1, 101, memory=MIB, instance=ids[0], compute_instance=0)
    node.faults.start_process(1, 102, memory=2 * MIB, instance=ids[1], compute_instance=0)

    assert [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(first)] == [101]
    assert [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(second)] == [102]
    everything = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu(1))
    assert [(process.pid, process.gpuInstanceId) for process in everything] == [(101, ids[0]), (102, ids[1])]
    assert pynvml.nvmlDeviceGetMemoryInfo(second).used == 2 * MIB


# Processes


def test_nobody_uses_a_gpu_at_first(h200: SimulatedNode) -> None:
    for call in (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
    ):
        assert call(gpu(0)) == []


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("compute", pynvml.nvmlDeviceGetComputeRunningProcesses),
        ("graphics", pynvml.nvmlDeviceGetGraphicsRunningProcesses),
        ("mps", pynvml.nvmlDeviceGetMPSComputeRunningProcesses),
    ],
)
def test_a_process_is_listed_by_its_kind(h200: SimulatedNode, kind: str, call: object) -> None:
    h200.faults.start_process(2, 4711, kind=kind, memory=512 * MIB)
    assert callable(call)
    (process,) = call(gpu(2))
    assert (process.pid, process.usedGpuMemory) == (4711, 512 * MIB)
    assert (process.gpuInstanceId, process.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)
    others = [other for other in ("compute", "graphics", "mps") if other != kind]
    assert len(others) == 2
    assert call(gpu(3)) == []


def test_memory_that_the_driver_cannot_tell_is_none(h200: SimulatedNode) -> None:
    h200.faults.start_process(0, 4711)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(gpu(0))[0].usedGpuMemory is None


def test_the_older_form_of_the_list_is_there_too(simulate: Simulate) -> None:
    node = simulate("t4-4")
    node.faults.start_process(0, 4711)
    assert [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses_v2(gpu(0))] == [4711]
    with pytest.raises(pynvml.NVMLLibraryMismatchError):
        pynvml.nvmlDeviceGetComputeRunningProcesses(gpu(0))


def test_the_load_is_shared_out_among_the_processes(h200: SimulatedNode) -> None:
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(gpu(0), 0)
    h200.faults.load(0, 0.8)
    h200.faults.start_process(0, 1)
    h200.faults.start_process(0, 2)
    samples = pynvml.nvmlDeviceGetProcessUtilization(gpu(0), 0)
    assert [(sample.pid, sample.smUtil) for sample in samples] == [(1, 40), (2, 40)]
    assert all(sample.timeStamp > 0 for sample in samples)


# Modes


@pytest.mark.parametrize(
    "mode",
    [pynvml.NVML_COMPUTEMODE_PROHIBITED, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, pynvml.NVML_COMPUTEMODE_DEFAULT],
)
def test_the_compute_mode_can_be_set(h200: SimulatedNode, mode: int) -> None:
    pynvml.nvmlDeviceSetComputeMode(gpu(0), mode)
    assert pynvml.nvmlDeviceGetComputeMode(gpu(0)) == mode
    assert pynvml.nvmlDeviceGetComputeMode(gpu(1)) == pynvml.NVML_COMPUTEMODE_DEFAULT


@pytest.mark.parametrize("mode", [pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD, 4, 99])
def test_a_mode_that_is_no_more_is_invalid(h200: SimulatedNode, mode: int) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetComputeMode(gpu(0), mode)


def test_with_mig_on_the_compute_mode_is_set_through_a_mig_device(simulate: Simulate) -> None:
    simulate("a30-2")
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceSetComputeMode(gpu(1), pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), 0)
    pynvml.nvmlDeviceSetComputeMode(device, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    assert pynvml.nvmlDeviceGetComputeMode(device) == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS


def test_persistence_can_be_switched(h200: SimulatedNode) -> None:
    assert pynvml.nvmlDeviceGetPersistenceMode(gpu(0)) == pynvml.NVML_FEATURE_ENABLED
    pynvml.nvmlDeviceSetPersistenceMode(gpu(0), pynvml.NVML_FEATURE_DISABLED)
    assert pynvml.nvmlDeviceGetPersistenceMode(gpu(0)) == pynvml.NVML_FEATURE_DISABLED
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetPersistenceMode(gpu(0), 2)
