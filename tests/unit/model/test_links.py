"""A link graph is symmetric; its islands are what NVLink alone joins."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.model.gpu import GpuUuid
from node_agent.model.links import NO_LINK, Link, LinkGraph, PciePath, pair

GPUS = [GpuUuid(f"GPU-{n}") for n in range(8)]
NVLINK = Link(nvlinks=18, bandwidth=478_125, switched=True, path=PciePath.SYSTEM)
PCIE = Link(path=PciePath.HOST_BRIDGE)


def graph(links: dict[tuple[int, int], Link]) -> LinkGraph:
    return LinkGraph(links={pair(GPUS[a], GPUS[b]): link for (a, b), link in links.items()})


GRAPHS = st.dictionaries(
    st.sampled_from(list(combinations(range(8), 2))), st.sampled_from([NVLINK, PCIE, NO_LINK]), max_size=12
).map(graph)


def test_a_link_is_found_from_either_end() -> None:
    links = graph({(0, 1): NVLINK})
    assert links.between(GPUS[0], GPUS[1]) is NVLINK
    assert links.between(GPUS[1], GPUS[0]) is NVLINK


def test_a_pair_that_is_not_listed_has_no_link_and_neither_has_a_gpu_with_itself() -> None:
    links = graph({(0, 1): NVLINK})
    assert links.between(GPUS[0], GPUS[2]) == NO_LINK
    assert links.between(GPUS[0], GPUS[0]) == NO_LINK
    assert NO_LINK.path is None


@pytest.mark.parametrize("ends", [frozenset(), frozenset(GPUS[:1]), frozenset(GPUS[:3])])
def test_a_link_between_other_than_two_gpus_is_an_error(ends: frozenset[GpuUuid]) -> None:
    with pytest.raises(ValueError, match="a link joins two GPUs"):
        LinkGraph(links={ends: NVLINK})


@pytest.mark.parametrize(("nvlinks", "bandwidth"), [(-1, 0), (0, -1)])
def test_a_link_of_less_than_nothing_is_an_error(nvlinks: int, bandwidth: int) -> None:
    with pytest.raises(ValueError, match="a link cannot have"):
        Link(nvlinks=nvlinks, bandwidth=bandwidth)


def test_an_island_is_what_nvlink_joins_directly_or_through_others() -> None:
    links = graph({(0, 1): NVLINK, (1, 2): NVLINK, (4, 5): NVLINK})
    for inside in GPUS[:3]:
        assert links.island(inside) == frozenset(GPUS[:3])
    assert links.island(GPUS[4]) == frozenset(GPUS[4:6])


def test_pcie_alone_joins_no_island_and_a_gpu_without_links_is_one_by_itself() -> None:
    links = graph({(0, 1): PCIE, (1, 2): NVLINK, (2, 3): PCIE})
    assert links.island(GPUS[0]) == {GPUS[0]}
    assert links.island(GPUS[1]) == {GPUS[1], GPUS[2]}
    assert links.island(GPUS[7]) == {GPUS[7]}


def test_a_ring_is_one_island() -> None:
    ring = graph({(n, (n + 1) % 8): NVLINK for n in range(8)})
    assert ring.island(GPUS[5]) == frozenset(GPUS)


@given(GRAPHS)
def test_islands_part_the_gpus_so_that_no_nvlink_leaves_one(links: LinkGraph) -> None:
    for a, b in combinations(GPUS, 2):
        if links.between(a, b).nvlinks:
            assert links.island(a) == links.island(b)
        else:
            assert (links.island(a) == links.island(b)) or not links.island(a) & links.island(b)


@given(GRAPHS, st.sets(st.sampled_from(GPUS)))
def test_the_part_among_some_gpus_has_exactly_their_links(links: LinkGraph, some: set[GpuUuid]) -> None:
    part = links.among(some)
    for a, b in combinations(GPUS, 2):
        assert part.between(a, b) == (links.between(a, b) if {a, b} <= some else NO_LINK)
    assert links.among(GPUS) == links


def test_the_part_among_gpus_takes_any_iterable_and_repeats() -> None:
    links = graph({(0, 1): NVLINK, (1, 2): NVLINK})
    assert links.among(iter([GPUS[0], GPUS[1], GPUS[0]])) == graph({(0, 1): NVLINK})


def test_pcie_paths_are_ordered_from_near_to_far_and_named_as_nvidia_smi_names_them() -> None:
    assert [path.short for path in sorted(PciePath)] == ["PSB", "PIX", "PXB", "PHB", "NODE", "SYS"]
    assert [int(path) for path in PciePath] == [0, 10, 20, 30, 40, 50]
