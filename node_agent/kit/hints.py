"""Wakes up whoever looks at files now and then, so that a look may be seldom: Linux's inotify, while it has room.

What it tells is a hint and no more. Whoever follows it looks for itself, and often where there is no hint to be had:
on busy nodes the instances run out, and a folder that is not there yet cannot be watched.
"""

import asyncio
import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from node_agent.kit.latest import Latest

# How long to wait for a hint at most, and for the next look where none can come.
SELDOM_SECONDS, OFTEN_SECONDS = 10.0, 0.5

# From inotify(7): what may show another file at a path, and attributes, which also tell that a name is gone.
_ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = (
    0x4,
    0x40,
    0x80,
    0x100,
    0x200,
    0x400,
    0x800,
)
_MASK = _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
# The kernel has dropped the watch.
_IGNORED = 0x8000
_EVENT = struct.Struct("iIII")


class Hints:
    """Of some folders and files; follows them while used as a context manager, within a running event loop."""

    def __init__(self, *paths: Path) -> None:
        self._paths = frozenset(paths)
        self._watched: dict[int, Path] = {}
        self._descriptor = -1
        self.changed = Latest(0)
        """Grows when something may have changed in a folder, or a file been replaced."""

    def __enter__(self) -> "Hints":
        self._descriptor = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor >= 0:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
            self._watch_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
        self._descriptor, self._watched = -1, {}

    def pause(self) -> float:
        """How many seconds to wait for a hint before the next look."""
        # What happened between the last look and a new watch shows at the look after a short pause.
        complete = self._paths == set(self._watched.values())
        self._watch_all()
        return SELDOM_SECONDS if complete else OFTEN_SECONDS

    def _watch_all(self) -> None:
        if self._descriptor < 0:
            return
        for path in self._paths - set(self._watched.values()):
            watch = _libc().inotify_add_watch(self._descriptor, os.fsencode(path), _MASK)
            if watch >= 0:
                self._watched[watch] = path

    def _read(self) -> None:
        for watch, kind in _events(self._descriptor):
            if kind & _MOVE_SELF:  # it would go on to be watched where it is now
                _libc().inotify_rm_watch(self._descriptor, watch)
            if kind & _IGNORED:
                self._watched.pop(watch, None)
        self.changed.set(self.changed.value + 1)


def _events(descriptor: int) -> Iterator[tuple[int, int]]:
    """The watch and the kind of each event that waits to be read."""
    with suppress(BlockingIOError):
        buffer, at = os.read(descriptor, 64 * 1024), 0
        while at < len(buffer):
            watch, kind, _, length = _EVENT.unpack_from(buffer, at)
            yield watch, kind
            at += _EVENT.size + length


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
