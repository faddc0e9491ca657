from collections.abc import Iterable

from hypothesis import given

from node_agent.model.inventory import Inventory
from node_agent.model.links import Link
from node_agent.topology.explain import CANDIDATES, Explanation, describe, explain
from node_agent.topology.preferred import Policy, preferred
from node_agent.topology.score import scores
from tests.fakes.builders import (
    bridged_node,
    cube_mesh,
    gb200_tray,
    gpu,
    h200_node,
    inventory,
    l4_pair,
    lopsided_node,
    pcie_node,
    switched_node,
)
from tests.unit.topology.reference import Gpus, ask, ask_gpus, places, questions, share, shares, whole_gpus

H200_FOUR_OF_EIGHT = """\
gpu-0 gpu-1 gpu-2 gpu-3: 4 GPUs of NUMA node 0, all joined by 18 NVLinks; leaves NUMA node 1 whole.

   GPUs                     GB/s   NUMA nodes  units lost
→  gpu-0 gpu-1 gpu-2 gpu-3  2,869  1           88          chosen
   gpu-4 gpu-5 gpu-6 gpu-7  2,869  1           88          as good, but later in the order of the PCI addresses
   gpu-0 gpu-1 gpu-2 gpu-4  2,869  2           108         spans more NUMA nodes
   gpu-0 gpu-1 gpu-2 gpu-6  2,869  2           108         spans more NUMA nodes"""

CUBE_MESH_FOUR_OF_EIGHT = """\
gpu-0 gpu-1 gpu-2 gpu-3: 4 GPUs of NUMA node 0, all joined by 1 to 2 NVLinks; leaves NUMA node 1 whole.

   GPUs                     GB/s  NUMA nodes  units lost
→  gpu-0 gpu-1 gpu-2 gpu-3  232   1           88          chosen
   gpu-4 gpu-5 gpu-6 gpu-7  232   1           88          as good, but later in the order of the PCI addresses
   gpu-0 gpu-2 gpu-3 gpu-4  190   2           108         less bandwidth
   gpu-0 gpu-4 gpu-6 gpu-7  190   2           108         less bandwidth"""

SHARES_OF_TWO_GPUS = """\
gpu-0 gpu-1: 2 GPUs of NUMA node 0, joined over PCIe (PIX).
The GPUs with the fewest devices in use come first: gpu-0 gives 1 (0 of 4 in use), gpu-1 gives 1 (1 of 4 in use).

   GPUs         GB/s  NUMA nodes  units lost
→  gpu-0 gpu-1  12    1           4           chosen"""


def explained(
    node: Inventory, size: int, available: Iterable[int] | None = None, must: Iterable[int] = ()
) -> Explanation:
    free = range(len(node.gpus)) if available is None else available
    return explain(ask_gpus(size, free, must), whole_gpus(node))


def words(node: Inventory, chosen: int, available: int | None = None) -> str:
    return describe(scores(node), chosen, (1 << len(node.gpus)) - 1 if available is None else available)


def remarks(explanation: Explanation) -> dict[Gpus, str]:
    return {places(candidate.gpus): candidate.remark for candidate in explanation.candidates}


