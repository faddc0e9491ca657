"""Has the turns on a claim's GPUs last as long as its configuration says: a step of its preparation."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from node_agent.allocation.grants import Grant, Hold, Notes
from node_agent.cdi.edits import ContainerEdits
from node_agent.errors import HardwareError
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log
from node_agent.model.claim import Claim
from node_agent.model.gpu import GpuUuid
from node_agent.sharing.shares import Interval

STEP = "time-slices"

log = Log(__name__)


def time_slices_of(interval: Interval) -> str:
    """The mode of a hold that asks for an interval."""
    return f"time slices of {interval}"


TIME_SLICES: Mapping[str, Interval] = {time_slices_of(interval): interval for interval in Interval}
"""The intervals, by the modes of holds that ask for them."""


class TimeSlices(Protocol):
    """The intervals of the node's GPUs; see ``sharing.time_slices``."""

    async def set(self, gpu: GpuUuid, interval: Interval) -> None: ...

    async def restore(self, gpu: GpuUuid) -> None: ...


class TimeSliceStep:
    """Sets intervals and takes them back with the last claim of a GPU; ``grants`` are the ledger's."""

    name = STEP

    def __init__(self, *, slices: TimeSlices, grants: Latest[Mapping[str, Grant]]) -> None:
        self._slices = slices
        self._grants = grants

    def applies(self, claim: Claim, grant: Grant) -> bool:
        return bool(_intervals(grant))

    async def do(self, claim: Claim, grant: Grant) -> Notes:
        """Set them. Raises NotSupported where a GPU has only the default, and that is not what is wanted."""
        for gpu, interval in _intervals(grant).items():
            await self._slices.set(gpu, interval)
        return {}

    async def undo(self, grant: Grant) -> None:
        others = claimed_gpus(one for one in self._grants.value.values() if one.holder.id != grant.holder.id)
        for gpu in (gpu for gpu in _intervals(grant) if gpu not in others):
            try:
                await self._slices.restore(gpu)
            except HardwareError as error:
                # A GPU that does not answer must not keep the pod from ending. It is set again once it is back.
                log.error("time slices of a claim stay set", gpu=gpu, holder=grant.holder, reason=error)

    def edits(self, grant: Grant, hold: Hold) -> ContainerEdits:
        return ContainerEdits()


def claimed_gpus(grants: Iterable[Grant]) -> frozenset[GpuUuid]:
    """The GPUs whose intervals claims have set."""
    return frozenset(gpu for grant in grants if STEP in grant.steps for gpu in _intervals(grant))


def _intervals(grant: Grant) -> dict[GpuUuid, Interval]:
    holds = (hold for hold in grant.holds if not hold.admin and hold.mode in TIME_SLICES)
    return {gpu: TIME_SLICES[hold.mode] for hold in holds for gpu in hold.gpus}
