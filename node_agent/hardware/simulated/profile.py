"""Node profiles: what a simulated node is made of, as YAML.

A node file (``profiles/*.yaml``, or any path) says which boards sit where and how they are linked; a board file
(``boards/*.yaml``, or the ``boards`` key of a node file) holds the figures of one GPU model. Reading is strict: an
unknown key, a wrong type or a contradiction is a ``SimulationError`` that names the file and the path inside it. The
state that grows from a profile is in ``gpu`` and ``driver``.
"""

import uuid
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
import pynvml
import yaml

from node_agent.errors import SimulationError

MIB = 1 << 20

# Unquoted, YAML reads 19:00.0 as a number to the base of 60: the pattern turns that into an error at the right path.
BusId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")]
CpuList = Annotated[str, msgspec.Meta(pattern=r"^(\d+(-\d+)?(,\d+(-\d+)?)*)?$")]
Count = Annotated[int, msgspec.Meta(ge=0)]
Minor = Annotated[int, msgspec.Meta(ge=0, le=247)]

_Strict = TypeVar("_Strict", bound="Strict")


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of everything read from YAML."""


@cache
def nvml_members(prefix: str) -> Mapping[str, int]:
    """An NVML enumeration by the names that profiles and faults use: ``gpu-reset`` for ``…_GPU_RESET``."""
    members = {key.removeprefix(prefix): value for key, value in vars(pynvml).items() if key.startswith(prefix)}
    return {
        name.lower().replace("_", "-"): value
        for name, value in members.items()
        if isinstance(value, int) and not name.endswith("COUNT")
    }


def nvml_constant(prefix: str, name: str) -> int:
    """The number of an NVML enumeration member by such a name; ValueError lists the members."""
    members = nvml_members(prefix)
    if name.replace(".", "-") not in members:
        raise ValueError(f"{name!r} is none of {', '.join(members)}")
    return members[name.replace(".", "-")]


class PciIdentity(Strict, frozen=True):
    device: Count
    subsystem: Count
    class_code: Count = 0x030200


class Memory(Strict, frozen=True):
    total_mib: Count
    reserved_mib: Count
    bar1_mib: Count
    bus_width: Count


class PowerLimits(Strict, frozen=True):
    min: Count
    default: Count
    max: Count


class Power(Strict, frozen=True):
    """Watts. A board without settable limits has none."""

    idle: Count
    limits: PowerLimits | None = None


# A GPU's own limits are of one form or the other, never both.
class TemperatureLimits(Strict, frozen=True):
    """°C, or the margins to a limit that the board keeps to itself, as Ada and later report them."""

    form: Literal["absolute", "margin"]
    shutdown: int
    slowdown: int
    gpu: int
    memory: int | None = None


class Temperature(Strict, frozen=True):
    """°C at idle; ``memory`` is absent where the memory has no sensor."""

    idle: int
    memory: int | None = None
    limits: TemperatureLimits | None = None


class Clocks(Strict, frozen=True):
    """MHz."""

    sm: Count
    memory: Count
    video: Count


class ClockRange(Strict, frozen=True):
    max: Clocks
    idle: Clocks
    idle_state: Count = 0


class Pcie(Strict, frozen=True):
    generation: Count
    idle_generation: Count
    width: Count = 16


class NvLinkPort(Strict, frozen=True):
    """The NVLink side of a board: ``speed`` is MB/s per link and direction."""

    version: str
    links: Count
    speed: Count

    def __post_init__(self) -> None:
        nvml_constant("NVML_NVLINK_VERSION_", self.version)


class InfoRom(Strict, frozen=True):
    image: str
    oem: str
    ecc: str | None = None


class MigProfile(Strict, frozen=True):
    """A shape to cut a GPU to: ``size`` and ``starts`` in memory slices, ``kind`` a member of NVML's enumeration."""

    name: str
    kind: str
    id: Count
    slices: Count
    count: Count
    mib: Count
    sms: Count
    ce: Count
    dec: Count
    jpeg: Count
    ofa: Count
    size: Count
    starts: tuple[Count, ...]

    def __post_init__(self) -> None:
        nvml_constant("NVML_GPU_INSTANCE_PROFILE_", self.kind)

    @property
    def enum(self) -> int:
        return nvml_constant("NVML_GPU_INSTANCE_PROFILE_", self.kind)


