"""Which GPUs amdgpu drives, and what they are."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from node_agent.errors import DriverUnavailable
from node_agent.hardware.amd.files import number, properties, text
from node_agent.hardware.provider import GpuFacts, Scan
from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import DriverInfo, MissingGpu
from node_agent.model.pci import PciAddress, pci_address

MODULE, BOUND, KFD_NODES = "module/amdgpu", "bus/pci/drivers/amdgpu", "class/kfd/kfd/topology/nodes"

# A GPU that is not cut; the other modes show each part of it as a device of its own.
_WHOLE = "SPX"
_MICRO = 1_000_000
_UNTOLD = "KFD's topology does not tell: it tells whom the device cgroup lets open the GPU's render node"


class ComputeNode(Struct, frozen=True, kw_only=True):
    """A GPU in KFD's topology: its folder there, and what that says of it."""

    folder: Path
    properties: Mapping[str, int]

    @property
    def compute_units(self) -> int | None:
        simds, each = self.properties.get("simd_count", 0), self.properties.get("simd_per_cu", 0)
        return simds // each if each else None

    @property
    def architecture(self) -> str | None:
        """As compilers call it: 90402 is gfx942, and 90010 is gfx90a."""
        version = self.properties.get("gfx_target_version", 0)
        return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else None


def bound(sysfs: Path) -> list[PciAddress]:
    """The places of the GPUs that amdgpu drives, in order."""
    folder, found = sysfs / BOUND, []
    for entry in folder.iterdir() if folder.is_dir() else ():
        with suppress(ValueError):  # the driver's own files lie beside the links to its devices
            found.append(pci_address(entry.name))
    return sorted(found)


def device(sysfs: Path, pci: PciAddress) -> Path:
    return sysfs / "bus/pci/devices" / pci


def uuid_of(sysfs: Path, pci: PciAddress) -> GpuUuid:
    """As AMD's runtime spells it; a GPU without a number of its own goes by its place. Raises OSError."""
    unique = text(device(sysfs, pci) / "unique_id")
    return GpuUuid(f"GPU-{unique if unique and unique.strip('0') else pci}")


def compute_nodes(sysfs: Path) -> dict[PciAddress, ComputeNode]:
    """The GPUs of KFD's topology by their places, as far as it tells. Raises OSError."""
    found = {}
    for folder in (sysfs / KFD_NODES).glob("[0-9]*"):
        with suppress(PermissionError, ValueError):  # whoever misses a GPU here says so
            facts = properties(folder / "properties")
            if facts.get("simd_count"):
                found[_place(facts)] = ComputeNode(folder=folder, properties=facts)
    return found


def _place(facts: Mapping[str, int]) -> PciAddress:
    location = facts.get("location_id", 0)
    return pci_address(f"{facts.get('domain', 0):04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}")


def scan(sysfs: Path) -> Scan:
    """One look. Raises DriverUnavailable where the module is not loaded, or its topology cannot be read."""
    if not (sysfs / MODULE).is_dir():
        raise DriverUnavailable(
            "the kernel module amdgpu is not loaded: modprobe amdgpu; dmesg says why it does not load"
        )
    try:
        nodes = compute_nodes(sysfs)
        driver = DriverInfo(version=text(sysfs / MODULE / "version"))
    except OSError as error:
        raise DriverUnavailable(f"amdgpu does not tell of its GPUs: {error}; see dmesg") from error
    looks = list(_looks(sysfs, nodes))
    return Scan(
        driver=driver,
        gpus=tuple(look for look in looks if isinstance(look, GpuFacts)),
        missing=tuple(look for look in looks if isinstance(look, MissingGpu)),
    )


def _looks(sysfs: Path, nodes: Mapping[PciAddress, ComputeNode]) -> Iterator[GpuFacts | MissingGpu]:
    for index, pci in enumerate(bound(sysfs)):
        try:
            folder = device(sysfs, pci)
            # While the kernel takes a GPU away or brings it back, what it tells may be a part of the truth.
            if not any(folder.glob("drm/renderD*")):
                yield MissingGpu(index=index, reason=f"the kernel shows no render node of {pci}; see dmesg")
                continue
            mode = text(folder / "current_compute_partition")
            facts = _facts(sysfs, pci, index, nodes.get(pci))
        except OSError as error:
            yield MissingGpu(index=index, reason=f"{pci} cannot be read: {error}; see dmesg")
            continue
        if mode not in (None, _WHOLE):
            reason = f"it is cut into compute partitions ({mode}), which are not offered: set {_WHOLE} with amd-smi"
            yield MissingGpu(index=index, uuid=facts.uuid, reason=reason)
        else:
            yield facts


def _facts(sysfs: Path, pci: PciAddress, index: int, node: ComputeNode | None) -> GpuFacts:
    folder = device(sysfs, pci)
    model = number(folder / "device", 16)
    vendor, board = number(folder / "subsystem_vendor", 16), number(folder / "subsystem_device", 16)
    cap = next((number(path) for path in sorted(folder.glob("hwmon/hwmon*/power1_cap"))), None)
    return GpuFacts(
        uuid=uuid_of(sysfs, pci),
        index=index,
        # Only boards for servers tell their names.
        product=text(folder / "product_name") or f"AMD GPU {'' if model is None else f'0x{model:04x}'}".strip(),
        pci=pci,
        architecture=node.architecture if node else None,
        memory=number(folder / "mem_info_vram_total") or None,
        multiprocessors=(node.compute_units if node else None) or None,
        power_limit=cap // _MICRO or None if cap else None,
        device_id=model,
        subsystem_id=None if vendor is None or board is None else board << 16 | vendor,
        serial=text(folder / "serial_number"),
        vbios=text(folder / "vbios_version"),
        failed={} if node else dict.fromkeys(("architecture", "multiprocessors"), _UNTOLD),
    )
