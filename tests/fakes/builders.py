"""Inventories for tests: single values with sensible defaults, and whole nodes as they are built and sold.

A node's links are given by pairs of indices; what is not given has no NVLink and the path that ``path_between`` finds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

from msgspec.structs import replace

from node_agent.dra.taints import Taint, together
from node_agent.model.device import PublishedDevice
from node_agent.model.gpu import Gpu, GpuUuid, PartitionMode, device_name
from node_agent.model.inventory import Inventory
from node_agent.model.links import Link, LinkGraph, PciePath, pair
from node_agent.model.partition import Instance, Partition, PartitionUuid, Placement
from node_agent.model.pci import pci_address

PathBetween = Callable[[Gpu, Gpu], PciePath]

H200_BUSES = ("1b:00", "43:00", "52:00", "61:00", "9d:00", "c3:00", "d1:00", "df:00")

CUBE_MESH = {
    **{ends: 2 for ends in ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))},
    **{ends: 1 for ends in ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))},
}
"""NVLinks between the eight V100s of a DGX-1; what is not listed has none."""


def uuid(index: int) -> GpuUuid:
    return GpuUuid(f"GPU-{index:08x}-0000-4000-8000-{index:012x}")


def gpu(index: int = 0, *, numa: int | None = 0, bus: str | None = None, product: str = "NVIDIA H200") -> Gpu:
    """One GPU; ``bus`` is its PCI address without function, with or without domain."""
    bus = bus or f"{16 + index:02x}:00"
    return Gpu(
        uuid=uuid(index),
        name=device_name(f"gpu-{index}"),
        index=index,
        product=product,
        pci=pci_address(f"{bus}.0" if bus.count(":") == 2 else f"0000:{bus}.0"),
        minor=index,
        numa_node=numa,
    )


def nvlink(links: int, *, each: int = 25_000, switched: bool = False, path: PciePath | None = None) -> Link:
    """``links`` NVLinks of ``each`` MB/s in one direction."""
    return Link(nvlinks=links, bandwidth=links * each, switched=switched, path=path)


def path_between(a: Gpu, b: Gpu) -> PciePath:
    """The usual two-socket machine: near on one NUMA node, far across."""
    known = a.numa_node is not None and a.numa_node == b.numa_node
    return PciePath.NUMA_NODE if known else PciePath.SYSTEM


def inventory(
    gpus: Iterable[Gpu],
    links: Mapping[tuple[int, int], Link] | None = None,
    *,
    path: PathBetween = path_between,
    generation: int = 1,
) -> Inventory:
    """A snapshot; a link that tells no path gets the one that the machine has."""
    gpus, given = tuple(gpus), links or {}
    graph = {}
    for (i, a), (j, b) in combinations(enumerate(gpus), 2):
        link = given.get((i, j), Link())
        found = path(a, b) if link.path is None else link.path
        graph[pair(a.uuid, b.uuid)] = Link(
            nvlinks=link.nvlinks, bandwidth=link.bandwidth, switched=link.switched, path=found
        )
    return Inventory(generation=generation, gpus=gpus, links=LinkGraph(links=graph))


def without(node: Inventory, *indices: int) -> Inventory:
    """The same node after these GPUs have dropped out."""
    left = tuple(each for position, each in enumerate(node.gpus) if position not in indices)
    return Inventory(generation=node.generation + 1, gpus=left, links=node.links.among(each.uuid for each in left))


def partition(
    of: Gpu, profile: str, start: int = 0, *, length: int = 1, number: int = 0, computes: tuple[int, int] | None = None
) -> Partition:
    """A live partition: of a profile ``1g.…`` one slice, and so on; ``number`` is its index and the instance's id."""
    slices = int(profile.rpartition("c.")[2][0])
    return Partition(
        uuid=PartitionUuid(f"MIG-{of.index:08x}-0000-5000-8000-{number:012x}"),
        parent=of.uuid,
        profile=profile,
        placement=Placement(start=start, length=length),
        instance=number,
        compute_instance=computes[0] if computes else 0,
        slices=slices,
        compute_slices=computes[1] if computes else slices,
        compute_start=computes[0] if computes else 0,
        index=number,
        memory=slices << 34,
        multiprocessors=16 * slices,
    )


