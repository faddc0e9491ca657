from itertools import combinations

import pytest
from hypothesis import given
from msgspec.structs import replace

from node_agent.model.gpu import PartitionMode
from node_agent.model.inventory import Inventory, MissingGpu
from node_agent.model.links import PciePath
from node_agent.topology.drawing import WIDTH, draw
from tests.fakes.builders import (
    bridged_node,
    cube_mesh,
    gb200_tray,
    gpu,
    h200_node,
    inventory,
    l4_pair,
    lopsided_node,
    nvlink,
    pcie_node,
    switched_node,
    without,
)
from tests.unit.topology.reference import nodes

H200 = """\
8 × NVIDIA H200
┌ NUMA 0 ────────────────────────────┐  ┌ NUMA 1 ────────────────────────────┐
│  gpu-0    gpu-1    gpu-2    gpu-3  │  │  gpu-4    gpu-5    gpu-6    gpu-7  │
│  1b:00    43:00    52:00    61:00  │  │  9d:00    c3:00    d1:00    df:00  │
└────┬────────┬────────┬────────┬────┘  └────┬────────┬────────┬────────┬────┘
     ●═ NV18 ═●════════●════════●════════════●════════●════════●════════●

═ NV18  NVSwitch, any of 8 GPUs to any other: 18 NVLinks, 478 GB/s each way"""

CUBE_MESH = """\
8 × Tesla V100-SXM2-16GB
┌ NUMA 0 ────────────────────────────┐  ┌ NUMA 1 ────────────────────────────┐
│  gpu-0    gpu-1    gpu-2    gpu-3  │  │  gpu-4    gpu-5    gpu-6    gpu-7  │
│  06:00    07:00    0a:00    0b:00  │  │  85:00    86:00    89:00    8a:00  │
└────┬────────┬────────┬────────┬────┘  └────┬────────┬────────┬────────┬────┘
     │        ●━━ NV2 ━●        │            │        ●━━ NV2 ━●        │
     │        │        ●━━ NV2 ━●            │        │        ●━━ NV2 ━●
     ●━━ NV2 ━┿━━━━━━━━┿━━━━━━━━●            ●━━ NV2 ━┿━━━━━━━━┿━━━━━━━━●
     ●━━ NV2 ━┿━━━━━━━━┿━━━━━━━━┿━━━━━━━━━━━━●        │        │        │
     │        ●━━ NV2 ━┿━━━━━━━━┿━━━━━━━━━━━━┿━━━━━━━━●        │        │
     ●── NV1 ─●        │        │            ●── NV1 ─●        │        │
     ●── NV1 ─┼────────●        │            ●── NV1 ─┼────────●        │
              ●── NV1 ─┼────────●                     ●── NV1 ─┼────────●
                       ●── NV1 ─┼──────────────────────────────●        │
                                ●──── NV1 ──────────────────────────────●

━ NV2  NVLink: 2 NVLinks, 52 GB/s each way
─ NV1  NVLink: 1 NVLink, 26 GB/s each way
  SYS  PCIe and the links between NUMA nodes: no line"""

BRIDGED = """\
4 × NVIDIA A100 80GB PCIe
┌ NUMA 0 ──────────┐  ┌ NUMA 1 ──────────┐
│  gpu-0    gpu-1  │  │  gpu-2    gpu-3  │
│  17:00    31:00  │  │  b1:00    ca:00  │
└────┬────────┬────┘  └────┬────────┬────┘
     ●━ NV12 ━●            ●━ NV12 ━●

━ NV12  NVLink: 12 NVLinks, 300 GB/s each way
  SYS   PCIe and the links between NUMA nodes: no line"""

L4 = """\
2 × NVIDIA L4
┌ NUMA 0 ──────────┐
│  gpu-0    gpu-1  │
│  17:00    ca:00  │
└──────────────────┘

  NODE  PCIe and the links between the host bridges of one NUMA node: no line"""

