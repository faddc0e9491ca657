"""The agents of twenty nodes at one real API server: the short form of ``make bench-cluster``."""

import asyncio
import time
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from benchmarks.scale.control_plane import ControlPlane
from benchmarks.scale.crowd import Crowd, crowd
from benchmarks.scale.requests import Request, by_name, requests, watches, writes

pytestmark = pytest.mark.node

NODES = [f"node-{number:02}" for number in range(20)]


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as plane:
        yield plane


async def test_neither_agents_that_all_start_over_nor_an_api_server_that_does_cost_a_write(plane: ControlPlane) -> None:
    await plane.make_nodes(NODES)
    tokens = await plane.tokens(NODES)
    async with crowd(plane.kubeconfig, tokens, processes=1) as agents:
        await agents.do("start")
        await agents.published()
        await all_is_told(plane)

        began = time.time()
        await agents.do("restart")
        await agents.published()
        again = await watching(plane, agents, began)
        assert not writes(again), by_name(writes(again))

        await asyncio.to_thread(plane.restart_api_server)
        back = await watching(plane, agents, plane.api_server_started)
        assert not writes(back), by_name(writes(back))


async def all_is_told(plane: ControlPlane) -> None:
    """Wait until each node has its slice, its condition and its labels."""
    wanted = {"create resourceslices", "patch nodes/status", "patch nodes"}

    def is_told() -> bool:
        done = by_name(one for one in requests(plane.audit_log) if one.code < HTTPStatus.BAD_REQUEST)
        return all(done[name] >= len(NODES) for name in wanted)

    async with asyncio.timeout(120):
        while not is_told():
            await asyncio.sleep(0.2)


async def watching(plane: ControlPlane, agents: Crowd, since: float) -> list[Request]:
    """What was asked since then, once all agents watch their slices again and have looked at all that they report."""
    async with asyncio.timeout(120):
        while watches(requests(plane.audit_log, since)) < len(NODES):
            await asyncio.sleep(0.2)
    # What they would write, they would write at once.
    await agents.do("nothing")
    await asyncio.sleep(2.0)
    return requests(plane.audit_log, since)
