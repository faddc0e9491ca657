"""The machine and where its PCI devices sit, as the kernel's /sys tells; what it does not is None, never made up."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from node_agent.model.pci import PciAddress

_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


class Sysfs(Struct, frozen=True, kw_only=True):
    """A mounted /sys; ``root`` is where."""

    root: Path = Path("/sys")

    def numa_node(self, pci: PciAddress) -> int | None:
        """The NUMA node beside a device; None where there is no such file, or the platform says -1 in it."""
        try:
            node = int((self._device(pci) / "numa_node").read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    def pcie_root(self, pci: PciAddress) -> str | None:
        """The PCIe root complex above a device, as ``pci0000:15``.

        It is the first part of the device's path. Paths of other kinds, as virtual machines on Hyper-V have, have none:
        Kubernetes' own code leaves the attribute out there too, and the values must match those of other drivers.
        """
        try:
            path = self._device(pci).resolve(strict=True).relative_to((self.root / "devices").resolve())
        except (OSError, ValueError):
            return None
        return path.parts[0] if _ROOT.fullmatch(path.parts[0]) else None

    def pci_class(self, pci: PciAddress) -> int | None:
        """The class code of a device, such as 0x030200 for one that computes and drives no display."""
        try:
            return int((self._device(pci) / "class").read_text(), 16)
        except (OSError, ValueError):
            return None

    def config_space(self, pci: PciAddress) -> bytes | None:
        """A device's PCI configuration space: all 256 bytes or more for root, 64 for anybody else."""
        try:
            return (self._device(pci) / "config").read_bytes()
        except OSError:
            return None

    def classes_of(self, vendor: int) -> Iterator[int]:
        """The class codes of all devices of a vendor."""
        for device in (self.root / "bus/pci/devices").glob("*"):
            with suppress(OSError, ValueError):  # one that goes at this moment
                if int((device / "vendor").read_text(), 16) == vendor:
                    yield int((device / "class").read_text(), 16)

    def machine(self, file: Path | None = None) -> str | None:
        """What its maker, or ``file``, calls the machine; None where nobody says."""
        try:
            return (file or self.root / "class/dmi/id/product_name").read_text(errors="replace").strip() or None
        except OSError:
            return None

    def node_cpus(self) -> dict[int, str]:
        """The CPUs of each NUMA node, as the kernel lists them: ``0-55,112-167``; empty where it does not tell."""
        found = {}
        for node in (self.root / "devices/system/node").glob("node[0-9]*"):
            try:
                found[int(node.name.removeprefix("node"))] = (node / "cpulist").read_text().strip()
            except (OSError, ValueError):
                continue
        return found

    def _device(self, pci: PciAddress) -> Path:
        return self.root / "bus/pci/devices" / pci
