"""Asks one GPU for its figures: what people want to see of it, and its health does not need."""

from collections.abc import Callable, Mapping
from functools import partial

import pynvml

from node_agent.errors import HardwareError
from node_agent.hardware.figures import Figures, Memory
from node_agent.hardware.nvml.partitions import live_devices
from node_agent.hardware.nvml.scan import memory_info
from node_agent.hardware.nvml.translate import Answers, Calls, Handle, Query, field_values, figure
from node_agent.model.partition import PartitionUuid

_ALL_LINKS = 0xFFFFFFFF


def figures(calls: Calls, handle: Handle, activities: Query) -> Figures:
    """Raises DeviceLost and DriverUnavailable; what fails otherwise is said in ``failed``."""
    answers = Answers()
    values = answers.ask_all({**_QUERIES, "activities": activities}, calls, handle)
    told = field_values(calls, handle, list(_FIELDS.values()))
    values |= {name: answers.ask(name, partial(_figure, answer)) for name, answer in zip(_FIELDS, told, strict=True)}
    known = {name: value for name, value in values.items() if value is not None}
    return Figures(failed=answers.failed, **known)


def _figure(answer: int | HardwareError) -> int | None:
    if isinstance(answer, HardwareError):
        raise answer
    return figure(answer)


def _memory(calls: Calls, handle: Handle) -> Memory | None:
    info = memory_info(calls, handle)
    if not info or not info.total:
        return None
    return Memory(total=info.total, used=info.used, free=info.free, reserved=getattr(info, "reserved", None))


def _partitions(calls: Calls, handle: Handle) -> Mapping[PartitionUuid, Memory]:
    """The memory of each MIG device."""
    found = {}
    for device in live_devices(calls, handle).values():
        if memory := _memory(calls, device):
            found[PartitionUuid(calls.text(pynvml.nvmlDeviceGetUUID, device))] = memory
    return found


def _licensed(calls: Calls, handle: Handle) -> bool:
    found = calls(pynvml.nvmlDeviceGetGridLicensableFeatures, handle)
    return any(one.featureState for one in found.gridLicensableFeatures[: found.licensableFeaturesCount])


def _share(function: Callable[..., list[int]]) -> Query:
    return lambda calls, handle: calls(function, handle)[0] / 100


_QUERIES: Mapping[str, Query] = {
    "memory": _memory,
    "sm_clock": lambda calls, handle: calls(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
    "memory_clock": lambda calls, handle: calls(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
    "memory_utilization": lambda calls, handle: calls(pynvml.nvmlDeviceGetUtilizationRates, handle).memory / 100,
    "encoder_utilization": _share(pynvml.nvmlDeviceGetEncoderUtilization),
    "decoder_utilization": _share(pynvml.nvmlDeviceGetDecoderUtilization),
    "licensed": _licensed,
    "partitions": _partitions,
}

# By field and scope.
_FIELDS: Mapping[str, tuple[int, int]] = {
    "memory_temperature": (pynvml.NVML_FI_DEV_MEMORY_TEMP, 0),
    "energy": (pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 0),
    "pcie_replays": (pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER, 0),
    "correctable_remapped_rows": (pynvml.NVML_FI_DEV_REMAPPED_COR, 0),
    "uncorrectable_remapped_rows": (pynvml.NVML_FI_DEV_REMAPPED_UNC, 0),
    "corrected_errors": (pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, 0),
    "uncorrected_errors": (pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL, 0),
    "corrected_errors_ever": (pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL, 0),
    "uncorrected_errors_ever": (pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL, 0),
    "power_held": (pynvml.NVML_FI_DEV_PERF_POLICY_POWER, 0),
    "heat_held": (pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL, 0),
    "nvlink_sent": (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
    "nvlink_received": (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
    "nvlink_flit_errors": (pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, 0),
    "nvlink_data_errors": (pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, 0),
    "nvlink_replays": (pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, 0),
    "nvlink_recoveries": (pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, 0),
}