class TestText:
    def test_four_of_a_fabric(self) -> None:
        assert explained(h200_node(), 4).text == H200_FOUR_OF_EIGHT

    def test_four_of_a_cube_mesh(self) -> None:
        assert explained(cube_mesh(), 4).text == CUBE_MESH_FOUR_OF_EIGHT

    def test_shares_tell_how_many_are_in_use(self) -> None:
        pool = shares(pcie_node(1, 2), (4, 4))
        found = explain(ask(2, set(pool.parents) - {share(1, 0)}), pool)
        assert found.text == SHARES_OF_TWO_GPUS

    def test_packed_devices_say_that_the_most_used_come_first(self) -> None:
        pool = shares(l4_pair(), (4, 4), Policy.PACKED)
        found = explain(ask(2, set(pool.parents) - {share(1, 0)}), pool)
        assert "The GPUs with the most devices in use come first: gpu-1 gives 2 (1 of 4 in use)." in found.text

    def test_a_device_that_must_be_included_is_not_counted_as_in_use(self) -> None:
        pool = shares(l4_pair(), (4, 4))
        found = explain(ask(2, pool.parents, [share(1, 0)]), pool)
        assert "gpu-0 gives 1 (0 of 4 in use), gpu-1 gives 1 (0 of 4 in use)" in found.text
        assert "1 device had to be among them." in found.text

    def test_a_short_answer_says_so(self) -> None:
        assert explained(h200_node(), 6, (0, 1)).reason.startswith(
            "gpu-0 gpu-1 of 6 asked for, since there are no more: "
        )

    def test_nothing_available_is_said_in_one_line(self) -> None:
        assert explained(h200_node(), 2, ()).text == "No device is available."

    def test_a_search_that_gave_up_says_so(self) -> None:
        found = explained(switched_node([i // 8 for i in range(64)]), 21)
        assert not found.exact
        assert "this is the best that was found" in found.text

    def test_a_search_to_the_end_says_nothing_of_giving_up(self) -> None:
        assert "best that was found" not in explained(h200_node(), 4).text


class TestCandidates:
    @given(questions())
    def test_the_explained_choice_is_the_preferred_one_and_no_candidate_is_better(
        self, question: tuple[Inventory, Gpus, Gpus, int]
    ) -> None:
        node, available, must, size = question
        found = explained(node, size, available, must)
        assert found.choice == preferred(ask_gpus(size, available, must), whole_gpus(node))
        ranks = [candidate.score.rank for candidate in found.candidates]
        assert ranks == sorted(ranks)
        assert [candidate.chosen for candidate in found.candidates] == [True] + [False] * (len(ranks) - 1)
        assert len(ranks) <= CANDIDATES

    def test_each_part_of_the_objective_has_words_of_its_own(self) -> None:
        assert remarks(explained(cube_mesh(), 2, (0, 3, 5)))[0, 5] == "less bandwidth"
        assert remarks(explained(h200_node(), 2, (0, 1, 4)))[0, 4] == "spans more NUMA nodes"
        assert remarks(explained(lopsided_node(), 4))[4, 5, 6, 7] == "more spread over its NUMA nodes"
        assert remarks(explained(h200_node(), 1, (0, 1, 3)))[0,] == "breaks up or uses up more of what is whole"
        assert remarks(explained(h200_node(), 1, (0, 2, 5)))[0,] == "parts more NUMA neighbours"
        assert remarks(explained(pcie_node(), 1, (0, 2, 5)))[0,] == "cuts more bandwidth to what stays available"
        assert remarks(explained(h200_node(), 1))[4,] == "as good, but later in the order of the PCI addresses"

    def test_a_closer_set_that_is_more_in_use_says_so(self) -> None:
        pool = shares(bridged_node(), (2, 2, 2, 2))
        in_use = {share(1, 0), share(3, 0)}
        found = explain(ask(2, set(pool.parents) - in_use), pool)
        assert places(found.choice.gpus) == (0, 2)
        assert remarks(found)[0, 1] == "better placed, but more in use"


class TestWords:
    def test_one_gpu_has_no_links_to_speak_of(self) -> None:
        assert words(h200_node(), 0b1, 0b11110001) == "1 GPU of NUMA node 0; leaves NUMA node 1 whole"

    def test_two_numa_nodes_are_named_with_their_shares(self) -> None:
        assert words(h200_node(), 0b00010111) == (
            "4 GPUs of NUMA nodes 0 and 1 (3 + 1), all joined by 18 NVLinks; leaves the group of gpu-6 gpu-7 whole"
        )

    def test_an_unknown_numa_node_is_not_named(self) -> None:
        assert words(switched_node([None] * 2), 0b11) == "2 GPUs, joined by 18 NVLinks"

    def test_a_single_nvlink_is_one(self) -> None:
        assert "joined by 1 NVLink;" in words(cube_mesh(), 0b11)

    def test_nvlinks_to_some_only_are_counted(self) -> None:
        assert "4 of 6 pairs joined by NVLink, the rest over PCIe (SYS)" in words(cube_mesh(), 0b10011001)

    def test_pcie_paths_are_named_from_near_to_far(self) -> None:
        assert "all joined over PCIe (PIX to SYS)" in words(pcie_node(), 0b10111)

    def test_a_path_that_the_driver_cannot_tell_is_a_question_mark(self) -> None:
        node = inventory([gpu(0), gpu(1)])
        lost = Inventory(gpus=node.gpus)
        assert lost.links.between(node.gpus[0].uuid, node.gpus[1].uuid) == Link()
        assert words(lost, 0b11) == "2 GPUs of NUMA node 0, joined over PCIe (?)"

    def test_the_largest_units_that_stay_whole_are_named(self) -> None:
        assert words(h200_node(), 0b1).endswith("leaves NUMA node 1 and the group of gpu-2 gpu-3 whole")
        assert words(bridged_node(), 0b0011).endswith("leaves NUMA node 1 whole")

    def test_what_is_broken_up_is_named_when_nothing_stays_whole(self) -> None:
        assert words(gb200_tray(), 0b0101).endswith("breaks up the island of gpu-0 gpu-1 gpu-2 gpu-3")

    def test_a_large_unit_is_counted_instead_of_listed(self) -> None:
        assert words(switched_node([None] * 5), 0b10101).endswith("breaks up the island of 5 GPUs")

    def test_nothing_is_said_of_damage_where_there_is_none(self) -> None:
        assert words(h200_node(), 0b1, 0b10001) == "1 GPU of NUMA node 0"
