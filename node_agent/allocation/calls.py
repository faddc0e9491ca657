"""The kubelet's calls about claims: in turn for each claim, side by side for different ones, never half done."""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from node_agent.errors import NodeAgentError, Overtaken
from node_agent.kit.tasks import Whole
from node_agent.model.claim import ClaimUid

# No call is older than this: the kubelet gives up long before.
OLDEST_SECONDS = 600.0

# How long what is under way may take when the agent ends.
GRACE_SECONDS = 5.0

T = TypeVar("T")


class Calls:
    """What is under way, and when each claim was last called for.

    A prepare is late when it was asked before an unprepare that came before its own turn: the kubelet has given it up,
    and nobody would undo it a second time. By a later call the same claim may be prepared again, for its next pod.
    """

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[ClaimUid, asyncio.Lock] = WeakValueDictionary()
        self._whole = Whole(expected=NodeAgentError)
        self._called: dict[ClaimUid, float] = {}
        self._unprepared: dict[ClaimUid, float] = {}

    def note(self, uid: ClaimUid, *, unprepare: bool = False) -> None:
        """Remember that a claim is called for now."""
        now = time.monotonic()
        for times in (self._called, self._unprepared) if unprepare else (self._called,):
            for old in [key for key, when in times.items() if when < now - OLDEST_SECONDS]:
                del times[old]
            times[uid] = now

    def called_since(self, uid: ClaimUid, when: float) -> bool:
        return uid in self._called and self._called[uid] >= when

    def refuse_late(self, uid: ClaimUid, asked: float) -> None:
        """Raise Overtaken where the claim was unprepared after ``asked``."""
        if asked < self._unprepared.get(uid, asked):
            raise Overtaken(f"claim {uid} was unprepared after this prepare had been asked for: nothing is prepared")

    @asynccontextmanager
    async def turn(self, uid: ClaimUid) -> AsyncIterator[None]:
        """One at a time for each claim, in the order in which they came."""
        # A lock lives while somebody holds or awaits it: claims that are gone leave none behind.
        lock = self._turns.setdefault(uid, asyncio.Lock())
        async with lock:
            yield

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work to its end even if the one who waits for it is gone: the next call then finds it done."""
        return await self._whole.done(work)

    async def end(self) -> None:
        """Wait for what is under way. What takes too long is as good as killed: the ledger knows what has begun."""
        await self._whole.end(GRACE_SECONDS)
