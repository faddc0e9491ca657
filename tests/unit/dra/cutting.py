"""A simulated node whose GPUs claims cut: ledger, preparer, step and sweep over the real NVML adapter."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from node_agent.allocation.conflicts import taken_places
from node_agent.allocation.grants import Grant
from node_agent.cdi.edits import ContainerEdits, DeviceNode, NodeEdits, Spec
from node_agent.dra.mig_cutter import Cutter
from node_agent.dra.mig_step import MigStep
from node_agent.dra.mig_sweep import MigSweep
from node_agent.dra.partitions import LivePartitions
from node_agent.dra.slices import PoolSettings, laid_out, pool_of
from node_agent.hardware.inventory import InventoryKeeper
from node_agent.hardware.names import NameFile
from node_agent.hardware.nvml.provider import NvmlProvider
from node_agent.hardware.provider import Partitioning
from node_agent.hardware.simulated import SimulatedNode
from node_agent.hardware.simulated.mig import Mig
from node_agent.hardware.sysfs import Sysfs
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.model.device import PublishedDevice
from node_agent.model.gpu import Gpu, GpuUuid, PartitionMode
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Instance, Partition, PartitionProfile, Piece, Place
from tests.unit.allocation import support
from tests.unit.allocation.support import BOOT, claim

PID = 4711

T = TypeVar("T")

DEMAND = PoolSettings(on_demand=lambda gpu: True)


@dataclass
class Mortal:
    """Partitioning of an agent that dies at one of its next changes: before it, after it, or with half of it done.

    Dead, it does nothing any more: what it began is left as it is, for whoever comes next.
    """

    alive: Partitioning
    simulated: SimulatedNode
    changes_left: int | None = None
    how: str = "before"

    async def profiles(self, gpu: GpuUuid) -> tuple[PartitionProfile, ...]:
        return await self.alive.profiles(gpu)

    async def instances(self, gpu: GpuUuid) -> tuple[Instance, ...]:
        self._check()
        return await self.alive.instances(gpu)

    async def set_mode(self, gpu: GpuUuid, enabled: bool) -> PartitionMode:
        return await self._change(lambda: self.alive.set_mode(gpu, enabled))

    async def create(self, gpu: GpuUuid, piece: Piece) -> Instance:
        return await self._change(lambda: self.alive.create(gpu, piece), lambda: self._half(gpu, piece))

    async def destroy(self, gpu: GpuUuid, piece: Piece) -> None:
        await self._change(lambda: self.alive.destroy(gpu, piece))

    async def _change(self, change: Callable[[], Awaitable[T]], half: Callable[[], object] = lambda: None) -> T:
        self._check()
        if self.changes_left is not None:
            self.changes_left -= 1
            if self.changes_left < 0:
                if self.how == "after":
                    await change()
                elif self.how == "half":
                    half()
                self._check()
        return await change()

    def _half(self, gpu: GpuUuid, piece: Piece) -> None:
        mig = self.simulated.faults.gpu(gpu).mig
        assert mig is not None
        mig.create(next(one.id for one in mig.table.profiles if one.name == piece.profile), piece.placement.start)

    def _check(self) -> None:
        if self.changes_left is not None and self.changes_left < 0:
            # As a process that ends: nothing catches it, so that nothing is undone.
            raise asyncio.CancelledError


@dataclass(kw_only=True)
class World:
    """One agent at work on a node; ``sweeps`` is the policy."""

    simulated: SimulatedNode
    provider: NvmlProvider
    keeper: InventoryKeeper
    settings: PoolSettings
    mortal: Mortal
    sweeps: bool = True
    parts: support.Node = field(init=False)
    cutter: Cutter = field(init=False)
    live: LivePartitions = field(init=False)
    sweep: MigSweep = field(init=False)

    @property
    def inventory(self) -> Inventory:
        return self.keeper.inventory.value

    @property
    def published(self) -> Mapping[str, PublishedDevice]:
        devices = pool_of(laid_out(self.inventory, self.settings), lambda device: ()).devices
        return {str(name): device for name, device in devices.items()}

    def gpu(self, number: int = 0) -> Gpu:
        """By the number in its name."""
        return next(gpu for gpu in self.inventory.gpus if gpu.name == f"gpu-{number}")

    async def prepare(self, name: str, *devices: str) -> Grant:
        return await self.parts.preparer.prepare(claim(name, *devices), self.published)

    async def unprepare(self, name: str) -> None:
        await self.parts.preparer.unprepare(support.uid_of(name))

    async def lying(self, number: int = 0) -> list[str]:
        return [str(one.piece) for one in await self.instances(number)]

    async def instances(self, number: int = 0) -> tuple[Instance, ...]:
        return await self.provider.partitioning.instances(self.gpu(number).uuid)

    def mig(self, number: int = 0) -> Mig:
        """The state of the simulated hardware."""
        found = self.simulated.faults.gpu(self.gpu(number).uuid).mig
        assert found is not None
        return found

    def use(self, instance: Instance) -> None:
        """Let a process run on an instance."""
        self.simulated.faults.start_process(instance.gpu, PID, instance=instance.id, compute_instance=0)

    def end_use(self, number: int = 0) -> None:
        self.simulated.faults.stop_process(self.gpu(number).uuid, PID)

    def mig_is_on(self, number: int = 0) -> bool:
        return self.simulated.faults.gpu(self.gpu(number).uuid).mig_enabled

    def nodes(self, name: str) -> dict[str, list[str]]:
        """The device nodes that a claim's spec gives for each of its devices."""
        spec = msgspec.json.decode(self.parts.spec_of(name).read_bytes(), type=Spec)
        uid = support.uid_of(name)
        return {
            device.name.removeprefix(f"{uid}-"): [node.path for node in device.container_edits.device_nodes]
            for device in spec.devices
        }


