"""How a GPU is cut into partitions. NVIDIA calls a partition a MIG device.

A GPU is cut twice: into GPU instances, which have memory slices and engines of their own, and each of those into
compute instances, which share them. Nearly always one compute instance fills its GPU instance; a partition is a compute
instance with the GPU instance that it is in.
"""

import re
from dataclasses import dataclass, field
from typing import NewType, TypeAlias

from msgspec import Struct

from node_agent.model.gpu import GpuUuid

PartitionUuid = NewType("PartitionUuid", str)
"""The identity of a live partition, such as ``MIG-4be8…``; one that is made again in its place gets it again."""

DeviceUuid: TypeAlias = GpuUuid | PartitionUuid
"""The identity of what is given out by itself."""


class Placement(Struct, frozen=True, kw_only=True, order=True):
    """Where a GPU instance lies on its GPU, in memory slices: ``start`` to ``start + length``."""

    start: int
    length: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.length < 1:
            raise ValueError(f"no placement starts at {self.start} with length {self.length}")

    def overlaps(self, other: "Placement") -> bool:
        return self.start < other.start + other.length and other.start < self.start + self.length

    def __str__(self) -> str:
        return f"{self.start}:{self.length}"


class Engines(Struct, frozen=True, kw_only=True):
    """How many engines of each kind a GPU instance has; its compute instances share them."""

    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    optical_flow_engines: int = 0


class PartitionProfile(Engines, frozen=True, kw_only=True):
    """A shape that a GPU can be cut to, by the driver's own name (``1g.18gb+me``).

    ``id`` is the driver's number for it, ``memory`` in bytes, ``limit`` how many fit on an empty GPU, ``placements``
    where one may lie.
    """

    name: str
    id: int
    slices: int
    memory: int
    multiprocessors: int
    limit: int
    placements: tuple[Placement, ...]


class Piece(Struct, frozen=True, kw_only=True):
    """What a GPU instance is, or is to be: a profile's name at a placement.

    ``computes`` are the sizes of its compute instances in compute slices, largest first: none in one that is half made,
    and None where one compute instance fills it.
    """

    profile: str
    placement: Placement
    computes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if list(self.computes or ()) != sorted(self.computes or (), reverse=True):
            raise ValueError(f"{self.profile}: compute instances are listed largest first, not {self.computes}")

    def __str__(self) -> str:
        divided = (
            "" if self.computes is None else f" ({' + '.join(f'{size}c' for size in self.computes) or 'half made'})"
        )
        return f"{self.profile} at {self.placement.start}{divided}"


class Part(Struct, frozen=True, kw_only=True):
    """What a partition takes of its GPU; it says the same of one that is yet to be made, or made again.

    ``profile`` is the full name. ``computes`` are the first compute slice of its GPU instance that it has and how many,
    None where it has all of them.
    """

    profile: str
    placement: Placement
    computes: tuple[int, int] | None = None

    def overlaps(self, other: "Part") -> bool:
        """Whether the two cannot be there at once: they need one slice, or cut it in two ways."""
        if not self.placement.overlaps(other.placement):
            return False
        if self.computes is None or other.computes is None or self.instance != other.instance:
            return True
        (start, count), (other_start, other_count) = self.computes, other.computes
        return start < other_start + other_count and other_start < start + count

    @property
    def instance(self) -> tuple[str, Placement]:
        """The GPU instance that it is in, by its profile and placement."""
        return re.sub(r"^\d+c\.", "", self.profile), self.placement

    def __str__(self) -> str:
        within = "" if self.computes is None else f", compute slices {self.computes[0]}:{self.computes[1]}"
        return f"{self.profile} at {self.placement.start}{within}"


class Place(Struct, frozen=True, kw_only=True):
    """A GPU, or a part of it: what two holders may not have at once."""

    gpu: GpuUuid
    part: Part | None = None

    def overlaps(self, other: "Place") -> bool:
        if self.gpu != other.gpu:
            return False
        return self.part is None or other.part is None or self.part.overlaps(other.part)

    def __str__(self) -> str:
        return self.gpu if self.part is None else f"{self.part} of {self.gpu}"


class Partition(Engines, frozen=True, kw_only=True):
    """One live partition. ``instance`` and ``compute_instance`` are the driver's ids, reused after it is destroyed.

    ``profile`` is its full name: ``1c.3g.71gb`` where it fills only one of the three compute slices of its GPU
    instance, the one at ``compute_start``. ``placement``, engines and ``memory`` (bytes) are those of the GPU instance,
    which it shares with others in there. ``index`` is its number among those of its GPU, for display only.
    """

    uuid: PartitionUuid
    parent: GpuUuid
    profile: str
    placement: Placement
    instance: int
    compute_instance: int
    slices: int
    compute_slices: int
    compute_start: int = 0
    index: int = 0
    memory: int | None = None
    multiprocessors: int | None = None

    @property
    def part(self) -> Part:
        whole = self.compute_slices == self.slices
        computes = None if whole else (self.compute_start, self.compute_slices)
        return Part(profile=self.profile, placement=self.placement, computes=computes)

    @property
    def place(self) -> Place:
        return Place(gpu=self.parent, part=self.part)


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """One live GPU instance. Without partitions it is half made: it takes its slices, and nothing can run on it.

    ``busy`` says whether processes ran on it at the look. It comes and goes, and makes no two instances differ.
    """

    gpu: GpuUuid
    id: int
    profile: str
    placement: Placement
    slices: int
    partitions: tuple[Partition, ...] = ()
    busy: bool = field(default=False, compare=False)

    @property
    def piece(self) -> Piece:
        sizes = sorted((partition.compute_slices for partition in self.partitions), reverse=True)
        whole = sizes == [self.slices]
        return Piece(profile=self.profile, placement=self.placement, computes=None if whole else tuple(sizes))
