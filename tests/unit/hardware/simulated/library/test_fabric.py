"""The NVLink fabric: complete on a healthy node, and whatever else it is told to be."""

import uuid
from ctypes import byref
from typing import Any

import pynvml
import pytest

from node_agent.errors import SimulationError
from node_agent.hardware.simulated import SimulatedNode
from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import gpu, gpus

COMPLETED, IN_PROGRESS = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS


def fabric(index: int = 0, structure: Any = pynvml.c_nvmlGpuFabricInfo_v3_t) -> Any:
    info = structure()
    pynvml.nvmlDeviceGetGpuFabricInfoV(gpu(index), byref(info))
    return info


@pytest.mark.parametrize("profile", ["h200-8", "h100-8", "b200-8", "h100-vm-8"])
def test_a_node_by_itself_is_complete_in_a_cluster_without_a_name(simulate: Simulate, profile: str) -> None:
    simulate(profile)
    for index in range(8):
        info = fabric(index)
        assert (info.state, info.status, info.cliqueId) == (COMPLETED, pynvml.NVML_SUCCESS, 0)
        assert bytes(info.clusterUuid) == bytes(16)
        assert (info.healthMask, info.healthSummary) == (0x1AA, pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY)


def test_a_tray_shares_cluster_and_clique(simulate: Simulate) -> None:
    simulate("gb200-4")
    found = {(bytes(fabric(index).clusterUuid), fabric(index).cliqueId) for index in range(4)}
    assert found == {(uuid.UUID("b2daed23-0000-4000-8000-6a1f00c0ffee").bytes, 1)}


@pytest.mark.parametrize("profile", ["a100-40gb-8", "v100-8", "l40s-8", "t4-4", "gb10-1", "vgpu-1", "a30-2"])
def test_older_and_smaller_boards_have_no_fabric(simulate: Simulate, profile: str) -> None:
    simulate(profile)
    with pytest.raises((pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)):
        fabric()


def test_all_three_forms_agree(h200: SimulatedNode) -> None:
    h200.faults.fabric(state="in-progress", clique=7)
    first = pynvml.c_nvmlGpuFabricInfo_t()
    pynvml.nvmlDeviceGetGpuFabricInfo(gpu(0), byref(first))
    second, third = fabric(structure=pynvml.c_nvmlGpuFabricInfo_v2_t), fabric()
    assert [(info.state, info.cliqueId) for info in (first, second, third)] == [(IN_PROGRESS, 7)] * 3
    assert second.healthMask == third.healthMask


def test_the_fabric_changes_for_all_or_for_one(h200: SimulatedNode) -> None:
    h200.faults.fabric(state="not-started")
    assert {fabric(index).state for index in range(8)} == {pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED}
    h200.faults.fabric(5, state="completed", status="UNKNOWN", summary="unhealthy", health_mask=0x15)
    broken = fabric(5)
    assert (broken.state, broken.status, broken.healthSummary, broken.healthMask) == (COMPLETED, 999, 2, 0x15)
    assert fabric(4).state == pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED


def test_a_gpu_can_be_given_another_cluster(h200: SimulatedNode) -> None:
    cluster = uuid.UUID(int=42)
    h200.faults.fabric(cluster=cluster, status="SUCCESS")
    assert {bytes(fabric(index).clusterUuid) for index in range(len(gpus()))} == {cluster.bytes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": "half-done"}, "no fabric state is 'half-done'; there are not-supported, not-started, in-progress"),
        ({"summary": "fine"}, "no summary is 'fine'; there are not-supported, healthy"),
        ({"status": "BROKEN"}, "no NVML error is 'BROKEN'"),
    ],
)
def test_a_state_that_does_not_exist_changes_nothing(h200: SimulatedNode, change: dict[str, Any], message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        h200.faults.fabric(0, **{"clique": 9, **change})
    assert fabric().cliqueId == 0


def test_boards_without_a_fabric_cannot_be_given_one(a100: SimulatedNode) -> None:
    with pytest.raises(SimulationError, match=r"GPU 0 \(NVIDIA A100-SXM4-40GB\) belongs to no fabric"):
        a100.faults.fabric(state="completed")
