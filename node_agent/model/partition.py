"""How a GPU is cut into partitions. NVIDIA calls a partition a MIG device: a GPU instance with its compute instance."""

from dataclasses import dataclass
from typing import NewType

from node_agent.model.gpu import GpuUuid

PartitionUuid = NewType("PartitionUuid", str)
"""The identity of a live partition, such as ``MIG-4be8…``."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Placement:
    """Where a partition lies on its GPU, in memory slices: ``start`` to ``start + length``."""

    start: int
    length: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.length < 1:
            raise ValueError(f"no placement starts at {self.start} with length {self.length}")

    def overlaps(self, other: "Placement") -> bool:
        return self.start < other.start + other.length and other.start < self.start + self.length


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionProfile:
    """A shape that a GPU can be cut to, by the driver's own name (``1g.18gb+me``).

    ``id`` is the driver's number for it, ``memory`` in bytes, ``limit`` how many fit on an empty GPU, ``placements``
    where one may lie. The engine counts belong to one partition.
    """

    name: str
    id: int
    slices: int
    memory: int
    multiprocessors: int
    limit: int
    placements: tuple[Placement, ...]
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    optical_flow_engines: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """One live partition. ``instance`` and ``compute_instance`` are the driver's ids, reused after it is destroyed."""

    uuid: PartitionUuid
    parent: GpuUuid
    profile: str
    placement: Placement
    instance: int
    compute_instance: int
    memory: int | None = None
    multiprocessors: int | None = None
