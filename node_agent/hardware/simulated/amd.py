"""Simulated nodes with AMD's GPUs: the files that amdgpu shows, since the adapter asks for nothing else.

What is broken here shows in the files, as it would on a real node.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from node_agent.errors import SimulationError
from node_agent.hardware.simulated.tree.entries import CharDevice, DeviceNodes, Entry, File, Link, Tree, apply
from node_agent.model.gpu import GpuUuid

DRI_MAJOR, KFD_MAJOR = 226, 234
FIRST_RENDER = 128
XGMI, PCIE = 11, 2
BOUND = "sys/bus/pci/drivers/amdgpu"


class AmdBoard(Struct, frozen=True, kw_only=True):
    """One model; ``simds`` are those of the whole GPU, ``gfx`` is KFD's number for the architecture."""

    product: str
    device: int
    subsystem: int
    memory: int
    simds: int
    gfx: int
    watts: int
    class_code: int = 0x120000
    link_bandwidth: int = 0


class AmdGpu(Struct, frozen=True, kw_only=True):
    """One GPU; ``unique`` is 0 where the kernel tells none. ``uncorrected`` counts errors of its memory."""

    bus: str
    numa: int
    unique: int
    uncorrected: int = 0
    partition: str = "SPX"

    @property
    def uuid(self) -> GpuUuid:
        return GpuUuid(f"GPU-{self.unique:016x}" if self.unique else f"GPU-{self.bus}")


class AmdProfile(Struct, frozen=True, kw_only=True):
    """A node; with ``linked`` each pair of its GPUs is joined by xGMI."""

    name: str
    board: AmdBoard
    gpus: tuple[AmdGpu, ...]
    linked: bool = True
    driver: str | None = "6.10.5"
    cpus: Mapping[int, str] = field(default_factory=lambda: {0: "0-47,96-143", 1: "48-95,144-191"})