SIXTEEN = """\
16 × NVIDIA H200
┌ NUMA 0 ────────────────────────────────────────────────────────────────┐
│  gpu-0    gpu-1    gpu-2    gpu-3    gpu-4    gpu-5    gpu-6    gpu-7  │
│  10:00    11:00    12:00    13:00    14:00    15:00    16:00    17:00  │
└────┬────────┬────────┬────────┬────────┬────────┬────────┬────────┬────┘
     ●═ NV18 ═●════════●════════●════════●════════●════════●════════●══════╗
┌ NUMA 1 ────────────────────────────────────────────────────────────────┐ ║
│  gpu-8    gpu-9   gpu-10   gpu-11   gpu-12   gpu-13   gpu-14   gpu-15  │ ║
│  18:00    19:00    1a:00    1b:00    1c:00    1d:00    1e:00    1f:00  │ ║
└────┬────────┬────────┬────────┬────────┬────────┬────────┬────────┬────┘ ║
     ●═ NV18 ═●════════●════════●════════●════════●════════●════════●══════╝

═ NV18  NVSwitch, any of 16 GPUs to any other: 18 NVLinks, 478 GB/s each way"""

PCIE = """\
4 × NVIDIA L40S
┌ NUMA 0 ──────────┐  ┌ NUMA 1 ──────────┐
│  gpu-0    gpu-1  │  │  gpu-2    gpu-3  │
│  10:00    11:00  │  │  12:00    13:00  │
└────┬────────┬────┘  └────┬────────┬────┘
     ●┄┄ PIX ┄●            ●┄┄ PIX ┄●

┄ PIX  PCIe, one switch
  SYS  PCIe and the links between NUMA nodes: no line"""

GB200 = """\
4 × NVIDIA GB200
┌ NUMA 0 ──────────────────┐  ┌ NUMA 1 ──────────────────┐
│    gpu-0        gpu-1    │  │    gpu-2        gpu-3    │
│ 0008:01:00   0009:01:00  │  │ 0018:01:00   0019:01:00  │
└──────┬────────────┬──────┘  └──────┬────────────┬──────┘
       ●═══ NV18 ═══●════════════════●════════════●

═ NV18  NVSwitch, any of 4 GPUs to any other: 18 NVLinks, 956 GB/s each way"""

LOPSIDED = """\
8 × NVIDIA H200
┌ NUMA 0 ───────────────────┐  ┌ NUMA 1 ─┐  ┌ NUMA 2 ──────────┐  ┌ NUMA 3 ──────────┐
│  gpu-0    gpu-1    gpu-2  │  │  gpu-3  │  │  gpu-4    gpu-5  │  │  gpu-6    gpu-7  │
│  10:00    11:00    12:00  │  │  13:00  │  │  14:00    15:00  │  │  16:00    17:00  │
└────┬────────┬────────┬────┘  └────┬────┘  └────┬────────┬────┘  └────┬────────┬────┘
     ●═ NV18 ═●════════●════════════●════════════●════════●════════════●════════●

═ NV18  NVSwitch, any of 8 GPUs to any other: 18 NVLinks, 478 GB/s each way"""

ONE = """\
1 × NVIDIA H200
┌ NUMA ? ─┐
│  gpu-0  │
│  00:04  │
└─────────┘"""


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param(h200_node(), H200, id="a fabric"),
        pytest.param(cube_mesh(), CUBE_MESH, id="a cube mesh"),
        pytest.param(bridged_node(), BRIDGED, id="bridges"),
        pytest.param(l4_pair(), L4, id="two GPUs on PCIe"),
        pytest.param(pcie_node(2, 2), PCIE, id="PCIe switches"),
        pytest.param(switched_node([0] * 8 + [1] * 8), SIXTEEN, id="a fabric in two rows"),
        pytest.param(gb200_tray(), GB200, id="PCI domains"),
        pytest.param(lopsided_node(), LOPSIDED, id="uneven NUMA nodes"),
        pytest.param(inventory([gpu(numa=None, bus="00:04")]), ONE, id="one GPU"),
        pytest.param(inventory([]), "No GPUs.", id="no GPU"),
    ],
)
def test_the_drawing_of_a_node(node: Inventory, expected: str) -> None:
    assert draw(node) == expected


@given(nodes(most=20))
def test_any_node_is_drawn_within_the_width_with_each_gpu_once(node: Inventory) -> None:
    lines = draw(node).splitlines()
    assert max(map(len, lines)) <= WIDTH
    names = [word for line in lines if line.startswith("│") for word in line.replace("│", " ").split()]
    assert sorted(word for word in names if word.startswith("gpu-")) == sorted(each.name for each in node.gpus)