def cut(node: Inventory, gpus: Mapping[int, Sequence[Partition]]) -> Inventory:
    """The same node with MIG on where GPUs are named by their position, and each of these cut so."""
    changed = [
        replace(one, partition_mode=PartitionMode.ENABLED) if i in gpus else one for i, one in enumerate(node.gpus)
    ]
    instances = {node.gpus[i].uuid: tuple(map(_instance, parts)) for i, parts in gpus.items()}
    return replace(node, gpus=tuple(changed), instances=instances)


def _instance(partition: Partition) -> Instance:
    return Instance(
        gpu=partition.parent,
        id=partition.instance,
        profile=partition.profile.rpartition("c.")[2],
        placement=partition.placement,
        slices=partition.slices,
        partitions=(partition,),
    )


def switched_node(
    numa: Sequence[int | None],
    *,
    links: int = 18,
    each: int = 26_562,
    product: str = "NVIDIA H200",
    buses: Sequence[str] = (),
    path: PathBetween = path_between,
) -> Inventory:
    """GPUs on one NVSwitch fabric, each on the given NUMA node."""
    gpus = [gpu(i, numa=node, product=product, bus=buses[i] if buses else None) for i, node in enumerate(numa)]
    fabric = {ends: nvlink(links, each=each, switched=True) for ends in combinations(range(len(gpus)), 2)}
    return inventory(gpus, fabric, path=path)


def h200_node() -> Inventory:
    """8 × H200 on NVSwitch, four per socket."""
    return switched_node([0] * 4 + [1] * 4, buses=H200_BUSES)


def lopsided_node() -> Inventory:
    """8 GPUs on NVSwitch, spread unevenly over four NUMA nodes: 3, 1, 2, 2."""
    return switched_node([0, 0, 0, 1, 2, 2, 3, 3])


def gb200_tray() -> Inventory:
    """4 × GB200, two per Grace CPU, each in a PCI domain of its own."""
    buses = ("0008:01:00", "0009:01:00", "0018:01:00", "0019:01:00")
    return switched_node([0, 0, 1, 1], each=53_125, product="NVIDIA GB200", buses=buses)


def cube_mesh() -> Inventory:
    """8 × V100 in a DGX-1: a hybrid cube mesh, pairs under one PCIe switch."""
    buses = ("06:00", "07:00", "0a:00", "0b:00", "85:00", "86:00", "89:00", "8a:00")
    gpus = [gpu(i, numa=i // 4, bus=bus, product="Tesla V100-SXM2-16GB") for i, bus in enumerate(buses)]
    return inventory(gpus, {ends: nvlink(count, each=25_781) for ends, count in CUBE_MESH.items()}, path=_paired)


def bridged_node() -> Inventory:
    """4 × A100 PCIe with NVLink bridges over {0,1} and {2,3}, one bridged pair per socket."""
    gpus = [gpu(i, numa=i // 2, bus=bus, product="NVIDIA A100 80GB PCIe") for i, bus in enumerate(_A100_BUSES)]
    return inventory(gpus, {ends: nvlink(12) for ends in ((0, 1), (2, 3))})


def pcie_node(sockets: int = 2, per_socket: int = 4) -> Inventory:
    """L40S without NVLink: pairs under one PCIe switch, so many per socket."""
    count = sockets * per_socket
    return inventory([gpu(i, numa=i // per_socket, product="NVIDIA L40S") for i in range(count)], path=_paired)


def l4_pair() -> Inventory:
    """2 × L4 on one socket."""
    return inventory([gpu(0, product="NVIDIA L4", bus="17:00"), gpu(1, product="NVIDIA L4", bus="ca:00")])


_A100_BUSES = ("17:00", "31:00", "b1:00", "ca:00")


def _paired(a: Gpu, b: Gpu) -> PciePath:
    """Neighbours share a PCIe switch, a socket's pairs meet at the host bridge."""
    if a.numa_node != b.numa_node:
        return PciePath.SYSTEM
    return PciePath.ONE_SWITCH if a.index // 2 == b.index // 2 else PciePath.HOST_BRIDGE


def taints_by_gpu(taints: Mapping[GpuUuid, Iterable[Taint]]) -> Callable[[PublishedDevice], tuple[Taint, ...]]:
    """What ``pool_of`` asks, where each device has all taints of its GPUs."""
    return lambda device: together(taint for gpu in device.gpus for taint in taints.get(gpu, ()))
