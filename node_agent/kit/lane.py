"""Blocking calls on one thread of their own, one after another, watched from the event loop.

Drivers block: a call may take minutes, or never return. The event loop goes on meanwhile, and ``busy`` says what the
thread is in and for how long.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Busy(Struct, frozen=True, kw_only=True):
    """What a lane is doing: the name of the call and when it began (``time.monotonic()``, seconds)."""

    call: str
    since: float

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since


class Lane:
    """One daemon thread that runs blocking calls in order; use it as a context manager.

    At the end of the block queued calls may finish, for ``grace`` seconds; one that hangs is left behind, since a
    daemon thread never holds up the end of the process.
    """

    def __init__(self, name: str, grace: float = 5.0) -> None:
        self._name = name
        self._grace = grace
        self._closed = False
        self._queue: SimpleQueue[tuple[str, Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._busy: Busy | None = None

    def __enter__(self) -> "Lane":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._queue.put(None)
        self._thread.join(self._grace)

    @property
    def busy(self) -> Busy | None:
        return self._busy

    async def run(self, name: str, call: Callable[[], T]) -> T:
        """Run ``call`` on the lane and wait for what it returns or raises. Cancelling stops the wait, not the call.

        Raises:
            RuntimeError: the lane is closed: nobody would ever run the call.
        """
        if self._closed:
            raise RuntimeError(f"lane {self._name} is closed: {name} was not called")
        future: Future[T] = Future()
        self._queue.put((name, call, future))
        return await asyncio.wrap_future(future)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            self._do(*job)
            del job  # the next one may be hours away; what this one holds is not kept until then

    def _do(self, name: str, call: Callable[[], Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        settle: Callable[[Any], None] = future.set_result
        self._busy = Busy(call=name, since=time.monotonic())
        try:
            outcome = call()
        except StopIteration as error:  # asyncio's futures refuse it, and the one who waits would never wake
            settle, outcome = future.set_exception, RuntimeError(f"{name} raised {error!r}")
        except BaseException as error:  # whatever it is, it belongs to the one who waits
            settle, outcome = future.set_exception, error
        # Before the one who waits wakes up: it must not find its own call still running.
        self._busy = None
        settle(outcome)
