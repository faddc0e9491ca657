"""C functions about the NVLink fabric that a GPU belongs to."""

from typing import Any

import pynvml

from node_agent.hardware.simulated.gpu import SimulatedGpu
from node_agent.hardware.simulated.library.calls import call


@call()
def nvmlDeviceGetGpuFabricInfo(gpu: SimulatedGpu) -> dict[str, Any] | None:
    fabric = gpu.fabric
    if fabric is None:
        return None
    return {
        "clusterUuid": fabric.cluster.bytes,
        "status": fabric.status,
        "cliqueId": fabric.clique,
        "state": fabric.state,
        "healthMask": fabric.health_mask,
        "healthSummary": fabric.summary,
    }


@call(versions=[pynvml.nvmlGpuFabricInfo_v2, pynvml.nvmlGpuFabricInfo_v3])
def nvmlDeviceGetGpuFabricInfoV(gpu: SimulatedGpu) -> dict[str, Any] | None:
    return nvmlDeviceGetGpuFabricInfo(gpu)
