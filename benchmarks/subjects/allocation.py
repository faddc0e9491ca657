"""Allocate, as the kubelet calls it: from another process, now and then, and one after the other.

The floor is a server of the same kind, in a process of its own as well, that has the answer ready.
"""

import asyncio
from collections.abc import Sequence

from benchmarks.floors import EMPTY_CALL, plugin_at
from benchmarks.measure import Effort, Figure, Of, Target, figure, in_turns
from benchmarks.process import Stand, stand
from node_agent.model.vendor import NVIDIA
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from node_agent.wire import deviceplugin_v1beta1_pb2_grpc as rpc

REST_SECONDS = 0.1
TARGET = Target(limit=1.3, of=Of.RATIO)


async def measure(effort: Effort) -> Sequence[Figure]:
    async with (
        stand() as place,
        place.agent(heard=False),
        plugin_at(place.kubelet.view(NVIDIA.resource).endpoint) as agent,
    ):
        found = [await _of(count, agent, place, effort) for count in (1, 4)]
    return [figure for figures in found for figure in figures]


async def _of(count: int, agent: rpc.DevicePluginStub, place: Stand, effort: Effort) -> Sequence[Figure]:
    ids = place.kubelet.free(NVIDIA.resource)
    request = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=ids[:count])])
    async with place.parrot(await agent.Allocate(request)) as floor:
        subject, least = (lambda: agent.Allocate(request)), (lambda: floor.Allocate(request))
        rows = await in_turns(subject, least, rounds=effort.pick(full=100, quick=20), calls=20)
        rested = await in_turns(
            subject, least, rounds=effort.pick(full=100, quick=20), between=lambda: asyncio.sleep(REST_SECONDS)
        )
    name = f"{count} of {len(ids)} GPUs"
    return [figure(name, rows, EMPTY_CALL, TARGET), figure(f"{name}, rested", rested, EMPTY_CALL, TARGET)]
