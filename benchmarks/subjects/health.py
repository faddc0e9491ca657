"""From an Xid in NVML to the list without the GPU at the kubelet."""

from collections.abc import Sequence

from benchmarks.floors import EMPTY_CALL, parrot
from benchmarks.inside import World, at_work
from benchmarks.measure import Effort, Figure, Target, figure, in_turns
from node_agent.deviceplugin.selection import GPU_RESOURCE
from node_agent.model.gpu import GpuUuid
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire

XID = 48  # an uncorrectable memory error
TARGET = Target(limit=0.003)


async def measure(effort: Effort) -> Sequence[Figure]:
    async with at_work("h200-8") as world, parrot(world.node.folder / "parrot.sock") as floor:
        turns = await in_turns(
            lambda: _break_one(world),
            lambda: floor.Allocate(wire.AllocateRequest()),
            rounds=effort.pick(full=12, quick=2),
            calls=8,
            between=lambda: _mend_all(world),
        )
    return [figure("Xid in NVML → message at the kubelet", turns, EMPTY_CALL, TARGET)]


async def _break_one(world: World) -> None:
    healthy = world.kubelet.view(GPU_RESOURCE).healthy
    world.node.simulation.node.faults.xid(min(healthy), XID)
    await world.kubelet.until(GPU_RESOURCE, allocatable=len(healthy) - 1)


async def _mend_all(world: World) -> None:
    gpus: Sequence[GpuUuid] = list(world.agent.keeper.inventory.value.by_uuid)
    for gpu in gpus:
        world.node.simulation.node.faults.restore(gpu)
    await world.kubelet.until(GPU_RESOURCE, allocatable=len(gpus))
