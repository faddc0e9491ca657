"""One process at a time: whoever has a file's lock works, and others wait until it has ended, however it ends."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def alone(lock: Path, every: float = 0.5) -> AsyncIterator[None]:
    """Have the lock while the block runs; while another has it, look again ``every`` so many seconds.

    Raises OSError where the file cannot be made.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while not _has(descriptor):
            await asyncio.sleep(every)
        yield
    finally:
        os.close(descriptor)


def _has(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
