"""Makes the folders of a daemon, and clears them away."""

import os
import shutil
import subprocess
from pathlib import Path

from node_agent.errors import MpsError
from node_agent.sharing.mps.plan import Folders

# Of the memory of the machine; servers need some hundred MiB to a few GiB, and clients may fill it.
SHM_SIZE = "25%"

_MOUNT_SECONDS = 10.0
_CAP_SYS_ADMIN = 21


def may_mount() -> bool:
    """Whether this process may mount: only then a daemon can have a /dev/shm of its own."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) >> _CAP_SYS_ADMIN & 1)
    return False


def make(folders: Folders) -> None:
    """Make the folders of a daemon, or clear away what a dead one left in its pipe folder. Raises MpsError.

    Those that are there stay, since containers have them mounted; and what is shared is the clients' as well.
    """
    for folder in (folders.pipe, folders.log, folders.shm):
        if folder is not None:
            _made(folder)
    for left in folders.pipe.iterdir():
        _remove(left)
    if folders.shm is not None and not os.path.ismount(folders.shm):
        options = f"mode=1777,nosuid,nodev,noexec,size={SHM_SIZE}"
        _run("mount", "-t", "tmpfs", "-o", options, "node-agent-mps", str(folders.shm))


def remove(folders: Folders) -> None:
    """Remove all of a daemon's folders. Raises MpsError."""
    while folders.shm is not None and os.path.ismount(folders.shm):
        _run("umount", str(folders.shm))
    _remove(folders.log.parent)


def _made(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise MpsError(f"cannot make the folder of an MPS daemon {folder}: {error.strerror}") from error


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    except OSError as error:
        raise MpsError(f"cannot remove what an MPS daemon left, {path}: {error.strerror}") from error


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_MOUNT_SECONDS)
    except subprocess.CalledProcessError as error:
        raise MpsError(f"{' '.join(command)}: {error.stderr.strip()}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpsError(f"{' '.join(command)}: {error}") from error
