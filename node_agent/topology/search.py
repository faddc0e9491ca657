"""The best set of GPUs of a given size: branch and bound over bit masks. ``score`` and ``groups`` ask it.

What makes it quick on real nodes: GPUs that are interchangeable are one class, so that only their number is decided;
and a branch is left as soon as even an optimistic view of it cannot beat what has been found.
"""

from bisect import insort
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from math import inf

from msgspec import Struct

from node_agent.topology.pairs import Matrix, positions

Toll = tuple[int, int]
"""A mask, and what a set pays once if it has any GPU of it."""

STEPS = 6_435
"""Sets that a search extends at most before it gives up: C(15, 7), what the worst request on 16 GPUs could need."""


class Weights(Struct, frozen=True, kw_only=True):
    """What pairs are worth: a symmetric matrix of whole numbers, even multiples of ``1 << len(pair)``.

    ``twin[i] == twin[j]`` where swapping the two GPUs leaves the matrix as it is.
    """

    pair: Matrix
    twin: tuple[int, ...]


class Problem(Struct, frozen=True, kw_only=True):
    """Find the set of ``size`` GPUs within ``available`` and around ``must`` that is worth most.

    A set is worth the sum of its pairs, plus ``single`` of each GPU, less the tolls that it pays. Of two sets worth the
    same, the one that has the lowest position that is not in both wins. GPUs that are twins and lie in the same tolls
    must have the same ``single``.
    """

    weights: Weights
    single: Sequence[int]
    tolls: Sequence[Toll]
    available: int
    must: int
    size: int


class Found(Struct, frozen=True, kw_only=True):
    """Masks, the best first. ``exact`` is False where the search gave up: then they are the best of those looked at."""

    masks: tuple[int, ...]
    exact: bool


def weights(pair: Matrix) -> Weights:
    """Scale a matrix for the search and find its twins."""
    # The low bits are for the set itself; one bit more, so that half of a value still leaves them alone.
    scale = 2 << len(pair)
    twin: list[int] = []
    for i in range(len(pair)):
        twin.append(next((j for j in range(i) if twin[j] == j and _swappable(pair, i, j)), i))
    return Weights(pair=tuple(tuple(value * scale for value in row) for row in pair), twin=tuple(twin))


def scaled(value: int, gpus: int) -> int:
    """A value of ``single`` or of a toll at the scale of ``Weights`` for that many GPUs."""
    return value * (2 << gpus)


def search(problem: Problem, *, keep: int = 1) -> Found:
    """The ``keep`` best sets. Sets that differ only by interchangeable GPUs count as one: its lowest positions.

    There must be enough GPUs: ``must`` lies within ``available`` and ``size`` between the counts of the two.
    """
    need = problem.size - problem.must.bit_count()
    if need == 0:
        return Found(masks=(problem.must,), exact=True)
    return _Search(problem, need, keep).run()


def _swappable(pair: Matrix, i: int, j: int) -> bool:
    return all(a == b for k, (a, b) in enumerate(zip(pair[i], pair[j], strict=True)) if k not in (i, j))


class _Tolls(dict[int, int]):
    """The sum of the tolls in a mask of tolls, worked out when first asked for."""

    def __init__(self, costs: Sequence[int]) -> None:
        self._costs = costs

    def __missing__(self, mask: int) -> int:
        value = self[mask] = sum(self._costs[bit] for bit in positions(mask))
        return value


