"""How AMD's GPUs reach each other: xGMI as KFD's topology tells, PCIe as the kernel's tree of devices does."""

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from node_agent.hardware.amd.files import number, properties
from node_agent.hardware.amd.scan import ComputeNode, compute_nodes, device
from node_agent.model.gpu import GpuUuid
from node_agent.model.links import Link, LinkGraph, PciePath, pair
from node_agent.model.pci import PciAddress

# KFD's number for the kind of a link.
_XGMI = 11


def links(sysfs: Path, gpus: Mapping[GpuUuid, PciAddress]) -> LinkGraph:
    """The links among these GPUs. Raises OSError."""
    nodes = compute_nodes(sysfs)
    numbers = {int(node.folder.name): pci for pci, node in nodes.items()}
    wires = {pci: _wires(nodes[pci], numbers) for pci in gpus.values() if pci in nodes}
    return LinkGraph(
        links={pair(a, b): _link(sysfs, wires, gpus[a], gpus[b]) for a, b in combinations(gpus, 2)},
    )


Wires = Mapping[PciAddress, list[int]]
"""The MB/s in one direction of each xGMI link of a GPU, by where it leads."""


def _wires(node: ComputeNode, numbers: Mapping[int, PciAddress]) -> Wires:
    found: dict[PciAddress, list[int]] = {}
    for folder in sorted((node.folder / "io_links").glob("[0-9]*")):
        facts = properties(folder / "properties")
        to = numbers.get(facts.get("node_to", -1))
        if facts.get("type") == _XGMI and to is not None:
            found.setdefault(to, []).append(facts.get("max_bandwidth", 0))
    return found


def _link(sysfs: Path, wires: Mapping[PciAddress, Wires], a: PciAddress, b: PciAddress) -> Link:
    joined = wires.get(a, {}).get(b, [])
    return Link(nvlinks=len(joined), bandwidth=sum(joined), path=_path(sysfs, a, b))


def _path(sysfs: Path, a: PciAddress, b: PciAddress) -> PciePath | None:
    """The nearest common point; how many switches there are below it is not told apart."""
    ways = [device(sysfs, pci).resolve().parts for pci in (a, b)]
    root = len((sysfs / "devices").resolve().parts)
    shared = [one for one, other in zip(*(way[root:] for way in ways), strict=False) if one == other]
    if len(shared) > 1:
        return PciePath.SWITCHES
    if shared:
        return PciePath.HOST_BRIDGE
    places = [number(device(sysfs, pci) / "numa_node") for pci in (a, b)]
    return PciePath.NUMA_NODE if places[0] == places[1] and places[0] not in (None, -1) else PciePath.SYSTEM
