"""A place to publish at, whose waits are short."""

from collections.abc import AsyncIterator

import pytest

from node_agent.dra import publisher
from node_agent.kit.latest import Latest
from node_agent.kube import mirror
from node_agent.kube.resources import NODES
from tests.fakes.api_server import ApiServer
from tests.unit.dra.publishing import NODE, Place, Times, limits, pool


@pytest.fixture
async def place(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(publisher, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(publisher, "LONGEST_PAUSE", 0.4)
    monkeypatch.setattr(publisher, "REPAIR_PAUSE", 0.05)
    monkeypatch.setattr(mirror, "FIRST_PAUSE", 0.02)
    async with ApiServer() as server:
        server.put(NODES, {"metadata": {"name": NODE}})
        server.strip(Times())
        server.check("resourceslices", limits)
        yield Place(server=server, pool=Latest(pool()))
