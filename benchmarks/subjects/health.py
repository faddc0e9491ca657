"""From an Xid in NVML to the list without the GPU at the kubelet, and to who watches the slices at the API server.

The floor of the latter is a write of such a slice at the same server, seen by the same watcher.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count

from benchmarks.cluster import Cluster, served
from benchmarks.floors import EMPTY_CALL, parrot
from benchmarks.inside import World, at_work, folder
from benchmarks.measure import Effort, Figure, Step, Target, figure, in_turns
from node_agent.kit.tasks import running
from node_agent.kube.mirror import Mirror
from node_agent.kube.resources import RESOURCE_SLICES
from node_agent.model.gpu import GpuUuid
from node_agent.model.vendor import NVIDIA
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire

XID = 48  # an uncorrectable memory error
# What breaks stays so until it is cleared, and is not held back for having broken in each round.
RULES = {"agent.health.rules": [{"xids": [XID], "clearedBy": "operator"}]}
TARGET, TAINT_TARGET = Target(limit=0.003), Target(limit=0.015)
WRITE = "a write of a slice, seen"
PROFILE, CALLS = "h200-8", 8
OTHER = "other"


async def measure(effort: Effort) -> Sequence[Figure]:
    rounds = effort.pick(full=16, quick=2)
    async with at_work(PROFILE, RULES) as world, _an_empty_call(world) as floor:
        at_kubelet = await in_turns(
            lambda: _listed_without(world), floor, rounds=rounds, calls=CALLS, between=lambda: _mend_all(world)
        )
    async with _publishing() as (world, cluster, mirror):
        least = await _a_write(cluster, mirror)
        at_server = await in_turns(
            lambda: _tainted(world, mirror),
            least,
            rounds=rounds,
            calls=CALLS,
            between=lambda: _untainted(world, mirror),
        )
    return [
        figure("Xid in NVML → message at the kubelet", at_kubelet, EMPTY_CALL, TARGET),
        figure("Xid in NVML → taint at the API server", at_server, WRITE, TAINT_TARGET),
    ]


@asynccontextmanager
async def _an_empty_call(world: World) -> AsyncIterator[Step]:
    async with parrot(world.node.folder / "parrot.sock") as stub:
        yield lambda: stub.Allocate(wire.AllocateRequest())


@asynccontextmanager
async def _publishing() -> AsyncIterator[tuple[World, Cluster, Mirror]]:
    """An agent that publishes its GPUs as well, once they are all there, and what a watcher of the API server sees."""
    with folder() as place:
        async with served(place) as cluster:
            reached = {f"agent.{key}": value for key, value in cluster.settings.items() if key != "frontDoors"}
            more = {**RULES, **reached, "agent.frontDoors.dra": True}
            mirror = Mirror(cluster.client, RESOURCE_SLICES)
            async with running(mirror.run()), at_work(PROFILE, more) as world:
                await _until(mirror, lambda slices: slices > 0 and not _taints(mirror))
                yield world, cluster, mirror


async def _a_write(cluster: Cluster, mirror: Mirror) -> Step:
    """What replaces a slice as large as the agent's, of a node that is not there, and waits until it is seen."""
    (published,) = mirror.objects.value.values()
    spec = {**published["spec"], "nodeName": OTHER, "pool": {**published["spec"]["pool"], "name": OTHER}}
    await cluster.client.create(RESOURCE_SLICES, {"metadata": {"name": OTHER}, "spec": spec})
    rounds = count()

    async def write() -> None:
        body = {"metadata": {"name": OTHER, "labels": {"round": str(next(rounds))}}, "spec": spec}
        version = (await cluster.client.update(RESOURCE_SLICES, body))["metadata"]["resourceVersion"]
        async with asyncio.timeout(30):
            async for objects in mirror.objects.watch():
                if OTHER in objects and objects[OTHER]["metadata"]["resourceVersion"] == version:
                    return

    return write


async def _until(mirror: Mirror, condition: Callable[[int], bool]) -> None:
    """Wait for what the watcher sees; ``condition`` gets the number of slices."""
    async with asyncio.timeout(30):
        async for objects in mirror.objects.watch():
            if condition(len(objects)):
                return


async def _listed_without(world: World) -> None:
    """Break a GPU, and see it leave the kubelet's list."""
    healthy = world.kubelet.view(NVIDIA.resource).healthy
    world.node.simulation.node.faults.xid(min(healthy), XID, recovery=False)
    await world.kubelet.until(NVIDIA.resource, allocatable=len(healthy) - 1)


async def _mend_all(world: World) -> None:
    gpus: Sequence[GpuUuid] = list(world.agent.keeper.inventory.value.by_uuid)
    for gpu in gpus:
        world.agent.board.clear(gpu)
    await world.kubelet.until(NVIDIA.resource, allocatable=len(gpus), timeout=30.0)


async def _tainted(world: World, mirror: Mirror) -> None:
    """Break a GPU, and see its taint at the API server."""
    before = _taints(mirror)
    world.node.simulation.node.faults.xid(min(world.kubelet.view(NVIDIA.resource).healthy), XID, recovery=False)
    await _until(mirror, lambda _: _taints(mirror) > before)


async def _untainted(world: World, mirror: Mirror) -> None:
    await _mend_all(world)
    await _until(mirror, lambda _: not _taints(mirror))


def _taints(mirror: Mirror) -> int:
    """How many of the published devices have a taint."""
    slices = mirror.objects.value.values()
    return sum("taints" in device for one in slices for device in one["spec"].get("devices", ()))
