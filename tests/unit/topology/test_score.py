from itertools import combinations

import pytest
from hypothesis import given

from node_agent.model.gpu import Gpu
from node_agent.model.inventory import Inventory
from node_agent.model.links import PciePath
from node_agent.topology.pairs import positions
from node_agent.topology.score import Score, scores
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
    uuid,
    without,
)
from tests.unit.topology.reference import Gpus, best_set, questions, rank, units, whole_units

NODES = {
    "h200": h200_node(),
    "lopsided": lopsided_node(),
    "gb200": gb200_tray(),
    "cube mesh": cube_mesh(),
    "bridged": bridged_node(),
    "pcie": pcie_node(),
    "guest": switched_node([None] * 8),
    "seven of eight": without(h200_node(), 5),
}


def mask(*gpus: int) -> int:
    return sum(1 << i for i in gpus)


def best(node: Inventory, size: int, *, of: tuple[int, ...] | None = None, must: tuple[int, ...] = ()) -> list[int]:
    available = range(len(node.gpus)) if of is None else of
    return list(positions(scores(node).best(mask(*available), mask(*must), size).masks[0]))


@given(questions())
def test_the_best_set_is_the_one_that_trying_all_sets_finds(question: tuple[Inventory, Gpus, Gpus, int]) -> None:
    node, available, must, size = question
    assert tuple(best(node, size, of=available, must=must)) == best_set(node, available, size, must)


@pytest.mark.parametrize("name", NODES)
def test_on_real_nodes_the_best_set_is_the_one_that_trying_all_sets_finds(name: str) -> None:
    node = NODES[name]
    everything = range(len(node.gpus))
    for taken in ((), (0,), (1, 2), (0, 3, 4), (2, 4, 5, 7)):
        available = tuple(i for i in everything if i not in taken)
        for size in range(1, len(available) + 1):
            assert tuple(best(node, size, of=available)) == best_set(node, available, size)


@given(questions())
def test_a_score_says_what_the_objective_states(question: tuple[Inventory, Gpus, Gpus, int]) -> None:
    node, available, _, size = question
    chosen = available[:size]
    assert scores(node).score(mask(*chosen), mask(*available)).rank == rank(
        node, chosen, available, whole_units(node, available)
    )


def test_the_score_of_half_a_fabric_by_hand() -> None:
    found = scores(h200_node()).score(mask(0, 1, 2, 3), mask(*range(8)))
    each = 18 * 26_562
    assert found == Score(bandwidth=6 * each, numa_nodes=1, numa_pairs=6, lost=64 + 16 + 2 * 4, cut=16 * each, parted=0)


def test_the_score_of_nothing_is_nothing() -> None:
    assert scores(h200_node()).score(0, 0) == Score()


def test_units_are_numa_nodes_islands_and_groups_each_once() -> None:
    node = lopsided_node()
    found = scores(node).units
    assert len(found) == len(set(found))
    assert {frozenset(positions(unit)) for unit in found} == units(node)


def test_a_unit_is_whole_while_all_of_its_gpus_are_available() -> None:
    worked_out = scores(bridged_node())
    assert worked_out.whole(0b1111) == [0b0011, 0b1100, 0b1111]
    assert worked_out.whole(0b0111) == [0b0011]
    assert worked_out.whole(0b0110) == []


def test_gpus_are_found_by_uuid() -> None:
    worked_out = scores(h200_node())
    assert worked_out.mask([uuid(3), uuid(0), uuid(3)]) == 0b1001
    with pytest.raises(KeyError):
        worked_out.mask([uuid(99)])


