"""How a figure comes about: a subject and its floor in turns, so that what disturbs one disturbs the other.

Values are in seconds, bytes or plain numbers. The garbage collector stays on, as it does in the agent.
"""

import gc
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

Step = Callable[[], Awaitable[object]]
"""Something to do once and to be timed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """How long to measure: ``quick`` for a first impression, ``long`` to see what only many calls show."""

    quick: bool = False
    long: bool = False

    def pick(self, *, full: int, quick: int, long: int | None = None) -> int:
        if self.long and long is not None:
            return long
        return quick if self.quick else full


class Unit(StrEnum):
    SECONDS = "s"
    BYTES = "B"
    COUNT = ""


class Of(StrEnum):
    """What of a figure a target is for: its median, the ratio of that, or how often its p99 has the floor's median."""

    MEDIAN = "median"
    RATIO = "ratio"
    P99 = "p99"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The most that a figure may be."""

    limit: float
    of: Of = Of.MEDIAN


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """What a figure is compared with: the median of that, and its p99 where it was measured often enough."""

    name: str
    median: float
    p99: float | None = None


def percentile(samples: Sequence[float], percent: float) -> float | None:
    """A value that was measured, with so many percent of them at or below it; None where too few were."""
    if len(samples) * (100 - percent) < 100:
        return None
    return sorted(samples)[math.ceil(len(samples) * percent / 100) - 1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One row of the table; ``ratio`` is to the floor, and how it was taken is in ``Turns``."""

    name: str
    samples: tuple[float, ...]
    unit: Unit = Unit.SECONDS
    floor: Floor | None = None
    ratio: float | None = None
    target: Target | None = None

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError(f"{self.name}: nothing was measured")

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def p99(self) -> float | None:
        return percentile(self.samples, 99)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.target is None:
            return None
        found = self.of(self.target.of)
        return found is not None and found <= self.target.limit

    def of(self, what: Of) -> float | None:
        """What a target is held against; None where too little was measured."""
        if what is Of.MEDIAN:
            return self.median
        if what is Of.RATIO:
            return self.ratio
        return None if self.p99 is None or self.floor is None else self.p99 / self.floor.median


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One round: what the subject took, and right before it the floor."""

    subject: Sequence[float]
    floor: Sequence[float]

    @property
    def ratio(self) -> float:
        return median(self.subject) / median(self.floor)


def figure(name: str, turns: Sequence[Turn], floor: str, target: Target | None = None) -> Figure:
    """The figure of all rounds; its ratio is the median of theirs, which a disturbed round does not move."""
    least = [sample for turn in turns for sample in turn.floor]
    return Figure(
        name=name,
        samples=tuple(sample for turn in turns for sample in turn.subject),
        floor=Floor(name=floor, median=median(least), p99=percentile(least, 99)),
        ratio=median(turn.ratio for turn in turns),
        target=target,
    )


def single(name: str, value: float, unit: Unit, floor: Floor | None = None, target: Target | None = None) -> Figure:
    """The figure of what is measured once."""
    ratio = value / floor.median if floor else None
    return Figure(name=name, samples=(value,), unit=unit, floor=floor, ratio=ratio, target=target)


async def in_turns(
    subject: Step, floor: Step, *, rounds: int, calls: int = 1, between: Step | None = None
) -> list[Turn]:
    """Time ``calls`` of the floor, then of the subject, in each round; ``between`` tidies up, untimed.

    One more round comes first and does not count.
    """
    gc.collect()
    turns = []
    for _ in range(1 + rounds):
        before = [await timed(floor) for _ in range(calls)]
        turns.append(Turn(subject=[await timed(subject) for _ in range(calls)], floor=before))
        if between is not None:
            await between()
    return turns[1:]


async def timed(step: Step) -> float:
    """The seconds that a step takes."""
    began = time.perf_counter()
    await step()
    return time.perf_counter() - began