@given(nodes(most=8))
def test_each_direct_nvlink_is_drawn_or_listed_as_not_drawn(node: Inventory) -> None:
    text = draw(node)
    links = sum(1 for link in node.links.links.values() if link.nvlinks)
    lines = sum(line.count(f" NV{count} ") for line in text.splitlines() if "●" in line for count in range(1, 9))
    assert lines + text.count("not drawn: NV") == links


def test_a_driver_that_cannot_be_asked_says_why() -> None:
    assert draw(Inventory(problem="no driver is loaded")) == "No GPUs: no driver is loaded"


def test_a_gpu_that_cannot_be_read_is_listed_as_missing() -> None:
    node = replace(without(h200_node(), 7), missing=(MissingGpu(index=7, reason="it has fallen off the bus"),))
    assert draw(node).splitlines()[0] == "7 × NVIDIA H200"
    assert draw(node).splitlines()[-1] == "missing: GPU 7, it has fallen off the bus"


def test_products_are_counted_apart() -> None:
    node = inventory([gpu(0, product="Quadro P400"), *(gpu(i) for i in (1, 2))])
    assert draw(node).splitlines()[0] == "1 × Quadro P400, 2 × NVIDIA H200"


def test_a_gpu_cut_into_mig_devices_is_marked() -> None:
    plain, cut = gpu(0), replace(gpu(1), partition_mode=PartitionMode.ENABLED)
    assert draw(inventory([plain, cut])).splitlines()[4] == "│            MIG   │"


def test_a_gpu_whose_links_are_down_has_no_dot_on_the_fabric() -> None:
    fabric = {ends: nvlink(18, switched=True) for ends in combinations((0, 1, 3), 2)}
    lines = draw(inventory([gpu(i) for i in range(4)], fabric)).splitlines()
    assert lines[4] == "└────┬────────┬─────────────────┬────┘"
    assert lines[5] == "     ●═ NV18 ═●═════════════════●"
    assert "any of 3 GPUs" in lines[7]


def test_a_gpu_with_fewer_links_shows_in_the_range() -> None:
    fabric = {ends: nvlink(16 if 0 in ends else 18, switched=True) for ends in combinations(range(3), 2)}
    assert "16 to 18 NVLinks" in draw(inventory([gpu(i) for i in range(3)], fabric))


def test_links_of_unknown_speed_are_counted_without_it() -> None:
    assert "NVLink: 2 NVLinks\n" in f"{draw(inventory([gpu(0), gpu(1)], {(0, 1): nvlink(2, each=0)}))}\n"


def test_two_fabrics_are_two_lines() -> None:
    halves = [*combinations(range(4), 2), *combinations(range(4, 8), 2)]
    node = inventory([gpu(i, numa=i // 4) for i in range(8)], {ends: nvlink(18, switched=True) for ends in halves})
    assert draw(node).splitlines()[5] == ("     ●═ NV18 ═●════════●════════●            ●═ NV18 ═●════════●════════●")


def test_a_link_between_two_rows_is_listed_below() -> None:
    node = inventory([gpu(i, numa=i // 8) for i in range(16)], {(0, 1): nvlink(2), (3, 12): nvlink(2)})
    assert draw(node).splitlines()[-1] == "not drawn: NV2 gpu-3 gpu-12"


def test_a_tree_of_pcie_switches_is_drawn_switch_by_switch() -> None:
    node = inventory(
        [gpu(i) for i in range(4)],
        path=lambda a, b: PciePath.ONE_SWITCH if a.index // 2 == b.index // 2 else PciePath.SWITCHES,
    )
    assert draw(node).splitlines()[5:7] == [
        "     ●┄┄ PIX ┄●        ●┄┄ PIX ┄●",
        "     ●┄┄ PXB ┄●┄┄┄┄┄┄┄┄●┄┄┄┄┄┄┄┄●",
    ]


def test_a_numa_node_too_wide_for_a_row_takes_two_boxes() -> None:
    titles = [line for line in draw(switched_node([None] * 16)).splitlines() if line.startswith("┌")]
    assert len(titles) == 2
    assert all(line.startswith("┌ NUMA ? ─") for line in titles)
