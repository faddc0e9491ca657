"""The NodeResourceTopology of the node: what each NUMA node has, for schedulers that place by it. Pure.

It lists all that the kubelet aligns, not GPUs alone: a scheduler that finds CPUs and memory in no zone would turn away
every ordinary pod. ``topology_writer`` writes it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from node_agent.hardware.numa import NumaNode
from node_agent.kit.xxhash64 import xxh64
from node_agent.kube.resources import NODE_TOPOLOGIES, Object
from node_agent.kubelet.configuration import Alignment
from node_agent.kubelet.node_resources import Amounts, Memory, NodeResources

# No scheduler reads zones beyond this one.
_LAST_ZONE = 63
_MAX_NODES = "max-allowable-numa-nodes"

Devices = Mapping[str, Mapping[str, int | None]]
"""The NUMA node of each device by resource and id, whatever its health."""


def topology_object(
    name: str,
    nodes: Mapping[int, NumaNode],
    found: NodeResources,
    *,
    offered: Devices,
    alignment: Alignment | None,
) -> Object:
    """The object as it is applied. ``offered`` are our own devices: one that is not well counts in what there is,
    but cannot be had; ``alignment`` is None where it is not known.
    """
    zones = [number for number in sorted(nodes) if number <= _LAST_ZONE]
    return {
        "apiVersion": NODE_TOPOLOGIES.api_version,
        "kind": NODE_TOPOLOGIES.kind,
        "metadata": {"name": name},
        "attributes": [{"name": key, "value": value} for key, value in _attributes(found, alignment)],
        "zones": [
            {
                "name": f"node-{number}",
                "type": "Node",
                "costs": [{"name": f"node-{to}", "value": nodes[number].distances.get(to, 255)} for to in zones],
                "resources": list(_resources(number, nodes[number], found, offered)),
            }
            for number in zones
        ],
    }


def fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """What tells one set of pods from another, by namespace and name, in the form that schedulers compare."""
    sums = sorted(xxh64(name.encode(), seed=xxh64(namespace.encode())) for namespace, name in pods)
    return f"pfp0v001{xxh64(b''.join(one.to_bytes(8, 'little') for one in sums)):016x}"


def _attributes(found: NodeResources, alignment: Alignment | None) -> Iterator[tuple[str, str]]:
    if alignment is not None:
        yield "topologyManagerPolicy", alignment.policy
        yield "topologyManagerScope", alignment.scope
        for option, value in sorted(alignment.options.items()):
            words = "".join(word.capitalize() for word in option.split("-"))
            yield ("topologyManagerMaxNUMANodes" if option == _MAX_NODES else f"topologyManagerOption{words}"), value
    yield "nodeTopologyPodsFingerprint", fingerprint(found.pods)
    yield "nodeTopologyPodsFingerprintMethod", "all"


def _resources(number: int, node: NumaNode, found: NodeResources, offered: Devices) -> Iterator[Object]:
    yield from _cpus(node, found)
    yield from _memory(number, node, found)
    for resource in sorted({*offered, *found.allocatable.devices}):
        free = _devices_on(number, found.allocatable, resource)
        ours = {name for name, where in offered.get(resource, {}).items() if where == number}
        held = _devices_on(number, found.held, resource)
        if there := len(ours | free):
            yield _entry(resource, there, len(free), len(free - held))


def _cpus(node: NumaNode, found: NodeResources) -> Iterator[Object]:
    if node.cpus:
        # Where CPUs are not given out one by one, all pods share all of them.
        free = node.cpus & found.allocatable.cpus if found.allocatable.cpus else node.cpus
        yield _entry("cpu", len(node.cpus), len(free), len(free - found.held.cpus))


def _memory(number: int, node: NumaNode, found: NodeResources) -> Iterator[Object]:
    kinds = {"memory": node.memory, **{_huge(size): total for size, total in sorted(node.huge_pages.items())}}
    for kind, total in kinds.items():
        if not total:
            continue
        there = _sizes(found.allocatable.memory, kind)
        # Where memory is not given out by node, all pods share all of it.
        free = there[number] if there else total
        yield _entry(kind, total, free, free - _taken(there, found.held.memory, kind)[number])


def _huge(kib: int) -> str:
    """The resource of huge pages; arm has some of less than a MiB."""
    unit, shift = next((unit, shift) for unit, shift in (("Gi", 20), ("Mi", 10), ("Ki", 0)) if kib % (1 << shift) == 0)
    return f"hugepages-{kib >> shift}{unit}"


def _sizes(blocks: Iterable[Memory], kind: str) -> Counter[int]:
    """How much is on each node; of a block on several each has its part."""
    sizes: Counter[int] = Counter()
    for one in blocks:
        if one.kind == kind:
            sizes.update(dict.fromkeys(one.nodes, one.size // max(len(one.nodes), 1)))
    return sizes


def _taken(there: Mapping[int, int], held: Iterable[Memory], kind: str) -> Counter[int]:
    """How much pods have on each node: the kubelet takes a block from its nodes in their order, all that is free."""
    taken: Counter[int] = Counter()
    for one in held:
        rest = one.size if one.kind == kind else 0
        for number in sorted(one.nodes):
            part = min(rest, there.get(number, 0) - taken[number])
            taken[number] += part
            rest -= part
    return taken


def _devices_on(number: int, amounts: Amounts, resource: str) -> set[str]:
    return {name for name, where in amounts.devices.get(resource, {}).items() if number in where}


def _entry(name: str, capacity: int, allocatable: int, available: int) -> Object:
    return {"name": name, "capacity": str(capacity), "allocatable": str(allocatable), "available": str(available)}
