"""Processes by pid and start: who still runs, who has ended, who belongs to a daemon."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from msgspec.structs import replace

from node_agent.sharing.mps.processes import end, ended, find_process, of_pipe, send

NAMED = "import time; open('/proc/self/comm','w').write({name!r}); print(flush=True); time.sleep(60)"
DEAF = "import signal,time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"


@contextmanager
def program(script: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has begun with what its script says."""
    command = [sys.executable, "-I", "-S", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as started:
        assert started.stdout is not None
        started.stdout.readline()
        try:
            yield started
        finally:
            started.kill()


def named(name: str, pipe: Path) -> AbstractContextManager["subprocess.Popen[bytes]"]:
    return program(NAMED.format(name=name), CUDA_MPS_PIPE_DIRECTORY=str(pipe))


def test_this_process_runs_and_is_told_from_others_that_had_its_pid() -> None:
    own = find_process(os.getpid())
    assert own is not None
    assert own.running
    assert not replace(own, started=own.started - 1).running
    assert not replace(own, boot="an earlier one").running


def test_a_process_that_ended_is_gone_before_its_parent_asks() -> None:
    with program("print(flush=True)") as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert find_process(child.pid) is None


async def test_the_end_of_a_process_is_waited_for() -> None:
    with program(NAMED.format(name="x")) as child:
        process = find_process(child.pid)
        assert process is not None
        waiting = asyncio.create_task(ended(process))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        child.kill()
        await asyncio.wait_for(waiting, 5)
    await asyncio.wait_for(ended(process), 5)


async def test_the_end_of_one_whose_pid_another_has_is_over() -> None:
    own = find_process(os.getpid())
    assert own is not None
    await asyncio.wait_for(ended(replace(own, started=1)), 5)


def test_no_signal_reaches_another_process_of_that_pid() -> None:
    own = find_process(os.getpid())
    assert own is not None
    send(replace(own, started=1), signal.SIGKILL)
    send(replace(own, pid=2**22 - 1), signal.SIGKILL)


def test_a_daemons_processes_are_known_by_name_and_pipe(tmp_path: Path) -> None:
    with (
        named("nvidia-cuda-mps-server", tmp_path) as own,
        named("nvidia-cuda-mps-server", tmp_path / "other"),
        named("some-client", tmp_path),
    ):
        assert [process.pid for process in of_pipe(tmp_path)] == [own.pid]


async def test_one_that_is_deaf_to_the_first_word_hears_the_second() -> None:
    with program(DEAF) as child:
        process = find_process(child.pid)
        assert process is not None
        assert await end([process], grace=0.2) == []
        assert child.wait() == -signal.SIGKILL


async def test_one_that_ends_at_the_first_word_gets_no_second() -> None:
    with program(NAMED.format(name="x")) as child:
        process = find_process(child.pid)
        assert process is not None
        assert await end([process], grace=5) == []
        assert child.wait() == -signal.SIGTERM
