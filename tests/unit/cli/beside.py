"""Something asynchronous beside a command that knows no event loop."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any


@contextmanager
def beside(opened: Callable[[], AbstractAsyncContextManager[Any]]) -> Iterator[None]:
    """Keep what ``opened`` makes open while the block runs, on a thread with an event loop of its own."""
    begun, ended = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def keep_open() -> None:
        loops.append(asyncio.get_running_loop())
        async with opened():
            begun.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(keep_open()), name="beside")
    thread.start()
    try:
        assert begun.wait(5), "it did not begin"
        yield
    finally:
        loops[0].call_soon_threadsafe(ended.set)
        thread.join()
