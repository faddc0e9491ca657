from itertools import combinations

import pytest
from hypothesis import given

from node_agent.model.gpu import Gpu
from node_agent.model.inventory import Inventory
from node_agent.model.links import PciePath
from node_agent.topology.groups import aligned_groups, topology_order
from tests.fakes.builders import (
    bridged_node,
    cube_mesh,
    gb200_tray,
    gpu,
    h200_node,
    inventory,
    lopsided_node,
    nvlink,
    pcie_node,
    switched_node,
    without,
)
from tests.unit.topology.reference import PCIE, Gpus, bandwidth, neighbours, nodes, places


def groups(node: Inventory) -> list[Gpus]:
    return [places(group) for group in aligned_groups(node)]


def order(node: Inventory) -> Gpus:
    return places(topology_order(node))


IN_HALVES_AND_PAIRS = [(0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3), (0, 1), (2, 3), (4, 5, 6, 7), (4, 5), (6, 7)]


def test_a_fabric_is_cut_along_its_numa_nodes() -> None:
    assert groups(h200_node()) == IN_HALVES_AND_PAIRS


def test_a_pcie_node_is_cut_along_its_sockets_and_switches() -> None:
    assert groups(pcie_node()) == IN_HALVES_AND_PAIRS


def test_a_cube_mesh_is_cut_where_the_fewest_links_are() -> None:
    assert groups(cube_mesh()) == [
        (0, 1, 2, 3, 4, 5, 6, 7),
        (0, 1, 2, 3),
        (0, 3),
        (1, 2),
        (4, 5, 6, 7),
        (4, 7),
        (5, 6),
    ]


def test_bridged_pairs_are_never_cut() -> None:
    crossed = inventory([gpu(i, numa=i // 4) for i in range(8)], {(i, i + 4): nvlink(12) for i in range(4)})
    assert groups(bridged_node()) == [(0, 1, 2, 3), (0, 1), (2, 3)]
    assert {(0, 4), (1, 5), (2, 6), (3, 7)} <= set(groups(crossed))


def test_a_tray_is_cut_between_its_cpus() -> None:
    assert groups(gb200_tray()) == [(0, 1, 2, 3), (0, 1), (2, 3)]


def test_on_a_fabric_the_pcie_switches_make_the_pairs() -> None:
    def path(a: Gpu, b: Gpu) -> PciePath:
        return PciePath.ONE_SWITCH if b.index - a.index == 2 else PciePath.NUMA_NODE

    assert groups(switched_node([0] * 4, path=path)) == [(0, 1, 2, 3), (0, 2), (1, 3)]


def test_uneven_numa_nodes_are_kept_together_as_far_as_groups_of_four_and_two_can() -> None:
    assert groups(lopsided_node()) == IN_HALVES_AND_PAIRS


def test_a_lost_gpu_costs_the_groups_that_it_was_in_and_no_others() -> None:
    assert groups(without(h200_node(), 2)) == [(4, 5, 6, 7), (4, 5), (6, 7), (0, 1)]


def test_sixteen_gpus_are_two_groups_of_eight() -> None:
    found = groups(switched_node([0, 1] * 8))
    assert found[0] == tuple(range(0, 16, 2))
    assert tuple(range(1, 16, 2)) in found
    assert len(found) == 2 + 4 + 8


def test_what_is_left_over_from_eights_and_fours_makes_pairs() -> None:
    assert sorted(map(len, groups(switched_node([None] * 15)))) == [2] * 7 + [4] * 3 + [8]


@pytest.mark.parametrize(("count", "expected"), [(0, []), (1, []), (2, [(0, 1)]), (3, [(0, 1)])])
def test_few_gpus_make_few_groups(count: int, expected: list[Gpus]) -> None:
    assert groups(switched_node([0] * count)) == expected


def cut(node: Inventory, part: Gpus) -> tuple[int, int, int]:
    """What a part of the node is cut from: bandwidth, NUMA neighbours, bandwidth of the PCIe paths."""
    across = [(i, j) for i in part for j in range(len(node.gpus)) if j not in part]
    return (
        sum(bandwidth(node, i, j) for i, j in across),
        sum(neighbours(node, i, j) for i, j in across),
        sum(path_bandwidth(node, i, j) for i, j in across),
    )


def path_bandwidth(node: Inventory, i: int, j: int) -> int:
    return PCIE[node.links.between(node.gpus[i].uuid, node.gpus[j].uuid).path]


@given(nodes(least=8))
def test_the_halves_of_eight_gpus_are_cut_where_they_are_least_joined(node: Inventory) -> None:
    first = next(group for group in groups(node) if len(group) == 4)
    assert 0 in first
    halves = [(0, *others) for others in combinations(range(1, 8), 3)]
    assert (cut(node, first), first) == min((cut(node, half), half) for half in halves)


@given(nodes(least=5, most=7))
def test_the_four_of_fewer_than_eight_gpus_are_those_least_joined_to_the_rest(node: Inventory) -> None:
    first = next(group for group in groups(node) if len(group) == 4)
    fours = combinations(range(len(node.gpus)), 4)
    assert (cut(node, first), first) == min((cut(node, four), four) for four in fours)


@given(nodes(most=11))
def test_groups_nest_and_two_of_one_size_never_overlap(node: Inventory) -> None:
    found = groups(node)
    assert all(len(group) in (2, 4, 8) for group in found)
    for one, other in combinations(map(set, found), 2):
        assert not one & other or one < other or other < one


@given(nodes(most=11))
def test_there_are_as_many_groups_as_the_gpus_allow(node: Inventory) -> None:
    sizes = [len(group) for group in groups(node)]
    for size in (2, 4, 8):
        assert sizes.count(size) == len(node.gpus) // size


@given(nodes(most=11))
def test_the_order_has_each_gpu_once_and_each_group_as_a_run(node: Inventory) -> None:
    found = order(node)
    assert sorted(found) == list(range(len(node.gpus)))
    runs = {frozenset(found[start : start + size]) for size in (2, 4, 8) for start in range(len(found))}
    assert {frozenset(group) for group in groups(node)} <= runs


@given(nodes(most=11))
def test_whoever_takes_aligned_runs_of_the_order_gets_groups(node: Inventory) -> None:
    found, known = order(node), {frozenset(group) for group in groups(node)}
    for size in (2, 4, 8):
        for start in range(0, len(found) - size + 1, size):
            assert frozenset(found[start : start + size]) in known


def test_the_order_of_a_fabric_is_that_of_the_bus() -> None:
    assert order(h200_node()) == (0, 1, 2, 3, 4, 5, 6, 7)


def test_the_order_of_a_cube_mesh_puts_double_links_side_by_side() -> None:
    assert order(cube_mesh()) == (0, 3, 1, 2, 4, 7, 5, 6)


def test_the_order_begins_with_the_group_that_is_still_whole() -> None:
    assert order(without(h200_node(), 2)) == (4, 5, 6, 7, 0, 1, 3)


def test_the_order_of_no_gpus_is_empty() -> None:
    assert order(inventory([])) == ()
