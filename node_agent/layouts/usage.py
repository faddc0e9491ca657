"""Who has what of a GPU that may be cut anew. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from msgspec import Struct

from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.model.gpu import Gpu, GpuUuid, PartitionMode
from node_agent.model.partition import Instance, PartitionProfile, Piece
from node_agent.partition.defragment import CutGpu
from node_agent.partition.layout import rules_of
from node_agent.partition.plan import Plan, State

PROCESSES = "processes that run on it"


class Usage(Struct, frozen=True, kw_only=True):
    """The holders of each piece that is in use, and of the GPU as a whole, in words."""

    pieces: Mapping[Piece, tuple[str, ...]]
    whole: tuple[str, ...] = ()

    def of(self, plan: Plan) -> str:
        """What a plan waits for, and who has it."""
        found = [f"{piece} is held by {', '.join(self.pieces.get(piece, ()))}" for piece in plan.waits_for]
        if plan.needs_idle:
            found.append(f"the whole GPU is held by {', '.join(self.whole)}")
        return "; ".join(found)


Who: TypeAlias = Callable[[Holder, Hold], str]
"""Whom people know as the holder of something."""


def _holder(holder: Holder, _: Hold) -> str:
    return str(holder)


def usage(gpu: GpuUuid, lying: Iterable[Instance], grants: Iterable[Grant], who: Who = _holder) -> Usage:
    """Who has what, by the ledger and by the driver; changes of layout and admin access hold nobody up."""
    holds = [
        (who(grant.holder, hold), hold)
        for grant in grants
        if grant.holder.door is not Door.LAYOUT
        for hold in grant.holds
        if gpu in hold.gpus and not hold.admin
    ]
    pieces = {}
    for instance in lying:
        names = [
            name for name, hold in holds if hold.part is not None and hold.part.placement.overlaps(instance.placement)
        ]
        if instance.busy and not names:
            names.append(PROCESSES)
        if names:
            pieces[instance.piece] = tuple(names)
    return Usage(pieces=pieces, whole=tuple(name for name, hold in holds if hold.part is None))


def cut_gpu(
    gpu: Gpu, profiles: tuple[PartitionProfile, ...], lying: Iterable[Instance], used: Usage | None = None
) -> CutGpu:
    """The GPU as the decisions see it; without ``used`` only that is in use which processes run on."""
    lying = tuple(lying)
    found = used or usage(gpu.uuid, lying, ())
    state = State(
        mode=gpu.partition_mode if profiles else None,
        lying=tuple(instance.piece for instance in lying),
        in_use=frozenset(found.pieces),
        busy=bool(found.whole),
    )
    return CutGpu(name=gpu.name, rules=rules_of(profiles), state=state, resetless=gpu.resetless)


def is_pending(mode: PartitionMode) -> bool:
    """Whether a change of mode waits for a reset."""
    return mode in (PartitionMode.ENABLE_PENDING, PartitionMode.DISABLE_PENDING)
