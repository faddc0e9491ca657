"""What is there for domains follows the driver: nothing before there were channels, no device once they are gone."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.computedomain.pool import DomainPool, pool_of
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.model.inventory import Inventory
from tests.unit.cdi.test_imex import driver


@pytest.fixture
def lane() -> Iterator[Lane]:
    with Lane("files") as lane:
        yield lane


def test_a_node_has_one_channel_and_one_daemon_with_nvidias_attributes() -> None:
    (part,) = pool_of(channels=True).slices
    assert part.content["devices"] == [
        {"name": "channel-0", "attributes": {"type": {"string": "channel"}, "id": {"int": 0}}},
        {"name": "daemon-0", "attributes": {"type": {"string": "daemon"}, "id": {"int": 0}}},
    ]


async def test_channels_that_come_and_go_with_the_driver_are_followed(tmp_path: Path, lane: Lane) -> None:
    roots, inventory = driver(tmp_path / "proc", count=0), Latest(Inventory())
    pool, params = DomainPool(roots, inventory, lane), tmp_path / "proc/driver/nvidia/params"
    async with running(pool.run()):
        await asyncio.sleep(0)
        assert pool.pool.value is None
        params.write_text("ImexChannelCount: 2048\n")
        inventory.set(Inventory(generation=1))
        await reached(pool, devices=True)
        params.write_text("ImexChannelCount: 0\n")
        inventory.set(Inventory(generation=2))
        await reached(pool, devices=False)


async def reached(pool: DomainPool, *, devices: bool) -> None:
    async with asyncio.timeout(30):
        async for found in pool.pool.watch():
            if found is not None and bool(found.slices[0].content.get("devices")) == devices:
                return
