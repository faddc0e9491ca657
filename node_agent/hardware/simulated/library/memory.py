"""C functions about memory and about the processes that use it."""

import time
from typing import Any

import pynvml

from node_agent.hardware.simulated.events import NO_INSTANCE
from node_agent.hardware.simulated.gpu import MigDevice, Process, SimulatedGpu
from node_agent.hardware.simulated.library.calls import Device, Sized, Target, call, fill
from node_agent.hardware.simulated.profile import MIB
from node_agent.hardware.simulated.returns import NvmlReturn, supported

# The driver always maps a little for itself.
_BAR1_IN_USE = MIB
# EXCLUSIVE_THREAD is in the enumeration, too, but has been refused for many years.
_COMPUTE_MODES = (
    pynvml.NVML_COMPUTEMODE_DEFAULT,
    pynvml.NVML_COMPUTEMODE_PROHIBITED,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
)


@call()
def nvmlDeviceGetMemoryInfo(device: Device) -> dict[str, int]:
    total, reserved, used = _use(device)
    # The first form has no field for what the driver reserves and counts it as used.
    return {"total": total, "used": reserved + used, "free": total - reserved - used}


@call(versions=[pynvml.nvmlMemory_v2])
def nvmlDeviceGetMemoryInfo_v2(device: Device) -> dict[str, int]:
    total, reserved, used = _use(device)
    return {"total": total, "reserved": reserved, "used": used, "free": total - reserved - used}


@call()
def nvmlDeviceGetBAR1MemoryInfo(device: Device) -> dict[str, int]:
    """A MIG device has the part of BAR1 that goes with its memory slices."""
    total = supported(device.gpu.board.memory).bar1_mib * MIB
    if isinstance(device, MigDevice):
        total = total * device.instance.profile.size // _mig_slices(device.gpu)
    return {"bar1Total": total, "bar1Used": _BAR1_IN_USE, "bar1Free": total - _BAR1_IN_USE}


@call()
def nvmlDeviceGetMemoryBusWidth(gpu: SimulatedGpu) -> int:
    return supported(gpu.board.memory).bus_width


@call(also=["nvmlDeviceGetComputeRunningProcesses_v2"])
def nvmlDeviceGetComputeRunningProcesses_v3(device: Device) -> Sized:
    return _processes(device, "compute")


@call(also=["nvmlDeviceGetGraphicsRunningProcesses_v2"])
def nvmlDeviceGetGraphicsRunningProcesses_v3(device: Device) -> Sized:
    return _processes(device, "graphics")


@call(also=["nvmlDeviceGetMPSComputeRunningProcesses_v2"])
def nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Device) -> Sized:
    return _processes(device, "mps")


@call()
def nvmlDeviceGetProcessUtilization(gpu: SimulatedGpu, samples: Target, count: Target, since: int) -> None:
    """One sample for each process; the GPU's load is shared out evenly. NOT_FOUND when nobody runs."""
    running = gpu.processes
    if not running:
        raise NvmlReturn("NOT_FOUND")
    room, count.value = count.value, len(running)
    if samples is None or room < len(running):
        raise NvmlReturn("INSUFFICIENT_SIZE")
    share = round(100 * gpu.load) // len(running)
    for sample, process in zip(samples, running, strict=False):
        fill(sample, {"pid": process.pid, "timeStamp": time.time_ns() // 1000, "smUtil": share, "memUtil": share})


@call()
def nvmlDeviceGetComputeMode(device: Device) -> int:
    return device.gpu.compute_mode


@call()
def nvmlDeviceSetComputeMode(device: Device, mode: int) -> None:
    """With MIG on, the mode is set through a MIG device's handle."""
    if isinstance(device, SimulatedGpu) and device.mig_enabled:
        raise NvmlReturn("NOT_SUPPORTED")
    if mode not in _COMPUTE_MODES:
        raise NvmlReturn("INVALID_ARGUMENT")
    device.gpu.compute_mode = mode


@call()
def nvmlDeviceGetPersistenceMode(gpu: SimulatedGpu) -> int:
    return gpu.persistence


@call()
def nvmlDeviceSetPersistenceMode(gpu: SimulatedGpu, mode: int) -> None:
    if mode not in (pynvml.NVML_FEATURE_DISABLED, pynvml.NVML_FEATURE_ENABLED):
        raise NvmlReturn("INVALID_ARGUMENT")
    gpu.persistence = mode


def _mig_slices(gpu: SimulatedGpu) -> int:
    return gpu.mig.table.memory_slices if gpu.mig else 1


def _use(device: Device) -> tuple[int, int, int]:
    """Bytes in all, reserved by the driver, and used by processes; a MIG device shares its GPU instance's memory."""
    memory = supported(device.gpu.board.memory)
    if isinstance(device, MigDevice):
        return device.instance.profile.mib * MIB, 0, _used(device.gpu, device.instance.id)
    return memory.total_mib * MIB, memory.reserved_mib * MIB, _used(device)


def _used(gpu: SimulatedGpu, instance: int | None = None) -> int:
    return sum(process.memory or 0 for process in gpu.processes if instance in (None, process.instance))


def _processes(device: Device, kind: str) -> Sized:
    return Sized(_process_fields(process) for process in device.processes if process.kind == kind)


def _process_fields(process: Process) -> dict[str, Any]:
    unknown = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
    return {
        "pid": process.pid,
        "usedGpuMemory": unknown if process.memory is None else process.memory,
        "gpuInstanceId": NO_INSTANCE if process.instance is None else process.instance,
        "computeInstanceId": NO_INSTANCE if process.compute_instance is None else process.compute_instance,
    }
