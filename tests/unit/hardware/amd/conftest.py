"""A node of eight MI300X in files, and AMD's provider over them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node_agent.hardware.amd.provider import AmdProvider
from node_agent.hardware.simulated.amd import PROFILES, SimulatedAmdNode


@pytest.fixture
def node(tmp_path: Path) -> SimulatedAmdNode:
    node = SimulatedAmdNode(PROFILES["mi300x-8"])
    node.write_tree(tmp_path)
    return node


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    return tmp_path / "sys"


@pytest.fixture
async def provider(node: SimulatedAmdNode, sysfs: Path) -> AsyncIterator[AmdProvider]:
    async with AmdProvider(sysfs) as provider:
        yield provider
