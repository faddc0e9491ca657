"""What the kubelet gives out by NUMA node, over real gRPC."""

from pathlib import Path
from typing import Any

import pytest

from node_agent.errors import KubeletError
from node_agent.kubelet.node_resources import Amounts, Memory, NodeResources, node_resources
from node_agent.kubelet.server import serving
from node_agent.wire import podresources_v1_pb2 as wire
from node_agent.wire import podresources_v1_pb2_grpc as rpc

GPU = "nvidia.com/gpu"


class Lister(rpc.PodResourcesListerServicer):
    """Answers what it is given."""

    def __init__(self, there: wire.AllocatableResourcesResponse, pods: list[wire.PodResources]) -> None:
        self.there = there
        self.pods = pods

    async def List(self, request: wire.ListPodResourcesRequest, context: Any) -> wire.ListPodResourcesResponse:
        return wire.ListPodResourcesResponse(pod_resources=self.pods)

    async def GetAllocatableResources(
        self, request: wire.AllocatableResourcesRequest, context: Any
    ) -> wire.AllocatableResourcesResponse:
        return self.there

    async def Get(self, request: wire.GetPodResourcesRequest, context: Any) -> wire.GetPodResourcesResponse:
        raise NotImplementedError


def on(*nodes: int) -> wire.TopologyInfo:
    return wire.TopologyInfo(nodes=[wire.NUMANode(ID=node) for node in nodes])


def devices(*ids: str, nodes: tuple[int, ...] = ()) -> wire.ContainerDevices:
    return wire.ContainerDevices(resource_name=GPU, device_ids=ids, topology=on(*nodes) if nodes else None)


async def ask(folder: Path, there: wire.AllocatableResourcesResponse, pods: list[wire.PodResources]) -> NodeResources:
    socket, lister = folder / "kubelet.sock", Lister(there, pods)
    async with serving(socket, lambda server: rpc.add_PodResourcesListerServicer_to_server(lister, server)):
        return await node_resources(socket)


async def test_each_device_has_its_nodes_and_what_pods_hold_adds_up(tmp_path: Path) -> None:
    there = wire.AllocatableResourcesResponse(
        devices=[devices("a", nodes=(0,)), devices("b", "c", nodes=(1,)), devices("c", nodes=(2,)), devices("d")],
        cpu_ids=[0, 1, 2, 3],
        memory=[wire.ContainerMemory(memory_type="memory", size=100, topology=on(0))],
    )
    one = wire.ContainerResources(name="one", devices=[devices("a", nodes=(0,))], cpu_ids=[1])
    other = wire.ContainerResources(
        name="other", cpu_ids=[2], memory=[wire.ContainerMemory(memory_type="memory", size=7, topology=on(0, 1))]
    )
    pods = [
        wire.PodResources(name="p", namespace="a", containers=[one, other]),
        wire.PodResources(name="q", namespace="b"),
    ]
    assert await ask(tmp_path, there, pods) == NodeResources(
        allocatable=Amounts(
            devices={
                GPU: {"a": frozenset([0]), "b": frozenset([1]), "c": frozenset([1, 2]), "d": frozenset()},
            },
            cpus=frozenset([0, 1, 2, 3]),
            memory=(Memory(kind="memory", size=100, nodes=frozenset([0])),),
        ),
        held=Amounts(
            devices={GPU: {"a": frozenset([0])}},
            cpus=frozenset([1, 2]),
            memory=(Memory(kind="memory", size=7, nodes=frozenset([0, 1])),),
        ),
        pods=(("a", "p"), ("b", "q")),
    )


async def test_a_node_without_pods_and_devices_has_nothing(tmp_path: Path) -> None:
    nothing = NodeResources(allocatable=Amounts(), held=Amounts())
    assert await ask(tmp_path, wire.AllocatableResourcesResponse(), []) == nothing


async def test_a_kubelet_that_is_silent_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeletError, match=r"does not tell on .*kubelet\.sock what it gives out"):
        await node_resources(tmp_path / "kubelet.sock")
