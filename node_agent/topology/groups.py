"""Aligned groups: pairs within quads within groups of eight, each as close as the links allow.

``score`` counts them among the things worth keeping whole. A group may span NUMA nodes where the node's GPUs leave no
other choice.
"""

from collections.abc import Iterator

from msgspec import Struct

from node_agent.model.gpu import Gpu
from node_agent.model.inventory import Inventory
from node_agent.topology.pairs import Matrix, PairScores, pair_scores, positions
from node_agent.topology.search import Problem, Weights, search, weights

GROUP_SIZES = (8, 4, 2)


class Grouping(Struct, frozen=True, kw_only=True):
    """``groups`` are masks of 2, 4 or 8 GPUs: of two, either one holds the other or they share nothing.

    ``order`` lists all positions so that each group is a run, and a run that starts at a multiple of its length is a
    group as far as there are any.
    """

    groups: tuple[int, ...]
    order: tuple[int, ...]


def grouping(pairs: PairScores) -> Grouping:
    """The groups of one inventory; the same for the same GPUs and links."""
    parts = list(_nest(weights(_closeness(pairs)), pairs.everything, (*GROUP_SIZES, 1)))
    return Grouping(
        groups=tuple(part for part in parts if part.bit_count() > 1),
        order=tuple(part.bit_length() - 1 for part in parts if part.bit_count() == 1),
    )


def aligned_groups(inventory: Inventory) -> tuple[tuple[Gpu, ...], ...]:
    """The groups as GPUs: each one before those within it."""
    masks = grouping(pair_scores(inventory)).groups
    return tuple(tuple(inventory.gpus[i] for i in positions(mask)) for mask in masks)


def topology_order(inventory: Inventory) -> tuple[Gpu, ...]:
    """The GPUs in an order in which neighbours are close: whoever takes the first that fit gets aligned groups."""
    return tuple(inventory.gpus[i] for i in grouping(pair_scores(inventory)).order)


def _nest(closeness: Weights, members: int, sizes: tuple[int, ...]) -> Iterator[int]:
    """Cut as many parts of the first size as there are, and cut each of them, and what is left over, further down."""
    # From the top: built up from pairs, a chain with a strong middle would leave its two ends to each other.
    for depth, size in enumerate(sizes, start=1):
        while members.bit_count() >= size:
            part = _part(closeness, members, size)
            members &= ~part
            yield part
            yield from _nest(closeness, part, sizes[depth:])


def _part(closeness: Weights, members: int, size: int) -> int:
    """The part of that size that is least attached to the rest of the members."""
    if size == 1:
        return members & -members
    inside = positions(members)
    # A part's own pairs, less half of all that its GPUs have with the members, is minus half of what the part cuts.
    attached = [-sum(row[j] for j in inside) // 2 for row in closeness.pair]
    return search(Problem(weights=closeness, single=attached, tolls=(), available=members, must=0, size=size)).masks[0]


def _closeness(pairs: PairScores) -> Matrix:
    """How close two GPUs are: bandwidth, then a common NUMA node, then the PCIe path below the NVLinks."""
    # Shifted far enough that no sum over a node's pairs reaches the part of greater weight.
    node = pairs.node_of()
    return tuple(
        tuple(
            0 if i == j else pairs.bandwidth[i][j] << 40 | (node[i] >> j & 1) << 28 | pairs.path[i][j]
            for j in range(pairs.size)
        )
        for i in range(pairs.size)
    )
