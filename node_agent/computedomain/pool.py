"""What is published for domains: one channel and one daemon, where the driver has IMEX channels at all.

There are more channels, but all workloads of a domain share the first, and NVIDIA's controller asks for no other.
"""

from node_agent.cdi.imex import has_channels
from node_agent.cdi.roots import DriverRoots
from node_agent.computedomain.names import Kind
from node_agent.dra.slices import Pool, SliceSpec
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest, changes
from node_agent.model.inventory import Inventory

_DEVICES = [
    {"name": kind.device, "attributes": {"type": {"string": str(kind)}, "id": {"int": 0}}}
    for kind in (Kind.CHANNEL, Kind.DAEMON)
]


def pool_of(channels: bool) -> Pool:
    return Pool(slices=(SliceSpec(name="devices-00", content={"devices": _DEVICES} if channels else {}),), devices={})


class DomainPool:
    """A service: looks for channels at each change of the inventory, as when a driver was loaded.

    ``pool`` is None until some were there; a node that never had any says nothing.
    """

    def __init__(self, roots: DriverRoots, inventory: Latest[Inventory], lane: Lane) -> None:
        self._roots = roots
        self._inventory = inventory
        self._lane = lane
        self.pool: Latest[Pool | None] = Latest(None)

    async def run(self) -> None:
        """Follow until cancelled."""
        there: bool | None = None
        async for _ in changes(self._inventory):
            found = await self._lane.run("look for IMEX channels", lambda: has_channels(self._roots))
            if found != there and (found or there is not None):
                self.pool.set(pool_of(found))
                there = found
