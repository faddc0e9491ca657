"""Programs that are run beside the agent end when they are put away."""

import asyncio
import signal

from node_agent.kit.programs import put_away


async def test_a_program_that_runs_is_ended_and_waited_for() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "60")
    await put_away(process)
    assert process.returncode == -signal.SIGKILL


async def test_one_that_has_ended_keeps_its_status() -> None:
    process = await asyncio.create_subprocess_exec("sh", "-c", "exit 3")
    await process.wait()
    await put_away(process)
    assert process.returncode == 3
