"""Whose GPUs a machine has, by its /sys alone: no driver is asked."""

from pathlib import Path

from node_agent.hardware.amd.scan import bound
from node_agent.hardware.machine import NVIDIA as NVIDIAS_NUMBER
from node_agent.hardware.sysfs import Sysfs
from node_agent.model.vendor import AMD, NVIDIA, Vendor

_DISPLAY = 0x03


def vendor_of(sysfs: Path) -> Vendor:
    """AMD where amdgpu drives GPUs and there is nothing of NVIDIA's, be it a GPU or its module; else NVIDIA.

    A machine for NVIDIA's GPUs may have a small one of AMD's in its processor. Where there is no GPU at all, the agent
    waits for NVIDIA's driver.
    """
    classes = Sysfs(root=sysfs).classes_of(NVIDIAS_NUMBER)
    if (sysfs / "module/nvidia").is_dir() or any(kind >> 16 == _DISPLAY for kind in classes):
        return NVIDIA
    return AMD if bound(sysfs) else NVIDIA
