"""A node whose layouts are kept: the simulated driver, the inventory, the ledger and the service."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from node_agent.allocation.checkpoint import Checkpoint
from node_agent.allocation.grants import FRONT_DOORS, Door, Grant, Hold, Holder
from node_agent.allocation.ledger import Ledger
from node_agent.errors import UnknownDevice
from node_agent.hardware.inventory import InventoryKeeper
from node_agent.hardware.names import NameFile
from node_agent.hardware.nvml.provider import NvmlProvider
from node_agent.hardware.provider import Partitioning
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.sysfs import Sysfs
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.layouts.changes import Changer
from node_agent.layouts.layouts import Layouts
from node_agent.layouts.orders import Order
from node_agent.layouts.reserved import Reserved
from node_agent.layouts.state import LayoutState, Phase
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Part, Place
from node_agent.partition.configs import Layouts as NamedLayouts
from node_agent.partition.configs import parse

profile = cache(load_profile)

ALWAYS = 30.0
"""Seconds after which what should happen does not."""


def order(
    name: str, *, refuse: bool = False, layouts: NamedLayouts | None = None, leaves: tuple[str, ...] = ()
) -> Order:
    return Order(name=name, source="the test", refuse=refuse, layouts=layouts, leaves=leaves)


def layouts(**named: str) -> NamedLayouts:
    """Named layouts by their entries in YAML."""
    parts = "".join(f"\n  {name}:\n{entries}" for name, entries in named.items())
    return parse(f"version: v1\nmig-configs:{parts}\n".encode())


@contextmanager
def simulated(name: str) -> Iterator[SimulatedNode]:
    with install(SimulatedNode(profile(name))) as node:
        yield node


@dataclass(kw_only=True)
class World:
    """The node at work. ``lying`` is what the driver has, whatever the agent thinks."""

    node: SimulatedNode
    keeper: InventoryKeeper
    ledger: Ledger
    order: Latest[Order | None]
    layouts: Layouts
    changer: Changer
    turn: asyncio.Lock
    owner: list[str] = field(default_factory=list)
    service: "asyncio.Task[None] | None" = None

    @property
    def inventory(self) -> Inventory:
        return self.keeper.inventory.value

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.inventory.gpus

    def lying(self, index: int = 0) -> list[str] | None:
        """What lies on a GPU, None where MIG is off."""
        mig = self.node.faults.gpu(index).mig
        assert mig is not None
        if not mig.enabled:
            return None
        instances = sorted(mig.instances.values(), key=lambda one: one.start)
        return [f"{one.profile.name} at {one.start}{'' if one.compute else ' (half made)'}" for one in instances]

    async def until(self, wanted: Callable[[LayoutState | None], bool]) -> LayoutState | None:
        async with asyncio.timeout(ALWAYS):
            async for state in self.layouts.state.watch():
                if wanted(state):
                    return state
        raise AssertionError("a watch does not end by itself")

    async def done(self, name: str, phase: Phase = Phase.SUCCESS) -> LayoutState:
        """Wait until a layout is so far; for success also until nothing is held for it any more."""
        state = await self.until(lambda state: state is not None and (state.name, state.phase) == (name, phase))
        assert state is not None
        if phase is Phase.SUCCESS:
            await self.nothing_held()
        return state

    async def nothing_held(self) -> None:
        """Wait until nothing is kept for a layout any more."""
        async with asyncio.timeout(ALWAYS):
            async for _ in self.ledger.grants.watch():
                if not self.ledger.grants_of(Door.LAYOUT):
                    return

    async def done_or_dead(self, name: str) -> None:
        """Wait until a layout is in force, or the service has failed."""
        assert self.service is not None
        async with running(self.done(name)) as done:
            await asyncio.wait([done, self.service], return_when=asyncio.FIRST_COMPLETED)

    async def give(self, index: int, part: Part | None = None, door: Door = Door.CLAIM) -> Holder:
        """Let somebody have a GPU, or a part of it, unless it has gone before it was held: so do the front doors."""
        gpu = self.gpus[index]
        holder = Holder(door=door, id=f"uid-{index}-{part}", name="team/job")
        await self.ledger.reserve(Grant(holder=holder, holds=(Hold(device=str(part), gpus=(gpu.uuid,), part=part),)))
        if not self.inventory.has(Place(gpu=gpu.uuid, part=part)):
            await self.ledger.release(holder.id)
            raise UnknownDevice(f"there is no {part} on {gpu.name} any more")
        return holder

    def part(self, index: int, start: int) -> Part:
        """The partition of a GPU that begins at a memory slice."""
        (found,) = [
            one.part
            for one in self.inventory.partitions.values()
            if one.parent == self.gpus[index].uuid and one.placement.start == start
        ]
        return found


@asynccontextmanager
async def world(
    node: SimulatedNode,
    folder: Path,
    wanted: Order | None = None,
    *,
    through: Callable[[Partitioning], Partitioning] = lambda partitioning: partitioning,
    runs: bool = True,
) -> AsyncIterator[World]:
    """An agent on the node, with its state in ``folder``; ``through`` may stand between it and the driver."""
    async with NvmlProvider(sysfs=folder) as provider:
        keeper = InventoryKeeper(
            provider=provider, sysfs=Sysfs(root=folder), names=NameFile(folder / "names.json"), period=0.2
        )
        with Lane("ledger") as lane:
            async with Ledger(checkpoint=Checkpoint(folder / "ledger.json"), lane=lane, boot_id="boot") as ledger:
                for door in FRONT_DOORS:
                    await ledger.reconcile(door, [])
                found: Latest[Order | None] = Latest(wanted)
                owner: list[str] = []

                known = asyncio.Event()
                known.set()
                reserved = Reserved(ledger)
                turn = asyncio.Lock()
                changer = Changer(partitioning=through(provider.partitioning), reserved=reserved, look=keeper.look)
                kept = Layouts(
                    order=found,
                    inventory=keeper.inventory,
                    ledger=ledger,
                    changer=changer,
                    owner=lambda: owner[0] if owner else "",
                    who=lambda holder, _: str(holder),
                    known=[known],
                    turn=turn,
                )
                here = World(
                    node=node,
                    keeper=keeper,
                    ledger=ledger,
                    order=found,
                    layouts=kept,
                    changer=changer,
                    turn=turn,
                    owner=owner,
                )
                async with running(keeper.run()):
                    await keeper.look()
                    if not runs:
                        yield here
                        return
                    async with running(kept.run(), name="layouts") as here.service:
                        yield here


def holders(grants: Mapping[str, Grant], gpu: GpuUuid) -> set[Door]:
    return {grant.holder.door for grant in grants.values() for hold in grant.holds if gpu in hold.gpus}
