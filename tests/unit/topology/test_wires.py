from itertools import combinations

import pytest

from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.links import PciePath
from node_agent.topology.wires import Line, wires
from tests.fakes.builders import bridged_node, cube_mesh, gpu, h200_node, inventory, l4_pair, nvlink, pcie_node
from tests.unit.topology.reference import Gpus


def number(uuid: GpuUuid) -> int:
    return int(uuid[4:12], 16)


def drawn(node: Inventory) -> list[tuple[str, Gpus]]:
    return [(f"{wire.line}{wire.word}", tuple(map(number, wire.gpus))) for wire in wires(node)]


def test_a_fabric_is_one_line_through_all_its_gpus() -> None:
    assert drawn(h200_node()) == [("═NV18", tuple(range(8)))]


def test_each_bridge_is_a_line_of_its_own() -> None:
    assert drawn(bridged_node()) == [("━NV12", (0, 1)), ("━NV12", (2, 3))]


def test_the_strongest_links_come_first_and_heavy_then_near_before_far() -> None:
    found = drawn(cube_mesh())
    assert found[:8] == [("━NV2", ends) for ends in ((1, 2), (2, 3), (5, 6), (6, 7), (0, 3), (4, 7), (0, 4), (1, 5))]
    assert {word for word, _ in found[8:]} == {"─NV1"}
    assert len(found) == 16


def test_a_pcie_switch_is_a_line_through_the_gpus_below_it() -> None:
    assert drawn(pcie_node(1, 4)) == [("┄PIX", (0, 1)), ("┄PIX", (2, 3))]


def test_a_switch_with_more_than_two_gpus_is_one_line() -> None:
    node = inventory([gpu(i) for i in range(3)], path=lambda a, b: PciePath.ONE_SWITCH)
    assert drawn(node) == [("┄PIX", (0, 1, 2))]


def test_two_gpus_on_one_board_are_joined_before_the_switch_above_them() -> None:
    node = inventory(
        [gpu(i) for i in range(4)],
        path=lambda a, b: PciePath.SAME_BOARD if a.index // 2 == b.index // 2 else PciePath.ONE_SWITCH,
    )
    assert drawn(node) == [("┄PSB", (0, 1)), ("┄PSB", (2, 3)), ("┄PIX", (0, 1, 2, 3))]


@pytest.mark.parametrize("path", [PciePath.HOST_BRIDGE, PciePath.NUMA_NODE, PciePath.SYSTEM])
def test_paths_through_the_host_bridge_and_beyond_are_no_lines(path: PciePath) -> None:
    assert drawn(inventory([gpu(0), gpu(1)], path=lambda a, b: path)) == []


def test_a_path_that_the_driver_cannot_tell_is_no_line() -> None:
    assert drawn(Inventory(gpus=l4_pair().gpus)) == []


def test_a_switch_below_nvlinks_is_no_line() -> None:
    node = inventory([gpu(0), gpu(1)], {(0, 1): nvlink(4)}, path=lambda a, b: PciePath.ONE_SWITCH)
    assert drawn(node) == [("━NV4", (0, 1))]


def test_a_fabric_has_the_word_of_its_strongest_link_and_tells_the_range() -> None:
    fabric = {ends: nvlink(16 if 0 in ends else 18, switched=True) for ends in combinations(range(3), 2)}
    (wire,) = wires(inventory([gpu(i) for i in range(3)], fabric))
    assert (wire.line, wire.word) == (Line.FABRIC, "NV18")
    assert wire.meaning == "NVSwitch, any of 3 GPUs to any other: 16 to 18 NVLinks, 450 GB/s each way"


def test_one_nvlink_is_told_in_the_singular() -> None:
    (wire,) = wires(inventory([gpu(0), gpu(1)], {(0, 1): nvlink(1, each=25_781)}))
    assert wire.meaning == "NVLink: 1 NVLink, 26 GB/s each way"


def test_a_bridge_beside_a_fabric_is_a_line_beside_it() -> None:
    links = {(0, 1): nvlink(18, switched=True), (1, 2): nvlink(4)}
    assert drawn(inventory([gpu(i) for i in range(3)], links)) == [("═NV18", (0, 1)), ("━NV4", (1, 2))]


def test_a_node_without_gpus_has_no_lines() -> None:
    assert drawn(inventory([])) == []
