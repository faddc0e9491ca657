"""Compute modes: which processes may open a GPU."""

import pynvml

from node_agent.errors import DeviceLost
from node_agent.hardware.nvml.partitions import live_devices
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.nvml.translate import Handle
from node_agent.hardware.provider import ComputeMode
from node_agent.model.gpu import GpuUuid
from node_agent.model.partition import PartitionUuid

_MODES = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: ComputeMode.DEFAULT,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: ComputeMode.EXCLUSIVE_PROCESS,
    pynvml.NVML_COMPUTEMODE_PROHIBITED: ComputeMode.PROHIBITED,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: ComputeMode.EXCLUSIVE_PROCESS,
}
_NUMBERS = {mode: number for number, mode in _MODES.items()}


def compute_mode(session: Session, device: GpuUuid | PartitionUuid) -> ComputeMode:
    return _MODES[session.calls(pynvml.nvmlDeviceGetComputeMode, _handle(session, device))]


def set_compute_mode(session: Session, device: GpuUuid | PartitionUuid, mode: ComputeMode) -> None:
    session.calls(pynvml.nvmlDeviceSetComputeMode, _handle(session, device), _NUMBERS[mode])


def _handle(session: Session, device: GpuUuid | PartitionUuid) -> Handle:
    """The handle of a GPU or of a MIG device. Raises DeviceLost where the driver lists neither."""
    if not device.startswith("MIG-"):
        return session.handle(GpuUuid(device))
    for gpu in session.gpus:
        for found in live_devices(session.calls, session.handle(gpu)).values():
            if session.calls.text(pynvml.nvmlDeviceGetUUID, found) == device:
                return found
    raise DeviceLost(f"the driver does not list {device}: it was destroyed, or not looked for yet")
