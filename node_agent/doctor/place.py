"""Where the checks look: the settings of the node, its folders as the agent sees them, and what the driver told."""

import socket
from pathlib import Path

from msgspec import Struct

from node_agent.cdi.nodes import Stat
from node_agent.cdi.roots import DriverRoots
from node_agent.config.settings import Settings
from node_agent.model.inventory import Inventory
from node_agent.reporting.status import Status


class Place(Struct, frozen=True, kw_only=True):
    """``inventory`` is one look at the driver, ``status`` the running agent's document, None where none runs.

    ``host`` is the host's file system as the agent sees it, which is right where the driver is installed on the host
    itself; ``proc`` is a mounted /proc.
    """

    settings: Settings
    roots: DriverRoots
    stat: Stat
    inventory: Inventory
    status: Status | None = None
    host: Path = Path("/")
    proc: Path = Path("/proc")

    @property
    def sysfs(self) -> Path:
        return self.settings.paths.sysfs_root

    @property
    def kubelet(self) -> Path:
        return self.settings.paths.kubelet_dir


def answers(path: Path, timeout: float = 1.0) -> bool:
    """Whether somebody listens on a Unix socket; a path that is no socket has nobody."""
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(timeout)
        try:
            connected.connect(str(path))
        except OSError:
            return False
    return True


def text_of(path: Path) -> str | None:
    """What is in a small file; None where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
