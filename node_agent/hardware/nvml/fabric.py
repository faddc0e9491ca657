"""The NVLink fabric of a GPU: whether it has joined it, what is wrong with it, and the domain over several nodes.

Joining takes minutes after boot, so it is asked for at every look. GPUs on the switches of a single node have no
domain; what joins those is in ``links``.
"""

import ctypes
import uuid
from typing import Any

import pynvml

from node_agent.errors import HardwareError, NotSupported
from node_agent.hardware.nvml.translate import Calls, Handle
from node_agent.hardware.provider import Fabric

# Newest first; older drivers know only the older forms.
_FORMS = (
    (pynvml.c_nvmlGpuFabricInfo_v3_t, pynvml.nvmlDeviceGetGpuFabricInfoV),
    (pynvml.c_nvmlGpuFabricInfo_v2_t, pynvml.nvmlDeviceGetGpuFabricInfoV),
    (pynvml.c_nvmlGpuFabricInfo_t, pynvml.nvmlDeviceGetGpuFabricInfo),
)

_SUMMARIES = {
    pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY: "it is unhealthy",
    pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY: "its capacity is limited",
}

# Bits of the health mask: two each, of which 1 means that it is so.
_TROUBLES = {
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW: "its bandwidth is degraded",
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY: "a route is unhealthy",
    pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY: "it recovers from an access timeout",
}


def fabric(calls: Calls, handle: Handle) -> Fabric:
    """Raises NotSupported where the GPU has no fabric."""
    return _fabric(_info(calls, handle))


def nvlink_domain(calls: Calls, handle: Handle) -> str | None:
    """``<cluster uuid>.<clique>``; None outside of any domain, and while the GPU is still joining one.

    Raises:
        NotSupported: the GPU has no fabric.
        HardwareError: it could not join, or what it joined is broken.
    """
    info = _info(calls, handle)
    found = _fabric(info)
    if found.troubles:
        raise HardwareError(f"the NVLink fabric of the GPU is broken: {', '.join(found.troubles)}")
    cluster = uuid.UUID(bytes=bytes(info.clusterUuid))
    return f"{cluster}.{info.cliqueId}" if found.joined and cluster.int else None


def _info(calls: Calls, handle: Handle) -> Any:
    for form, function in _FORMS:
        info = form()
        try:
            calls(function, handle, ctypes.byref(info))
        except NotSupported:
            continue
        if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
            break
        return info
    raise NotSupported("the GPU has no NVLink fabric", call="nvmlDeviceGetGpuFabricInfoV")


def _fabric(info: Any) -> Fabric:
    # The rest means something only once the GPU is through with joining.
    if info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
        return Fabric(joined=False)
    if info.status != pynvml.NVML_SUCCESS:
        trouble = f"it could not be joined (NVML error {info.status}): see its manager's log"
        return Fabric(joined=False, troubles=(trouble,))
    return Fabric(joined=True, troubles=tuple(_troubles(info)))


def _troubles(info: Any) -> list[str]:
    summary, mask = getattr(info, "healthSummary", 0), getattr(info, "healthMask", 0)
    found = [words for shift, words in _TROUBLES.items() if mask >> shift & 0b11 == 1]
    configuration = mask >> pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION & 0xF
    if configuration > pynvml.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE:
        found.append(f"its configuration is wrong (NVML's reason {configuration})")
    return found or [words for value, words in _SUMMARIES.items() if value == summary]
