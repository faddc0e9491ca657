"""A simulated node below NVIDIA's binding, and the NVML provider that reads it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from node_agent.hardware.nvml.provider import NvmlProvider
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.simulated import SimulatedNode, install, load_profile


@pytest.fixture
def node() -> Iterator[SimulatedNode]:
    """Eight H200s on NVSwitches."""
    with install(SimulatedNode(load_profile("h200-8"))) as node:
        yield node


@pytest.fixture
async def nvml(node: SimulatedNode, tmp_path: Path) -> AsyncIterator[NvmlProvider]:
    async with NvmlProvider(sysfs=tmp_path / "sys") as provider:
        yield provider


@pytest.fixture
def session(node: SimulatedNode, tmp_path: Path) -> Iterator[Session]:
    """The library, opened on the test's own thread."""
    session = Session(sysfs=tmp_path / "sys")
    session.ensure_open()
    session.refresh()
    yield session
    session.close()
