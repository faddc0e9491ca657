"""A place for an agent: a simulated node with its files, folders for the agent and a kubelet, all below one folder."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from node_agent.agent.agent import Agent
from node_agent.agent.build import built
from node_agent.cli.simulated import Simulation, simulation
from node_agent.config.resolve import resolve
from node_agent.config.settings import Settings
from node_agent.kit.tasks import running
from node_agent.kubelet.embedded import EmbeddedKubelet


@dataclass
class Place:
    folder: Path
    simulated: Simulation
    kubelet: EmbeddedKubelet

    def settings(self, **flags: object) -> Settings:
        """What is in force here; ``flags`` are keys with ``_`` in the place of ``.``."""
        given = {
            **self.simulated.flags,
            "agent.paths.kubeletDir": str(self.folder / "kubelet"),
            "agent.paths.cdiDir": str(self.folder / "cdi"),
            "agent.paths.stateDir": str(self.folder / "state"),
            "agent.paths.runDir": str(self.folder / "run"),
            "agent.nodeName": "node-a",
            "agent.health.probeInterval": "1s",
        }
        return resolve(None, {}, {**given, **{key.replace("_", "."): value for key, value in flags.items()}}).settings

    @asynccontextmanager
    async def agent(self, settings: Settings | None = None) -> AsyncIterator[Agent]:
        """An agent at work."""
        async with built(settings or self.settings(), self.simulated.stat) as agent, running(agent.run()):
            yield agent


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """On a node of 8 × H200, or of the profile that the test asks for by an indirect parameter."""
    profile = getattr(request, "param", "h200-8")
    with (
        tempfile.TemporaryDirectory(prefix="agent-", dir="/tmp") as name,
        simulation(profile, Path(name) / "n") as node,
    ):
        folder = Path(name)
        for needed in ("plugins", "plugins_registry"):
            (folder / "kubelet" / needed).mkdir(parents=True)
        kubelet = EmbeddedKubelet(folder / "kubelet" / "device-plugins", folder / "kubelet" / "plugins_registry")
        yield Place(folder=folder, simulated=node, kubelet=kubelet)