class TestFabric:
    """8 × H200: all pairs alike, so NUMA nodes and what is left decide."""

    node = h200_node()

    def test_four_of_eight_are_one_numa_node(self) -> None:
        assert best(self.node, 4) == [0, 1, 2, 3]

    def test_requests_for_four_two_and_two_are_each_on_one_numa_node(self) -> None:
        assert best(self.node, 4) == [0, 1, 2, 3]
        assert best(self.node, 2, of=(4, 5, 6, 7)) == [4, 5]
        assert best(self.node, 2, of=(6, 7)) == [6, 7]

    def test_requests_for_two_two_and_four_leave_the_four_a_numa_node(self) -> None:
        assert best(self.node, 2) == [0, 1]
        assert best(self.node, 2, of=(2, 3, 4, 5, 6, 7)) == [2, 3]
        assert best(self.node, 4, of=(4, 5, 6, 7)) == [4, 5, 6, 7]

    def test_single_requests_fill_the_numa_node_that_is_broken_before_they_break_the_other(self) -> None:
        free = set(range(8))
        order = []
        while free:
            order += best(self.node, 1, of=tuple(sorted(free)))
            free.discard(order[-1])
        assert order == [0, 1, 2, 3, 4, 5, 6, 7]

    def test_a_single_request_takes_the_half_of_a_broken_pair(self) -> None:
        assert best(self.node, 1, of=(0, 1, 3, 4, 5, 6, 7)) == [3]

    def test_two_loose_gpus_are_taken_before_a_pair_is_used_up(self) -> None:
        assert best(self.node, 2, of=(1, 2, 4, 5)) == [1, 2]

    def test_one_numa_node_comes_before_a_pair_that_stays_whole(self) -> None:
        assert best(self.node, 2, of=(0, 4, 5)) == [4, 5]

    def test_six_take_one_numa_node_whole_and_a_pair_of_the_other(self) -> None:
        assert best(self.node, 6) == [0, 1, 2, 3, 4, 5]

    def test_two_that_must_be_there_from_both_numa_nodes_are_kept(self) -> None:
        assert best(self.node, 4, must=(0, 7)) == [0, 1, 2, 7]

    def test_one_that_must_be_there_draws_the_rest_to_its_numa_node(self) -> None:
        assert best(self.node, 3, must=(6,)) == [4, 5, 6]
        assert set(best(self.node, 4, must=(6,))) == {4, 5, 6, 7}


class TestCubeMesh:
    """DGX-1: the links themselves decide."""

    node = cube_mesh()

    def test_the_best_pair_has_two_links_and_breaks_least(self) -> None:
        assert best(self.node, 2) == [0, 3]

    def test_when_the_first_pair_is_gone_the_next_double_link_follows(self) -> None:
        assert best(self.node, 2, of=(1, 2, 4, 5, 6, 7)) == [1, 2]

    def test_every_pair_given_while_one_is_left_has_a_double_link(self) -> None:
        free = set(range(8))
        for _ in range(4):
            i, j = best(self.node, 2, of=tuple(sorted(free)))
            assert self.node.links.between(uuid(i), uuid(j)).nvlinks == 2
            free -= {i, j}

    def test_the_best_quad_is_a_half_of_the_mesh(self) -> None:
        assert best(self.node, 4) == [0, 1, 2, 3]
        assert best(self.node, 4, of=(0, 4, 5, 6, 7)) == [4, 5, 6, 7]

    def test_bandwidth_comes_before_the_numa_node(self) -> None:
        assert best(self.node, 2, of=(0, 1, 4)) == [0, 4]

    def test_a_single_request_takes_the_gpu_that_nothing_joins_to_the_rest(self) -> None:
        assert best(self.node, 1, of=(0, 3, 6)) == [6]


