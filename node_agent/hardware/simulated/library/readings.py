"""C functions about what a GPU measures: power, heat, clocks, utilisation and its PCIe link.

A GPU's readings follow from its ``load`` alone: at rest it shows its board's idle figures, under full load its limits.
"""

import pynvml

from node_agent.hardware.simulated.gpu import SimulatedGpu
from node_agent.hardware.simulated.library.calls import Device, Target, call
from node_agent.hardware.simulated.profile import Clocks, PowerLimits, TemperatureLimits
from node_agent.hardware.simulated.returns import NvmlReturn, supported

# °C between rest and full load, and the GPU temperature at which boards that report margins start to slow down.
RISE_UNDER_LOAD = 40
HIDDEN_LIMIT = 87

# The driver samples the engines six times a second.
SAMPLING_PERIOD_US = 167_000
PCIE_MBITS_PER_LANE = {1: 2500, 2: 5000, 3: 8000, 4: 16000, 5: 32000, 6: 64000}
# A link of generation 4 in one direction, about as full as it gets.
BUSIEST_PCIE_KB_PER_SECOND = 20_000_000


def power_limits(gpu: SimulatedGpu) -> PowerLimits:
    return supported(supported(gpu.board.power).limits)


def temperature_limits(gpu: SimulatedGpu, form: str) -> TemperatureLimits:
    limits = supported(supported(gpu.board.temperature).limits)
    return supported(limits if limits.form == form else None)


@call()
def nvmlDeviceGetPowerUsage(gpu: SimulatedGpu) -> int:
    """mW."""
    idle, rise = _draw(gpu)
    return round(1000 * (idle + rise * gpu.load))


@call()
def nvmlDeviceGetTotalEnergyConsumption(gpu: SimulatedGpu) -> int:
    """mJ since the driver was loaded."""
    idle, rise = _draw(gpu)
    return round(1000 * (idle * gpu.seconds + rise * gpu.busy_seconds))


@call(also=["nvmlDeviceGetPowerManagementLimit"])
def nvmlDeviceGetEnforcedPowerLimit(gpu: SimulatedGpu) -> int:
    return 1000 * power_limits(gpu).default


@call()
def nvmlDeviceGetPowerManagementDefaultLimit(gpu: SimulatedGpu) -> int:
    return 1000 * power_limits(gpu).default


@call()
def nvmlDeviceGetPowerManagementLimitConstraints(gpu: SimulatedGpu) -> tuple[int, int]:
    return 1000 * power_limits(gpu).min, 1000 * power_limits(gpu).max


@call()
def nvmlDeviceGetTemperature(gpu: SimulatedGpu, sensor: int) -> int:
    if sensor != pynvml.NVML_TEMPERATURE_GPU:
        raise NvmlReturn("INVALID_ARGUMENT")
    return supported(gpu.board.temperature).idle + round(RISE_UNDER_LOAD * gpu.load)


@call(versions=[pynvml.nvmlTemperature_v1])
def nvmlDeviceGetTemperatureV(gpu: SimulatedGpu, request: Target) -> None:
    request.temperature = nvmlDeviceGetTemperature(gpu, request.sensorType)


def memory_temperature(gpu: SimulatedGpu) -> int:
    return supported(supported(gpu.board.temperature).memory) + round(RISE_UNDER_LOAD * gpu.load)


@call()
def nvmlDeviceGetTemperatureThreshold(gpu: SimulatedGpu, threshold: int) -> int | None:
    limits = temperature_limits(gpu, "absolute")
    return {
        pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: limits.shutdown,
        pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: limits.slowdown,
        pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX: limits.memory,
        pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX: limits.gpu,
    }.get(threshold)


@call(versions=[pynvml.nvmlMarginTemperature_v1])
def nvmlDeviceGetMarginTemperature(gpu: SimulatedGpu) -> dict[str, int]:
    # Which boards have a margin is told by their limits; how far away the limit is, they keep to themselves.
    temperature_limits(gpu, "margin")
    return {"marginTemperature": HIDDEN_LIMIT - nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU)}


@call()
def nvmlDeviceGetClockInfo(gpu: SimulatedGpu, kind: int) -> int:
    return _clock(gpu.board.clocks.max if gpu.load else gpu.board.clocks.idle, kind)


@call()
def nvmlDeviceGetMaxClockInfo(gpu: SimulatedGpu, kind: int) -> int:
    return _clock(gpu.board.clocks.max, kind)


