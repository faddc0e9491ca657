"""All that the kubelet gives out by NUMA node: what there is, and what pods hold, as its pod resources API tells."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from node_agent.kubelet.podresources import TIMEOUT_SECONDS, lister
from node_agent.wire import podresources_v1_pb2 as wire


class Memory(Struct, frozen=True, kw_only=True):
    """A block of memory, or of huge pages, on all of its NUMA ``nodes`` together; ``size`` in bytes."""

    kind: str
    size: int
    nodes: frozenset[int] = frozenset()


class Amounts(Struct, frozen=True, kw_only=True):
    """``devices`` has the NUMA nodes of each device by resource and id; none where its plugin gave none.

    Without a policy that gives out CPUs or memory one by one there is none of these.
    """

    devices: Mapping[str, Mapping[str, frozenset[int]]] = field(default_factory=dict)
    cpus: frozenset[int] = frozenset()
    memory: tuple[Memory, ...] = ()


class NodeResources(Struct, frozen=True, kw_only=True):
    """What could be given out if no pod held any, what pods hold, and the pods by namespace and name."""

    allocatable: Amounts
    held: Amounts
    pods: tuple[tuple[str, str], ...] = ()


async def node_resources(socket: Path) -> NodeResources:
    """Ask the kubelet. Raises KubeletError where it does not tell."""
    async with lister(socket, "what it gives out") as rpc:
        all_of_it = await rpc.GetAllocatableResources(wire.AllocatableResourcesRequest(), timeout=TIMEOUT_SECONDS)
        pods = (await rpc.List(wire.ListPodResourcesRequest(), timeout=TIMEOUT_SECONDS)).pod_resources
    containers = [container for pod in pods for container in pod.containers]
    return NodeResources(
        allocatable=_amounts([all_of_it]), held=_amounts(containers), pods=tuple((p.namespace, p.name) for p in pods)
    )


def _amounts(entries: Iterable[wire.AllocatableResourcesResponse | wire.ContainerResources]) -> Amounts:
    devices: dict[str, dict[str, frozenset[int]]] = {}
    cpus: set[int] = set()
    memory: list[Memory] = []
    for entry in entries:
        cpus |= set(entry.cpu_ids)
        memory += [Memory(kind=one.memory_type, size=one.size, nodes=_nodes(one.topology)) for one in entry.memory]
        for resource, name, nodes in _devices(entry.devices):
            of = devices.setdefault(resource, {})
            of[name] = of.get(name, frozenset()) | nodes
    return Amounts(devices=devices, cpus=frozenset(cpus), memory=tuple(memory))


def _devices(listed: Iterable[wire.ContainerDevices]) -> Iterator[tuple[str, str, frozenset[int]]]:
    """A device on two NUMA nodes comes up twice."""
    for one in listed:
        for name in one.device_ids:
            yield one.resource_name, name, _nodes(one.topology)


def _nodes(topology: wire.TopologyInfo) -> frozenset[int]:
    return frozenset(node.ID for node in topology.nodes)
