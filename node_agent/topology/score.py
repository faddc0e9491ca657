"""The objective: what makes one set of GPUs a better answer than another.

``Score`` states it, and ``Scores.best`` finds the best set by it through ``search``. In order of weight:

1. bandwidth: the sum over all pairs of the set (``pairs`` says what a pair counts for);
2. compactness: fewest NUMA nodes, then most pairs of GPUs that share one;
3. damage to what stays available: whole units broken up or used up, then bandwidth cut, then NUMA neighbours parted;
4. the lowest positions, so that the same question always has the same answer.

A unit is a NUMA node, an island or an aligned group of two or more GPUs; it is whole while all of its GPUs are
available. Losing one costs the square of its size: a request for one GPU fills what is broken already before it breaks
anything, and breaks a pair before a quad.
"""

from collections.abc import Iterable, Mapping
from itertools import combinations

from msgspec import Struct

from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.topology.groups import Grouping, grouping
from node_agent.topology.pairs import Matrix, PairScores, pair_scores, positions
from node_agent.topology.search import Found, Problem, Toll, Weights, scaled, search, weights


class Score(Struct, frozen=True, kw_only=True):
    """What a set of GPUs is worth. ``bandwidth`` and ``cut`` are in MB/s in one direction, the rest are counts.

    ``lost`` is the cost of the whole units that the set breaks up or uses up. ``cut`` and ``parted`` count over pairs
    of one GPU that is in the set and one that stays available: bandwidth, and pairs that share a NUMA node.
    """

    bandwidth: int = 0
    numa_nodes: int = 0
    numa_pairs: int = 0
    lost: int = 0
    cut: int = 0
    parted: int = 0

    @property
    def rank(self) -> tuple[int, ...]:
        """Sorts scores, the best first."""
        return (-self.bandwidth, self.numa_nodes, -self.numa_pairs, self.lost, self.cut, self.parted)


# How far left each part of a score lies when all are packed in one number for the search. Each has room for its sum on
# 64 GPUs and far more, so that no sum reaches the part of greater weight.
_CUT, _LOST, _NUMA_PAIRS, _NUMA_NODES, _BANDWIDTH = 20, 68, 92, 112, 124


class Scores(Struct, frozen=True, kw_only=True):
    """All that choosing among the GPUs of one inventory needs: made once by ``scores``, asked for every request.

    ``units`` are the masks of all units, ``position`` the bit of each GPU. The rest is the objective in the search's
    form: ``weights`` of pairs, and the tolls for entering a NUMA node and for touching a whole unit.
    """

    inventory: Inventory
    pairs: PairScores
    grouping: Grouping
    units: tuple[int, ...]
    position: Mapping[GpuUuid, int]
    weights: Weights
    node_tolls: tuple[Toll, ...]
    unit_tolls: tuple[Toll, ...]

    def mask(self, gpus: Iterable[GpuUuid]) -> int:
        """The mask of GPUs of this inventory; KeyError for any other."""
        return sum(1 << self.position[gpu] for gpu in set(gpus))

    def whole(self, available: int) -> list[int]:
        """The units of which all GPUs are in the mask."""
        return [unit for unit in self.units if not unit & ~available]

    def score(self, chosen: int, available: int) -> Score:
        """The score of the chosen GPUs, which are among the available ones: the objective as the module states it."""
        stays = available & ~chosen
        ends = positions(chosen)
        on_nodes = [(chosen & node).bit_count() for node in self.pairs.nodes]
        return Score(
            bandwidth=sum(self.pairs.bandwidth[i][j] for i, j in combinations(ends, 2)),
            numa_nodes=sum(1 for count in on_nodes if count),
            numa_pairs=sum(count * (count - 1) // 2 for count in on_nodes),
            lost=sum(_worth(unit) for unit in self.whole(available) if unit & chosen),
            cut=sum(self.pairs.bandwidth[i][j] for i in ends for j in positions(stays)),
            parted=sum((chosen & node).bit_count() * (stays & node).bit_count() for node in self.pairs.nodes),
        )

    def best(self, available: int, must: int, size: int, *, keep: int = 1) -> Found:
        """The best sets of ``size`` available GPUs around those that must be there, the best first.

        There must be enough of them, and ``must`` lies within ``available``. Exact for up to 16 GPUs, and beyond that
        where enough GPUs are interchangeable, which is the rule on real nodes; the answer says whether it is.
        """
        # Entering a NUMA node costs the set once, so does touching a whole unit: what is broken already costs nothing.
        nodes = [(node & available, cost) for node, cost in self.node_tolls if node & available]
        units = [(unit, cost) for unit, cost in self.unit_tolls if not unit & ~available]
        problem = Problem(
            weights=self.weights,
            single=self._cuts(available),
            tolls=nodes + units,
            available=available,
            must=must,
            size=size,
        )
        return search(problem, keep=keep)

    def _cuts(self, available: int) -> list[int]:
        """What taking each GPU cuts and parts, as a loss.

        Pairs within the set are counted as well: these are the same for all sets that tie on bandwidth and NUMA pairs.
        """
        shared = [0] * self.pairs.size
        for node in self.pairs.nodes:
            for i in positions(node):
                shared[i] = (node & available).bit_count()
        inside = positions(available)
        return [
            -scaled(sum(row[j] for j in inside) << _CUT | shared[i], self.pairs.size)
            for i, row in enumerate(self.pairs.bandwidth)
        ]


def scores(inventory: Inventory) -> Scores:
    """Work out what choosing among the GPUs of this inventory needs."""
    pairs = pair_scores(inventory)
    groups = grouping(pairs)
    every = dict.fromkeys((*pairs.nodes, *pairs.islands, *groups.groups))
    units = tuple(unit for unit in every if unit.bit_count() > 1)
    return Scores(
        inventory=inventory,
        pairs=pairs,
        grouping=groups,
        units=units,
        position={gpu.uuid: position for position, gpu in enumerate(inventory.gpus)},
        weights=weights(_packed(pairs)),
        node_tolls=tuple((node, scaled(1 << _NUMA_NODES, pairs.size)) for node in pairs.nodes),
        unit_tolls=tuple((unit, scaled(_worth(unit) << _LOST, pairs.size)) for unit in units),
    )


def _worth(unit: int) -> int:
    return unit.bit_count() ** 2


def _packed(pairs: PairScores) -> Matrix:
    node_of = pairs.node_of()
    return tuple(
        tuple(
            0 if i == j else bandwidth << _BANDWIDTH | (node_of[i] >> j & 1) << _NUMA_PAIRS
            for j, bandwidth in enumerate(row)
        )
        for i, row in enumerate(pairs.bandwidth)
    )
