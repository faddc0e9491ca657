"""Has the partitions made that a claim was allocated: a step of its preparation, on GPUs that claims cut."""

from collections.abc import Callable, Iterator

from node_agent.allocation.grants import Grant, Hold, Notes
from node_agent.cdi.edits import ContainerEdits
from node_agent.dra.mig_cutter import Cutter
from node_agent.dra.partitions import LivePartitions
from node_agent.errors import DeviceLost, DriverUnavailable, PoolUnknown, UnknownDevice
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log
from node_agent.model.claim import Claim
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Place

log = Log(__name__)


class MigStep:
    """Cuts the GPUs for which ``on_demand`` holds, and makes them whole again; ``live`` is told of each partition.

    Whoever gets such a GPU as a whole needs it as well: MIG has to be off then.
    """

    name = "mig"

    def __init__(
        self,
        *,
        cutter: Cutter,
        live: LivePartitions,
        inventory: Latest[Inventory],
        on_demand: Callable[[Gpu], bool],
    ) -> None:
        self._cutter = cutter
        self._live = live
        self._inventory = inventory
        self._on_demand = on_demand

    def applies(self, claim: Claim, grant: Grant) -> bool:
        known = self._inventory.value.by_uuid
        return any(place.gpu in known and self._on_demand(known[place.gpu]) for place in _places(grant))

    async def do(self, claim: Claim, grant: Grant) -> Notes:
        """Make them, each at its place. Raises as ``Cutter.make`` and ``Cutter.keep_whole``, and UnknownDevice."""
        for place in _places(grant):
            gpu = self._inventory.value.by_uuid.get(place.gpu)
            if gpu is None:
                raise UnknownDevice(f"{place.gpu} is away, and cannot be cut meanwhile")
            if not self._on_demand(gpu):
                continue
            if place.part is None:
                await self._cutter.keep_whole(gpu)
            else:
                self._live.made(await self._cutter.make(gpu, place.part))
        return {}

    async def undo(self, grant: Grant) -> None:
        """Remove them. Raises InUse while processes run on one, PoolUnknown before the first look at the GPUs."""
        for place in _places(grant):
            if place.part is None:
                continue
            gpu = self._gpu(place.gpu)
            try:
                if gpu is not None:
                    await self._cutter.remove(gpu, place.part)
            except (DeviceLost, DriverUnavailable) as error:
                # With its GPU the partition is gone; should both come back, it is nobody's and swept.
                log.error("partition of a claim could not be removed", gpu=place.gpu, part=place.part, reason=error)
            self._live.removed(place)

    def edits(self, grant: Grant, hold: Hold) -> ContainerEdits:
        return ContainerEdits()

    def _gpu(self, uuid: GpuUuid) -> Gpu | None:
        inventory = self._inventory.value
        if not inventory.generation:
            raise PoolUnknown(f"whether {uuid} is there is not known yet: the GPUs are being looked at")
        return inventory.by_uuid.get(uuid)


def _places(grant: Grant) -> Iterator[Place]:
    return (place for hold in grant.holds for place in hold.places)
