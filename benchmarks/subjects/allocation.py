"""Allocate, as the kubelet calls it: the agent's answer beside one that was prepared, both served by this process."""

from collections.abc import Sequence

from benchmarks.floors import EMPTY_CALL, parrot, plugin_at
from benchmarks.inside import World, at_work
from benchmarks.measure import Effort, Figure, Target, figure, in_turns
from node_agent.deviceplugin.selection import GPU_RESOURCE
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire

TARGET = Target(limit=1.3, of_ratio=True)


async def measure(effort: Effort) -> Sequence[Figure]:
    async with at_work("h200-8") as world:
        return [await _allocate(world, count, effort) for count in (1, 4)]


async def _allocate(world: World, count: int, effort: Effort) -> Figure:
    ids = world.kubelet.free(GPU_RESOURCE)[:count]
    request = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=ids)])
    async with plugin_at(world.endpoint) as plugin:
        answer = await plugin.Allocate(request)
        async with parrot(world.node.folder / "parrot.sock", allocation=answer) as floor:
            turns = await in_turns(
                lambda: plugin.Allocate(request),
                lambda: floor.Allocate(request),
                rounds=effort.pick(full=50, quick=15),
                calls=40,
            )
    return figure(f"{count} of 8 GPUs", turns, EMPTY_CALL, TARGET)
