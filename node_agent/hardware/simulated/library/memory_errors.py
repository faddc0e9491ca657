"""C functions about memory that fails: ECC counts, remapped rows, retired pages and pending repairs."""

import pynvml

from node_agent.hardware.simulated.gpu import RowRemapping, SimulatedGpu
from node_agent.hardware.simulated.library.calls import Device, Sized, call
from node_agent.hardware.simulated.profile import nvml_constant
from node_agent.hardware.simulated.returns import NvmlReturn

_CORRECTED, _UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_VOLATILE, _AGGREGATE = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
_DRAM, _SRAM = pynvml.NVML_MEMORY_LOCATION_DRAM, pynvml.NVML_MEMORY_LOCATION_SRAM

# Ampere and later count by kind of memory, older boards by the unit that it belongs to.
LOCATIONS = (_DRAM, _SRAM)
OLDER_LOCATIONS = (
    pynvml.NVML_MEMORY_LOCATION_L1_CACHE,
    pynvml.NVML_MEMORY_LOCATION_L2_CACHE,
    _DRAM,
    pynvml.NVML_MEMORY_LOCATION_REGISTER_FILE,
    pynvml.NVML_MEMORY_LOCATION_TEXTURE_MEMORY,
    pynvml.NVML_MEMORY_LOCATION_CBU,
)


def is_ampere_or_later(gpu: SimulatedGpu) -> bool:
    return nvml_constant("NVML_DEVICE_ARCH_", gpu.board.architecture) >= int(pynvml.NVML_DEVICE_ARCH_AMPERE)


def error_locations(gpu: SimulatedGpu) -> tuple[int, ...]:
    """The memory locations that a GPU counts errors of."""
    return LOCATIONS if is_ampere_or_later(gpu) else OLDER_LOCATIONS


@call()
def nvmlDeviceGetEccMode(gpu: SimulatedGpu) -> tuple[int, int]:
    _require(gpu.board.ecc)
    return gpu.ecc_current, gpu.ecc_pending


@call()
def nvmlDeviceSetEccMode(gpu: SimulatedGpu, mode: int) -> None:
    """Takes effect at the next reset."""
    _require(gpu.board.ecc)
    if mode not in (pynvml.NVML_FEATURE_DISABLED, pynvml.NVML_FEATURE_ENABLED):
        raise NvmlReturn("INVALID_ARGUMENT")
    gpu.ecc_pending = mode


@call()
def nvmlDeviceGetDefaultEccMode(gpu: SimulatedGpu) -> int:
    _require(gpu.board.ecc)
    return int(pynvml.NVML_FEATURE_ENABLED)


@call()
def nvmlDeviceGetTotalEccErrors(device: Device, kind: int, counter: int) -> int:
    gpu = _counting(device, kind, counter)
    return sum(gpu.ecc_errors[kind, counter, location] for location in error_locations(gpu))


@call()
def nvmlDeviceGetMemoryErrorCounter(device: Device, kind: int, counter: int, location: int) -> int:
    gpu = _counting(device, kind, counter)
    if location not in range(pynvml.NVML_MEMORY_LOCATION_COUNT):
        raise NvmlReturn("INVALID_ARGUMENT")
    _require(location in error_locations(gpu))
    return gpu.ecc_errors[kind, counter, location]


@call(versions=[pynvml.nvmlEccSramErrorStatus_v1])
def nvmlDeviceGetSramEccErrorStatus(gpu: SimulatedGpu) -> dict[str, int]:
    """Uncorrected errors are all taken for SEC-DED ones of the L2 cache; two of them cross the threshold."""
    _require(gpu.board.ecc and is_ampere_or_later(gpu))
    lasting = gpu.ecc_errors[_UNCORRECTED, _AGGREGATE, _SRAM]
    return {
        "aggregateUncSecDed": lasting,
        "aggregateCor": gpu.ecc_errors[_CORRECTED, _AGGREGATE, _SRAM],
        "volatileUncSecDed": gpu.ecc_errors[_UNCORRECTED, _VOLATILE, _SRAM],
        "volatileCor": gpu.ecc_errors[_CORRECTED, _VOLATILE, _SRAM],
        "aggregateUncBucketL2": lasting,
        "bThresholdExceeded": int(lasting > 1),
    }


@call()
def nvmlDeviceClearEccErrorCounts(gpu: SimulatedGpu, counter: int) -> None:
    _require(gpu.board.ecc)
    gpu.clear_ecc_errors(counter)


@call()
def nvmlDeviceGetRemappedRows(gpu: SimulatedGpu) -> tuple[int, int, int, int]:
    rows = remapping_of(gpu)
    return rows.correctable, rows.uncorrectable, int(rows.pending), int(rows.failure)


@call()
def nvmlDeviceGetRowRemapperHistogram(gpu: SimulatedGpu) -> dict[str, int]:
    rows, banks = remapping_of(gpu), gpu.board.remap_banks or 0
    # A bank is counted once, by what it has left: those that nothing is said about have all their spare rows.
    return {"high": 0, "partial": 0, "low": 0, "none": 0, **rows.spent, "max": banks - sum(rows.spent.values())}


@call()
def nvmlDeviceGetRetiredPages(gpu: SimulatedGpu, cause: int) -> Sized:
    _require(gpu.board.page_retirement)
    if cause not in range(pynvml.NVML_PAGE_RETIREMENT_CAUSE_COUNT):
        raise NvmlReturn("INVALID_ARGUMENT")
    return Sized(gpu.retired_pages.get(cause, []))


@call()
def nvmlDeviceGetRetiredPagesPendingStatus(gpu: SimulatedGpu) -> int:
    _require(gpu.board.page_retirement)
    return int(gpu.retirement_pending)


@call(versions=[pynvml.nvmlRepairStatus_v1])
def nvmlDeviceGetRepairStatus(gpu: SimulatedGpu) -> dict[str, int]:
    """Neither channels nor TPCs of simulated boards ever wait for a repair."""
    # Boards that remap rows are those that can repair channels, too.
    remapping_of(gpu)
    return {"bChannelRepairPending": 0, "bTpcRepairPending": 0}


def remapping_of(gpu: SimulatedGpu) -> RowRemapping:
    """A GPU cut into instances does not answer for its rows."""
    _require(gpu.board.remap_banks is not None and not (gpu.mig and gpu.mig.instances))
    return gpu.remapping


def _counting(device: Device, kind: int, counter: int) -> SimulatedGpu:
    """The GPU that counts. With MIG on, volatile counts are read through MIG handles, lasting ones through the GPU."""
    _require(device.gpu.board.ecc and bool(device.gpu.ecc_current))
    if kind not in (_CORRECTED, _UNCORRECTED) or counter not in (_VOLATILE, _AGGREGATE):
        raise NvmlReturn("INVALID_ARGUMENT")
    through_mig = device.gpu.mig_enabled and counter == _VOLATILE
    _require(through_mig is not isinstance(device, SimulatedGpu))
    return device.gpu


def _require(ability: bool) -> None:
    if not ability:
        raise NvmlReturn("NOT_SUPPORTED")
