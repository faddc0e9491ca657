"""The agent in this process, on a simulated node, beside an embedded kubelet; and what a look at such a node needs."""

import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from node_agent.agent.agent import Agent
from node_agent.agent.build import built
from node_agent.cli.simulated import Simulation, simulation
from node_agent.config.resolve import resolve
from node_agent.config.settings import Settings
from node_agent.kit.tasks import running
from node_agent.kubelet.embedded import EmbeddedKubelet
from node_agent.model.vendor import NVIDIA

NOTHING_MORE: Mapping[str, object] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A simulated node that this process sees as its own, with the settings of an agent for it."""

    simulation: Simulation
    settings: Settings
    folder: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """A node, the agent on it, and the kubelet that knows all of its GPUs."""

    node: Node
    agent: Agent
    kubelet: EmbeddedKubelet

    @property
    def endpoint(self) -> str:
        """The socket on which the kubelet calls the agent."""
        return self.kubelet.view(NVIDIA.resource).endpoint


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for sockets and files, whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="node-agent-bench-", dir="/tmp") as name:
        yield Path(name)


@contextmanager
def simulated(profile: str, more: Mapping[str, object] = NOTHING_MORE) -> Iterator[Node]:
    """A simulated node in the place of the real one while the block runs; ``more`` are settings by their keys."""
    with folder() as place, simulation(profile, place / "node") as node:
        flags = {
            **node.flags,
            "agent.paths.kubeletDir": str(place / "kubelet"),
            "agent.paths.cdiDir": str(place / "cdi"),
            "agent.paths.stateDir": str(place / "state"),
            "agent.paths.runDir": str(place / "run"),
            "agent.health.probeInterval": "1s",
            **more,
        }
        yield Node(simulation=node, settings=resolve(file=None, environment={}, flags=flags).settings, folder=place)


@asynccontextmanager
async def at_work(
    profile: str, more: Mapping[str, object] = NOTHING_MORE, *, kubelet_runs: bool = True
) -> AsyncIterator[World]:
    """The agent on a simulated node, registered, with all of its GPUs allocatable; ``more`` as for ``simulated``.

    Where no kubelet ``runs`` yet, it is for the caller to start.
    """
    with simulated(profile, more) as node:
        folders = node.settings.paths.kubelet_dir
        kubelet = EmbeddedKubelet(folders / "device-plugins")
        (folders / "plugins_registry").mkdir(parents=True)
        there = kubelet.running() if kubelet_runs else nullcontext()
        async with there, built(node.settings, node.simulation.stat) as agent, running(agent.run()):
            if kubelet_runs:
                await kubelet.until(NVIDIA.resource, allocatable=len(node.simulation.node.profile.gpus), timeout=30.0)
            yield World(node=node, agent=agent, kubelet=kubelet)
