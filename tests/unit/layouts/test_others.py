"""Two agents of one node share the ledger: what one of them cuts, the other one looks at."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from node_agent.allocation.checkpoint import Checkpoint
from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.allocation.ledger import Ledger
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.layouts.others import follow_others
from node_agent.model.gpu import GpuUuid

LAYOUT, LIMIT = Holder(door=Door.LAYOUT, id="layout/GPU-1", name="two"), Holder(door=Door.LIMIT, id="a", name="gpu")


@asynccontextmanager
async def agent(folder: Path) -> AsyncIterator[Ledger]:
    with Lane("files") as lane:
        async with (
            Ledger(checkpoint=Checkpoint(folder / "ledger.json"), lane=lane, boot_id="boot") as ledger,
            running(ledger.run()),
        ):
            yield ledger


def grant(holder: Holder, gpu: str = "GPU-1") -> Grant:
    return Grant(holder=holder, holds=(Hold(device=gpu, gpus=(GpuUuid(gpu),)),))


class Looks:
    def __init__(self) -> None:
        self.count = Latest(0)

    def __call__(self) -> None:
        self.count.set(self.count.value + 1)

    async def come_to(self, count: int) -> None:
        async with asyncio.timeout(30):
            async for found in self.count.watch():
                if found >= count:
                    return


async def test_gpus_are_looked_at_as_the_layout_of_another_agent_begins_and_ends(tmp_path: Path) -> None:
    looks = Looks()
    async with agent(tmp_path) as cutting:
        for door in (Door.CLAIM, Door.LIMIT):
            await cutting.reconcile(door, [])
        async with agent(tmp_path) as other, running(follow_others(other, looks)):
            await cutting.reserve(grant(LIMIT, "GPU-2"))
            await cutting.reserve(grant(LAYOUT))
            await looks.come_to(1)
            assert len(other.grants_of(Door.LIMIT)) == 1
            await cutting.release(LAYOUT.id)
            await looks.come_to(2)
            assert other.grants_of(Door.LAYOUT) == ()


async def test_an_agent_that_is_alone_looks_at_what_it_cuts_by_itself(tmp_path: Path) -> None:
    looks = Looks()
    async with agent(tmp_path) as alone, running(follow_others(alone, looks)):
        for door in (Door.CLAIM, Door.LIMIT):
            await alone.reconcile(door, [])
        await alone.reserve(grant(LAYOUT))
        await alone.release(LAYOUT.id)
        assert looks.count.value == 0
