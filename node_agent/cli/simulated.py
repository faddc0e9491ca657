"""A simulated node for a command: its files in a folder, its library in the place of NVIDIA's, faults over a socket."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.control import ControlServer
from node_agent.hardware.simulated.placeholders import stat


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """The node, and where its files are."""

    node: SimulatedNode
    tree: Path

    @property
    def flags(self) -> Mapping[str, str]:
        """The settings that make the agent see the simulated node's files."""
        return {
            "agent.paths.sysfsRoot": str(self.tree / "sys"),
            "flags.nvidiaDriverRoot": str(self.tree),
            "flags.nvidiaDevRoot": str(self.tree),
            "flags.plugin.containerDriverRoot": str(self.tree),
        }

    def stat(self, path: Path) -> os.stat_result:
        """Looks at the node's device nodes, which may be placeholders."""
        return stat(path)


@contextmanager
def simulation(profile: str, tree: Path, socket: Path | None = None) -> Iterator[Simulation]:
    """Stand a simulated node in for the real one while the block runs; ``socket`` is where faults may come from."""
    node = SimulatedNode(load_profile(profile))
    tree.mkdir(parents=True, exist_ok=True)
    node.write_tree(tree)
    with install(node):
        if socket is None:
            yield Simulation(node=node, tree=tree)
            return
        with ControlServer(node, socket):
            yield Simulation(node=node, tree=tree)
