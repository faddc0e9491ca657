"""One GPU as the agent knows it. An attribute that the hardware cannot tell is None, never zero."""

import re
from enum import StrEnum
from typing import NewType

from msgspec import Struct

from node_agent.model.pci import PciAddress

GpuUuid = NewType("GpuUuid", str)
"""The identity of a GPU, such as ``GPU-9f0d…``: stable over reboots, slots and enumeration order."""

DeviceName = NewType("DeviceName", str)
"""The stable short name of a device, such as ``gpu-3``: a DNS label that never moves to another GPU."""

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def device_name(text: str) -> DeviceName:
    """Check a device name. Raises ValueError where it is no DNS label, since Kubernetes would refuse the device."""
    if not _DNS_LABEL.fullmatch(text):
        raise ValueError(f"{text!r} is no device name: lower-case letters, digits and '-' only, at most 63 characters")
    return DeviceName(text)


class ComputeCapability(Struct, frozen=True, kw_only=True, order=True):
    """CUDA compute capability, such as 9.0."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


# The first that turns MIG on and off without a reset.
_HOPPER = ComputeCapability(major=9, minor=0)

_LEAST = {name: 0 for name in ("index", "minor", "numa_node", "device_id", "subsystem_id")} | {
    name: 1 for name in ("memory", "multiprocessors", "power_limit")
}


class PartitionMode(StrEnum):
    """Whether a GPU is cut into partitions (MIG devices); a change may wait for the GPU to be idle or reset."""

    DISABLED = "disabled"
    ENABLED = "enabled"
    ENABLE_PENDING = "enable-pending"
    DISABLE_PENDING = "disable-pending"

    @property
    def active(self) -> bool:
        """True while the GPU works only through its partitions."""
        return self in (PartitionMode.ENABLED, PartitionMode.DISABLE_PENDING)


class Gpu(Struct, frozen=True, kw_only=True):
    """One physical GPU.

    ``index`` is the place in the driver's enumeration of this snapshot: for display only, it moves. ``minor`` numbers
    the device node ``/dev/nvidia<minor>``. ``memory`` is in bytes, ``multiprocessors`` a count. ``numa_node`` and
    ``pcie_root`` come from sysfs and are None where the platform has none. ``partition_mode`` is None where the GPU
    cannot be partitioned. ``nvlink_domain`` names the NVLink domain over several nodes that the GPU has joined, as
    ``<cluster>.<clique>``: GPUs of one domain reach each other over NVLink whatever node they are in. ``power_limit``
    is in watts and the one that is set now; ``device_id`` is PCI's, and so is ``subsystem_id``, with its vendor in the
    lower half; ``addressing_mode`` says in NVML's words (``ATS``, ``HMM``, ``None``) how the GPU shares addresses with
    the CPU: under ``ATS`` their memories are coherent.
    """

    uuid: GpuUuid
    name: DeviceName
    index: int
    product: str
    pci: PciAddress
    minor: int | None = None
    brand: str | None = None
    architecture: str | None = None
    compute_capability: ComputeCapability | None = None
    memory: int | None = None
    multiprocessors: int | None = None
    numa_node: int | None = None
    pcie_root: str | None = None
    partition_mode: PartitionMode | None = None
    nvlink_domain: str | None = None
    ecc_enabled: bool | None = None
    addressing_mode: str | None = None
    nvlink_generation: int | None = None
    power_limit: int | None = None
    device_id: int | None = None
    subsystem_id: int | None = None
    serial: str | None = None
    vbios: str | None = None

    @property
    def partitioned(self) -> bool:
        """Whether the GPU works only through its partitions now."""
        return self.partition_mode is not None and self.partition_mode.active

    @property
    def resetless(self) -> bool:
        """Whether partitioning is turned on and off without a reset."""
        return self.compute_capability is not None and self.compute_capability >= _HOPPER

    def __post_init__(self) -> None:
        device_name(self.name)
        if not self.uuid:
            raise ValueError("a GPU needs a UUID")
        for what, least in _LEAST.items():
            value = getattr(self, what)
            if value is not None and value < least:
                raise ValueError(f"{self.name}: {what} cannot be {value}; leave out what is unknown")
