"""A simulated node for a command: its files in a folder, its library in the place of NVIDIA's, faults over a socket."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from node_agent.errors import ConfigError
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
            "agent.paths.procRoot": str(self.tree / "proc"),
            "agent.paths.devRoot": str(self.tree),
            "flags.nvidiaDriverRoot": str(self.tree),
            # It is at one place for the agent and for the host, whatever the pod's variables say of real ones.
            "flags.nvidiaDevRoot": "",
            "flags.plugin.containerDriverRoot": "",
        }

    def controlled(self, socket: Path) -> ControlServer:
        """Takes faults from outside the process, on ``socket``, while it is entered.

        Raises:
            ConfigError: the socket's folder cannot be made.
        """
        try:
            socket.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"agent.paths.runDir: cannot make {socket.parent}: {error.strerror}") from error
        return ControlServer(self.node, socket)

    def stat(self, path: Path) -> os.stat_result:
        """Looks at the node's device nodes, which may be placeholders."""
        return stat(path)


@contextmanager
def simulation(profile: str, tree: Path) -> Iterator[Simulation]:
    """Stand a simulated node in for the real one while the block runs, with its files below ``tree``."""
    node = SimulatedNode(load_profile(profile))
    node.write_tree(tree)
    with install(node):
        yield Simulation(node=node, tree=tree)
