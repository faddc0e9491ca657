"""How AMD's GPUs reach each other, by KFD's topology and by where they sit."""

from itertools import combinations
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent.hardware.amd.links import links
from node_agent.hardware.amd.scan import scan
from node_agent.hardware.simulated.amd import PROFILES, AmdGpu, SimulatedAmdNode
from node_agent.model.gpu import GpuUuid
from node_agent.model.links import LinkGraph, PciePath
from node_agent.model.pci import pci_address

PROFILE = PROFILES["mi300x-8"]


def graph(sysfs: Path) -> LinkGraph:
    return links(sysfs, {gpu.uuid: gpu.pci for gpu in scan(sysfs).gpus})


def test_each_pair_that_xgmi_joins_has_a_link_with_its_bandwidth(node: SimulatedAmdNode, sysfs: Path) -> None:
    found = graph(sysfs)
    pairs = list(combinations(node.uuids, 2))
    assert len(found.links) == len(pairs) == 28
    assert {(found.between(a, b).nvlinks, found.between(a, b).bandwidth) for a, b in pairs} == {(1, 64000)}
    assert found.island(node.uuids[0]) == set(node.uuids)


def test_without_xgmi_there_is_the_pcie_path_alone(tmp_path: Path) -> None:
    SimulatedAmdNode(replace(PROFILE, linked=False)).write_tree(tmp_path)
    found = graph(tmp_path / "sys")
    assert {link.nvlinks for link in found.links.values()} == {0}
    assert {link.path for link in found.links.values()} == {PciePath.NUMA_NODE, PciePath.SYSTEM}


def test_a_gpu_that_has_left_is_in_no_link(node: SimulatedAmdNode, sysfs: Path) -> None:
    node.lose(node.uuids[3])
    assert len(graph(sysfs).links) == 21


def test_without_kfd_no_pair_has_a_link_but_pcie(node: SimulatedAmdNode, sysfs: Path) -> None:
    for path in sysfs.glob("class/kfd/kfd/topology/nodes/*/properties"):
        path.unlink()
    assert {link.nvlinks for link in graph(sysfs).links.values()} == {0}


@pytest.mark.parametrize(
    ("numa", "path"), [((0, 0), PciePath.NUMA_NODE), ((0, 1), PciePath.SYSTEM), ((-1, -1), PciePath.SYSTEM)]
)
def test_gpus_below_different_host_bridges_are_told_apart_by_numa_node(
    numa: tuple[int, int], path: PciePath, tmp_path: Path
) -> None:
    gpus = tuple(AmdGpu(bus=f"0000:0{bus}:00.0", numa=node, unique=bus) for bus, node in enumerate(numa, 1))
    SimulatedAmdNode(replace(PROFILE, gpus=gpus, linked=False)).write_tree(tmp_path)
    (link,) = graph(tmp_path / "sys").links.values()
    assert link.path == path


@pytest.mark.parametrize(
    ("ways", "path"),
    [
        (("pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:00/0000:00:01.0/0000:02:00.0"), PciePath.SWITCHES),
        (("pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:00/0000:00:02.0/0000:02:00.0"), PciePath.HOST_BRIDGE),
    ],
)
def test_gpus_below_one_host_bridge_are_told_apart_by_what_they_share(
    ways: tuple[str, str], path: PciePath, tmp_path: Path
) -> None:
    places = {}
    for number, way in enumerate(ways):
        (tmp_path / "devices" / way).mkdir(parents=True)
        link = tmp_path / "bus/pci/devices" / way.rpartition("/")[2]
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(tmp_path / "devices" / way)
        places[GpuUuid(f"GPU-{number}")] = pci_address(link.name)
    (found,) = links(tmp_path, places).links.values()
    assert found.path == path
