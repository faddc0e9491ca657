"""The implementations of the hardware Protocols: NVML or files over every simulated node, none, and a real driver.

The real one takes part where it is asked for: ``pytest -m gpu``.
"""

from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path

import pytest

from node_agent.hardware.amd.provider import AmdProvider
from node_agent.hardware.null import NullProvider
from node_agent.hardware.nvml import events
from node_agent.hardware.nvml.provider import NvmlProvider
from node_agent.hardware.provider import Provider, Scan
from node_agent.hardware.simulated import SimulatedNode, install, load_profile, profile_names
from node_agent.hardware.simulated.amd import PROFILES as AMD_PROFILES
from node_agent.hardware.simulated.amd import SimulatedAmdNode
from node_agent.model.gpu import GpuUuid

# Profiles are values: one reading of the YAML serves all tests.
profile = cache(load_profile)

IMPLEMENTATIONS = [*profile_names(), *AMD_PROFILES, "null", pytest.param("real", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a subscription waits for the end of the wait."""
    monkeypatch.setattr(events, "WAIT_SECONDS", 0.05)


@pytest.fixture(params=IMPLEMENTATIONS)
async def provider(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Provider]:
    """Each implementation in turn."""
    if request.param == "null":
        yield NullProvider()
    elif request.param in AMD_PROFILES:
        SimulatedAmdNode(AMD_PROFILES[request.param]).write_tree(tmp_path)
        async with AmdProvider(sysfs=tmp_path / "sys") as amd:
            yield amd
    elif request.param == "real":
        async with NvmlProvider() as real:
            yield real
    else:
        with install(SimulatedNode(profile(request.param))):
            async with NvmlProvider(sysfs=tmp_path) as simulated:
                yield simulated


@pytest.fixture
async def scan(provider: Provider) -> Scan:
    return await provider.discovery.scan()


@pytest.fixture
def uuids(scan: Scan) -> list[GpuUuid]:
    return [gpu.uuid for gpu in scan.gpus]


@pytest.fixture(params=profile_names())
def node(request: pytest.FixtureRequest) -> Iterator[SimulatedNode]:
    """Each simulated node in turn."""
    with install(SimulatedNode(profile(request.param))) as node:
        yield node


@pytest.fixture
async def nvml(node: SimulatedNode, tmp_path: Path) -> AsyncIterator[NvmlProvider]:
    """The provider that reads ``node``."""
    async with NvmlProvider(sysfs=tmp_path) as provider:
        yield provider
