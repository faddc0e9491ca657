"""Who stands in whose way: two holds of one place, unless both are shares of it that want it set alike. Pure.

A place is a GPU or a part of it. Parts that do not overlap never are in each other's way; a part always is in that of
its GPU as a whole.
"""

from collections.abc import Iterable
from itertools import product

from msgspec import Struct

from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.errors import AllocationError, DeviceHeld, ModesDisagree
from node_agent.model.gpu import GpuUuid
from node_agent.model.partition import Place


class Conflict(Struct, frozen=True, kw_only=True):
    """``device`` was asked for, but ``holder`` has ``gpu``, as part of ``held_device``.

    ``modes`` are how the one and the other want the GPU to be set, where it is that in which they differ.
    """

    device: str
    gpu: GpuUuid
    holder: Holder
    held_device: str
    modes: tuple[str, str] | None = None

    def __str__(self) -> str:
        part = "" if self.held_device == self.device else f" as part of {self.held_device}"
        text = f"{self.device}: {self.gpu} is held by {self.holder}{part}"
        if self.modes is None:
            return text
        wanted, held = self.modes
        return (
            f"{text}, which has it set to {held}: {wanted} does not go with that; ask for the same, or for another GPU"
        )

    def error(self, wanted: Holder) -> AllocationError:
        """What to raise for who wanted the device: it may get a GPU that is held, once it is given back."""
        return DeviceHeld(str(self)) if self.modes is None else ModesDisagree(f"{wanted}: {self}")


def find_conflict(wanted: Grant, grants: Iterable[Grant]) -> Conflict | None:
    """The first conflict of a wanted grant with those of other holders; and among its own holds, of their modes."""
    others = (grant for grant in grants if grant.holder.id != wanted.holder.id)
    for grant in (*others, wanted):
        for hold, held in product(wanted.holds, grant.holds):
            if conflict := _between(wanted, hold, grant, held):
                return conflict
    return None


def _between(wanted: Grant, hold: Hold, grant: Grant, held: Hold) -> Conflict | None:
    gpus = set(hold.gpus).intersection(held.gpus)
    if not gpus or hold.admin or held.admin:
        return None
    if hold.part is not None and held.part is not None and not hold.part.overlaps(held.part):
        return None
    together = _go_together(wanted, hold, grant, held)
    if together and (not hold.mode or not held.mode or hold.mode == held.mode):
        return None
    return Conflict(
        device=hold.device,
        gpu=min(gpus),
        holder=grant.holder,
        held_device=held.device,
        modes=(hold.mode, held.mode) if together else None,
    )


def _go_together(wanted: Grant, hold: Hold, grant: Grant, held: Hold) -> bool:
    """Whether a hold may be added to one of the same GPU, as far as it is not a matter of modes.

    Among limits a share goes with everybody: who got the GPU as a whole, before it was shared, is one of the sharers
    from then on. The whole GPU is for one alone. So it is with a part; one that only overlaps it is another thing. What
    a change of layout holds it may hold more of.
    """
    if wanted.holder.id == grant.holder.id:
        return True
    if wanted.holder.door is not grant.holder.door:
        return False
    if wanted.holder.door is Door.LAYOUT:
        return True
    if hold.part != held.part:
        return False
    if wanted.holder.door is Door.LIMIT:
        return hold.share_id is not None
    return hold.share_id is not None and held.share_id is not None and hold.share_id != held.share_id


def holders_of(gpu: GpuUuid, grants: Iterable[Grant]) -> tuple[Holder, ...]:
    """Everybody who has a GPU or a part of it, those with admin access as well."""
    return tuple(grant.holder for grant in grants if any(gpu in hold.gpus for hold in grant.holds))


def held_gpus(door: Door, grants: Iterable[Grant]) -> frozenset[GpuUuid]:
    """The GPUs of which a door has given out something."""
    return frozenset(place.gpu for place in held_places(door, grants))


def held_places(door: Door, grants: Iterable[Grant]) -> frozenset[Place]:
    """What a door has given out, so that the other door cannot: admin access takes nothing away."""
    holds = (hold for grant in grants if grant.holder.door is door for hold in grant.holds)
    return frozenset(place for hold in holds if not hold.admin for place in hold.places)


def taken_places(grants: Iterable[Grant]) -> frozenset[Place]:
    """What anybody has, through whatever door."""
    grants = tuple(grants)
    return frozenset(place for door in Door for place in held_places(door, grants))