class TestBridges:
    """4 × A100 PCIe, bridged in pairs."""

    node = bridged_node()

    def test_two_are_a_bridged_pair(self) -> None:
        assert best(self.node, 2) == [0, 1]
        assert best(self.node, 2, of=(1, 2, 3)) == [2, 3]

    def test_a_single_request_does_not_break_a_bridge_when_a_loose_gpu_is_there(self) -> None:
        assert best(self.node, 1, of=(0, 1, 3)) == [3]

    def test_without_a_bridged_pair_two_are_what_there_is(self) -> None:
        assert best(self.node, 2, of=(0, 2)) == [0, 2]

    def test_bridges_across_the_sockets_win_over_the_socket(self) -> None:
        crossed = inventory([gpu(i, numa=i // 2) for i in range(4)], {(0, 2): nvlink(12), (1, 3): nvlink(12)})
        assert best(crossed, 2) == [0, 2]
        assert best(crossed, 2, of=(0, 1, 3)) == [1, 3]


class TestPcie:
    """Two sockets without NVLink, pairs under a switch."""

    node = pcie_node()

    def test_two_are_under_one_switch(self) -> None:
        assert best(self.node, 2) == [0, 1]
        assert best(self.node, 2, of=(1, 2, 3, 4)) == [2, 3]

    def test_four_are_on_one_socket(self) -> None:
        assert best(self.node, 4, of=(0, 2, 3, 4, 5, 6, 7)) == [4, 5, 6, 7]

    def test_three_on_one_socket_come_before_a_pair_and_one_across(self) -> None:
        assert best(self.node, 3, of=(0, 1, 4, 6, 7)) == [4, 6, 7]


class TestOtherNodes:
    def test_a_tray_gives_the_two_gpus_of_one_cpu(self) -> None:
        assert best(gb200_tray(), 2) == [0, 1]
        assert best(gb200_tray(), 2, of=(1, 2, 3)) == [2, 3]

    def test_on_a_lopsided_node_the_fullest_numa_node_that_fits_is_used(self) -> None:
        assert best(lopsided_node(), 3) == [0, 1, 2]
        assert best(lopsided_node(), 2) == [4, 5]

    def test_on_a_lopsided_node_one_gpu_is_the_one_that_has_no_neighbours(self) -> None:
        assert best(lopsided_node(), 1) == [3]

    def test_on_a_lopsided_node_four_take_three_and_one_rather_than_two_and_two(self) -> None:
        found = best(lopsided_node(), 4)
        assert found == [0, 1, 2, 3]

    def test_a_numa_node_that_fits_exactly_is_used_before_a_larger_one_is_broken(self) -> None:
        node = switched_node([0] * 5 + [1] + [2] + [3] * 4 + [4] * 3)
        assert best(node, 8) == [0, 1, 2, 3, 4, 11, 12, 13]

    def test_losing_a_large_unit_is_worse_than_losing_as_many_small_ones(self) -> None:
        def path(a: Gpu, b: Gpu) -> PciePath:
            return PciePath.SAME_BOARD if a.index in (3, 4) and b.index == 5 else PciePath.SYSTEM

        node = inventory([gpu(i, numa=i // 5) for i in range(6)], path=path)
        assert units(node) == {frozenset(unit) for unit in ((0, 1, 2, 3, 4), (0, 3, 4, 5), (1, 2), (0, 3), (4, 5))}
        # Either way a pair is lost: with GPU 1 the NUMA node of five, with GPU 5 the group of four.
        assert best(node, 1) == [5]

    def test_without_numa_information_requests_still_spare_whole_groups(self) -> None:
        node = switched_node([None] * 8)
        assert best(node, 2, of=(0, 2, 4, 5)) == [0, 2]
        assert best(node, 1, of=(0, 1, 3)) == [3]

    def test_a_gpu_with_broken_links_is_left_for_those_who_need_no_links(self) -> None:
        fabric = {ends: nvlink(18 if 0 not in ends else 4, switched=True) for ends in combinations(range(4), 2)}
        node = inventory([gpu(i) for i in range(4)], fabric)
        assert best(node, 2) == [2, 3]
        assert best(node, 3) == [1, 2, 3]
        assert best(node, 1) == [0]

    def test_one_gpu_is_all_there_is(self) -> None:
        assert best(inventory([gpu()]), 1) == [0]

    @pytest.mark.parametrize("size", range(1, 17))
    def test_sixteen_gpus_are_always_searched_to_the_end(self, size: int) -> None:
        for node in (switched_node([None] * 16), switched_node([0] * 8 + [1] * 8), pcie_node(2, 8)):
            assert scores(node).best(0xFFFF, 0, size).exact

    def test_eight_of_sixteen_are_one_socket(self) -> None:
        node = switched_node([0] * 8 + [1] * 8)
        assert best(node, 8, of=tuple(range(1, 16))) == list(range(8, 16))
