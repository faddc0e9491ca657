"""What a simulated file tree consists of, and how it gets below a root folder.

A tree is a mapping of relative paths to entries. Applying one writes what differs from what is there and removes what
an earlier tree left behind; nothing that no tree has written is ever touched.
"""

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from node_agent.errors import SimulationError

DeviceNodes = Literal["auto", "real", "placeholder"]

# Lists what the last tree wrote, one path a line, so that the next one knows what is its own to remove.
MANIFEST = ".simulated-node"


class File(Struct, frozen=True, kw_only=True):
    content: bytes
    mode: int = 0o644


class Link(Struct, frozen=True, kw_only=True):
    target: str


class Folder(Struct, frozen=True, kw_only=True):
    """Needed only where a folder may be empty: those above other entries are made anyway."""


class Socket(Struct, frozen=True, kw_only=True):
    """A socket that nobody listens on."""


class CharDevice(Struct, frozen=True, kw_only=True):
    major: int
    minor: int
    mode: int = 0o666


Entry = File | Link | Folder | Socket | CharDevice
Tree = Mapping[str, Entry]


def apply(tree: Tree, root: Path, devices: DeviceNodes) -> None:
    """Make the part of ``root`` that trees own equal to ``tree``.

    Raises:
        SimulationError: a path of the tree exists, but no tree has written it.
    """
    root.mkdir(parents=True, exist_ok=True)
    owned = _owned(root)
    for path in tree:
        if path not in owned and os.path.lexists(root / path):
            raise SimulationError(f"{root / path} exists and was not written by a simulated node: use another folder")
    # Until all is written both trees are owned, so that a failure half-way leaves nothing that cannot be removed.
    _own({*owned, *tree}, root)
    # Deepest first, so that folders are empty when their turn comes.
    for path in sorted(owned - tree.keys(), reverse=True):
        _remove(root, root / path)
    for path, entry in tree.items():
        _put(root / path, entry, devices)
    _own(tree, root)


def _owned(root: Path) -> set[str]:
    try:
        return set((root / MANIFEST).read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:
        return set()


def _own(paths: Iterable[str], root: Path) -> None:
    # As a whole: without it nothing here is known to be a tree's, and no agent would start here any more.
    _replace(root / MANIFEST, lambda new: new.write_text("\n".join(sorted(paths)), encoding="utf-8"))


def _remove(root: Path, path: Path) -> None:
    """Remove an entry and the folders that it leaves empty."""
    if path.is_dir() and not path.is_symlink():
        if not any(path.iterdir()):
            path.rmdir()
    else:
        path.unlink(missing_ok=True)
    for folder in path.parents:
        if folder == root or not folder.is_dir() or any(folder.iterdir()):
            return
        folder.rmdir()


def _put(path: Path, entry: Entry, devices: DeviceNodes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    match entry:
        case Folder():
            path.mkdir(exist_ok=True)
        case File() if not _is_file(path, entry.content):
            _replace(path, lambda new: new.write_bytes(entry.content))
            path.chmod(entry.mode)
        case Link() if not (path.is_symlink() and os.readlink(path) == entry.target):
            _replace(path, lambda new: new.symlink_to(entry.target))
        case Socket() if not path.is_socket():
            _replace(path, lambda new: os.mknod(new, stat.S_IFSOCK | 0o666))
        case CharDevice():
            _put_device(path, entry, devices)


def _put_device(path: Path, entry: CharDevice, devices: DeviceNodes) -> None:
    """A device node needs the right to make one; its placeholder is a file that names it as ``c 195:0``."""
    number = os.makedev(entry.major, entry.minor)
    if path.is_char_device() and path.stat().st_rdev == number:
        return
    if devices != "placeholder":
        try:
            _replace(path, lambda new: os.mknod(new, stat.S_IFCHR | entry.mode, number))
        except PermissionError:
            if devices == "real":
                raise
        else:
            # The mode given to mknod is cut down by the umask.
            path.chmod(entry.mode)
            return
    _put(path, File(content=f"c {entry.major}:{entry.minor}\n".encode(), mode=entry.mode), devices)


def _is_file(path: Path, content: bytes) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes() == content


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    """Make something beside its place, then move it there: a reader never sees a part of it."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    make(beside)
    os.replace(beside, path)
