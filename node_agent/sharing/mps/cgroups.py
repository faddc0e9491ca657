"""Takes a daemon out of the cgroup of the agent, with which it would end.

A container runtime ends all that is in a container's cgroup with the container, and systemd does so with a service. And
the host memory of a daemon's servers would count as the agent's own, against its limit.
"""

import os
from pathlib import Path

from node_agent.kit.logs import Log

# As the first process sees them: the whole of the hierarchies, where the agent sees the host's processes.
ROOT = Path("/proc/1/root/sys/fs/cgroup")

log = Log(__name__)


def leave(pid: int, root: Path = ROOT) -> None:
    """Move a process to the top of each hierarchy, where no container ends it; what hinders that is said.

    Nothing is done by an agent that is the first process itself: then a daemon ends with it anyway.
    """
    if os.getpid() == 1:
        log.warning("the MPS daemon ends with the agent's container: the manifest needs hostPID", pid=pid)
        return
    try:
        for procs in _tops(root):
            procs.write_text(str(pid))
    except OSError as error:
        log.warning("the MPS daemon stays in the agent's cgroup, and may end with the agent", pid=pid, reason=error)


def _tops(root: Path) -> list[Path]:
    """One with cgroup v2, one for each hierarchy with v1."""
    top = root / "cgroup.procs"
    return [top] if top.exists() else sorted(root.glob("*/cgroup.procs"))
