"""GetPreferredAllocation: as a call where the agent offers such a resource, as a look-up where it will."""

from collections.abc import Sequence

from benchmarks.floors import EMPTY_CALL, parrot, plugin_at
from benchmarks.inside import World, at_work
from benchmarks.measure import Effort, Figure, Of, Target, figure, in_turns
from node_agent.model.inventory import Inventory
from node_agent.model.vendor import NVIDIA
from node_agent.topology.preferred import DeviceId, Policy, Pool, PreferredRequest, preferred
from node_agent.topology.score import scores
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire

# Of so many devices on each of the 16 GPUs so many are asked for; and how many empty calls the p99 may take.
LARGE: Sequence[tuple[int, int, Policy, float]] = ((4, 56, Policy.PACKED, 20), (32, 100, Policy.SPREAD, 40))


async def measure(effort: Effort) -> Sequence[Figure]:
    async with at_work("h200-8") as world:
        figures = [await _call(world, 4, effort, 2)]
    async with at_work("a100-40gb-16") as world:
        figures += [await _call(world, size, effort, 10) for size in (1, 2, 8)]
        figures += [
            await _look_up(world, each, size, policy, limit=limit, effort=effort) for each, size, policy, limit in LARGE
        ]
    return figures


async def _call(world: World, size: int, effort: Effort, limit: float) -> Figure:
    """The kubelet's question for some of the node's GPUs, all of which are free."""
    ids = world.kubelet.free(NVIDIA.resource)
    wanted = wire.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=size)
    request = wire.PreferredAllocationRequest(container_requests=[wanted])
    async with plugin_at(world.endpoint) as plugin:
        answer = await plugin.GetPreferredAllocation(request)
        async with parrot(world.node.folder / "parrot.sock", preference=answer) as floor:
            turns = await in_turns(
                lambda: plugin.GetPreferredAllocation(request),
                lambda: floor.GetPreferredAllocation(request),
                rounds=effort.pick(full=30, quick=5),
                calls=20,
            )
    return figure(f"{size} of {len(ids)} GPUs", turns, EMPTY_CALL, Target(limit=limit, of=Of.P99))


async def _look_up(world: World, each: int, size: int, policy: Policy, *, limit: float, effort: Effort) -> Figure:
    """The choice alone, without the call around it."""
    pool = shares(world.agent.keeper.inventory.value, each, policy)
    request = PreferredRequest(available=frozenset(pool.parents), size=size)
    ids = sorted(pool.parents)
    call = wire.PreferredAllocationRequest(
        container_requests=[wire.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=size)]
    )
    answer = wire.ContainerPreferredAllocationResponse(deviceIDs=preferred(request, pool).ids)
    prepared = wire.PreferredAllocationResponse(container_responses=[answer])

    async def choose() -> None:
        preferred(request, pool)

    async with parrot(world.node.folder / "parrot.sock", preference=prepared) as floor:
        turns = await in_turns(
            choose,
            lambda: floor.GetPreferredAllocation(call),
            rounds=effort.pick(full=30, quick=5),
            calls=20,
        )
    return figure(f"{size} of {len(ids)} devices, {policy}", turns, EMPTY_CALL, Target(limit=limit, of=Of.P99))


def shares(inventory: Inventory, each: int, policy: Policy) -> Pool:
    """A pool with so many devices on each GPU."""
    parents = {DeviceId(f"{gpu.uuid}::{number}"): gpu.uuid for gpu in inventory.gpus for number in range(each)}
    return Pool(scores=scores(inventory), parents=parents, policy=policy)
