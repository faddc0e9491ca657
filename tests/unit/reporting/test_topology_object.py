"""What the NodeResourceTopology says of each NUMA node, and the fingerprint of the pods."""

import pytest
from msgspec.structs import replace

from node_agent.hardware.numa import NumaNode
from node_agent.kube.resources import Object
from node_agent.kubelet.configuration import Alignment
from node_agent.kubelet.node_resources import Amounts, Memory, NodeResources
from node_agent.reporting.topology_object import Devices, fingerprint, topology_object

GPU = "nvidia.com/gpu"
GIB = 1 << 30
NODES = {
    0: NumaNode(cpus=frozenset(range(48)), memory=256 * GIB, distances={0: 10, 1: 21}),
    1: NumaNode(cpus=frozenset(range(48, 96)), memory=256 * GIB, distances={0: 21, 1: 10}),
}
EIGHT = {f"GPU-{number}": number // 4 for number in range(8)}
NOTHING = NodeResources(allocatable=Amounts(), held=Amounts())


def at(devices: dict[str, int]) -> dict[str, frozenset[int]]:
    return {name: frozenset([node]) for name, node in devices.items()}


ALL = NodeResources(allocatable=Amounts(devices={GPU: at(EIGHT)}), held=Amounts())


def zones(found: NodeResources, offered: Devices | None = None, nodes: dict[int, NumaNode] | None = None) -> Object:
    """Capacity, allocatable and available by zone and resource."""
    made = topology_object("n0", nodes or NODES, found, offered=offered or {}, alignment=None)
    return {
        zone["name"]: {
            entry["name"]: (entry["capacity"], entry["allocatable"], entry["available"]) for entry in zone["resources"]
        }
        for zone in made["zones"]
    }


def test_each_zone_has_all_that_the_kubelet_aligns_and_its_distances() -> None:
    made = topology_object("n0", NODES, ALL, offered={GPU: dict(EIGHT)}, alignment=None)
    assert (made["apiVersion"], made["kind"]) == ("topology.node.k8s.io/v1alpha2", "NodeResourceTopology")
    assert made["metadata"] == {"name": "n0"}
    assert made["zones"][1] == {
        "name": "node-1",
        "type": "Node",
        "costs": [{"name": "node-0", "value": 21}, {"name": "node-1", "value": 10}],
        "resources": [
            {"name": "cpu", "capacity": "48", "allocatable": "48", "available": "48"},
            {"name": "memory", "capacity": str(256 * GIB), "allocatable": str(256 * GIB), "available": str(256 * GIB)},
            {"name": GPU, "capacity": "4", "allocatable": "4", "available": "4"},
        ],
    }


def test_what_pods_hold_is_not_available_and_what_the_kubelet_keeps_is_not_allocatable() -> None:
    found = NodeResources(
        allocatable=Amounts(
            devices={GPU: at(EIGHT)},
            cpus=frozenset(range(2, 96)),
            memory=(Memory(kind="memory", size=250 * GIB, nodes=frozenset([0])),),
        ),
        held=Amounts(
            devices={GPU: at({"GPU-0": 0, "GPU-7": 1})},
            cpus=frozenset([2, 3, 50]),
            memory=(Memory(kind="memory", size=10 * GIB, nodes=frozenset([0, 1])),),
        ),
    )
    assert zones(found)["node-0"] == {
        "cpu": ("48", "46", "44"),
        "memory": (str(256 * GIB), str(250 * GIB), str(240 * GIB)),
        GPU: ("4", "4", "3"),
    }
    assert zones(found)["node-1"]["cpu"] == ("48", "48", "47")
    assert zones(found)["node-1"][GPU] == ("4", "4", "3")


def test_memory_on_two_nodes_is_taken_from_the_first_as_far_as_it_goes() -> None:
    block = {number: frozenset([number]) for number in NODES}
    there = tuple(Memory(kind="memory", size=250 * GIB, nodes=block[number]) for number in NODES)
    held = (
        Memory(kind="memory", size=100 * GIB, nodes=block[0]),
        Memory(kind="memory", size=200 * GIB, nodes=frozenset([0, 1])),
    )
    found = zones(NodeResources(allocatable=Amounts(memory=there), held=Amounts(memory=held)))
    assert found["node-0"]["memory"] == (str(256 * GIB), str(250 * GIB), "0")
    assert found["node-1"]["memory"] == (str(256 * GIB), str(250 * GIB), str(200 * GIB))


def test_a_gpu_that_is_not_well_counts_in_what_there_is_alone() -> None:
    well = {name: node for name, node in EIGHT.items() if name != "GPU-1"}
    found = replace(ALL, allocatable=Amounts(devices={GPU: at(well)}))
    assert zones(found, {GPU: dict(EIGHT)})["node-0"][GPU] == ("4", "3", "3")


def test_a_gpu_that_breaks_while_a_pod_holds_it_makes_nothing_negative() -> None:
    well = {name: node for name, node in EIGHT.items() if name not in ("GPU-0", "GPU-1", "GPU-2", "GPU-3")}
    found = NodeResources(allocatable=Amounts(devices={GPU: at(well)}), held=Amounts(devices={GPU: at({"GPU-0": 0})}))
    assert zones(found, {GPU: dict(EIGHT)})["node-0"][GPU] == ("4", "0", "0")


def test_devices_without_a_node_are_in_no_zone_and_those_on_two_are_in_both() -> None:
    found = replace(
        ALL,
        allocatable=Amounts(devices={"a.com/nic": {"n0": frozenset([0, 1]), "n1": frozenset(), "n2": frozenset([7])}}),
    )
    assert zones(found, {GPU: {"GPU-0": None}})["node-0"]["a.com/nic"] == ("1", "1", "1")
    assert zones(found)["node-1"]["a.com/nic"] == ("1", "1", "1")
    assert GPU not in zones(found, {GPU: {"GPU-0": None}})["node-0"]


def test_huge_pages_are_named_by_their_size() -> None:
    node = NumaNode(cpus=frozenset([0]), huge_pages={2048: GIB, 1048576: 4 * GIB, 64: GIB, 32768: GIB})
    there = Amounts(memory=(Memory(kind="hugepages-1Gi", size=4 * GIB, nodes=frozenset([0])),))
    held = Amounts(memory=(Memory(kind="hugepages-1Gi", size=GIB, nodes=frozenset([0])),))
    found = zones(replace(NOTHING, allocatable=there, held=held), nodes={0: node})["node-0"]
    assert found["hugepages-2Mi"] == (str(GIB), str(GIB), str(GIB))
    assert found["hugepages-1Gi"] == (str(4 * GIB), str(4 * GIB), str(3 * GIB))
    # As arm has them.
    assert {"hugepages-64Ki", "hugepages-32Mi"} <= found.keys()


def test_nodes_that_no_scheduler_reads_and_nodes_of_gpu_memory_alone() -> None:
    nodes = {**NODES, 2: NumaNode(memory=96 * GIB), 64: NumaNode(cpus=frozenset([99]))}
    found = zones(NOTHING, nodes=nodes)
    assert list(found) == ["node-0", "node-1", "node-2"]
    assert list(found["node-2"]) == ["memory"]


def test_a_distance_that_the_kernel_does_not_tell_is_the_longest() -> None:
    made = topology_object("n0", {0: NumaNode()}, NOTHING, offered={}, alignment=None)
    assert made["zones"][0]["costs"] == [{"name": "node-0", "value": 255}]


# Attributes


def attributes(alignment: Alignment | None) -> dict[str, str]:
    made = topology_object("n0", NODES, NOTHING, offered={}, alignment=alignment)
    return {one["name"]: one["value"] for one in made["attributes"] if "Fingerprint" not in one["name"]}


def test_how_the_kubelet_aligns_is_told_where_it_is_known() -> None:
    options = {"prefer-closest-numa-nodes": "true", "max-allowable-numa-nodes": "10"}
    assert attributes(Alignment(policy="single-numa-node", scope="pod", options=options)) == {
        "topologyManagerPolicy": "single-numa-node",
        "topologyManagerScope": "pod",
        "topologyManagerOptionPreferClosestNumaNodes": "true",
        "topologyManagerMaxNUMANodes": "10",
    }
    assert attributes(None) == {}


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([], "pfp0v001ef46db3751d8e999"),
        ([("gpu-jobs", "train-0")], "pfp0v0011fadeb1cb9bbd804"),
        ([("ns1", "n1"), ("ns1", "n2"), ("ns2", "n1"), ("ns3", "n1"), ("ns3", "n2")], "pfp0v001b92008c14168b3a6"),
    ],
)
def test_the_fingerprint_of_the_pods_is_what_schedulers_compute(pods: list[tuple[str, str]], expected: str) -> None:
    assert fingerprint(pods) == fingerprint(reversed(pods)) == expected
    made = topology_object("n0", NODES, replace(NOTHING, pods=tuple(pods)), offered={}, alignment=None)
    assert {"name": "nodeTopologyPodsFingerprint", "value": expected} in made["attributes"]
