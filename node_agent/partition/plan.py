"""The shortest way from what lies on a GPU to what is wanted of it. Pure.

Each step is one that the driver carries out by itself; all that is to go goes before anything is made, so that every
state in between is a legal layout. Which pieces are wanted where comes from ``static``, which keeps all that it can, so
that nothing can be saved: what is neither kept nor in use is removed, and what is not there is made.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum

from msgspec import Struct, field

from node_agent.errors import LayoutRefused
from node_agent.model.gpu import PartitionMode
from node_agent.model.partition import Piece
from node_agent.partition.layout import Rules
from node_agent.partition.static import layout_for


class Action(StrEnum):
    """What a step does, in the words of the plan that is shown."""

    ENABLE = "turn MIG on"
    DISABLE = "turn MIG off"
    DESTROY = "remove"
    CREATE = "make"


class Step(Struct, frozen=True, kw_only=True):
    """One call of the driver; ``piece`` is what it is about unless it is about the mode."""

    action: Action
    piece: Piece | None = None

    def __str__(self) -> str:
        return self.action if self.piece is None else f"{self.action} {self.piece}"


class State(Struct, frozen=True, kw_only=True):
    """What is on a GPU now. ``mode`` is None where it has no MIG; ``busy`` says that the whole GPU is in use."""

    mode: PartitionMode | None
    lying: tuple[Piece, ...] = ()
    in_use: frozenset[Piece] = frozenset()
    busy: bool = False


class Goal(Struct, frozen=True, kw_only=True):
    """What a GPU is to be: MIG on or off, and how many of each profile."""

    enabled: bool
    counts: Mapping[str, int] = field(default_factory=dict)


class Plan(Struct, frozen=True, kw_only=True):
    """The steps in their order, and the pieces that stay. No step is taken before the waiting is over:

    ``waits_for`` are pieces in use that are to go, and ``needs_idle`` says that the whole GPU is in use and has to
    change its mode. ``may_need_reset`` warns that the mode may stay pending until somebody resets the GPU.
    """

    steps: tuple[Step, ...] = ()
    keeps: tuple[Piece, ...] = ()
    waits_for: tuple[Piece, ...] = ()
    needs_idle: bool = False
    may_need_reset: bool = False

    @property
    def waiting(self) -> bool:
        return self.needs_idle or bool(self.waits_for)


def plan(rules: Rules, state: State, goal: Goal, *, resetless: bool = True) -> Plan:
    """How to bring a GPU to its goal. ``resetless`` GPUs (Hopper and later) change their mode without a reset.

    Raises:
        LayoutRefused: the GPU cannot be what is wanted; the message says why.
    """
    if state.mode is None:
        if goal.enabled:
            raise LayoutRefused("the GPU has no MIG")
        return Plan()
    layout = layout_for(rules, goal.counts, state.lying, state.in_use) if goal.enabled else ()
    changes = state.mode.active != goal.enabled
    return Plan(
        steps=steps_to(state, layout, enabled=goal.enabled),
        keeps=tuple(piece for piece in state.lying if piece in layout),
        waits_for=tuple(piece for piece in state.lying if piece not in layout and piece in state.in_use),
        needs_idle=changes and state.busy,
        may_need_reset=changes and not resetless,
    )


def steps_to(state: State, layout: Collection[Piece], *, enabled: bool) -> tuple[Step, ...]:
    """The steps from what is there to these very pieces: also the way back to what was there before."""
    goes = [piece for piece in state.lying if piece not in layout]
    comes = [piece for piece in layout if piece not in state.lying]
    return (
        *(Step(action=Action.DESTROY, piece=piece) for piece in goes),
        *(_mode_steps(state.mode, enabled) if state.mode is not None else ()),
        *(Step(action=Action.CREATE, piece=piece) for piece in comes),
    )


def _mode_steps(mode: PartitionMode, enabled: bool) -> list[Step]:
    """One step, unless the mode is as wanted: a change that is pending the other way has to be called off, too."""
    settled = PartitionMode.ENABLED if enabled else PartitionMode.DISABLED
    return [] if mode is settled else [Step(action=Action.ENABLE if enabled else Action.DISABLE)]
