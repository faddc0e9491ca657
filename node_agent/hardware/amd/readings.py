"""How one of AMD's GPUs is: what its health needs, and the figures that people want to see."""

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from node_agent.errors import DeviceLost
from node_agent.hardware.amd.files import number, text
from node_agent.hardware.amd.scan import BOUND, device, uuid_of
from node_agent.hardware.figures import Figures, Memory
from node_agent.hardware.provider import GpuReadings
from node_agent.model.gpu import GpuUuid
from node_agent.model.pci import PciAddress

T = TypeVar("T")

_COUNT = re.compile(r"^(ue|ce): (\d+)$", re.MULTILINE)
_MICRO, _MILLI, _HERTZ = 1_000_000, 1_000, 1_000_000


def read(sysfs: Path, gpu: GpuUuid, pci: PciAddress | None, *, figures: bool = False) -> GpuReadings:
    """One look at the GPU that was at ``pci``. Raises DeviceLost where it is not there any more."""
    if pci is None or not (sysfs / BOUND / pci).exists() or _who(sysfs, pci) != gpu:
        raise DeviceLost(f"{gpu} has left the PCI bus, or amdgpu has let go of it; dmesg says why")
    ask = _Asker(folder=device(sysfs, pci))
    return GpuReadings(
        memory_used=ask("memory_used", lambda folder: number(folder / "mem_info_vram_used")),
        utilization=ask("utilization", lambda folder: _share(folder / "gpu_busy_percent")),
        # The junction is where a GPU is hottest, and not all have a sensor at the edge.
        temperature=ask("temperature", lambda folder: _sensor(folder, _MILLI, "temp2_input", "temp1_input")),
        power=ask("power", _power),
        uncorrected_ecc_errors=ask("uncorrected_ecc_errors", lambda folder: _errors(folder, "ue")),
        figures=_figures(ask.folder) if figures else None,
        failed=ask.failed,
    )


def _figures(folder: Path) -> Figures:
    ask = _Asker(folder=folder)
    return Figures(
        memory=ask("memory", _memory),
        sm_clock=ask("sm_clock", lambda folder: _sensor(folder, _HERTZ, "freq1_input")),
        memory_clock=ask("memory_clock", lambda folder: _sensor(folder, _HERTZ, "freq2_input")),
        memory_temperature=ask("memory_temperature", lambda folder: _sensor(folder, _MILLI, "temp3_input")),
        memory_utilization=ask("memory_utilization", lambda folder: _share(folder / "mem_busy_percent")),
        corrected_errors=ask("corrected_errors", lambda folder: _errors(folder, "ce")),
        uncorrected_errors=ask("uncorrected_errors", lambda folder: _errors(folder, "ue")),
        failed=ask.failed,
    )


class _Asker(Struct, frozen=True, kw_only=True):
    """Asks for one value after another; ``failed`` has those that went wrong, and why."""

    folder: Path
    failed: dict[str, str] = field(default_factory=dict)

    def __call__(self, name: str, ask: Callable[[Path], T | None]) -> T | None:
        try:
            return ask(self.folder)
        except OSError as error:
            self.failed[name] = str(error)
            return None


def _who(sysfs: Path, pci: PciAddress) -> GpuUuid | None:
    try:
        return uuid_of(sysfs, pci)
    except OSError:
        return None


def _sensor(folder: Path, unit: int, *names: str) -> int | None:
    """The first of these sensors that the GPU has, in whole units."""
    for hwmon in sorted(folder.glob("hwmon/hwmon*")):
        for name in names:
            if (value := number(hwmon / name)) is not None:
                return value // unit
    return None


def _power(folder: Path) -> float | None:
    microwatts = _sensor(folder, 1, "power1_average", "power1_input")
    return None if microwatts is None else microwatts / _MICRO


def _share(path: Path) -> float | None:
    percent = number(path)
    return None if percent is None else percent / 100


def _memory(folder: Path) -> Memory | None:
    total, used = number(folder / "mem_info_vram_total"), number(folder / "mem_info_vram_used")
    return None if total is None or used is None else Memory(total=total, used=used, free=total - used)


def _errors(folder: Path, kind: str) -> int | None:
    """Errors of all blocks since the driver was loaded: ``ue`` could not be corrected, ``ce`` were. Raises OSError.

    A sum without a block that is not to be asked just now, as during a reset, would look as if its errors were over.
    """
    counts = []
    for path in sorted(folder.glob("ras/*_err_count")):
        if found := text(path):
            told = dict(_COUNT.findall(found))
            if kind not in told:
                raise OSError(errno.EAGAIN, f"tells no count of errors but {found[:80]!r}", str(path))
            counts.append(int(told[kind]))
    return sum(counts) if counts else None