def forget(node: SimulatedNode) -> None:
    """The driver is loaded anew: on boards of this age neither instances nor the mode survive it."""
    for number in range(len(node.profile.gpus)):
        mig = node.faults.gpu(number).mig
        assert mig is not None
        mig.set_mode(False)


async def edits_of(partition: Partition) -> ContainerEdits:
    """A node for each partition, called by its ids."""
    path = f"/dev/gi{partition.instance}-ci{partition.compute_instance}"
    return ContainerEdits(device_nodes=(DeviceNode(path=path),))


@asynccontextmanager
async def agent(
    folder: Path, simulated: SimulatedNode, settings: PoolSettings = DEMAND, *, boot_id: str = BOOT, told: bool = True
) -> AsyncIterator[World]:
    """An agent while it runs; what it has made stays."""
    async with NvmlProvider(folder / "sys") as provider:
        names = NameFile(folder / "names.json")
        keeper = InventoryKeeper(provider=provider, sysfs=Sysfs(root=folder / "sys"), names=names, period=600)
        async with running(keeper.run()):
            await keeper.look()
            mortal = Mortal(provider.partitioning, simulated)
            world = World(simulated=simulated, provider=provider, keeper=keeper, settings=settings, mortal=mortal)
            gpus = {
                gpu.uuid: ContainerEdits(device_nodes=(DeviceNode(path=f"/dev/nvidia{gpu.minor}"),))
                for gpu in world.inventory.gpus
            }
            edits = NodeEdits(common=ContainerEdits(), gpus=gpus)

            async def held() -> frozenset[Place]:
                await world.parts.ledger.look()
                return taken_places(world.parts.ledger.grants.value.values())

            world.cutter = Cutter(
                mortal,
                held=held,
                sweeps=lambda: world.sweeps,
                changed=keeper.rescan,
                removed=lambda gpu, instance: None,
                locks=folder,
            )
            world.live = LivePartitions(
                inventory=keeper.inventory,
                edits=Latest(edits),
                partitioning=provider.partitioning,
                edits_of=edits_of,
            )
            step = MigStep(
                cutter=world.cutter, live=world.live, inventory=keeper.inventory, on_demand=settings.on_demand
            )
            edits_at = world.live.edits_at
            async with support.node(folder, step, edits=edits, partition=edits_at, boot_id=boot_id, told=told) as parts:
                world.parts = parts
                world.sweep = MigSweep(
                    cutter=world.cutter,
                    ledger=parts.ledger,
                    inventory=keeper.inventory,
                    settings=Latest(settings),
                    on_demand=settings.on_demand,
                )
                yield world
