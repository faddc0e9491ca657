"""How the GPUs of one node reach each other: NVLink, and the PCIe path that always exists."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from itertools import combinations

from msgspec import Struct, field

from node_agent.model.gpu import GpuUuid


class PciePath(IntEnum):
    """The nearest common point of two GPUs on PCIe; a larger value is a longer way. Values are NVML's own."""

    SAME_BOARD = 0
    ONE_SWITCH = 10
    SWITCHES = 20
    HOST_BRIDGE = 30
    NUMA_NODE = 40
    SYSTEM = 50

    @property
    def short(self) -> str:
        """The abbreviation that ``nvidia-smi topo -m`` prints."""
        return {0: "PSB", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}[self.value]


class Link(Struct, frozen=True, kw_only=True):
    """What joins two GPUs.

    ``nvlinks`` counts active NVLinks usable between the two (through a switch: the lesser count of both ends);
    ``bandwidth`` is theirs in MB/s in one direction, all links together. ``path`` is None where the driver cannot tell.
    """

    nvlinks: int = 0
    bandwidth: int = 0
    switched: bool = False
    path: PciePath | None = None

    def __post_init__(self) -> None:
        if self.nvlinks < 0 or self.bandwidth < 0:
            raise ValueError(f"a link cannot have {self.nvlinks} NVLinks of {self.bandwidth} MB/s")


NO_LINK = Link()

Pair = frozenset[GpuUuid]


def pair(a: GpuUuid, b: GpuUuid) -> Pair:
    return frozenset((a, b))


class LinkGraph(Struct, frozen=True, kw_only=True):
    """The links of all pairs of GPUs; symmetric. A pair that is not listed has ``NO_LINK``."""

    links: Mapping[Pair, Link] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for ends in self.links:
            if len(ends) != 2:
                raise ValueError(f"a link joins two GPUs, not {sorted(ends)}")

    def between(self, a: GpuUuid, b: GpuUuid) -> Link:
        return self.links.get(pair(a, b), NO_LINK)

    def among(self, gpus: Iterable[GpuUuid]) -> "LinkGraph":
        """The part of the graph that joins only the given GPUs."""
        wanted = [pair(a, b) for a, b in combinations(gpus, 2)]
        return LinkGraph(links={ends: self.links[ends] for ends in wanted if ends in self.links})

    def neighbours(self, gpu: GpuUuid) -> frozenset[GpuUuid]:
        """The GPUs that a GPU has NVLinks to."""
        return frozenset(
            other for ends, link in self.links.items() if gpu in ends and link.nvlinks for other in ends - {gpu}
        )

    def island(self, start: GpuUuid) -> frozenset[GpuUuid]:
        """All GPUs that ``start`` reaches over NVLink alone, itself included."""
        seen, frontier = {start}, [start]
        neighbours: dict[GpuUuid, list[GpuUuid]] = {}
        for ends, link in self.links.items():
            if link.nvlinks:
                a, b = ends
                neighbours.setdefault(a, []).append(b)
                neighbours.setdefault(b, []).append(a)
        while frontier:
            fresh = [gpu for gpu in neighbours.get(frontier.pop(), []) if gpu not in seen]
            seen.update(fresh)
            frontier.extend(fresh)
        return frozenset(seen)
