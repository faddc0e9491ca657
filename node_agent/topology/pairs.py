"""What each pair of GPUs is worth to a job that uses both, as a matrix made once per inventory.

``score`` builds the objective on it. Sets of GPUs are bit masks in the order of ``Inventory.gpus``.
"""

from collections.abc import Iterable, Mapping
from itertools import combinations

from msgspec import Struct

from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.links import Link, PciePath

PATH_BANDWIDTH: Mapping[PciePath | None, int] = {
    PciePath.SAME_BOARD: 13_000,
    PciePath.ONE_SWITCH: 12_000,
    PciePath.SWITCHES: 11_000,
    PciePath.HOST_BRIDGE: 10_000,
    PciePath.NUMA_NODE: 8_000,
    PciePath.SYSTEM: 5_000,
    None: 5_000,
}
"""MB/s in one direction that a PCIe path counts for: a ranking at the scale of PCIe 3 x16, below any NVLink.

The steps grow with the way, since the sockets' own link is shared by everything on them. A path that the driver cannot
tell counts as the longest.
"""

NVLINK_BANDWIDTH = 20_000
"""MB/s in one direction of the slowest NVLink ever built; counts where the driver shows links but not their speed."""


def link_bandwidth(link: Link) -> int:
    """What a link counts for, in MB/s in one direction: its NVLinks where there are any, else the PCIe path."""
    if link.nvlinks:
        return link.bandwidth or link.nvlinks * NVLINK_BANDWIDTH
    return PATH_BANDWIDTH[link.path]


def positions(mask: int) -> list[int]:
    """The positions of the GPUs in a mask, lowest first."""
    return [position for position in range(mask.bit_length()) if mask >> position & 1]


Matrix = tuple[tuple[int, ...], ...]


class PairScores(Struct, frozen=True, kw_only=True):
    """The pairs of one inventory.

    ``bandwidth[i][j]`` is what the pair counts for in MB/s, ``path[i][j]`` what its PCIe path alone counts for; both
    are 0 for ``i == j``. ``nodes`` are the masks of GPUs that share a NUMA node, where GPUs whose node is unknown count
    as sharing one. ``islands`` are the masks of two or more GPUs that reach each other over NVLink alone.
    """

    bandwidth: Matrix
    path: Matrix
    nodes: tuple[int, ...]
    islands: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.bandwidth)

    @property
    def everything(self) -> int:
        """The mask of all GPUs."""
        return (1 << self.size) - 1

    def node_of(self) -> list[int]:
        """For each GPU, the mask of the GPUs on its NUMA node."""
        return [next(node for node in self.nodes if node >> i & 1) for i in range(self.size)]


def pair_scores(inventory: Inventory) -> PairScores:
    """Read the matrix from an inventory."""
    uuids = [gpu.uuid for gpu in inventory.gpus]
    bandwidth, path = _zeros(len(uuids)), _zeros(len(uuids))
    for i, j in combinations(range(len(uuids)), 2):
        link = inventory.links.between(uuids[i], uuids[j])
        bandwidth[i][j] = bandwidth[j][i] = link_bandwidth(link)
        path[i][j] = path[j][i] = PATH_BANDWIDTH[link.path]
    return PairScores(
        bandwidth=tuple(map(tuple, bandwidth)),
        path=tuple(map(tuple, path)),
        nodes=_alike(gpu.numa_node for gpu in inventory.gpus),
        islands=_islands(inventory, uuids),
    )


def _zeros(size: int) -> list[list[int]]:
    return [[0] * size for _ in range(size)]


def _alike(values: Iterable[object]) -> tuple[int, ...]:
    """One mask for each value, of the positions that have it; in the order in which the values appear."""
    masks: dict[object, int] = {}
    for position, value in enumerate(values):
        masks[value] = masks.get(value, 0) | 1 << position
    return tuple(masks.values())


def _islands(inventory: Inventory, uuids: list[GpuUuid]) -> tuple[int, ...]:
    # Two GPUs are of one island exactly if they reach the same GPUs.
    masks = _alike(inventory.links.island(uuid) for uuid in uuids)
    return tuple(mask for mask in masks if mask.bit_count() > 1)
