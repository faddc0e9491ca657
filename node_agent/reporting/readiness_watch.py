"""Follows the agent's readiness while it runs, and knows what of it is news. ``readiness`` judges."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from node_agent.kit.ages import Ages
from node_agent.kit.latest import Latest, changes
from node_agent.reporting.node_events import LONGEST_NOTE, Notice
from node_agent.reporting.readiness import Facts, Phase, Readiness, advanced, parts_of

# What does not announce itself, such as a call that hangs, is noticed after at most so long.
LOOK_SECONDS = 5.0
# A phase is news once it has lasted so long: a kubelet that restarts is back by then.
LASTING_SECONDS = 10.0


class ReadinessWatch:
    """A service: looks whenever a source changes, and every few seconds for what does not announce itself.

    ``state`` is what the last look found, ``lasting`` the same where its phase has lasted a while.
    """

    def __init__(self, facts: Callable[[], Facts], sources: Sequence[Latest[Any]]) -> None:
        self._facts = facts
        self._sources = sources
        self.state = Latest(Readiness())
        self.lasting = Latest(Readiness())
        self._ages = Ages()

    def look(self) -> Readiness:
        """How things stand right now."""
        found = advanced(self.state.value, parts_of(self._facts()), time.time())
        self.state.set(found)
        lasts = self._ages.of("phase", found.since)
        if found.phase is not self.lasting.value.phase and lasts >= LASTING_SECONDS:
            self.lasting.set(found)
        return found

    async def run(self) -> None:
        """Look until cancelled."""
        async for _ in changes(*self._sources, every=lambda: LOOK_SECONDS):
            self.look()


class ReadinessNews:
    """What is worth an Event: that the agent is not ready, and that it is again."""

    def __init__(self, lasting: Latest[Readiness]) -> None:
        self.source = lasting
        self._told = Phase.STARTING

    def notices(self) -> Iterator[Notice]:
        """What is new since this was called last."""
        before, found = self._told, self.source.value
        self._told = found.phase
        if found.phase is Phase.NOT_READY and before is not Phase.NOT_READY:
            yield _notice("Warning", "GPUAgentNotReady", "; ".join(found.trouble))
        elif found.phase is Phase.READY and before is Phase.NOT_READY:
            yield _notice("Normal", "GPUAgentReady", "the agent does its work again")


def _notice(kind: str, reason: str, note: str) -> Notice:
    return Notice(key=("agent", reason), type=kind, reason=reason, note=note[:LONGEST_NOTE], action="ReadinessChanged")
