"""C functions about GPU performance metrics: samples, and what lies between two of them.

Of the simulated load a part is tensor work and a part moves memory; a GPU instance has the load of its GPU.
"""

import math

import pynvml

from node_agent.hardware.simulated.driver import Driver
from node_agent.hardware.simulated.gpu import SimulatedGpu
from node_agent.hardware.simulated.library.calls import Target, address, call
from node_agent.hardware.simulated.returns import NvmlReturn
from node_agent.hardware.simulated.samples import PerformanceSample

# From Hopper on.
_ARCHITECTURES = ("hopper", "blackwell")

# What of the load each metric shows: percents, and MiB a second of a PCIe link.
_SHARES = {
    pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL: 100.0,
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 40.0,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 60.0,
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: 8000.0,
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 12000.0,
}


@call()
def nvmlGpmQueryDeviceSupport(gpu: SimulatedGpu) -> dict[str, int]:
    return {"isSupportedDevice": int(gpu.board.architecture in _ARCHITECTURES)}


@call()
def nvmlGpmSampleAlloc(driver: Driver) -> int:
    return driver.allocate_sample()


@call()
def nvmlGpmSampleFree(driver: Driver, sample: PerformanceSample) -> None:
    driver.free_sample(sample)


@call()
def nvmlGpmSampleGet(gpu: SimulatedGpu, sample: PerformanceSample) -> None:
    if gpu.mig_enabled:
        raise NvmlReturn("NOT_SUPPORTED")
    _fill(gpu, sample)


@call()
def nvmlGpmMigSampleGet(gpu: SimulatedGpu, instance: int, sample: PerformanceSample) -> None:
    if gpu.mig is None or instance not in gpu.mig.instances:
        raise NvmlReturn("NOT_FOUND")
    _fill(gpu, sample)


@call()
def nvmlGpmMetricsGet(driver: Driver, asked: Target) -> None:
    if asked.version != pynvml.NVML_GPM_METRICS_GET_VERSION:
        raise NvmlReturn("ARGUMENT_VERSION_MISMATCH")
    first, second = (driver.sample(address(one)) for one in (asked.sample1, asked.sample2))
    seconds = second.seconds - first.seconds
    load = min((second.busy - first.busy) / seconds, 1.0) if seconds > 0 else math.nan
    for metric in asked.metrics[: asked.numMetrics]:
        share = _SHARES.get(metric.metricId)
        metric.nvmlReturn = pynvml.NVML_SUCCESS if share is not None else pynvml.NVML_ERROR_NOT_SUPPORTED
        metric.value = share * load if share is not None else math.nan


def _fill(gpu: SimulatedGpu, sample: PerformanceSample) -> None:
    if gpu.board.architecture not in _ARCHITECTURES:
        raise NvmlReturn("NOT_SUPPORTED")
    sample.seconds, sample.busy = gpu.seconds, gpu.busy_seconds
