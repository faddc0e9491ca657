"""A simulated node for a command: its files in a folder, NVIDIA's library where it has one, faults over a socket."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from msgspec import Struct

from node_agent.errors import ConfigError
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.amd import PROFILES as AMD_PROFILES
from node_agent.hardware.simulated.amd import SimulatedAmdNode
from node_agent.hardware.simulated.control import ControlServer
from node_agent.hardware.simulated.placeholders import stat
from node_agent.model.gpu import GpuUuid

# A GPU that has fallen off the bus.
FATAL_XID = 79


class Simulation(Struct, frozen=True, kw_only=True):
    """The node, and where its files are."""

    node: SimulatedNode
    tree: Path

    @property
    def flags(self) -> Mapping[str, str]:
        """The settings that make the agent see the simulated node's files."""
        return {
            **_paths(self.tree),
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

    def lose(self, gpu: GpuUuid) -> str:
        """Have a GPU fall off the bus; returns what is seen of that besides, in words."""
        # After an Xid a GPU stays out until the driver says that no recovery is due, and some cannot say it.
        tells = self.node.faults.gpu(gpu).board.recovery_action
        self.node.faults.lose(gpu, xid=tells)
        return f"reports Xid {FATAL_XID}: it has" if tells else "has"

    def restore(self, gpu: GpuUuid) -> None:
        self.node.faults.restore(gpu)


class AmdSimulation(Struct, frozen=True, kw_only=True):
    """The same of a node with AMD's GPUs; there is no socket for faults, since files are all that it has."""

    node: SimulatedAmdNode
    tree: Path

    @property
    def flags(self) -> Mapping[str, str]:
        return {**_paths(self.tree), "agent.vendor": "amd"}

    def controlled(self, socket: Path) -> AbstractContextManager[object]:
        return nullcontext()

    def stat(self, path: Path) -> os.stat_result:
        return stat(path)

    def lose(self, gpu: GpuUuid) -> str:
        self.node.lose(gpu)
        return "has"

    def restore(self, gpu: GpuUuid) -> None:
        self.node.restore(gpu)


AnySimulation = Simulation | AmdSimulation


def _paths(tree: Path) -> dict[str, str]:
    return {
        "agent.paths.sysfsRoot": str(tree / "sys"),
        "agent.paths.procRoot": str(tree / "proc"),
        "agent.paths.devRoot": str(tree),
    }


@contextmanager
def any_simulation(profile: str, tree: Path) -> Iterator[AnySimulation]:
    """As ``simulation``, of any vendor's profile."""
    if profile not in AMD_PROFILES:
        with simulation(profile, tree) as simulated:
            yield simulated
        return
    node = SimulatedAmdNode(AMD_PROFILES[profile])
    node.write_tree(tree)
    yield AmdSimulation(node=node, tree=tree)


@contextmanager
def simulation(profile: str, tree: Path) -> Iterator[Simulation]:
    """Stand a simulated node in for the real one while the block runs, with its files below ``tree``."""
    node = SimulatedNode(load_profile(profile, beside=AMD_PROFILES))
    node.write_tree(tree)
    with install(node):
        yield Simulation(node=node, tree=tree)
