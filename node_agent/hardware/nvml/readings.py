"""What a GPU measures of itself, read anew at each look."""

from collections.abc import Mapping

import pynvml

from node_agent.errors import HardwareError
from node_agent.hardware.nvml.partitions import live_devices
from node_agent.hardware.nvml.scan import memory_info
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.nvml.translate import Answers, Calls, Handle, Query, figure
from node_agent.hardware.provider import GpuReadings, RecoveryAction
from node_agent.model.gpu import GpuUuid

_ACTIONS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_NONE: RecoveryAction.NONE,
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: RecoveryAction.RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: RecoveryAction.REBOOT,
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: RecoveryAction.DRAIN,
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: RecoveryAction.DRAIN_AND_RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: RecoveryAction.RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: RecoveryAction.REBOOT,
}


def read(session: Session, gpu: GpuUuid) -> GpuReadings:
    """Read one GPU.

    Raises:
        DeviceLost: it is off the bus.
        HardwareError: it answers nothing at all.
    """
    handle = session.handle(gpu)
    answers = Answers()
    values = answers.ask_all(_QUERIES, session.calls, handle)
    # A GPU that lacks everything is an odd one; a GPU that fails everything is a broken one.
    if not answers.heard:
        raise answers.errors[0]
    return GpuReadings(failed=answers.failed, **values)


def _memory_used(calls: Calls, handle: Handle) -> int | None:
    info = memory_info(calls, handle)
    return figure(info.used) if info and info.total else None


def _recovery_action(calls: Calls, handle: Handle) -> RecoveryAction:
    (answer,) = calls.fields(handle, [(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 0)])
    if isinstance(answer, HardwareError):
        raise answer
    return _ACTIONS.get(answer, RecoveryAction.OTHER)


def _uncorrected_ecc_errors(calls: Calls, handle: Handle) -> int | None:
    """Since the driver was loaded or the GPU reset. A GPU that is cut into MIG devices counts by them."""
    wanted = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    whole = calls.optional(pynvml.nvmlDeviceGetTotalEccErrors, handle, *wanted)
    if whole is not None:
        return figure(whole)
    parts = [calls.optional(pynvml.nvmlDeviceGetTotalEccErrors, part, *wanted) for part in live_devices(calls, handle)]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _row_remap_pending(calls: Calls, handle: Handle) -> bool:
    _, _, pending, _ = calls(pynvml.nvmlDeviceGetRemappedRows, handle)
    return bool(pending)


def _row_remap_failed(calls: Calls, handle: Handle) -> bool:
    *_, failed = calls(pynvml.nvmlDeviceGetRemappedRows, handle)
    return bool(failed)


def _utilization(calls: Calls, handle: Handle) -> float:
    share: float = calls(pynvml.nvmlDeviceGetUtilizationRates, handle).gpu / 100
    return share


def _power(calls: Calls, handle: Handle) -> float | None:
    milliwatts = figure(calls(pynvml.nvmlDeviceGetPowerUsage, handle))
    return None if milliwatts is None else milliwatts / 1000


_QUERIES: Mapping[str, Query] = {
    "memory_used": _memory_used,
    "utilization": _utilization,
    "temperature": lambda calls, handle: calls(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
    "power": _power,
    "recovery_action": _recovery_action,
    "uncorrected_ecc_errors": _uncorrected_ecc_errors,
    "row_remap_pending": _row_remap_pending,
    "row_remap_failed": _row_remap_failed,
}