@call(also=["nvmlDeviceGetPowerState"])
def nvmlDeviceGetPerformanceState(gpu: SimulatedGpu) -> int:
    return 0 if gpu.load else gpu.board.clocks.idle_state


@call(also=["nvmlDeviceGetCurrentClocksThrottleReasons"])
def nvmlDeviceGetCurrentClocksEventReasons(gpu: SimulatedGpu) -> int:
    return gpu.clock_reasons | (0 if gpu.load else pynvml.nvmlClocksEventReasonGpuIdle)


@call(also=["nvmlDeviceGetSupportedClocksThrottleReasons"])
def nvmlDeviceGetSupportedClocksEventReasons(gpu: SimulatedGpu) -> int:
    return int(pynvml.nvmlClocksEventReasonAll)


@call()
def nvmlDeviceGetUtilizationRates(device: Device) -> dict[str, int]:
    gpu = _not_mig(device)
    return {"gpu": round(100 * gpu.load), "memory": round(60 * gpu.load)}


@call(also=["nvmlDeviceGetDecoderUtilization", "nvmlDeviceGetJpgUtilization", "nvmlDeviceGetOfaUtilization"])
def nvmlDeviceGetEncoderUtilization(device: Device) -> tuple[int, int]:
    """The simulated load is all compute: the engines of encoding and decoding rest."""
    _not_mig(device)
    return 0, SAMPLING_PERIOD_US


@call()
def nvmlDeviceGetCurrPcieLinkGeneration(gpu: SimulatedGpu) -> int:
    pcie = supported(gpu.board.pcie)
    wanted = pcie.generation if gpu.load else pcie.idle_generation
    return wanted if gpu.pcie_generation is None else min(wanted, gpu.pcie_generation)


@call(also=["nvmlDeviceGetGpuMaxPcieLinkGeneration"])
def nvmlDeviceGetMaxPcieLinkGeneration(gpu: SimulatedGpu) -> int:
    return supported(gpu.board.pcie).generation


@call()
def nvmlDeviceGetCurrPcieLinkWidth(gpu: SimulatedGpu) -> int:
    width = supported(gpu.board.pcie).width
    return width if gpu.pcie_width is None else min(width, gpu.pcie_width)


@call()
def nvmlDeviceGetMaxPcieLinkWidth(gpu: SimulatedGpu) -> int:
    return supported(gpu.board.pcie).width


@call()
def nvmlDeviceGetPcieLinkMaxSpeed(gpu: SimulatedGpu) -> int:
    """NVML's enumeration of speeds counts as the generations do."""
    return supported(gpu.board.pcie).generation


@call()
def nvmlDeviceGetPcieSpeed(gpu: SimulatedGpu) -> int:
    return PCIE_MBITS_PER_LANE[nvmlDeviceGetCurrPcieLinkGeneration(gpu)]


@call()
def nvmlDeviceGetPcieThroughput(gpu: SimulatedGpu, counter: int) -> int:
    supported(gpu.board.pcie)
    if counter not in (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES):
        raise NvmlReturn("INVALID_ARGUMENT")
    return round(BUSIEST_PCIE_KB_PER_SECOND * gpu.load)


@call()
def nvmlDeviceGetPcieReplayCounter(gpu: SimulatedGpu) -> int:
    supported(gpu.board.pcie)
    return gpu.pcie_replays


def _draw(gpu: SimulatedGpu) -> tuple[int, int]:
    """Watts at rest, and what full load adds to them."""
    power = supported(gpu.board.power)
    return power.idle, (power.limits.default - power.idle) if power.limits else power.idle


def _clock(clocks: Clocks, kind: int) -> int:
    by_kind = {
        pynvml.NVML_CLOCK_GRAPHICS: clocks.sm,
        pynvml.NVML_CLOCK_SM: clocks.sm,
        pynvml.NVML_CLOCK_MEM: clocks.memory,
        pynvml.NVML_CLOCK_VIDEO: clocks.video,
    }
    if kind not in by_kind:
        raise NvmlReturn("INVALID_ARGUMENT")
    return by_kind[kind]


def _not_mig(device: Device) -> SimulatedGpu:
    """Utilisation is measured on whole GPUs only."""
    if not isinstance(device, SimulatedGpu) or device.mig_enabled:
        raise NvmlReturn("NOT_SUPPORTED")
    return device
