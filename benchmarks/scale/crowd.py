"""Starts and commands the processes of ``agents``."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.scale.agents import Nodes, Standing


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """The agents of all nodes, shared out among processes."""

    processes: Sequence[asyncio.subprocess.Process]

    async def do(self, what: str, **options: Any) -> Standing:
        """Have all of them do something; how they stand then, all together."""
        answers = await asyncio.gather(*(_asked(each, {"do": what, **options}) for each in self.processes))
        return Standing(**{name: sum(answer[name] for answer in answers) for name in answers[0]})

    async def published(self, timeout: float = 300) -> Standing:
        """Wait until all have published what they have."""
        async with asyncio.timeout(timeout):
            while (standing := await self.do("nothing")).published < standing.nodes:
                await asyncio.sleep(0.2)
        return standing


@asynccontextmanager
async def crowd(kubeconfig: Path, tokens: Mapping[str, str], *, processes: int = 2) -> AsyncIterator[Crowd]:
    """The processes, which end with the block; their agents wait for ``start``."""
    async with AsyncExitStack() as opened:
        names = sorted(tokens)
        started = []
        for number in range(min(processes, len(names))):
            mine = {name: tokens[name] for name in names[number::processes]}
            nodes = Nodes(kubeconfig=str(kubeconfig), tokens=mine)
            started.append(await opened.enter_async_context(_process(nodes)))
        yield Crowd(processes=started)


@asynccontextmanager
async def _process(nodes: Nodes) -> AsyncIterator[asyncio.subprocess.Process]:
    command = [sys.executable, "-m", "benchmarks.scale.agents"]
    child = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**20
    )
    assert child.stdin is not None
    try:
        child.stdin.write(msgspec.json.encode(nodes) + b"\n")
        yield child
    finally:
        child.stdin.close()
        await child.wait()


async def _asked(child: asyncio.subprocess.Process, command: Mapping[str, Any]) -> dict[str, Any]:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(json.dumps(command).encode() + b"\n")
    await child.stdin.drain()
    answer = await child.stdout.readline()
    if not answer:
        raise ConnectionError("a process with agents has ended; what it said is above")
    found: dict[str, Any] = json.loads(answer)
    return found
