"""A process that has all of the agent loaded and none of it started: what it forks is an agent in no time.

It reads one line a child, the path of a pickled ``Start``, and answers with the child's pid; its end ends its children.
"""

import asyncio
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node_agent.agent import live, plugins
from node_agent.agent.build import built
from node_agent.agent.reload import first_configuration
from node_agent.allocation import upkeep
from node_agent.cdi import publisher
from node_agent.config import watch
from node_agent.config.resolve import Sources
from node_agent.deviceplugin import holding
from node_agent.deviceplugin import server as plugin_server
from node_agent.errors import SimulationError
from node_agent.hardware import inventory
from node_agent.hardware.nvml import events, readings
from node_agent.hardware.simulated import SimulatedNode, install
from node_agent.hardware.simulated.control import ControlServer
from node_agent.hardware.simulated.placeholders import stat
from node_agent.hardware.simulated.profile import NodeProfile
from node_agent.health import watcher
from node_agent.kit import logs
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from tests.crash.boundaries import Boundaries, Fuse
from tests.crash.hardware import lasting

# Nobody can set these, and nobody wants to wait for them here.
SHORT: tuple[tuple[Any, str, float], ...] = (
    (events, "WAIT_SECONDS", 0.05),
    (readings, "SLOW_SECONDS", 0.1),
    (watcher, "USELESS_SECONDS", 0.2),
    (inventory, "_REST_SECONDS", 0.02),
    (publisher, "SOON_SECONDS", 0.2),
    (publisher, "SELDOM_SECONDS", 0.5),
    (watch, "LOOK_SECONDS", 0.02),
    (watch, "STAND_SECONDS", 0.02),
    (live, "SETTLE_SECONDS", 0.1),
    (plugins, "SETTLE_SECONDS", 0.1),
    (plugin_server, "LOOK_SECONDS", 0.05),
    (holding, "SOON_SECONDS", 0.1),
)
DEFAULTS: tuple[tuple[Any, dict[str, float]], ...] = (
    (upkeep.Upkeep.__init__, {"lag": 0.0}),
    (holding.LimitDoor.__init__, {"every_seconds": 0.2, "admission_seconds": 0.5}),
)


PATIENCE = 30.0
"""Seconds for which a dead agent's socket may still be held."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What an agent is started with: ``hardware`` is the file that keeps how the GPUs stand, ``control`` the
    socket by which they are broken."""

    sources: Sources
    profile: NodeProfile
    tree: Path
    hardware: Path
    fuse: Path
    log: Path
    control: Path


class Nursery:
    """Starts agents while the block runs."""

    def __enter__(self) -> "Nursery":
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.nursery"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def start(self, start: Start) -> int:
        """The pid of a new agent, which is about to start."""
        file = start.fuse.with_suffix(".start")
        file.write_bytes(pickle.dumps(start))
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{file}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def _be_agent(start: Start) -> None:
    for module, name, seconds in SHORT:
        assert hasattr(module, name), f"{module.__name__} has no {name} any more"
        setattr(module, name, seconds)
    for function, defaults in DEFAULTS:
        function.__kwdefaults__.update(defaults)
    log = os.open(start.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logs.configure("info", "text")
    node = lasting(start.profile, start.hardware)
    boundaries = Boundaries(Fuse(start.fuse), (start.tree, start.hardware.parent))
    with install(node), _controlled(node, start.control):
        node.write_tree(start.tree, devices="placeholder")
        boundaries.watch_hardware()
        boundaries.watch()
        asyncio.run(_work(start.sources))


@contextmanager
def _controlled(node: SimulatedNode, path: Path) -> Iterator[None]:
    """Let the node be broken from outside. What a dead agent was about to start has its socket until it is executed."""
    control, ends = ControlServer(node, path), time.monotonic() + PATIENCE
    while True:
        try:
            control.start()
            break
        except SimulationError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.01)
    try:
        yield
    finally:
        control.stop()


async def _work(sources: Sources) -> None:
    configuration = first_configuration(sources, Latest(None))
    async with built(configuration.first.settings, stat, configuration) as agent, running(agent.run()) as work:
        await work


# PR_SET_PDEATHSIG of <linux/prctl.h>.
DIE_WITH_PARENT = 1


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who died is seen by its pid
    libc = ctypes.CDLL(None, use_errno=True)
    for line in sys.stdin:
        start = pickle.loads(Path(line.strip()).read_bytes())
        assert threading.active_count() == 1
        if not (pid := os.fork()):
            try:
                # Whoever ended them at the end by their numbers would meet others that have these by then.
                if libc.prctl(DIE_WITH_PARENT, signal.SIGKILL):
                    raise OSError(ctypes.get_errno(), "cannot end with the process that forked it")
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(0)
                _be_agent(start)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
