"""Which hardware the scheduler has to be kept from, since what it knows does not say that somebody holds them."""

from collections.abc import Mapping

from node_agent.allocation.grants import Door, Grant, Hold
from node_agent.dra.slices import Pool
from node_agent.kit.latest import Latest, changes
from node_agent.model.gpu import DeviceName
from node_agent.model.inventory import Inventory
from node_agent.model.partition import DeviceUuid, Place


class Withholder:
    """A service: follows the grants and the pool in ``places``, of which nobody new is to get anything.

    ``served`` are what of the ``inventory`` an MPS daemon of pods' shares has: until it has ended nobody else can open
    it. ``strays`` are places where something lies that no claim has made.
    """

    def __init__(
        self,
        grants: Latest[Mapping[str, Grant]],
        served: Latest[Mapping[DeviceUuid, str | None]],
        strays: Latest[frozenset[Place]],
        inventory: Latest[Inventory],
    ) -> None:
        self._inventory = inventory
        self._grants = grants
        self._served = served
        self._strays = strays
        self.places: Latest[frozenset[Place]] = Latest(frozenset())

    async def run(self, pool: Latest[Pool | None]) -> None:
        """Follow until cancelled."""
        async for _ in changes(self._grants, self._served, self._strays, self._inventory, pool):
            self.places.set(unseen(self._grants.value, pool.value) | self._served_places() | self._strays.value)

    def _served_places(self) -> frozenset[Place]:
        places = map(self._inventory.value.place_of, self._served.value)
        return frozenset(place for place in places if place is not None)


def unseen(grants: Mapping[str, Grant], pool: Pool | None) -> frozenset[Place]:
    """What others than claims have, and that of a claim whose device is not in the pool (any more).

    The latter is what is left of a group that fell apart: its GPUs are then offered one by one, and the scheduler
    counts the claim against a device that is gone.
    """

    def is_seen(grant: Grant, hold: Hold) -> bool:
        if grant.holder.door is not Door.CLAIM:
            return False
        if hold.admin or pool is None:
            return True
        device = pool.devices.get(DeviceName(hold.device))
        return device is not None and set(device.places) == set(hold.places)

    holds = (hold for grant in grants.values() for hold in grant.holds if not is_seen(grant, hold))
    return frozenset(place for hold in holds for place in hold.places)
