"""Which GPUs the scheduler has to be kept from, since what it knows does not say that somebody holds them."""

from collections.abc import Mapping

from node_agent.allocation.grants import Door, Grant, Hold
from node_agent.dra.slices import Pool
from node_agent.dra.taints import HELD
from node_agent.kit.latest import Latest, changes
from node_agent.model.gpu import GpuUuid


class Withholder:
    """A service: follows the grants and the pool in ``gpus``, which gives the reason why each is withheld.

    ``served`` are the GPUs that an MPS daemon of pods' shares has: until it has ended nobody else can open them.
    """

    def __init__(self, grants: Latest[Mapping[str, Grant]], served: Latest[Mapping[GpuUuid, str | None]]) -> None:
        self._grants = grants
        self._served = served
        self.gpus: Latest[Mapping[GpuUuid, str]] = Latest({})

    async def run(self, pool: Latest[Pool | None]) -> None:
        """Follow until cancelled."""
        async for _ in changes(self._grants, self._served, pool):
            gpus = unseen(self._grants.value, pool.value) | self._served.value.keys()
            self.gpus.set(dict.fromkeys(sorted(gpus), HELD))


def unseen(grants: Mapping[str, Grant], pool: Pool | None) -> set[GpuUuid]:
    """GPUs that others than claims have, and those of a claim whose device is not in the pool (any more).

    The latter are what is left of a group that fell apart: its GPUs are then offered one by one, and the scheduler
    counts the claim against a device that is gone.
    """
    offered = {str(name): set(device.gpus) for name, device in pool.devices.items()} if pool is not None else None

    def is_seen(grant: Grant, hold: Hold) -> bool:
        if grant.holder.door is not Door.CLAIM:
            return False
        return hold.admin or offered is None or offered.get(hold.device) == set(hold.gpus)

    return {gpu for grant in grants.values() for hold in grant.holds if not is_seen(grant, hold) for gpu in hold.gpus}
