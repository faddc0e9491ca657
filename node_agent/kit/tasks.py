"""Tasks that never outlive the block that started them."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


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
