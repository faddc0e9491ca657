"""Whether merging idle partitions lets in what is waiting, which moves that takes, and what it costs. Pure.

Requests are served in the order of their priority, each at the least cost: best by a partition that is idle already,
then in free room, then where idle ones have to be moved or removed, and last by changing the mode of a GPU. What is in
use is never touched, nor what has been set aside for a request of higher priority. An idle partition that is in the way
is made again elsewhere on its GPU if there is any room. On one GPU the answer is the best that there is: all
arrangements of what is idle are looked at.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import cache

from msgspec import Struct, field
from msgspec.structs import replace

from node_agent.model.gpu import DeviceName, PartitionMode
from node_agent.model.partition import Piece
from node_agent.partition.choose import outlook
from node_agent.partition.layout import Room, Rules
from node_agent.partition.plan import Action, State, Step

WHOLE = "gpu"
"""What a request asks for that wants a GPU without MIG."""


class Mode(StrEnum):
    """What is done about what is found: nothing, say it, or do it."""

    OFF = "off"
    ADVISE = "advise"
    ACT = "act"


class Policy(Struct, frozen=True, kw_only=True):
    """What may be done, and for whom.

    ``least_priority`` is that of the requests for which idle partitions may be merged; ``change_mode`` says whether a
    GPU may be turned over between whole and cut for one.
    """

    mode: Mode = Mode.ADVISE
    least_priority: int = 0
    change_mode: bool = True


class CutGpu(Struct, frozen=True, kw_only=True):
    """A GPU that can be cut, and what is on it."""

    name: DeviceName
    rules: Rules
    state: State
    resetless: bool = True


class Request(Struct, frozen=True, kw_only=True):
    """Something that waits: a profile, or ``WHOLE``. Higher priorities come first, and among equals the first."""

    wants: str
    priority: int = 0
    name: str = ""


class Verdict(StrEnum):
    """How a request can be served."""

    IDLE = "is there and idle"
    ROOM = "fits beside what is there"
    MERGE = "fits once what is idle gives way"
    CHANGE = "fits once the GPU changes its mode"
    NONE = "does not fit"


class Cost(Struct, frozen=True, kw_only=True, order=True):
    """What it costs, the gravest first: resets, changes of mode, memory slices of idle partitions that are lost, steps.

    Last the outlook of the GPU afterwards, as a negative number: less is better in all of them.
    """

    resets: int = 0
    mode_changes: int = 0
    lost_slices: int = 0
    steps: int = 0
    outlook: int = 0


class Outcome(Struct, frozen=True, kw_only=True):
    """How one request is served: by ``piece`` of ``gpu`` (None: all of it) after ``steps``.

    ``moved`` are idle pieces with where they are made again, ``lost`` those that are not. ``act`` says that the policy
    lets the steps be taken. ``reason`` says what stands in the way where nothing helps.
    """

    request: Request
    verdict: Verdict
    gpu: DeviceName | None = None
    piece: Piece | None = None
    steps: tuple[Step, ...] = ()
    moved: tuple[tuple[Piece, Piece], ...] = ()
    lost: tuple[Piece, ...] = ()
    cost: Cost = field(default_factory=Cost)
    act: bool = False
    reason: str = ""


class _Option(Struct, frozen=True, kw_only=True):
    """A way to serve a request: what is given out (None: the whole GPU), and where all that is idle lies then."""

    gpu: CutGpu
    verdict: Verdict
    piece: Piece | None
    idle: tuple[Piece, ...] = ()


def defragment(gpus: Iterable[CutGpu], requests: Iterable[Request], policy: Policy) -> tuple[Outcome, ...]:
    """How each request can be served, in the order in which they are; nothing where the policy is off."""
    if policy.mode is Mode.OFF:
        return ()
    now = {gpu.name: gpu for gpu in gpus}
    outcomes = []
    for request in sorted(requests, key=lambda one: -one.priority):
        options = [option for gpu in now.values() for option in _options(gpu, request, policy)]
        best = min(options, key=_cost, default=None)
        if best is None:
            reason = "; ".join(_reasons(now.values(), request.wants)) or f"no GPU has a profile {request.wants}"
            outcomes.append(Outcome(request=request, verdict=Verdict.NONE, reason=reason))
        else:
            outcomes.append(_outcome(best, request, policy))
            now[best.gpu.name] = _after(best)
    return tuple(outcomes)


def repacked(rules: Rules, room: Room, idle: Iterable[Piece]) -> tuple[Piece, ...]:
    """Idle pieces in the room that is left, elsewhere where they have to be, and without those that cannot be.

    As few memory slices as possible are lost, then as few pieces as possible move, then the outlook is best.
    """
    pieces = sorted(
        (piece for piece in idle if piece.computes != ()), key=lambda one: (-one.placement.length, str(one))
    )

    @cache
    def best(number: int, room: Room) -> tuple[tuple[int, int, int], tuple[Piece, ...]]:
        if number == len(pieces):
            return (0, 0, outlook(rules, room)), ()
        found, old = best(number + 1, room), pieces[number]
        for place in rules.of(old.profile):
            if (left := rules.beside(room, place)) is not None:
                (kept, still, ahead), rest = best(number + 1, left)
                worth = (kept + place.placement.length, still + (place.placement == old.placement), ahead)
                found = max(found, (worth, (replace(old, placement=place.placement), *rest)), key=lambda one: one[0])
        return found

    return best(0, room)[1]


def _options(gpu: CutGpu, request: Request, policy: Policy) -> Iterator[_Option]:
    merges = request.priority >= policy.least_priority
    active = gpu.state.mode is not None and gpu.state.mode.active
    if request.wants == WHOLE:
        if not active and not gpu.state.busy:
            yield _Option(gpu=gpu, verdict=Verdict.IDLE, piece=None)
        elif active and not gpu.state.in_use and policy.change_mode and merges:
            yield _Option(gpu=gpu, verdict=Verdict.CHANGE, piece=None)
    elif active:
        yield from _among_pieces(gpu, request.wants, merges)
    elif gpu.state.mode is not None and not gpu.state.busy and policy.change_mode and merges:
        yield from (_Option(gpu=gpu, verdict=Verdict.CHANGE, piece=piece) for piece in gpu.rules.of(request.wants))


def _among_pieces(gpu: CutGpu, profile: str, merges: bool) -> Iterator[_Option]:
    used, idle = _used(gpu), _idle(gpu)
    beside_used, beside_all = gpu.rules.room(used), gpu.rules.room(gpu.state.lying)
    for piece in gpu.rules.of(profile):
        if piece in idle:
            others = tuple(one for one in idle if one != piece)
            yield _Option(gpu=gpu, verdict=Verdict.IDLE, piece=piece, idle=others)
        elif gpu.rules.beside(beside_all, piece) is not None:
            yield _Option(gpu=gpu, verdict=Verdict.ROOM, piece=piece, idle=idle)
        elif merges and (left := gpu.rules.beside(beside_used, piece)) is not None:
            yield _Option(gpu=gpu, verdict=Verdict.MERGE, piece=piece, idle=repacked(gpu.rules, left, idle))


def _used(gpu: CutGpu) -> tuple[Piece, ...]:
    return tuple(piece for piece in gpu.state.lying if piece in gpu.state.in_use)


def _idle(gpu: CutGpu) -> tuple[Piece, ...]:
    return tuple(piece for piece in gpu.state.lying if piece not in gpu.state.in_use)


def _after(option: _Option) -> CutGpu:
    """The GPU when the option is taken; what is given out is in use then."""
    if option.piece is None:
        return replace(option.gpu, state=State(mode=PartitionMode.DISABLED, busy=True))
    used = (*_used(option.gpu), option.piece)
    state = State(mode=PartitionMode.ENABLED, lying=(*used, *option.idle), in_use=frozenset(used))
    return replace(option.gpu, state=state)


def _steps(option: _Option) -> tuple[Step, ...]:
    before, after = option.gpu.state.lying, _after(option).state.lying
    mode: tuple[Step, ...] = ()
    if option.verdict is Verdict.CHANGE:
        mode = (Step(action=Action.DISABLE if option.piece is None else Action.ENABLE),)
    return (
        *(Step(action=Action.DESTROY, piece=piece) for piece in before if piece not in after),
        *mode,
        *(Step(action=Action.CREATE, piece=piece) for piece in after if piece not in before),
    )


def _moves(option: _Option) -> tuple[tuple[tuple[Piece, Piece], ...], tuple[Piece, ...]]:
    """The idle pieces that are made again elsewhere, with where; and those that are not."""
    gone = [piece for piece in _idle(option.gpu) if piece not in option.idle and piece != option.piece]
    new = [piece for piece in option.idle if piece not in option.gpu.state.lying]
    moved, lost = [], []
    for old in gone:
        again = next((one for one in new if (one.profile, one.computes) == (old.profile, old.computes)), None)
        if again is not None:
            new.remove(again)
            moved.append((old, again))
        elif old.computes != ():
            lost.append(old)
    return tuple(moved), tuple(lost)


def _cost(option: _Option) -> Cost:
    changes = option.verdict is Verdict.CHANGE
    after = _after(option).state
    return Cost(
        resets=int(changes and not option.gpu.resetless),
        mode_changes=int(changes),
        lost_slices=sum(piece.placement.length for piece in _moves(option)[1]),
        steps=len(_steps(option)),
        outlook=-outlook(option.gpu.rules, option.gpu.rules.room(after.lying)) if option.piece else 0,
    )


def _outcome(option: _Option, request: Request, policy: Policy) -> Outcome:
    moved, lost = _moves(option)
    return Outcome(
        request=request,
        verdict=option.verdict,
        gpu=option.gpu.name,
        piece=option.piece,
        steps=_steps(option),
        moved=moved,
        lost=lost,
        cost=_cost(option),
        act=policy.mode is Mode.ACT,
    )


def _reasons(gpus: Iterable[CutGpu], wants: str) -> Iterator[str]:
    """What keeps each GPU that has the profile from serving it."""
    for gpu in gpus:
        used, pieces = _used(gpu), gpu.rules.of(wants)
        barred = [gpu.rules.why_not(used, piece) for piece in pieces]
        if gpu.state.busy:
            yield f"{gpu.name} is in use as a whole"
        elif wants == WHOLE and used:
            yield f"{gpu.name}: {', '.join(map(str, used))} is in use"
        elif used and barred and None not in barred:
            yield f"{gpu.name}: {min(filter(None, barred), key=len)}, in use"
        elif wants == WHOLE or pieces:
            yield f"{gpu.name}: the policy forbids it"
