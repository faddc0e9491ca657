"""The newest value of something that changes, and a way to wait for the next one.

This is how services speak to each other: one sets, many watch. A slow watcher skips what was overtaken and never
holds up the one who sets.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# What nobody waits for follows changes so much later: many that come in a row are then one.
SETTLE_SECONDS = 0.05


class Latest(Generic[T]):
    """Holds the newest value; belongs to one event loop."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._listeners: set[asyncio.Event] = set()

    @property
    def value(self) -> T:
        return self._value

    def set(self, value: T) -> None:
        """Replace the value and wake every watcher; a value equal to the present one changes nothing."""
        if value == self._value:
            return
        self._value = value
        for listener in self._listeners:
            listener.set()

    async def watch(self) -> AsyncIterator[T]:
        """The present value at once, then each newer one; what was overtaken meanwhile is skipped."""
        async for _ in changes(self):
            yield self._value

    def listen(self, listener: asyncio.Event) -> None:
        """Set ``listener`` at each change from now on, until ``ignore``."""
        self._listeners.add(listener)

    def ignore(self, listener: asyncio.Event) -> None:
        self._listeners.discard(listener)


async def changes(
    *sources: Latest[Any], every: Callable[[], float] | None = None, settle: float = 0.0
) -> AsyncIterator[None]:
    """Yield at once, and again whenever any of the sources has changed since.

    ``every`` gives the longest pause in seconds, asked before each wait, for what also has to be looked at in between.
    ``settle`` seconds after a change all that has changed by then is one: for what nobody waits for.
    """
    woken, first = asyncio.Event(), True
    woken.set()
    for source in sources:
        source.listen(woken)
    try:
        while True:
            # A timer that wakes like a change does is a fraction of the work of a timeout.
            alarm = asyncio.get_running_loop().call_later(every(), woken.set) if every is not None else None
            try:
                await woken.wait()
            finally:
                if alarm is not None:
                    alarm.cancel()
            if settle and not first:
                await asyncio.sleep(settle)
            first = False
            woken.clear()
            yield
    finally:
        for source in sources:
            source.ignore(woken)
