"""Who stands in whose way: two holds conflict where both want one GPU for themselves. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.model.gpu import GpuUuid


@dataclass(frozen=True, kw_only=True, slots=True)
class Conflict:
    """``device`` was asked for, but ``holder`` has ``gpu``, as part of ``held_device``."""

    device: str
    gpu: GpuUuid
    holder: Holder
    held_device: str

    def __str__(self) -> str:
        part = "" if self.held_device == self.device else f" as part of {self.held_device}"
        return f"{self.device}: {self.gpu} is held by {self.holder}{part}"


def contested(one: Hold, other: Hold) -> frozenset[GpuUuid]:
    """The GPUs that these two holds cannot both have: none for admin access, none for different shares."""
    shared = one.share_id is not None and other.share_id is not None and one.share_id != other.share_id
    if one.admin or other.admin or shared:
        return frozenset()
    return frozenset(one.gpus) & frozenset(other.gpus)


def find_conflict(wanted: Grant, grants: Iterable[Grant]) -> Conflict | None:
    """The first conflict of a wanted grant with those of other holders."""
    others = (grant for grant in grants if grant.holder.id != wanted.holder.id)
    for grant, hold in product(others, wanted.holds):
        for held in grant.holds:
            if gpus := contested(hold, held):
                return Conflict(device=hold.device, gpu=min(gpus), holder=grant.holder, held_device=held.device)
    return None


def holders_of(gpu: GpuUuid, grants: Iterable[Grant]) -> tuple[Holder, ...]:
    """Everybody who has a GPU or a part of it, those with admin access as well."""
    return tuple(grant.holder for grant in grants if any(gpu in hold.gpus for hold in grant.holds))


def held_gpus(door: Door, grants: Iterable[Grant]) -> frozenset[GpuUuid]:
    """The GPUs that a door has given out, so that the other door cannot: admin access takes none away."""
    holds = (hold for grant in grants if grant.holder.door is door for hold in grant.holds)
    return frozenset(gpu for hold in holds if not hold.admin for gpu in hold.gpus)
