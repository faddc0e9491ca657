"""Memory that fails: ECC counts, remapped rows, retired pages."""

from ctypes import byref

import pynvml
import pytest

from node_agent.hardware.simulated import SimulatedNode
from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import gpu

CORRECTED, UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
VOLATILE, AGGREGATE = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
DRAM, SRAM = pynvml.NVML_MEMORY_LOCATION_DRAM, pynvml.NVML_MEMORY_LOCATION_SRAM


def totals(index: int = 0) -> list[int]:
    """Corrected and uncorrected errors since the last reset, then of the GPU's life time."""
    return [
        pynvml.nvmlDeviceGetTotalEccErrors(gpu(index), kind, counter)
        for counter in (VOLATILE, AGGREGATE)
        for kind in (CORRECTED, UNCORRECTED)
    ]


def sram(index: int = 0) -> pynvml.c_nvmlEccSramErrorStatus_v1_t:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(gpu(index), byref(status))
    return status


# ECC


def test_a_new_gpu_has_no_errors(h200: SimulatedNode) -> None:
    assert totals() == [0, 0, 0, 0]


def test_errors_count_since_the_reset_and_for_ever(h200: SimulatedNode) -> None:
    h200.faults.ecc(0, "uncorrected", 2)
    h200.faults.ecc(0, "corrected", 5, location="sram")
    assert totals() == [5, 2, 5, 2]
    assert totals(1) == [0, 0, 0, 0]
    h200.faults.restore(0)
    assert totals() == [0, 0, 5, 2]


def test_errors_are_told_by_location(h200: SimulatedNode) -> None:
    h200.faults.ecc(0, "uncorrected", 2, location="dram")
    h200.faults.ecc(0, "uncorrected", 3, location="sram")
    counts = [pynvml.nvmlDeviceGetMemoryErrorCounter(gpu(0), UNCORRECTED, VOLATILE, place) for place in (DRAM, SRAM)]
    assert counts == [2, 3]


@pytest.mark.parametrize("location", [0, 1, 3, 4, 5, 6])
def test_newer_boards_count_by_kind_of_memory_only(h200: SimulatedNode, location: int) -> None:
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMemoryErrorCounter(gpu(0), UNCORRECTED, VOLATILE, location)


def test_older_boards_count_by_unit(simulate: Simulate) -> None:
    node = simulate("v100-8")
    node.faults.ecc(0, "uncorrected", location="register-file")
    register = pynvml.NVML_MEMORY_LOCATION_REGISTER_FILE
    assert pynvml.nvmlDeviceGetMemoryErrorCounter(gpu(0), UNCORRECTED, VOLATILE, register) == 1
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMemoryErrorCounter(gpu(0), UNCORRECTED, VOLATILE, SRAM)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        sram()


@pytest.mark.parametrize(("kind", "counter", "location"), [(2, 0, 2), (0, 2, 2), (0, 0, 8)])
def test_numbers_past_the_enumerations_are_invalid(h200: SimulatedNode, kind: int, counter: int, location: int) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetMemoryErrorCounter(gpu(0), kind, counter, location)


def test_errors_in_sram_cross_a_threshold(h200: SimulatedNode) -> None:
    h200.faults.ecc(0, "uncorrected", location="sram")
    once = sram()
    assert (once.volatileUncSecDed, once.aggregateUncSecDed, once.aggregateUncBucketL2) == (1, 1, 1)
    assert once.bThresholdExceeded == 0
    h200.faults.ecc(0, "uncorrected", location="sram")
    assert sram().bThresholdExceeded == 1


def test_counts_can_be_cleared(h200: SimulatedNode) -> None:
    h200.faults.ecc(0, "corrected", 3)
    pynvml.nvmlDeviceClearEccErrorCounts(gpu(0), VOLATILE)
    assert totals() == [0, 0, 3, 0]
    pynvml.nvmlDeviceClearEccErrorCounts(gpu(0), AGGREGATE)
    assert totals() == [0, 0, 0, 0]


def test_a_change_of_the_ecc_mode_waits_for_a_reset(h200: SimulatedNode) -> None:
    assert pynvml.nvmlDeviceGetEccMode(gpu(0)) == [1, 1]
    assert pynvml.nvmlDeviceGetDefaultEccMode(gpu(0)) == [1]
    pynvml.nvmlDeviceSetEccMode(gpu(0), 0)
    assert pynvml.nvmlDeviceGetEccMode(gpu(0)) == [1, 0]
    h200.faults.restore(0)
    assert pynvml.nvmlDeviceGetEccMode(gpu(0)) == [0, 0]
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetEccMode(gpu(0), 7)


