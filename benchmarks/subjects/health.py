"""From an Xid in NVML to the list without the GPU at the kubelet, and to the slice with the taint at the API server."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.floors import EMPTY_CALL, parrot
from benchmarks.inside import World, at_work, folder
from benchmarks.measure import Effort, Figure, Step, Target, figure, in_turns
from node_agent.deviceplugin.selection import GPU_RESOURCE
from node_agent.kube.resources import NODES, RESOURCE_SLICES
from node_agent.model.gpu import GpuUuid
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from tests.fakes.api_server import ApiServer

XID = 48  # an uncorrectable memory error
# What breaks stays so until it is cleared, and is not held back for having broken in each round.
RULES = {"agent.health.rules": [{"xids": [XID], "clearedBy": "operator"}]}
TARGET = Target(limit=0.003)
NODE, PROFILE, CALLS = "n0", "h200-8", 8


async def measure(effort: Effort) -> Sequence[Figure]:
    rounds = effort.pick(full=16, quick=2)
    async with at_work(PROFILE, RULES) as world, _an_empty_call(world) as floor:
        at_kubelet = await in_turns(
            lambda: _listed_without(world), floor, rounds=rounds, calls=CALLS, between=lambda: _mend_all(world)
        )
    async with _publishing() as (world, server), _an_empty_call(world) as floor:
        at_server = await in_turns(
            lambda: _tainted(world, server),
            floor,
            rounds=rounds,
            calls=CALLS,
            between=lambda: _untainted(world, server),
        )
    return [
        figure("Xid in NVML → message at the kubelet", at_kubelet, EMPTY_CALL, TARGET),
        figure("Xid in NVML → taint at the API server", at_server, EMPTY_CALL),
    ]


@asynccontextmanager
async def _an_empty_call(world: World) -> AsyncIterator[Step]:
    async with parrot(world.node.folder / "parrot.sock") as stub:
        yield lambda: stub.Allocate(wire.AllocateRequest())


@asynccontextmanager
async def _publishing() -> AsyncIterator[tuple[World, ApiServer]]:
    """An agent that publishes its GPUs at an API server in this process as well, once they are all there."""
    with folder() as place:
        async with ApiServer() as server:
            server.put(NODES, {"metadata": {"name": NODE}})
            file = place / "kubeconfig"
            file.write_text(json.dumps(_kubeconfig(server.url)))
            more = {**RULES, "agent.kubeconfig": str(file), "agent.nodeName": NODE, "agent.frontDoors.dra": True}
            async with at_work(PROFILE, more) as world:
                await server.until(lambda: server.objects(RESOURCE_SLICES) and not _taints(server))
                yield world, server


def _kubeconfig(url: str) -> dict[str, object]:
    return {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": url}}],
        "users": [{"name": "it", "user": {}}],
    }


async def _listed_without(world: World) -> None:
    """Break a GPU, and see it leave the kubelet's list."""
    healthy = world.kubelet.view(GPU_RESOURCE).healthy
    world.node.simulation.node.faults.xid(min(healthy), XID, recovery=False)
    await world.kubelet.until(GPU_RESOURCE, allocatable=len(healthy) - 1)


async def _mend_all(world: World) -> None:
    gpus: Sequence[GpuUuid] = list(world.agent.keeper.inventory.value.by_uuid)
    for gpu in gpus:
        world.agent.board.clear(gpu)
    await world.kubelet.until(GPU_RESOURCE, allocatable=len(gpus), timeout=30.0)


async def _tainted(world: World, server: ApiServer) -> None:
    """Break a GPU, and see its taint at the API server."""
    before = _taints(server)
    world.node.simulation.node.faults.xid(min(world.kubelet.view(GPU_RESOURCE).healthy), XID, recovery=False)
    await server.until(lambda: _taints(server) > before)


async def _untainted(world: World, server: ApiServer) -> None:
    await _mend_all(world)
    await server.until(lambda: not _taints(server))


def _taints(server: ApiServer) -> int:
    """How many of the published devices have a taint."""
    slices = server.objects(RESOURCE_SLICES)
    return sum("taints" in device for one in slices for device in one["spec"].get("devices", ()))
