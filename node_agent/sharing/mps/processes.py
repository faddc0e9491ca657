"""What the kernel knows of daemons: whether one still runs that was started earlier, when it ends, and what it left.

A pid alone names nobody for long, so a process is its pid and when it was started, in this boot.
"""

import asyncio
import os
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from node_agent.kit.boot import BOOT_ID
from node_agent.sharing.mps.plan import PIPE_DIRECTORY

# The start of the names of daemon and servers, and all that the kernel keeps of them.
NAME = "nvidia-cuda-mps"

# Of the fields after the name in /proc/<pid>/stat.
_STATE, _STARTED = 0, 19


class Process(Struct, frozen=True, kw_only=True):
    """One process that runs or ran: ``started`` in the kernel's ticks since ``boot``."""

    pid: int
    started: int
    boot: str

    @property
    def running(self) -> bool:
        return find_process(self.pid) == self


def find_process(pid: int) -> Process | None:
    """The process that runs under a pid now; one that ended counts as gone though nobody has asked how."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = BOOT_ID.read_text().strip()
    except (OSError, ValueError):
        return None
    return None if fields[_STATE] in "ZX" else Process(pid=pid, started=int(fields[_STARTED]), boot=boot)


async def ended(process: Process) -> None:
    """Wait until a process has ended; it need be no child."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if process.running:
            await _readable(descriptor)
    finally:
        os.close(descriptor)


async def _readable(descriptor: int) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


def of_pipe(pipe: Path) -> list[Process]:
    """The daemon of a pipe folder and its servers, by their name and environment; none that clients could be."""
    wanted = f"{PIPE_DIRECTORY}={pipe}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            named = (folder / "comm").read_text().startswith(NAME)
            if named and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(find_process(int(folder.name)))
    return [process for process in found if process is not None]


async def end(processes: Collection[Process], grace: float) -> list[Process]:
    """Ask processes to end, make them after ``grace`` seconds; answers those that are still there ``grace`` later."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            send(process, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await asyncio.gather(*(ended(process) for process in processes))
    return [process for process in processes if process.running]


def send(process: Process, number: signal.Signals) -> None:
    """Send a signal to this process and to no other that has got its pid since."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if process.running:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
