"""Unix sockets in the file system: paths that fit, and removing only what is one's own."""

import os
from pathlib import Path

from msgspec import Struct

# The kernel's sockaddr_un holds 108 bytes with the closing NUL; Go and Python both refuse longer paths.
LONGEST_PATH = 107


def checked(path: Path) -> Path:
    """The path itself, or ValueError where the kernel could not bind it."""
    length = len(os.fsencode(path))
    if length > LONGEST_PATH:
        raise ValueError(
            f"socket path {path} has {length} bytes; the kernel allows {LONGEST_PATH}: use a shorter folder"
        )
    return path


class FileIdentity(Struct, frozen=True, kw_only=True):
    """Tells one socket from another made later under the same name.

    File systems give an inode's number to the next file at once; the time of modification is when a socket was bound,
    and unlike that of change it stays when someone sets the owner, the mode or the label.
    """

    device: int
    inode: int
    modified_ns: int


def identity(path: Path) -> FileIdentity | None:
    """Which file stands at ``path`` now, or None where there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileIdentity(device=found.st_dev, inode=found.st_ino, modified_ns=found.st_mtime_ns)


def remove_own(path: Path, own: FileIdentity | None) -> bool:
    """Remove the socket at ``path`` if it is still the one that was made as ``own``; says whether it did."""
    if own is None or identity(path) != own:
        return False
    path.unlink(missing_ok=True)
    return True
