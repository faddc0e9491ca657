"""The newest value of something that changes, and a way to wait for the next one.

This is how services speak to each other: one sets, many watch. A slow watcher skips what was overtaken and never
holds up the one who sets.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """Holds the newest value; belongs to one event loop."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 0
        self._changed = asyncio.Event()

    @property
    def value(self) -> T:
        return self._value

    def set(self, value: T) -> None:
        """Replace the value and wake every watcher; a value equal to the present one changes nothing."""
        if value == self._value:
            return
        self._value = value
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self) -> AsyncIterator[T]:
        """The present value at once, then each newer one; what was overtaken meanwhile is skipped."""
        seen = -1
        while True:
            if seen == self._version:
                await self._changed.wait()
            seen = self._version
            yield self._value
