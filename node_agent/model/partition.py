"""How a GPU is cut into partitions. NVIDIA calls a partition a MIG device.

A GPU is cut twice: into GPU instances, which have memory slices and engines of their own, and each of those into
compute instances, which share them. Nearly always one compute instance fills its GPU instance; a partition is a compute
instance with the GPU instance that it is in.
"""

from dataclasses import dataclass, field
from typing import NewType

from node_agent.model.gpu import GpuUuid

PartitionUuid = NewType("PartitionUuid", str)
"""The identity of a live partition, such as ``MIG-4be8…``; one that is made again in its place gets it again."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Placement:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Engines:
    """How many engines of each kind a GPU instance has; its compute instances share them."""

    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    optical_flow_engines: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionProfile(Engines):
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition(Engines):
    """One live partition. ``instance`` and ``compute_instance`` are the driver's ids, reused after it is destroyed.

    ``profile`` is its full name: ``1c.3g.71gb`` where it fills only one of the three compute slices of its GPU
    instance, the one at ``compute_start``. ``placement``, engines and ``memory`` (bytes) are those of the GPU instance,
    which it shares with others in there.
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
    memory: int | None = None
    multiprocessors: int | None = None


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
