"""What a machine leaves on the host beside its processes, and how to find and remove it.

A machine's name is in all of it: the folder below ``/tmp``, a cgroup in each hierarchy, the host's end of its network
link, the mounts of its processes. The folder is locked for as long as the machine's owner lives, which tells a machine
in use from what a killed test has left.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.node.rig.waiting import NotYet, wait_until

PARENT = Path("/tmp")
PREFIX = "gpu-rig-"


def claim(folder: Path) -> int:
    """Make a machine's folder, locked; returns the descriptor that holds the lock until it is closed."""
    # It gets its name when it is locked, so that no other machine's sweep takes it for a dead one.
    unnamed = folder.with_name(f".{folder.name}")
    unnamed.mkdir()
    descriptor = os.open(unnamed, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    unnamed.rename(folder)
    return descriptor


def sweep() -> None:
    """Remove what machines have left whose owner was killed."""
    for folder in PARENT.glob(f"{PREFIX}*"):
        # Locked: in use. Not found: another sweep was quicker.
        with contextlib.suppress(BlockingIOError, FileNotFoundError), _locked(folder):
            remove(folder.name)


def remove(name: str) -> None:
    """Remove the cgroups and the folder of a machine that is being closed or has lost its owner."""
    wait_until(f"the kernel has ended the processes and links of {name}", lambda: not (_processes(name) + _links(name)))
    wait_until(f"the cgroups of {name} are gone", lambda: _remove_cgroups(name))
    shutil.rmtree(PARENT / name)


def of(name: str) -> list[str]:
    """Everything that is left of a machine, a line for each; empty once it is closed."""
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if name in line]
    paths = [str(path) for path in [*cgroups(name), PARENT / name] if path.exists()]
    return [*_processes(name), *_links(name), *mounts, *paths]


def cgroups(name: str) -> list[Path]:
    """Where the machine's cgroup is in each mounted hierarchy: one with cgroup v2, about ten with v1."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(folder) / name for _, folder, kind, *_ in mounts if kind in ("cgroup", "cgroup2")]


def make_cgroups(name: str) -> None:
    for cgroup in cgroups(name):
        cgroup.mkdir()
        # With cgroup v2, a cgroup has the controllers that its parent hands down, and the kubelet asks for all.
        if (controllers := cgroup.parent / "cgroup.controllers").exists():
            handed_down = " ".join(f"+{controller}" for controller in controllers.read_text().split())
            (cgroup.parent / "cgroup.subtree_control").write_text(handed_down)


def link(name: str) -> str:
    """The name of the host's end of the machine's network link: at most 15 characters."""
    return f"rig{name.removeprefix(PREFIX)}"


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _processes(name: str) -> list[str]:
    """The processes that see mounts of the machine's folder, which those of no other machine do."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # A process that ends while it is looked at answers with one of several errors.
        with contextlib.suppress(OSError):
            if name in (process / "mountinfo").read_text():
                found.append(f"process {process.name}: {(process / 'cmdline').read_text()}")
    return found


def _links(name: str) -> list[str]:
    interface = Path("/sys/class/net") / link(name)
    return [str(interface)] if interface.exists() else []


def _remove_cgroups(name: str) -> bool:
    for cgroup in cgroups(name):
        for folder, _, _ in os.walk(cgroup, topdown=False):
            try:
                os.rmdir(folder)
            except OSError as error:
                raise NotYet(str(error)) from error
    return True
