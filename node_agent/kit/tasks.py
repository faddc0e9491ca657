"""Tasks that never outlive the block that started them; and what their event loop has to say."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from node_agent.kit.logs import Log, Steady

T = TypeVar("T")

log = Log(__name__)


async def cancel(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait until it has ended; what it raised on the way out is raised here."""
    task.cancel()
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        # Cancelled while it waited: hurry the task, and still do not leave before it has ended.
        await cancel(task)
        raise
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


@asynccontextmanager
async def running(work: Coroutine[Any, Any, Any], name: str | None = None) -> AsyncIterator["asyncio.Task[Any]"]:
    """Run ``work`` beside the block and end it with the block. A failure of ``work`` is raised when the block ends."""
    task = asyncio.create_task(work, name=name)
    try:
        yield task
    finally:
        await cancel(task)


class Whole:
    """Work that is done to its end, even if the one who waits for it is gone; until ``end``.

    What fails with ``expected`` when nobody waits any more is told in a line, and anything else in full.
    """

    def __init__(self, expected: type[Exception]) -> None:
        self._expected = expected
        self._under_way: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], name: str | None = None) -> "asyncio.Task[T]":
        # Kept here, since the event loop itself would let a task that nobody awaits be collected.
        task = asyncio.create_task(work, name=name)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def done(self, work: Coroutine[Any, Any, T], name: str | None = None) -> T:
        """Wait for the work, and for its result. Cancelling stops the wait, not the work; a failure is then logged."""
        task = self.start(work, name)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._tell)
            raise

    def _tell(self, task: "asyncio.Task[Any]") -> None:
        error = None if task.cancelled() else task.exception()
        message = "what was under way for a call that is gone failed"
        if isinstance(error, self._expected):
            log.info(message, reason=error)
        elif error is not None:
            task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})

    async def end(self, grace: float) -> None:
        """Wait for what is under way, and cancel what takes longer than ``grace`` seconds."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=grace)
        for task in tuple(self._under_way):
            await cancel(task)


class LoopTrouble:
    """Says what an event loop cannot do, which itself says a hundred times a second that it has no descriptor left."""

    def __init__(self) -> None:
        self._trouble = Steady()

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's exception handler. What is no trouble of the system is a mistake of ours, and told in full."""
        reason = context.get("exception")
        if not isinstance(reason, OSError):
            loop.default_exception_handler(context)
        elif self._trouble.should_say(str(reason)):
            Log(__name__).error(context["message"], reason=reason)