class MigTable(Strict, frozen=True):
    """``resetless`` boards change MIG mode without a GPU reset, and forget it with the driver."""

    slices: Count
    memory_slices: Count
    resetless: bool
    profiles: tuple[MigProfile, ...]


class Board(Strict, frozen=True, kw_only=True):
    """One GPU model. What is absent answers NOT_SUPPORTED, and so do the ``unsupported`` calls and fields."""

    name: str
    brand: str
    architecture: str
    compute_capability: tuple[Count, Count]
    pci: PciIdentity
    sms: Count
    cores_per_sm: Count
    memory: Memory | None = None
    power: Power | None = None
    temperature: Temperature | None = None
    clocks: ClockRange
    pcie: Pcie | None = None
    nvlink: NvLinkPort | None = None
    mig: MigTable | None = None
    fabric: bool = False
    ecc: bool = True
    page_retirement: bool = False
    remap_banks: Count | None = None
    gsp: bool = True
    recovery_action: bool = False
    coherent: bool = False
    serial: bool = True
    vbios: str
    board_part_number: str | None = None
    inforom: InfoRom | None = None
    unsupported: tuple[str, ...] = ()
    unsupported_fields: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        nvml_constant("NVML_BRAND_", self.brand)
        nvml_constant("NVML_DEVICE_ARCH_", self.architecture)


class DriverInstall(Strict, frozen=True):
    """``missing_symbols`` are the C functions that a library of this age does not export."""

    version: str
    cuda: str
    open_modules: bool = True
    missing_symbols: tuple[str, ...] = ()


class GpuPlace(Strict, frozen=True):
    """Where a GPU sits. ``bridges`` are the PCI bridges above it from the root port down; none: on the root bus itself.

    ``numa`` is the CPU node beside it (absent: the platform does not say), ``memory_numa`` the node made of its memory,
    ``memory_nodes`` the nodes that memory affinity reports. ``mig`` lists ``<profile>@<start>``; empty: MIG is on and
    nothing made.
    """

    board: str
    bus: BusId
    minor: Minor
    module: Count | None = None
    numa: Count | None = None
    memory_numa: Count | None = None
    memory_nodes: CpuList | None = None
    bridges: tuple[BusId, ...] = ()
    uuid: str | None = None
    mig: tuple[str, ...] | None = None


class Island(Strict, frozen=True):
    """GPUs joined by NVSwitches of the PCI id ``device``; no ``switches``: they are not on the PCI bus."""

    gpus: tuple[Count, ...]
    switches: tuple[BusId, ...] = ()
    device: Count = 0x22A3


class DirectLinks(Strict, frozen=True):
    gpus: tuple[Count, Count]
    links: Count


class NvLinks(Strict, frozen=True):
    switched: tuple[Island, ...] = ()
    direct: tuple[DirectLinks, ...] = ()


class Fabric(Strict, frozen=True):
    """An all-zero cluster is one node by itself."""

    cluster: uuid.UUID = uuid.UUID(int=0)
    clique: Count = 0


class Platform(Strict, frozen=True):
    """What ``nvmlDeviceGetPlatformInfo`` reports besides the module."""

    chassis_serial: str
    slot: Count
    tray: Count
    host: Count
    peer_type: Literal[0, 1] = 1


