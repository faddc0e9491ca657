"""What parts of a GPU are at work, between two looks: NVML's GPU performance metrics, which newer GPUs have.

Unlike the utilization of a GPU they are told of each GPU instance as well.
"""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial

import pynvml
from msgspec import Struct

from node_agent.errors import HardwareError
from node_agent.hardware.figures import Activity
from node_agent.hardware.nvml.partitions import is_cut, live_devices
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.nvml.translate import Calls, Handle
from node_agent.model.gpu import GpuUuid

# Two samples that lie further apart say what nobody asks for any more.
LONGEST_SECONDS = 60.0

Key = tuple[GpuUuid, int | None]
"""A GPU, or one of its GPU instances."""


class _Sample(Struct, frozen=True, kw_only=True):
    """A sample of the library's, which is to be freed, unless the library was closed meanwhile."""

    handle: Handle
    taken: float
    generation: int


class Activities:
    """Keeps the last sample of each GPU and GPU instance; belongs to the thread of the session's calls."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last: dict[Key, _Sample] = {}

    def of(self, gpu: GpuUuid, calls: Calls, handle: Handle) -> Mapping[int | None, Activity]:
        """The activity since the last look of the GPU, or of its instances by their ids; none at the first one."""
        if not calls(pynvml.nvmlGpmQueryDeviceSupport, handle).isSupportedDevice:
            return {}
        takes: dict[Key, Callable[[Handle], object]] = {}
        if is_cut(calls, handle):
            devices = live_devices(calls, handle).values()
            for instance in {calls(pynvml.nvmlDeviceGetGpuInstanceId, device) for device in devices}:
                takes[gpu, instance] = partial(calls, pynvml.nvmlGpmMigSampleGet, handle, instance)
        else:
            takes[gpu, None] = partial(calls, pynvml.nvmlGpmSampleGet, handle)
        for gone in [key for key in self._last if key[0] == gpu and key not in takes]:
            self._free(self._last.pop(gone))
        found = {key[1]: self._since_last(key, take) for key, take in takes.items()}
        return {instance: activity for instance, activity in found.items() if activity is not None}

    def _since_last(self, key: Key, take: Callable[[Handle], object]) -> Activity | None:
        # Taken first: where that fails, the one before is still known, and freed some day.
        now = self._taken(take)
        before, self._last[key] = self._last.get(key), now
        if before is None:
            return None
        try:
            fresh = before.generation == now.generation and now.taken - before.taken < LONGEST_SECONDS
            return _between(self._session.calls, before.handle, now.handle) if fresh else None
        finally:
            self._free(before)

    def _taken(self, take: Callable[[Handle], object]) -> _Sample:
        handle = self._session.calls(pynvml.nvmlGpmSampleAlloc)
        sample = _Sample(handle=handle, taken=time.monotonic(), generation=self._session.generation)
        try:
            take(handle)
        except HardwareError:
            self._free(sample)
            raise
        return sample

    def _free(self, sample: _Sample) -> None:
        # What a closed library has allocated is nobody's business any more.
        if sample.generation == self._session.generation:
            self._session.calls(pynvml.nvmlGpmSampleFree, sample.handle)


def _between(calls: Calls, first: Handle, second: Handle) -> Activity:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(_METRICS)
    asked.sample1, asked.sample2 = first, second
    for place, (metric, _) in zip(asked.metrics, _METRICS.values(), strict=False):
        place.metricId = metric
    calls(pynvml.nvmlGpmMetricsGet, asked)
    told = zip(_METRICS.items(), asked.metrics, strict=False)
    return Activity(
        **{
            name: one.value * factor
            for (name, (_, factor)), one in told
            if one.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(one.value)
        }
    )


# By what NVML calls them, and what makes shares of percents, and bytes of MiB.
_METRICS: Mapping[str, tuple[int, float]] = {
    "graphics": (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, 0.01),
    "tensor": (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, 0.01),
    "memory": (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, 0.01),
    "pcie_sent": (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, 1 << 20),
    "pcie_received": (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, 1 << 20),
}
