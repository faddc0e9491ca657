"""Keeps the node's labels: what ``labels`` says is written to one of ``label_places``, when it has changed.

A label that somebody else has set is that one's, unless the agent is told to take over.
"""

import math
import time
from collections.abc import Callable, Mapping

from msgspec import Struct

from node_agent.kit.backoff import spread
from node_agent.kit.logs import Log
from node_agent.reporting.health import HealthDocument
from node_agent.reporting.label_places import LabelPlace, Labels, Stored

STAMP = "nvidia.com/gfd.timestamp"
# Labels that somebody has removed are back after at most so long, and those that another one has left are ours.
LOOK_SECONDS = 300.0

log = Log(__name__)


class Plan(Struct, frozen=True, kw_only=True):
    """What is to stand in the place, and the labels that are left to others, each with whose it is."""

    labels: Labels
    left: Mapping[str, str]


def planned(wanted: Labels, stored: Stored, *, now: float, take_over: bool, stamped: bool) -> Plan:
    """What becomes of the labels that are wanted, beside those that are there. ``now`` is wall-clock time in seconds.

    The stamp is that of the last change: one that alone is new is no reason to write the Node.
    """
    left = {} if take_over else {key: stored.others[key] for key in (*wanted, STAMP) if key in stored.others}
    mine = {key: value for key, value in wanted.items() if key not in left}
    if mine and stamped and STAMP not in left:
        same = mine == {key: value for key, value in stored.own.items() if key != STAMP}
        mine[STAMP] = (same and stored.own.get(STAMP)) or str(int(now))
    return Plan(labels=dict(sorted(mine.items())), left={key: left[key] for key in left if key in wanted})


class LabelWriter:
    """A ``Writer`` of the node reporter. ``wanted`` gives the labels, None where those of before stand."""

    what = "labels"

    def __init__(
        self,
        place: LabelPlace,
        wanted: Callable[[], Labels | None],
        *,
        take_over: bool = False,
        stamped: bool = True,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._place = place
        self._wanted = wanted
        self._take_over = take_over
        self._stamped = stamped
        self._look_seconds = look_seconds
        self._settled: Labels | None = None
        self._next = -math.inf
        self._left: Mapping[str, str] = {}

    @property
    def standing(self) -> str:
        """Where the labels stand, and what of them is left to others; empty before the first look."""
        if self._settled is None:
            return ""
        left = f"; {len(self._left)} more are set by {_owners(self._left)} and left alone" if self._left else ""
        return f"{len(self._settled) - len(self._left)} in {self._place.name}{left}"

    def pause(self) -> float:
        return max(self._next - time.monotonic(), 0.0)

    async def write(self, _: HealthDocument) -> None:
        wanted = self._wanted()
        if wanted is not None and (wanted != self._settled or not self.pause()):
            await self._settle(wanted)
        if not self.pause():
            self._next = time.monotonic() + spread(self._look_seconds)

    async def _settle(self, wanted: Labels) -> None:
        stored = await self._place.look()
        plan = planned(wanted, stored, now=time.time(), take_over=self._take_over, stamped=self._stamped)
        if plan.left != self._left and plan.left:
            log.warning(
                "labels are somebody else's and left alone", labels=",".join(plan.left), owners=_owners(plan.left)
            )
        if plan.labels != stored.own:
            await self._place.put(plan.labels)
            log.info("labels written", place=self._place.name, labels=len(plan.labels))
        self._settled, self._left = wanted, plan.left
        self._next = time.monotonic() + spread(self._look_seconds)


def _owners(left: Mapping[str, str]) -> str:
    return ", ".join(sorted(set(left.values())))
