"""Clears away what lies on GPUs that claims cut and that no claim has made: left by others or by an agent that died."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from node_agent.allocation.conflicts import held_gpus, held_places, taken_places
from node_agent.allocation.grants import Door
from node_agent.allocation.ledger import Ledger
from node_agent.dra.mig_cutter import Cutter, place_of, strays
from node_agent.dra.slices import PoolSettings
from node_agent.errors import HardwareError
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log, Steady
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Instance, Place

# How soon what stays is looked at again: processes end without a word.
AGAIN_SECONDS = 30.0

log = Log(__name__)


class MigSweep:
    """A service: has ``cutter`` sweep the GPUs for which ``on_demand`` holds, when a look at them shows a reason.

    ``settings`` are what ``on_demand`` goes by. ``strays`` are the places where something stays: nobody is to get a
    device there.
    """

    def __init__(
        self,
        *,
        cutter: Cutter,
        ledger: Ledger,
        inventory: Latest[Inventory],
        settings: Latest[PoolSettings],
        on_demand: Callable[[Gpu], bool],
    ) -> None:
        self._cutter = cutter
        self._ledger = ledger
        self._inventory = inventory
        self._settings = settings
        self._on_demand = on_demand
        self._others = False
        self._troubles: dict[GpuUuid, Steady] = defaultdict(Steady)
        self.strays: Latest[frozenset[Place]] = Latest(frozenset())

    async def run(self) -> None:
        """Sweep until cancelled; not before it is known who holds what."""
        async for _ in changes(self._inventory, self._settings, self._ledger.unreconciled, every=self._pause):
            await self._ledger.look()
            if not self._ledger.unreconciled.value:
                await self.sweep()

    async def sweep(self) -> None:
        """Sweep each GPU that needs it."""
        inventory, grants = self._inventory.value, self._ledger.grants.value.values()
        held, being_cut = taken_places(grants), held_gpus(Door.LAYOUT, grants)
        lying = {gpu: inventory.instances.get(gpu.uuid, ()) for gpu in inventory.gpus if self._on_demand(gpu)}
        gpus = [gpu for gpu in lying if gpu.uuid not in being_cut and needs_sweep(gpu, lying[gpu], held)]
        left = await asyncio.gather(*(self._swept(gpu) for gpu in gpus))
        self.strays.set(frozenset[Place]().union(*left))
        claimed = held_places(Door.CLAIM, grants)
        self._others = any(gpu.uuid in being_cut or strays(lying[gpu], claimed) for gpu in lying)

    def _pause(self) -> float:
        # Also for what pods have, from before the GPU was the claims': nobody tells when that is given back.
        return AGAIN_SECONDS if self.strays.value or self._others else math.inf

    async def _swept(self, gpu: Gpu) -> frozenset[Place]:
        try:
            left, why = await self._cutter.sweep(gpu), "processes run there, or agent.mig.sweep is off"
        except HardwareError as error:
            held = taken_places(self._ledger.grants.value.values())
            left = frozenset(map(place_of, strays(self._inventory.value.instances.get(gpu.uuid, ()), held)))
            why = str(error)
        if left and self._troubles[gpu.uuid].should_say(f"{sorted(map(str, left))} {why}"):
            stays = ", ".join(sorted(str(place.part) for place in left))
            log.warning("no claim has made what is kept from claims", gpu=gpu.name, partitions=stays, reason=why)
        return left


def needs_sweep(gpu: Gpu, lying: Sequence[Instance], held: Collection[Place]) -> bool:
    """Whether something lies on a GPU that no claim has, or MIG is on for nobody."""
    for_nobody = not any(place.gpu == gpu.uuid and place.part is not None for place in held)
    return bool(strays(lying, held)) or (gpu.partitioned and gpu.resetless and for_nobody)