class NodeProfile(Strict, frozen=True, kw_only=True):
    """A node: ``numa`` maps a CPU node to its CPUs; ``gpus`` are in the order of their index, that of the PCI bus."""

    name: str = ""
    summary: str
    driver: DriverInstall
    machine: Literal["x86_64", "aarch64"] = "x86_64"
    virtualization: Literal["none", "passthrough", "vgpu"] = "none"
    numa: dict[Count, CpuList]
    nvlink: NvLinks = NvLinks()
    fabric: Fabric = Fabric()
    platform: Platform | None = None
    gpus: tuple[GpuPlace, ...] = ()
    # After loading, all boards that the node needs, its own and the shipped ones.
    boards: dict[str, Board] = {}

    def __post_init__(self) -> None:
        # Index and minor are how programs address GPUs; a profile that muddles them would test nothing.
        _require_order([place.bus for place in self.gpus])
        _require_unique("minor", [place.minor for place in self.gpus])
        for index, place in enumerate(self.gpus):
            if place.numa is not None and place.numa not in self.numa:
                raise ValueError(f"gpus[{index}].numa is {place.numa}, but `numa` has only {sorted(self.numa)}")
        members = [i for island in self.nvlink.switched for i in island.gpus]
        members += [i for pair in self.nvlink.direct for i in pair.gpus]
        if members and max(members) >= len(self.gpus):
            raise ValueError(f"nvlink names GPU {max(members)}, but there are only {len(self.gpus)}")

    def board_of(self, place: GpuPlace) -> Board:
        return self.boards[place.board]


def _require_order(buses: list[str]) -> None:
    if buses != sorted(set(buses)):
        raise ValueError("gpus must be listed once each in the order of their bus ids, which is NVML's index order")


def _require_unique(what: str, values: list[int]) -> None:
    if len(values) != len(set(values)):
        raise ValueError(f"two gpus share a {what}: {sorted(values)}")


def cpu_numbers(listed: str) -> list[int]:
    """The numbers of a list as the kernel writes it: ``0-2,8`` is 0, 1, 2 and 8."""
    bounds = [part.partition("-") for part in listed.split(",") if part]
    return [number for first, _, last in bounds for number in range(int(first), int(last or first) + 1)]


def profile_names() -> list[str]:
    """The names of the shipped profiles, sorted."""
    return sorted(_stems("profiles"))


def load_profile(name_or_path: str | Path, beside: Iterable[str] = ()) -> NodeProfile:
    """A shipped profile by name, or a profile file by path (anything with a slash, a suffix or of type Path).

    ``beside``: further names that can be had where this was called from, for whoever gave a wrong one.
    """
    text = str(name_or_path)
    # A name never looks like a path, so that a file in the current folder cannot hide a shipped profile.
    if isinstance(name_or_path, Path) or "/" in text or text.endswith((".yaml", ".yml")):
        source: Traversable = Path(text)
    elif text in profile_names():
        source = _shipped("profiles") / f"{text}.yaml"
    else:
        names = ", ".join(sorted({*profile_names(), *beside}))
        raise SimulationError(f"no profile is named {text!r}; there are {names}, or give a path")
    return _with_boards(_read(source, NodeProfile), source)


def _with_boards(profile: NodeProfile, source: Traversable) -> NodeProfile:
    # Boards of the node file come first: it may correct a shipped one.
    boards = dict(profile.boards)
    for index, place in enumerate(profile.gpus):
        if place.board in boards:
            continue
        if place.board not in _stems("boards"):
            known = ", ".join(sorted({*_stems("boards"), *profile.boards}))
            raise SimulationError(
                f"{source}: no board is named {place.board!r} - at `$.gpus[{index}].board`; known: {known}"
            )
        boards[place.board] = _read(_shipped("boards") / f"{place.board}.yaml", Board)
    name = profile.name or source.name.rsplit(".", 1)[0]
    return msgspec.structs.replace(profile, name=name, boards=boards)


def _read(source: Traversable, kind: type[_Strict]) -> _Strict:
    try:
        return msgspec.convert(yaml.safe_load(source.read_text(encoding="utf-8")), kind)
    except OSError as error:
        raise SimulationError(f"{source}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        # A complaint about YAML has a line for each place that it is about.
        raise SimulationError(f"{source}: {' '.join(str(error).split())}") from error


def _shipped(folder: str) -> Traversable:
    return resources.files("node_agent.hardware.simulated") / folder


def _stems(folder: str) -> list[str]:
    return [entry.name.removesuffix(".yaml") for entry in _shipped(folder).iterdir() if entry.name.endswith(".yaml")]
