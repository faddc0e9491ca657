"""What a change makes of the books, or why it is refused. Pure; ``record`` makes each change durable."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from node_agent.allocation.conflicts import find_conflict
from node_agent.allocation.grants import Books, Door, Grant
from node_agent.errors import AllocationError, HoldersUnknown, StateError

Change: TypeAlias = Callable[[Books], Books]


def made(books: Books, changes: Iterable[Change]) -> tuple[Books, list[Books | Exception]]:
    """Make changes in their order, each on what those before it have made.

    Returns the books after the last one, and for each change the books right after it or what it raised; one that
    raises has changed nothing.
    """
    answers: list[Books | Exception] = []
    for change in changes:
        try:
            books = change(books)
        except Exception as error:  # whatever it is, it belongs to the one who asked for the change
            answers.append(error)
        else:
            answers.append(books)
    return books, answers


def unchanged(books: Books) -> Books:
    """The same books, for whoever only wants to know them."""
    return books


def reserved(books: Books, grant: Grant) -> Books:
    """The books with a new grant; equal to those that they were where a claim has the same hardware already.

    Raises:
        DeviceHeld: another holder has a GPU of it.
        ModesDisagree: another holder shares a GPU of it, and has it set in another way.
        AllocationError: this holder has other devices; they must be released first.
        HoldersUnknown: it is not known yet who holds what.
    """
    return all_reserved(books, [grant])


def all_reserved(books: Books, grants: Iterable[Grant]) -> Books:
    """The books with several new grants, of all holders or of none; raises as ``reserved``."""
    held = dict(books.grants)
    for grant in grants:
        held[grant.holder.id] = _reserved(held, books.unreconciled, grant)
    return _of(books, held)


def _reserved(held: Mapping[str, Grant], unreconciled: frozenset[Door], grant: Grant) -> Grant:
    """What the holder of a new grant has from now on, beside what is ``held``; raises as ``reserved``."""
    known = held.get(grant.holder.id)
    if known is not None and known.same_hardware(grant):
        # A claim that asks again is the same one; a device that is given out again by its limit has the next pod.
        return grant if known.holder.door is Door.LIMIT else known
    if known is not None:
        raise AllocationError(f"{grant.holder} holds other devices already: they must be released first")
    # First what is certain: it stays true whoever else turns out to hold something.
    if conflict := find_conflict(grant, held.values()):
        raise conflict.error(grant.holder)
    # What limits hold the kubelet knows: it gives nothing out twice.
    own = {grant.holder.door} if grant.holder.door is Door.LIMIT else frozenset()
    if unknown := unreconciled - own:
        raise HoldersUnknown(
            f"{grant.holder} gets no device yet: who holds which GPU is not known again before the agent has heard "
            f"of every {' and every '.join(sorted(unknown))} of this node"
        )
    return grant


def recorded(books: Books, grant: Grant) -> Books:
    """The books with a grant in the place of the one that its holder has. Raises StateError where there is none."""
    known = books.grants.get(grant.holder.id)
    if known is None or not known.same_hardware(grant):
        raise StateError(f"{grant.holder} does not hold what is to be recorded: it was released meanwhile")
    return _with(books, grant)


def released(books: Books, holder_id: str, since: float | None = None) -> Books:
    """The books without a holder; one that is unknown, or has its devices anew after ``since``, stays as it is."""
    known = books.grants.get(holder_id)
    if known is None or since not in (None, known.since):
        return books
    return _of(books, {key: grant for key, grant in books.grants.items() if key != holder_id})


def reconciled(books: Books, door: Door, live: Iterable[Grant]) -> Books:
    """The books once every live holder of a door is known: those that a lost record lacks are added.

    Holders that stand in each other's way are added all the same: each of them is alive and none is free.
    """
    if door not in books.unreconciled:
        return books
    lost = {grant.holder.id: grant.unprepared for grant in live}
    return Books(grants=lost | dict(books.grants), unreconciled=books.unreconciled - {door})


def after_boot(books: Books, boot_id: str) -> Books:
    """The books as they hold in this boot: what an earlier one prepared is held, and must be prepared again.

    A grant that does not tell its boot counts as one of this boot, and so does every grant where this boot has no id.
    What limits hold the kubelet remembers by itself.
    """
    if not boot_id:
        return books
    return _of(books, {key: _after_boot(grant, boot_id) for key, grant in books.grants.items()})


def _after_boot(grant: Grant, boot_id: str) -> Grant:
    # Its steps stay: what they did may have outlived the boot, and their undo bears that it has not.
    stale = grant.boot_id not in ("", boot_id) and grant.holder.door is Door.CLAIM
    return grant.unprepared if stale else replace(grant, boot_id=boot_id)


def _with(books: Books, grant: Grant) -> Books:
    return _of(books, {**books.grants, grant.holder.id: grant})


def _of(books: Books, grants: Mapping[str, Grant]) -> Books:
    return replace(books, grants=grants)