_MI300X = AmdBoard(
    product="AMD Instinct MI300X OAM",
    device=0x74A1,
    subsystem=0x74A1,
    memory=205822885888,
    simds=1216,
    gfx=90402,
    watts=750,
    link_bandwidth=64000,
)
_BUSES = ("05", "26", "46", "65", "85", "a6", "c6", "e5")
PROFILES: Mapping[str, AmdProfile] = {
    "mi300x-8": AmdProfile(
        name="mi300x-8",
        board=_MI300X,
        gpus=tuple(
            AmdGpu(bus=f"0000:{bus}:00.0", numa=number // 4, unique=0x4CBC8B2B2E1AD900 + number)
            for number, bus in enumerate(_BUSES)
        ),
    )
}


class SimulatedAmdNode:
    """``write_tree`` writes the node's files; what is lost or wrong afterwards shows in them at once."""

    def __init__(self, profile: AmdProfile) -> None:
        self.profile = profile
        self._gpus = {gpu.uuid: gpu for gpu in profile.gpus}
        self._lost: set[GpuUuid] = set()
        self._places: list[tuple[Path, DeviceNodes]] = []

    @property
    def uuids(self) -> tuple[GpuUuid, ...]:
        return tuple(self._gpus)

    def write_tree(self, root: Path, *, devices: DeviceNodes = "auto") -> None:
        """Write /sys and /dev below ``root`` and keep them up to date; ``devices`` as in ``tree``."""
        self._places.append((root, devices))
        self._write()

    def lose(self, gpu: GpuUuid) -> None:
        """The GPU leaves the bus. Raises SimulationError where there is no such GPU."""
        bus = self._known(gpu).bus
        self._lost.add(gpu)
        # The kernel takes the GPU from its driver first, before any of its files goes.
        for root, _ in self._places:
            (root / BOUND / bus).unlink(missing_ok=True)
        self._write()

    def restore(self, gpu: GpuUuid) -> None:
        """It is back."""
        self._lost.discard(gpu)
        self._write()

    def change(self, gpu: GpuUuid, *, uncorrected: int | None = None, partition: str | None = None) -> None:
        """Count errors of its memory, or cut it into compute partitions."""
        before = self._known(gpu)
        self._gpus[gpu] = replace(
            before,
            uncorrected=before.uncorrected if uncorrected is None else uncorrected,
            partition=partition or before.partition,
        )
        self._write()

    def _known(self, gpu: GpuUuid) -> AmdGpu:
        if gpu not in self._gpus:
            raise SimulationError(f"the node {self.profile.name} has no GPU {gpu}; it has {', '.join(self._gpus)}")
        return self._gpus[gpu]

    def _write(self) -> None:
        for root, devices in self._places:
            apply(self._tree(), root, devices)

    def _tree(self) -> Tree:
        there = {number: gpu for number, gpu in enumerate(self._gpus.values()) if gpu.uuid not in self._lost}
        return dict(_entries(self.profile, there))


Entries = Iterator[tuple[str, Entry]]


def _text(content: object) -> File:
    return File(content=f"{content}\n".encode())


def _entries(profile: AmdProfile, gpus: Mapping[int, AmdGpu]) -> Entries:
    for node, cpus in profile.cpus.items():
        yield f"sys/devices/system/node/node{node}/cpulist", _text(cpus)
    yield "sys/module/amdgpu/initstate", _text("live")
    if profile.driver is not None:
        yield "sys/module/amdgpu/version", _text(profile.driver)
    yield "dev/kfd", CharDevice(major=KFD_MAJOR, minor=0)
    for number, gpu in gpus.items():
        yield from _gpu(profile.board, number, gpu)
        yield from _topology(profile, gpus, number, gpu)


def _gpu(board: AmdBoard, number: int, gpu: AmdGpu) -> Entries:
    path = f"sys/devices/pci{gpu.bus[:7]}/{gpu.bus}"
    values = {
        "vendor": "0x1002",
        "device": f"0x{board.device:04x}",
        "subsystem_vendor": "0x1002",
        "subsystem_device": f"0x{board.subsystem:04x}",
        "class": f"0x{board.class_code:06x}",
        "numa_node": gpu.numa,
        "product_name": board.product,
        "vbios_version": "113-M3000100-103",
        "mem_info_vram_total": board.memory,
        "mem_info_vram_used": 297 << 20,
        "gpu_busy_percent": 0,
        "mem_busy_percent": 0,
        "current_compute_partition": gpu.partition,
        "ras/umc_err_count": f"ue: {gpu.uncorrected}\nce: 0\nde: 0",
        "ras/gfx_err_count": "ue: 0\nce: 0",
        "hwmon/hwmon0/power1_average": 140_000_000,
        "hwmon/hwmon0/power1_cap": board.watts * 1_000_000,
        "hwmon/hwmon0/temp2_input": 41_000,
        "hwmon/hwmon0/temp3_input": 35_000,
        "hwmon/hwmon0/freq1_input": 132_000_000,
        **({"unique_id": f"{gpu.unique:016x}"} if gpu.unique else {}),
    }
    for name, value in values.items():
        yield f"{path}/{name}", _text(value)
    for kind, name, minor in _drm(number):
        yield f"{path}/drm/{name}/dev", _text(f"{DRI_MAJOR}:{minor}")
        yield f"dev/dri/{name}", CharDevice(major=DRI_MAJOR, minor=minor, mode=0o660)
        yield f"dev/dri/by-path/pci-{gpu.bus}-{kind}", Link(target=f"../{name}")
    yield f"{path}/driver", Link(target="../../../bus/pci/drivers/amdgpu")
    yield f"sys/bus/pci/devices/{gpu.bus}", Link(target=f"../../../{path.removeprefix('sys/')}")
    yield f"{BOUND}/{gpu.bus}", Link(target=f"../../../../{path.removeprefix('sys/')}")


def _drm(number: int) -> Iterator[tuple[str, str, int]]:
    # Card 0 is the display of the machine's management controller.
    card, render = number + 1, number + FIRST_RENDER
    yield "card", f"card{card}", card
    yield "render", f"renderD{render}", render


def _topology(profile: AmdProfile, gpus: Mapping[int, AmdGpu], number: int, gpu: AmdGpu) -> Entries:
    """The GPU in KFD's topology, where the CPUs of the NUMA nodes come first."""
    cpus, board = len(profile.cpus), profile.board
    folder = f"sys/class/kfd/kfd/topology/nodes/{cpus + number}"
    facts = {
        "simd_count": board.simds,
        "simd_per_cu": 4,
        "gfx_target_version": board.gfx,
        "vendor_id": 0x1002,
        "device_id": board.device,
        "location_id": int(gpu.bus[5:7], 16) << 8 | int(gpu.bus[8:10], 16) << 3 | int(gpu.bus[11]),
        "domain": int(gpu.bus[:4], 16),
        "drm_render_minor": number + FIRST_RENDER,
    }
    yield f"{folder}/properties", _lines(facts)
    yield f"{folder}/io_links/0/properties", _lines({"type": PCIE, "node_to": gpu.numa, "max_bandwidth": 64000})
    others = [other for other in gpus if other != number and profile.linked]
    for link, other in enumerate(others, 1):
        facts = {"type": XGMI, "node_to": cpus + other, "max_bandwidth": board.link_bandwidth}
        yield f"{folder}/io_links/{link}/properties", _lines(facts)


def _lines(facts: Mapping[str, int]) -> File:
    return _text("\n".join(f"{name} {value}" for name, value in facts.items()))
