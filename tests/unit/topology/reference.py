"""The objective stated anew, straight from the inventory and without a single shortcut, and nodes to try it on.

Only the groups are taken from the code under test: ``test_groups`` holds these to account.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations

from hypothesis import strategies as st

from node_agent.model.gpu import Gpu
from node_agent.model.inventory import Inventory
from node_agent.model.links import Link, PciePath
from node_agent.topology.groups import aligned_groups
from node_agent.topology.preferred import DeviceId, Policy, Pool, PreferredRequest
from node_agent.topology.score import scores
from tests.fakes.builders import gpu, inventory, nvlink, uuid

Gpus = tuple[int, ...]
"""GPUs by their place in the inventory, in ascending order."""

PCIE = {None: 5_000, 50: 5_000, 40: 8_000, 30: 10_000, 20: 11_000, 10: 12_000, 0: 13_000}


def best_set(node: Inventory, available: Iterable[int], size: int, must: Iterable[int] = ()) -> Gpus:
    """What the objective calls best, by looking at every set."""
    available, needed = tuple(available), set(must)
    whole = whole_units(node, available)
    return min(
        (chosen for chosen in combinations(sorted(available), size) if needed <= set(chosen)),
        key=lambda chosen: (rank(node, chosen, available, whole), chosen),
    )


def rank(node: Inventory, chosen: Gpus, available: Iterable[int], whole: Iterable[frozenset[int]]) -> tuple[int, ...]:
    """Lower is better: bandwidth, NUMA nodes, NUMA pairs, whole units lost, bandwidth cut, NUMA neighbours parted."""
    stays = [i for i in available if i not in chosen]
    inside, across = list(combinations(chosen, 2)), [(i, j) for i in chosen for j in stays]
    return (
        -sum(bandwidth(node, i, j) for i, j in inside),
        len({node.gpus[i].numa_node for i in chosen}),
        -sum(neighbours(node, i, j) for i, j in inside),
        sum(len(unit) ** 2 for unit in whole if not unit.isdisjoint(chosen)),
        sum(bandwidth(node, i, j) for i, j in across),
        sum(neighbours(node, i, j) for i, j in across),
    )


def bandwidth(node: Inventory, i: int, j: int) -> int:
    link = node.links.between(node.gpus[i].uuid, node.gpus[j].uuid)
    if not link.nvlinks:
        return PCIE[link.path]
    return link.bandwidth or 20_000 * link.nvlinks


def neighbours(node: Inventory, i: int, j: int) -> bool:
    return node.gpus[i].numa_node == node.gpus[j].numa_node


def units(node: Inventory) -> set[frozenset[int]]:
    """NUMA nodes, islands and groups of two or more GPUs."""
    place = {each.uuid: i for i, each in enumerate(node.gpus)}
    numa = [frozenset(j for j in place.values() if neighbours(node, i, j)) for i in place.values()]
    islands = [frozenset(place[other] for other in node.links.island(each)) for each in place]
    groups = [frozenset(place[each.uuid] for each in group) for group in aligned_groups(node)]
    return {unit for unit in (*numa, *islands, *groups) if len(unit) > 1}


def whole_units(node: Inventory, available: Iterable[int]) -> list[frozenset[int]]:
    free = set(available)
    return [unit for unit in units(node) if unit <= free]


def places(gpus: Iterable[Gpu]) -> Gpus:
    """GPUs of the builders by their number."""
    return tuple(each.index for each in gpus)


def whole_gpus(node: Inventory) -> Pool:
    """A resource with one device per GPU."""
    return Pool(scores=scores(node), parents={DeviceId(each.uuid): each.uuid for each in node.gpus})


def shares(node: Inventory, counts: Sequence[int], policy: Policy = Policy.SPREAD) -> Pool:
    """A resource with so many shares of each GPU."""
    parents = {share(i, k): uuid(i) for i, count in enumerate(counts) for k in range(count)}
    return Pool(scores=scores(node), parents=parents, policy=policy)


def share(i: int, k: int) -> DeviceId:
    return DeviceId(f"{uuid(i)}::{k}")


def ask_gpus(size: int, available: Iterable[int], must: Iterable[int] = ()) -> PreferredRequest:
    """A question for whole GPUs."""
    return ask(size, (uuid(i) for i in available), (uuid(i) for i in must))


def ask(size: int, available: Iterable[str], must: Iterable[str] = ()) -> PreferredRequest:
    return PreferredRequest(
        available=frozenset(map(DeviceId, available)), must_include=frozenset(map(DeviceId, must)), size=size
    )


_ANY_LINK = st.one_of(
    st.just(Link()),
    st.builds(Link, path=st.sampled_from(PciePath)),
    st.builds(nvlink, st.integers(1, 4), path=st.sampled_from(PciePath)),
    st.builds(Link, nvlinks=st.integers(1, 2)),
)


@st.composite
def nodes(draw: st.DrawFn, *, least: int = 1, most: int = 8) -> Inventory:
    """Nodes of all shapes: any links between any GPUs, or few kinds of links, so that much is alike."""
    count = draw(st.integers(least, most))
    numa = draw(st.lists(st.sampled_from((0, 1, 2, None)), min_size=count, max_size=count))
    kinds = draw(st.lists(_ANY_LINK, min_size=1, max_size=draw(st.sampled_from((1, 2, 28)))))
    links = {ends: draw(st.sampled_from(kinds)) for ends in combinations(range(count), 2)}
    return inventory([gpu(i, numa=node) for i, node in enumerate(numa)], links, path=lambda a, b: PciePath.SYSTEM)


@st.composite
def questions(draw: st.DrawFn, *, most: int = 8) -> tuple[Inventory, Gpus, Gpus, int]:
    """A node, the GPUs that are available, those that must be chosen, and how many to choose."""
    node = draw(nodes(most=most))
    available = draw(st.sets(st.integers(0, len(node.gpus) - 1), min_size=1))
    must = draw(st.sets(st.sampled_from(sorted(available))))
    size = draw(st.integers(max(1, len(must)), len(available)))
    return node, tuple(sorted(available)), tuple(sorted(must)), size
