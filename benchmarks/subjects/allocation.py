"""Allocate, as the kubelet calls it: from another process.

The floor is a server of the same kind, in a process of its own as well, that has the answer ready.
"""

from collections.abc import Sequence

from benchmarks.floors import EMPTY_CALL, plugin_at
from benchmarks.measure import Effort, Figure, Of, Target, figure, in_turns
from benchmarks.process import Stand, stand
from node_agent.deviceplugin.selection import GPU_RESOURCE
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from node_agent.wire import deviceplugin_v1beta1_pb2_grpc as rpc

TARGET = Target(limit=1.3, of=Of.RATIO)


async def measure(effort: Effort) -> Sequence[Figure]:
    async with (
        stand() as place,
        place.agent(heard=False),
        plugin_at(place.kubelet.view(GPU_RESOURCE).endpoint) as agent,
    ):
        return [await _of(count, agent, place, effort) for count in (1, 4)]


async def _of(count: int, agent: rpc.DevicePluginStub, place: Stand, effort: Effort) -> Figure:
    ids = place.kubelet.free(GPU_RESOURCE)
    request = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=ids[:count])])
    async with place.parrot(await agent.Allocate(request)) as floor:
        turns = await in_turns(
            lambda: agent.Allocate(request),
            lambda: floor.Allocate(request),
            rounds=effort.pick(full=100, quick=20),
            calls=20,
        )
    return figure(f"{count} of {len(ids)} GPUs", turns, EMPTY_CALL, TARGET)