def test_with_ecc_off_there_are_no_counts(h200: SimulatedNode) -> None:
    pynvml.nvmlDeviceSetEccMode(gpu(0), 0)
    h200.faults.restore(0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        totals()
    assert totals(1) == [0, 0, 0, 0]


def test_with_mig_on_volatile_counts_are_read_through_mig_devices(simulate: Simulate) -> None:
    node = simulate("a30-2")
    node.faults.ecc(1, "uncorrected", 4)
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), 0)
    assert pynvml.nvmlDeviceGetTotalEccErrors(device, UNCORRECTED, VOLATILE) == 4
    assert pynvml.nvmlDeviceGetTotalEccErrors(gpu(1), UNCORRECTED, AGGREGATE) == 4
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetTotalEccErrors(gpu(1), UNCORRECTED, VOLATILE)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetTotalEccErrors(device, UNCORRECTED, AGGREGATE)


# Rows


@pytest.mark.parametrize(("profile", "banks"), [("h200-8", 3072), ("h100-8", 2560), ("a100-40gb-8", 640)])
def test_healthy_banks_have_all_their_spare_rows(simulate: Simulate, profile: str, banks: int) -> None:
    simulate(profile)
    found = pynvml.nvmlDeviceGetRowRemapperHistogram(gpu(0))
    assert (found.max, found.high, found.partial, found.low, found.none) == (banks, 0, 0, 0, 0)
    assert pynvml.nvmlDeviceGetRemappedRows(gpu(0)) == (0, 0, 0, 0)
    assert pynvml.nvmlDeviceGetRepairStatus(gpu(0)) == [0, 0]


def test_banks_run_out_of_spare_rows(h200: SimulatedNode) -> None:
    h200.faults.remap_rows(0, spent={"high": 10, "none": 2})
    found = pynvml.nvmlDeviceGetRowRemapperHistogram(gpu(0))
    assert (found.max, found.high, found.partial, found.low, found.none) == (3060, 10, 0, 0, 2)


def test_remapped_rows_change_only_as_told(h200: SimulatedNode) -> None:
    h200.faults.remap_rows(0, uncorrectable=3, pending=True)
    h200.faults.remap_rows(0, correctable=1)
    assert pynvml.nvmlDeviceGetRemappedRows(gpu(0)) == (1, 3, 1, 0)
    h200.faults.remap_rows(0, failure=True)
    assert pynvml.nvmlDeviceGetRemappedRows(gpu(0)) == (1, 3, 1, 1)
    assert pynvml.nvmlDeviceGetRemappedRows(gpu(1)) == (0, 0, 0, 0)


def test_a_pending_remap_takes_effect_at_the_reset(h200: SimulatedNode) -> None:
    h200.faults.remap_rows(0, uncorrectable=1, pending=True, failure=True)
    h200.faults.restore(0)
    assert pynvml.nvmlDeviceGetRemappedRows(gpu(0)) == (0, 1, 0, 1)


def test_a_gpu_with_instances_does_not_answer_for_its_rows(simulate: Simulate) -> None:
    simulate("a30-2")
    assert pynvml.nvmlDeviceGetRemappedRows(gpu(0)) == (0, 0, 0, 0)
    for call in (
        pynvml.nvmlDeviceGetRemappedRows,
        pynvml.nvmlDeviceGetRowRemapperHistogram,
        pynvml.nvmlDeviceGetRepairStatus,
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call(gpu(1))


# Pages


def test_older_boards_retire_pages(simulate: Simulate) -> None:
    node = simulate("v100-8")
    single, double = range(2)
    assert pynvml.nvmlDeviceGetRetiredPages(gpu(0), double) == []
    node.faults.retire_pages(0, "double-bit", [0x1000, 0x2000])
    assert pynvml.nvmlDeviceGetRetiredPages(gpu(0), double) == [0x1000, 0x2000]
    assert pynvml.nvmlDeviceGetRetiredPages(gpu(0), single) == []
    assert pynvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu(0)) == 1
    node.faults.restore(0)
    assert pynvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu(0)) == 0
    assert pynvml.nvmlDeviceGetRetiredPages(gpu(0), double) == [0x1000, 0x2000]
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetRetiredPages(gpu(0), 2)
