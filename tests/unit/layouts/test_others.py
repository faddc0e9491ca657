"""Two agents of one node: what the other one cuts, this one looks at."""

import asyncio
from pathlib import Path

from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.layouts.others import follow_others
from tests.unit.allocation.support import opened


class Looks:
    def __init__(self) -> None:
        self.count = Latest(0)

    def __call__(self) -> None:
        self.count.set(self.count.value + 1)

    async def come(self, more: int) -> None:
        """Await so many from now on."""
        wanted = self.count.value + more
        async with asyncio.timeout(30):
            async for found in self.count.watch():
                if found >= wanted:
                    return


async def test_gpus_are_looked_at_as_long_as_another_agent_is_there_and_once_more_at_its_end(tmp_path: Path) -> None:
    looks = Looks()
    async with (
        opened(tmp_path) as ledger,
        running(ledger.run()),
        running(follow_others(ledger.company, looks, every_seconds=0.05)),
    ):
        await looks.come(1)
        async with opened(tmp_path, told=False) as other, running(other.run()):
            await looks.come(5)
        async with asyncio.timeout(30):
            async for company in ledger.company.watch():
                if not company:
                    break
        await asyncio.sleep(0.2)
        now = looks.count.value
        await asyncio.sleep(0.2)
        assert looks.count.value == now


async def test_an_agent_that_is_alone_looks_no_more_often_than_it_would() -> None:
    looks, company = Looks(), Latest(False)
    async with running(follow_others(company, looks, every_seconds=0.01)):
        await asyncio.sleep(0.2)
        assert looks.count.value == 1
        company.set(True)
        await looks.come(3)
        company.set(False)
        await looks.come(1)
