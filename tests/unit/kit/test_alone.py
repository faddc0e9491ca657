"""Of those who want to be alone one is, and the next one as soon as it has ended."""

import asyncio
import sys
from pathlib import Path

import pytest

from node_agent.kit.alone import alone
from node_agent.kit.tasks import running

HOLDER = """
import asyncio, pathlib, sys
from node_agent.kit.alone import alone

async def hold() -> None:
    async with alone(pathlib.Path(sys.argv[1])):
        print("has it", flush=True)
        await asyncio.sleep(60)

asyncio.run(hold())
"""


class Worker:
    """Notes when it is at work."""

    def __init__(self, lock: Path) -> None:
        self._lock = lock
        self.works = asyncio.Event()

    async def run(self) -> None:
        async with alone(self._lock, every=0.01):
            self.works.set()
            await asyncio.Event().wait()


async def test_whoever_comes_second_works_once_the_first_has_ended(tmp_path: Path) -> None:
    first, second = Worker(tmp_path / "lock"), Worker(tmp_path / "lock")
    async with asyncio.timeout(30):
        async with running(first.run()):
            await first.works.wait()
            async with running(second.run()) as waiting:
                await asyncio.sleep(0.1)
                assert not second.works.is_set()
                assert not waiting.done()
        async with running(second.run()):
            await second.works.wait()


async def test_one_that_gives_up_waiting_leaves_the_lock_to_others(tmp_path: Path) -> None:
    first, second, third = (Worker(tmp_path / "lock") for _ in range(3))
    async with asyncio.timeout(30):
        async with running(first.run()):
            await first.works.wait()
            async with running(second.run()):
                await asyncio.sleep(0.05)
            async with running(third.run()):
                await asyncio.sleep(0.05)
                assert not third.works.is_set()
        async with running(third.run()):
            await third.works.wait()
    assert not second.works.is_set()


async def test_a_process_that_is_killed_leaves_the_lock_to_others(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "lock")]
    holder = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"has it\n"
    heir = Worker(tmp_path / "lock")
    async with asyncio.timeout(30), running(heir.run()):
        await asyncio.sleep(0.05)
        assert not heir.works.is_set()
        holder.kill()
        await heir.works.wait()
    await holder.wait()


async def test_where_there_is_no_place_for_the_lock_that_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        async with alone(tmp_path / "absent" / "lock"):
            raise AssertionError("nobody can be alone here")
