"""What changes of layout keep from both front doors, in the ledger; so it outlives the agent, with the way back.

What is to go and is in nobody's hands is kept from others while the rest is waited for. Once a change begins it holds
all that it touches, and has written down what was there before.
"""

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.allocation.ledger import Ledger
from node_agent.errors import DeviceHeld
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.partition import Part, Piece, Placement
from node_agent.partition.plan import Action, Step

_NOTES = "layout"


class Before(Struct, frozen=True, kw_only=True):
    """What was on a GPU when a change began: where an undo leads back to."""

    enabled: bool
    pieces: tuple[Piece, ...] = ()


class Reserved:
    """The ledger's side of the changes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def gpus(self) -> frozenset[GpuUuid]:
        """The GPUs of which something is kept, be it by an agent that died."""
        return frozenset(gpu for grant in self._grants() for hold in grant.holds for gpu in hold.gpus)

    def before(self, gpu: GpuUuid) -> Before | None:
        """What was there before the change that has begun on a GPU and is not over; None where none has."""
        grant = self._ledger.grant_of(_begun(gpu))
        return None if grant is None else _read(grant.steps[_NOTES])

    async def drain(self, gpu: Gpu, pieces: Collection[Piece], name: str) -> None:
        """Keep just these pieces from others, as far as nobody has them, until the change begins."""
        wanted = {_draining(gpu.uuid, piece): piece for piece in pieces}
        for grant in self._grants(gpu.uuid):
            if grant.holder.id not in wanted:
                await self._ledger.release(grant.holder.id, durable=False)
        for holder, piece in wanted.items():
            try:
                # Not worth a write: a pod that gets it after the agent has died is waited for.
                await self._ledger.reserve(_grant(holder, name, [_hold(gpu, piece)]), durable=False)
            except DeviceHeld:
                continue

    async def begin(self, gpu: Gpu, steps: Iterable[Step], before: Before, name: str) -> None:
        """Hold all that the steps touch, and write down what was there before.

        Raises:
            DeviceHeld: somebody has got a part of it meanwhile.
            HoldersUnknown: it is not known yet who holds what.
            StateError: the ledger cannot be written.
        """
        wanted = _grant(_begun(gpu.uuid), name, _touched(gpu, steps), {_NOTES: _written(before)})
        known = self._ledger.grant_of(wanted.holder.id)
        if known is not None and not (known.same_hardware(wanted) and known.steps == wanted.steps):
            await self._ledger.release(known.holder.id, durable=False)
        await self._ledger.reserve(wanted)

    async def release(self, gpu: GpuUuid) -> None:
        """Give all of a GPU back."""
        for grant in self._grants(gpu):
            await self._ledger.release(grant.holder.id)

    def _grants(self, gpu: GpuUuid | None = None) -> list[Grant]:
        kept = self._ledger.grants_of(Door.LAYOUT)
        return [grant for grant in kept if gpu is None or any(gpu in hold.gpus for hold in grant.holds)]


def _begun(gpu: GpuUuid) -> str:
    return f"layout/{gpu}"


def _draining(gpu: GpuUuid, piece: Piece) -> str:
    return f"layout/{gpu}/{piece.profile}@{piece.placement}"


def _grant(holder: str, name: str, holds: Iterable[Hold], steps: Mapping[str, Mapping[str, object]] = {}) -> Grant:
    return Grant(holder=Holder(door=Door.LAYOUT, id=holder, name=name), holds=tuple(holds), steps=steps)


def _touched(gpu: Gpu, steps: Iterable[Step]) -> list[Hold]:
    """The whole GPU where its mode changes, or else each piece that goes or comes."""
    steps = tuple(steps)
    if any(step.action in (Action.ENABLE, Action.DISABLE) for step in steps):
        return [Hold(device=gpu.name, gpus=(gpu.uuid,))]
    return [_hold(gpu, piece) for piece in dict.fromkeys(step.piece for step in steps if step.piece is not None)]


def _hold(gpu: Gpu, piece: Piece) -> Hold:
    """A piece with all of its partitions."""
    part = Part(profile=piece.profile, placement=piece.placement)
    return Hold(device=f"{gpu.name}: {part}", gpus=(gpu.uuid,), part=part)


def _written(before: Before) -> dict[str, object]:
    pieces = [
        {
            "profile": one.profile,
            "start": one.placement.start,
            "length": one.placement.length,
            "computes": None if one.computes is None else list(one.computes),
        }
        for one in before.pieces
    ]
    return {"enabled": before.enabled, "pieces": pieces}


def _read(notes: Mapping[str, object]) -> Before:
    pieces = notes["pieces"]
    assert isinstance(pieces, list)
    return Before(
        enabled=bool(notes["enabled"]),
        pieces=tuple(
            Piece(
                profile=one["profile"],
                placement=Placement(start=one["start"], length=one["length"]),
                computes=None if one["computes"] is None else tuple(one["computes"]),
            )
            for one in pieces
        ),
    )
