"""Programs that are run beside the agent."""

from asyncio.subprocess import Process
from contextlib import suppress


async def put_away(process: Process) -> None:
    """Make a program end that has not ended yet, and wait for that."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
