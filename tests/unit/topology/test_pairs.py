from itertools import combinations, pairwise

import pytest

from node_agent.model.links import Link, PciePath
from node_agent.topology.pairs import NVLINK_BANDWIDTH, PATH_BANDWIDTH, link_bandwidth, pair_scores, positions
from tests.fakes.builders import (
    bridged_node,
    cube_mesh,
    gpu,
    h200_node,
    inventory,
    lopsided_node,
    nvlink,
    switched_node,
    without,
)


def test_an_nvlink_counts_for_its_bandwidth_and_not_for_the_pcie_path_below_it() -> None:
    assert link_bandwidth(nvlink(12, each=25_000, path=PciePath.SYSTEM)) == 300_000


def test_nvlinks_of_unknown_speed_count_as_the_slowest_ever_built() -> None:
    assert link_bandwidth(Link(nvlinks=3)) == 3 * NVLINK_BANDWIDTH


def test_the_nearer_two_gpus_meet_on_pcie_the_more_their_path_counts_for() -> None:
    found = [link_bandwidth(Link(path=path)) for path in sorted(PciePath)]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == len(PciePath)


def test_each_step_up_the_pcie_tree_costs_no_less_than_the_one_before() -> None:
    found = [PATH_BANDWIDTH[path] for path in sorted(PciePath)]
    steps = [near - far for near, far in pairwise(found)]
    assert steps == sorted(steps)


def test_any_pcie_path_counts_for_less_than_the_slowest_nvlink() -> None:
    assert max(PATH_BANDWIDTH.values()) < NVLINK_BANDWIDTH


def test_a_path_that_the_driver_cannot_tell_counts_as_the_longest() -> None:
    assert link_bandwidth(Link()) == link_bandwidth(Link(path=PciePath.SYSTEM))


def test_two_gpus_on_one_board_are_not_taken_for_an_unknown_path() -> None:
    """The driver's number for the nearest path is 0."""
    assert link_bandwidth(Link(path=PciePath.SAME_BOARD)) == max(PATH_BANDWIDTH.values())


@pytest.mark.parametrize(("mask", "expected"), [(0, []), (0b1, [0]), (0b1010, [1, 3]), (1 << 70 | 1, [0, 70])], ids=str)
def test_positions_lists_the_bits_of_a_mask_lowest_first(mask: int, expected: list[int]) -> None:
    assert positions(mask) == expected


def test_the_matrix_is_symmetric_with_nothing_on_its_diagonal() -> None:
    pairs = pair_scores(cube_mesh())
    for i, j in combinations(range(8), 2):
        assert pairs.bandwidth[i][j] == pairs.bandwidth[j][i] > 0
        assert pairs.path[i][j] == pairs.path[j][i] > 0
    assert all(pairs.bandwidth[i][i] == 0 for i in range(8))


def test_the_matrix_of_a_cube_mesh_has_its_double_links_single_links_and_pcie() -> None:
    row = pair_scores(cube_mesh()).bandwidth[0]
    assert row == (0, 25_781, 25_781, 2 * 25_781, 2 * 25_781, 5_000, 5_000, 5_000)


def test_the_pcie_path_is_kept_beside_the_nvlinks() -> None:
    assert pair_scores(cube_mesh()).path[0] == (0, 12_000, 10_000, 10_000, 5_000, 5_000, 5_000, 5_000)


def test_numa_nodes_are_the_gpus_that_share_one() -> None:
    assert pair_scores(lopsided_node()).nodes == (0b111, 0b1000, 0b110000, 0b11000000)


def test_gpus_whose_numa_node_is_unknown_count_as_sharing_one() -> None:
    assert pair_scores(inventory([gpu(0, numa=None), gpu(1, numa=0), gpu(2, numa=None)])).nodes == (0b101, 0b010)


def test_each_gpu_knows_the_mask_of_its_numa_node() -> None:
    assert pair_scores(bridged_node()).node_of() == [0b0011, 0b0011, 0b1100, 0b1100]


def test_bridges_make_islands_of_their_ends() -> None:
    assert pair_scores(bridged_node()).islands == (0b0011, 0b1100)


def test_a_fabric_makes_one_island_of_all_gpus() -> None:
    assert pair_scores(h200_node()).islands == (0xFF,)


def test_a_gpu_without_nvlink_is_in_no_island() -> None:
    node = inventory([gpu(i) for i in range(3)], {(0, 2): nvlink(1)})
    assert pair_scores(node).islands == (0b101,)


def test_a_node_that_lost_a_gpu_has_a_matrix_of_those_left() -> None:
    pairs = pair_scores(without(h200_node(), 2))
    assert pairs.size == 7
    assert pairs.everything == 0b1111111
    assert pairs.nodes == (0b111, 0b1111000)


def test_a_node_without_gpus_has_an_empty_matrix() -> None:
    pairs = pair_scores(inventory([]))
    assert (pairs.bandwidth, pairs.nodes, pairs.islands, pairs.everything) == ((), (), (), 0)


def test_all_pairs_of_a_fabric_count_alike_whatever_their_pcie_path() -> None:
    pairs = pair_scores(switched_node([0, 0, 1, 1]))
    assert {pairs.bandwidth[i][j] for i, j in combinations(range(4), 2)} == {18 * 26_562}