class _Search:
    """One run. Candidates are in classes of interchangeable GPUs; lists are indexed by class.

    The worth of a set carries the set itself in its low bits, the lowest position as the highest bit: no two sets are
    worth the same, and the greater worth is the set to prefer.
    """

    def __init__(self, problem: Problem, need: int, keep: int) -> None:
        self.problem, self.need, self.keep = problem, need, keep
        self.gpus = len(problem.weights.pair)
        self.found: list[int] = []
        self.threshold = -inf
        self.steps = 0
        # A step on more GPUs takes longer, about by the square of their number.
        self.limit = STEPS if self.gpus <= 16 else STEPS * 16**2 // self.gpus**2
        self.classes, self.touch = _classes(problem)
        self.counts = [len(members) for members in self.classes]
        self.pair = [[problem.weights.pair[a[0]][b[-1]] for b in self.classes] for a in self.classes]
        self.bits = [list(accumulate((self._bit(i) for i in members), initial=0)) for members in self.classes]
        self.rest = list(accumulate((bits[-1] for bits in reversed(self.bits)), initial=0))[::-1]
        self.room = list(accumulate(reversed(self.counts), initial=0))[::-1]
        self.toll = _Tolls([cost for _, cost in problem.tolls])
        self._shares: dict[int, _Tolls] = {}
        self._reaches: dict[int, list[list[int]]] = {}

    def run(self) -> Found:
        """Start from the GPUs that must be there; what these are worth is the same for all sets and left out."""
        problem = self.problem
        given = positions(problem.must)
        gains = []
        # One member speaks for its class: its twins have the same pairs with all others.
        for members in self.classes:
            row = problem.weights.pair[members[0]]
            gains.append(problem.single[members[0]] + sum(row[i] for i in given))
        paid = sum(1 << bit for bit, (mask, _) in enumerate(problem.tolls) if mask & problem.must)
        self._extend(0, self.need, 0, gains, paid)
        masks = tuple(problem.must | self._mask(worth) for worth in reversed(self.found))
        return Found(masks=masks, exact=self.steps <= self.limit)

    def _bit(self, position: int) -> int:
        return 1 << self.gpus - 1 - position

    def _mask(self, worth: int) -> int:
        return sum(self._bit(i) for i in positions(worth & (1 << self.gpus) - 1))

    def _extend(self, first: int, need: int, worth: int, gains: list[int], paid: int) -> None:
        """Try all ways to take ``need`` more from the classes from ``first`` on. ``gains``: what one more would add."""
        if need == 1:
            self._complete(first, worth, gains, paid)
            return
        self.steps += 1
        hopes = self._hopes(first, need, gains, paid)
        for own in range(first, len(self.classes)):
            # What cannot be reached with all classes from here on cannot be reached with fewer of them.
            if self._hopeless(own, need, worth, hopes):
                return
            unpaid = self.touch[own] & ~paid
            # Most of a class first: sets of GPUs that are alike tend to be good, and a good set early cuts much off.
            for taken in range(min(self.counts[own], need), 0, -1):
                inside = taken * (taken - 1) // 2 * self.pair[own][own]
                more = worth + taken * gains[own] + inside - self.toll[unpaid] + self.bits[own][taken]
                if taken == need:
                    self._keep(more)
                elif self.room[own + 1] >= need - taken:
                    added = [gain + taken * pair for gain, pair in zip(gains, self.pair[own], strict=True)]
                    self._extend(own + 1, need - taken, more, added, paid | unpaid)

    def _complete(self, first: int, worth: int, gains: list[int], paid: int) -> None:
        for own in range(first, len(self.classes)):
            self._keep(worth + gains[own] - self.toll[self.touch[own] & ~paid] + self.bits[own][1])

    def _keep(self, worth: int) -> None:
        if worth <= self.threshold:
            return
        insort(self.found, worth)
        if len(self.found) > self.keep:
            del self.found[0]
        if len(self.found) == self.keep:
            self.threshold = self.found[0]

    def _hopes(self, first: int, need: int, gains: list[int], paid: int) -> list[tuple[int, int]]:
        """The classes from ``first`` on, best first: the most that one member can add to a set that takes ``need``."""
        share, touch = self._share(need), self.touch
        hopes = [
            (gains[own] + reach[need] - share[touch[own] & ~paid], own)
            for own, reach in enumerate(self._reach(first), start=first)
        ]
        hopes.sort(reverse=True)
        return hopes

    def _hopeless(self, first: int, need: int, worth: int, hopes: list[tuple[int, int]]) -> bool:
        """True where no set that takes ``need`` more from the classes from ``first`` on can be worth keeping."""
        # Depth first, a first set is found within as many steps as there are GPUs: there is always an answer.
        if self.steps > self.limit and self.found:
            return True
        bound = worth + self.rest[first]
        for hope, own in hopes:
            if own >= first:
                taken = min(self.counts[own], need)
                bound += taken * hope
                need -= taken
                if not need:
                    break
        return bound <= self.threshold

    def _share(self, need: int) -> _Tolls:
        """The least of each toll that one GPU bears when ``need`` are taken: at most these can share it."""
        if (share := self._shares.get(need)) is None:
            available = self.problem.available
            # Rounded down, so that the bound never promises less than a set can be worth.
            costs = [cost // min((mask & available).bit_count(), need) for mask, cost in self.problem.tolls]
            share = self._shares[need] = _Tolls(costs)
        return share

    def _reach(self, first: int) -> list[list[int]]:
        """For each class from ``first`` on, by the number to take from these: half the best pairs of one member.

        Half, since the other end of a pair counts it too.
        """
        if (reaches := self._reaches.get(first)) is None:
            reaches = self._reaches[first] = []
            for own, row in enumerate(self._ranked[first:], start=first):
                halves = [0]
                for value, other in row:
                    if other >= first:
                        halves += [value // 2] * (self.counts[other] - (other == own))
                reaches.append([0, *accumulate(halves[: self.need])])
        return reaches

    @cached_property
    def _ranked(self) -> list[list[tuple[int, int]]]:
        """The pairs of each class with the others, the best first."""
        return [sorted(((value, own) for own, value in enumerate(row)), reverse=True) for row in self.pair]


def _classes(problem: Problem) -> tuple[list[list[int]], list[int]]:
    """The candidates in classes, and for each class the mask of the tolls that it lies in.

    The best connected come first: they decide most, and what is left for later is quickly seen to be worth little.
    """
    classes: dict[tuple[int, int], list[int]] = {}
    for i in positions(problem.available & ~problem.must):
        touch = sum(1 << bit for bit, (mask, _) in enumerate(problem.tolls) if mask >> i & 1)
        classes.setdefault((problem.weights.twin[i], touch), []).append(i)
    inside = positions(problem.available)
    connected = {key: sum(problem.weights.pair[members[0]][i] for i in inside) for key, members in classes.items()}
    order = sorted(classes, key=lambda key: -connected[key])
    return [classes[key] for key in order], [touch for _, touch in order]
