"""The machine around the GPUs, as far as labels speak of it. What /sys does not tell is None, or counts nothing."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from node_agent.hardware.sysfs import Sysfs
from node_agent.model.gpu import Gpu

NVIDIA, BRIDGE = 0x10DE, 0x0680

# PCI's own: where a device's list of capabilities begins, and the number of those that are its vendor's.
_FIRST_CAPABILITY, _VENDORS = 0x34, 0x09
_WHOLE = 256
# A capability that a virtual GPU has: its signature, and the record in it with version and branch, ten bytes each.
_SIGNATURE, _HEADER, _DRIVER_RECORD, _TEXT = b"VF", 5, 0, 10


class VgpuHost(Struct, frozen=True, kw_only=True):
    """The driver of the host under a virtual GPU."""

    version: str
    branch: str


class Machine(Struct, frozen=True, kw_only=True):
    """``name`` is its maker's; ``pci_classes`` are the GPUs'; ``nvswitches`` counts those that the PCI bus shows.

    ``virtual`` says whether a GPU is a virtual one, None where that cannot be read; ``vgpu_host`` is what it says of
    its host.
    """

    name: str | None = None
    pci_classes: tuple[int | None, ...] = ()
    nvswitches: int = 0
    virtual: bool | None = None
    vgpu_host: VgpuHost | None = None


UNKNOWN = Machine()


def machine_of(sysfs: Sysfs, gpus: Iterable[Gpu], name_file: Path | None = None) -> Machine:
    """``name_file`` has the machine's name where it is another than the firmware's."""
    places = [gpu.pci for gpu in gpus]
    spaces = [space for pci in places if (space := sysfs.config_space(pci)) is not None and len(space) >= _WHOLE]
    hosts = [host for space in spaces if (host := vgpu_host(space)) is not None]
    return Machine(
        name=sysfs.machine(name_file),
        pci_classes=tuple(map(sysfs.pci_class, places)),
        nvswitches=sum(1 for kind in sysfs.classes_of(NVIDIA) if kind >> 8 == BRIDGE),
        virtual=bool(hosts) if len(spaces) == len(places) else None,
        vgpu_host=hosts[-1] if hosts else None,
    )


def vgpu_host(space: bytes) -> VgpuHost | None:
    """What the PCI configuration space of a GPU says of its host; None where the GPU is no virtual one."""
    for capability in _capabilities(space):
        if capability[0] == _VENDORS and capability[3:_HEADER] == _SIGNATURE:
            return _host(capability)
    return None


def _host(capability: bytes) -> VgpuHost | None:
    """Records of a number, a length and content; a length that leads nowhere ends them."""
    at = _HEADER
    while at + 2 <= len(capability):
        number, length = capability[at], capability[at + 1]
        if number == _DRIVER_RECORD:
            texts = (capability[at + 2 + n * _TEXT :][:_TEXT] for n in range(2))
            version, branch = (text.split(b"\0")[0].decode(errors="replace") for text in texts)
            return VgpuHost(version=version, branch=branch)
        if length == 0:
            break
        at += length
    return None


def _capabilities(space: bytes) -> Iterator[bytes]:
    """From each capability's beginning on; a damaged list that leads in a circle ends."""
    at, seen = space[_FIRST_CAPABILITY], set[int]()
    while 0x40 <= at < len(space) - 2 and at not in seen:
        seen.add(at)
        # What follows the number and the link is a length only in a vendor's own.
        yield space[at : at + space[at + 2]] if space[at] == _VENDORS else space[at : at + 2]
        at = space[at + 1]
