"""Which devices to give: the answer to the kubelet's GetPreferredAllocation, for whole GPUs, shares and MIG devices.

First the policy says how many devices each GPU should give, from how many are in use; where it holds several GPUs for
equal, ``score`` says which of them are closest and do least damage. Whole GPUs are the case of one device per GPU. All
is looked up in memory, and the order of the ids in the question makes no difference. ``explain`` puts it in words.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from msgspec import Struct

from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.topology.pairs import positions
from node_agent.topology.score import Score, Scores

DeviceId = NewType("DeviceId", str)
"""The kubelet's id of a device: a GPU's UUID, a share such as ``GPU-9f0d…::3``, or a MIG device's UUID."""


class Policy(StrEnum):
    """How to place devices of which a GPU has several."""

    SPREAD = "spread"
    """From the GPUs with the fewest in use, and from as many GPUs as possible. Meant for shares."""

    PACKED = "packed"
    """From the GPUs with the most in use, one after the other until it is full. Meant for MIG devices."""

    DISTINCT = "distinct"
    """As ``SPREAD``, and never two from one GPU, even where too few devices are given then."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """All devices of one resource, in use or not: the GPU that each is or lies on. Made once per inventory.

    Devices of a GPU are given in the order in which they stand here; those of a GPU that is not in the inventory never.
    """

    scores: Scores
    parents: Mapping[DeviceId, GpuUuid]
    policy: Policy = Policy.SPREAD
    places: Mapping[DeviceId, tuple[int, int]] = field(init=False, repr=False, compare=False)
    """Of each device, the position of its GPU and its number among the GPU's devices."""

    totals: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Of each GPU, how many devices it has."""

    def __post_init__(self) -> None:
        totals = [0] * self.scores.pairs.size
        places: dict[DeviceId, tuple[int, int]] = {}
        for device, parent in self.parents.items():
            position = self.scores.position.get(parent)
            if position is not None:
                places[device] = (position, totals[position])
                totals[position] += 1
        object.__setattr__(self, "places", places)
        object.__setattr__(self, "totals", tuple(totals))


class PreferredRequest(Struct, frozen=True, kw_only=True):
    """The kubelet's question: ``size`` of the available devices, among them those of ``must_include``."""

    available: frozenset[DeviceId]
    must_include: frozenset[DeviceId] = frozenset()
    size: int

    def __post_init__(self) -> None:
        if self.size < len(self.must_include):
            raise ValueError(f"{len(self.must_include)} devices must be among a choice of {self.size}")


class Choice(Struct, frozen=True, kw_only=True):
    """The devices to give, by the position of their GPUs; those GPUs, and how they score among the available ones.

    Shorter than asked where not enough devices are available: the kubelet then refuses the pod in its own words.
    """

    ids: tuple[DeviceId, ...]
    gpus: tuple[Gpu, ...]
    score: Score


def preferred(request: PreferredRequest, pool: Pool) -> Choice:
    """Choose. What must be included is always in the answer; an unknown id is never added to it."""
    stock = Stock(request, pool)
    _POLICIES[pool.policy](stock, request.size - len(request.must_include))
    ids = sorted(stock.given(), key=lambda device: (pool.places.get(device, _NOWHERE), device))
    return Choice(
        ids=tuple(ids),
        gpus=tuple(pool.scores.inventory.gpus[i] for i in positions(stock.chosen)),
        score=pool.scores.score(stock.chosen, stock.available),
    )


_NOWHERE = (1 << 30, 0)


class Stock:
    """What each GPU, by position, has left to give while one request is answered."""

    def __init__(self, request: PreferredRequest, pool: Pool) -> None:
        self.scores, self.must = pool.scores, request.must_include
        gpus = range(pool.scores.pairs.size)
        self.free: list[list[tuple[int, DeviceId]]] = [[] for _ in gpus]
        # What must be included is given already: it takes part as use of its GPU.
        for device in request.available - request.must_include:
            if (place := pool.places.get(device)) is not None:
                self.free[place[0]].append((place[1], device))
        self.left = [len(devices) for devices in self.free]
        self.used = [total - left for total, left in zip(pool.totals, self.left, strict=True)]
        self.taken = [0 for _ in gpus]
        self.chosen = _mask(pool.places[device][0] for device in request.must_include if device in pool.places)
        self.available = self.chosen | _mask(self.open())

    def open(self) -> list[int]:
        """The GPUs that can give more."""
        return [gpu for gpu, left in enumerate(self.left) if left]

    def take(self, gpu: int, count: int) -> None:
        self.left[gpu] -= count
        self.used[gpu] += count
        self.taken[gpu] += count
        self.chosen |= 1 << gpu

    def closest(self, gpus: list[int], count: int) -> list[int]:
        """The ``count`` of these GPUs that go best with those already chosen, which are not among them."""
        if count >= len(gpus):
            return gpus
        # GPUs that the policy ranks behind are no candidates, and count as taken when damage is judged.
        candidates = self.chosen | _mask(gpus)
        best = self.scores.best(candidates, self.chosen, self.chosen.bit_count() + count).masks[0]
        return positions(best & ~self.chosen)

    def given(self) -> set[DeviceId]:
        """The devices: what must be included, and the first free ones of each GPU as many as were taken."""
        picked = (sorted(devices)[:taken] for devices, taken in zip(self.free, self.taken, strict=True) if taken)
        return {device for devices in picked for _, device in devices} | self.must


def _spread(stock: Stock, need: int) -> None:
    """One device at a time from the least used GPUs; among equals first from those not yet chosen."""
    while need and (gpus := stock.open()):
        least = min(stock.used[gpu] for gpu in gpus)
        equal = [gpu for gpu in gpus if stock.used[gpu] == least]
        fresh = [gpu for gpu in equal if not stock.chosen >> gpu & 1]
        # GPUs chosen already are as close as they are: among them the order decides.
        for gpu in stock.closest(fresh, need) if fresh else equal[:need]:
            stock.take(gpu, 1)
            need -= 1


def _distinct(stock: Stock, need: int) -> None:
    """One device each from the least used GPUs that give none yet."""
    while need and (gpus := [gpu for gpu in stock.open() if not stock.chosen >> gpu & 1]):
        least = min(stock.used[gpu] for gpu in gpus)
        for gpu in stock.closest([gpu for gpu in gpus if stock.used[gpu] == least], need):
            stock.take(gpu, 1)
            need -= 1


def _packed(stock: Stock, need: int) -> None:
    """All that the most used GPUs have; among equals first from those that are chosen already, then have least left."""
    while need and (gpus := stock.open()):
        rank = {gpu: (-stock.used[gpu], not stock.chosen >> gpu & 1, stock.left[gpu]) for gpu in gpus}
        first = min(rank.values())
        equal = [gpu for gpu in gpus if rank[gpu] == first]
        # All of them have the same number left, so that this many are needed and no more.
        enough = -(-need // stock.left[equal[0]])
        for gpu in stock.closest(equal, enough) if not stock.chosen >> equal[0] & 1 else equal[:enough]:
            count = min(need, stock.left[gpu])
            stock.take(gpu, count)
            need -= count


_POLICIES: Mapping[Policy, Callable[[Stock, int], None]] = {
    Policy.SPREAD: _spread,
    Policy.PACKED: _packed,
    Policy.DISTINCT: _distinct,
}


def _mask(gpus: Iterable[int]) -> int:
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask
