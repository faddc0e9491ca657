import pytest

from node_agent.model.inventory import Inventory
from node_agent.model.links import Link, PciePath
from node_agent.topology.render import LEGEND, link_table, link_word, render_table
from tests.fakes.builders import (
    bridged_node,
    cube_mesh,
    gb200_tray,
    gpu,
    h200_node,
    inventory,
    nvlink,
    pcie_node,
    switched_node,
)

CPUS = {0: "0-55,112-167", 1: "56-111,168-223"}

H200 = """\
       0     1     2     3     4     5     6     7     CPU affinity    NUMA node
gpu-0  X     NV18  NV18  NV18  NV18  NV18  NV18  NV18  0-55,112-167    0
gpu-1  NV18  X     NV18  NV18  NV18  NV18  NV18  NV18  0-55,112-167    0
gpu-2  NV18  NV18  X     NV18  NV18  NV18  NV18  NV18  0-55,112-167    0
gpu-3  NV18  NV18  NV18  X     NV18  NV18  NV18  NV18  0-55,112-167    0
gpu-4  NV18  NV18  NV18  NV18  X     NV18  NV18  NV18  56-111,168-223  1
gpu-5  NV18  NV18  NV18  NV18  NV18  X     NV18  NV18  56-111,168-223  1
gpu-6  NV18  NV18  NV18  NV18  NV18  NV18  X     NV18  56-111,168-223  1
gpu-7  NV18  NV18  NV18  NV18  NV18  NV18  NV18  X     56-111,168-223  1

X    the GPU itself
NV#  that many NVLinks together"""

CUBE_MESH = """\
       0    1    2    3    4    5    6    7    NUMA node
gpu-0  X    NV1  NV1  NV2  NV2  SYS  SYS  SYS  0
gpu-1  NV1  X    NV2  NV1  SYS  NV2  SYS  SYS  0
gpu-2  NV1  NV2  X    NV2  SYS  SYS  NV1  SYS  0
gpu-3  NV2  NV1  NV2  X    SYS  SYS  SYS  NV1  0
gpu-4  NV2  SYS  SYS  SYS  X    NV1  NV1  NV2  1
gpu-5  SYS  NV2  SYS  SYS  NV1  X    NV2  NV1  1
gpu-6  SYS  SYS  NV1  SYS  NV1  NV2  X    NV2  1
gpu-7  SYS  SYS  SYS  NV1  NV2  NV1  NV2  X    1

X    the GPU itself
NV#  that many NVLinks together
SYS  PCIe and the links between NUMA nodes"""

BRIDGED = """\
       0     1     2     3     NUMA node
gpu-0  X     NV12  SYS   SYS   0
gpu-1  NV12  X     SYS   SYS   0
gpu-2  SYS   SYS   X     NV12  1
gpu-3  SYS   SYS   NV12  X     1

X    the GPU itself
NV#  that many NVLinks together
SYS  PCIe and the links between NUMA nodes"""


def test_a_fabric_as_text() -> None:
    assert render_table(link_table(h200_node(), CPUS)) == H200


def test_a_cube_mesh_as_text() -> None:
    assert render_table(link_table(cube_mesh())) == CUBE_MESH


def test_bridges_as_text() -> None:
    assert render_table(link_table(bridged_node())) == BRIDGED


def test_no_gpus_as_text() -> None:
    assert render_table(link_table(inventory([]))) == "No GPUs."


@pytest.mark.parametrize(
    "node",
    [h200_node(), pcie_node(2, 8), gb200_tray(), inventory([gpu()]), inventory([])],
    ids=lambda n: str(len(n.gpus)),
)
def test_all_rows_are_as_long_as_the_header(node: Inventory) -> None:
    table = link_table(node, CPUS)
    assert len(table.rows) == len(node.gpus)
    assert {len(row) for row in table.rows} <= {len(table.header)}


def test_the_table_is_symmetric() -> None:
    rows = [row[1:9] for row in link_table(cube_mesh()).rows]
    assert [tuple(column) for column in zip(*rows, strict=True)] == rows


@pytest.mark.parametrize("node", [switched_node([0] * 16), pcie_node(2, 8)], ids=["fabric", "pcie"])
def test_sixteen_gpus_fit_a_terminal_of_a_hundred_columns(node: Inventory) -> None:
    assert max(map(len, render_table(link_table(node)).splitlines())) <= 100


@pytest.mark.parametrize(
    ("link", "word"),
    [
        (nvlink(18, switched=True), "NV18"),
        (nvlink(2, path=PciePath.SYSTEM), "NV2"),
        (Link(path=PciePath.SAME_BOARD), "PSB"),
        (Link(path=PciePath.ONE_SWITCH), "PIX"),
        (Link(path=PciePath.SWITCHES), "PXB"),
        (Link(path=PciePath.HOST_BRIDGE), "PHB"),
        (Link(path=PciePath.NUMA_NODE), "NODE"),
        (Link(path=PciePath.SYSTEM), "SYS"),
        (Link(), "?"),
    ],
)
def test_each_kind_of_link_has_its_word_and_each_word_its_meaning(link: Link, word: str) -> None:
    assert link_word(link) == word
    assert ("NV#" if word.startswith("NV") else word) in LEGEND


def test_the_legend_explains_only_what_occurs() -> None:
    assert list(link_table(pcie_node()).legend) == ["X", "PIX", "PHB", "SYS"]


def test_an_unknown_numa_node_is_not_available() -> None:
    table = link_table(switched_node([None, 0]), CPUS)
    assert [row[-2:] for row in table.rows] == [("N/A", "N/A"), ("0-55,112-167", "0")]


def test_a_numa_node_without_known_cpus_has_none() -> None:
    assert link_table(inventory([gpu(numa=7)]), CPUS).rows[0][-2:] == ("N/A", "7")


def test_the_column_of_cpus_is_left_out_where_they_are_not_given() -> None:
    assert link_table(inventory([gpu()])).header == ("", "0", "NUMA node")
