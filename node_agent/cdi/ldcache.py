"""The loader's cache, ``/etc/ld.so.cache``: where a driver in an unusual folder is found.

Reads the format that glibc has written since 2.2 (magic ``glibc-ld.so.cache1.1``), with or without the older one in
front of it: a header of 48 bytes, entries of 24, then the strings, whose offsets count from the magic.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct(f"<{len(_MAGIC)}sI24x")
_ENTRY = struct.Struct("<iIIIQ")
# The bits of an entry's flags that tell the architecture, and their values for x86_64 and for aarch64.
_ARCHITECTURE = 0xFF00
_SIXTY_FOUR_BIT = {0x0300, 0x0A00}


def read(path: Path) -> dict[str, PurePosixPath]:
    """The 64-bit libraries in a cache by name, each where the loader would take it from.

    There are none where there is no cache, or one that is damaged or of another format. Raises OSError.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    start = content.find(_MAGIC)
    if start < 0:
        return {}
    libraries: dict[str, PurePosixPath] = {}
    try:
        for name, place in _entries(content[start:]):
            libraries.setdefault(name, place)
    except (struct.error, ValueError):
        return {}
    return libraries


def _entries(cache: bytes) -> Iterator[tuple[str, PurePosixPath]]:
    _, count = _HEADER.unpack_from(cache)
    for index in range(count):
        flags, name, place, _, _ = _ENTRY.unpack_from(cache, _HEADER.size + index * _ENTRY.size)
        if flags & _ARCHITECTURE in _SIXTY_FOUR_BIT:
            yield _text(cache, name), PurePosixPath(_text(cache, place))


def _text(cache: bytes, offset: int) -> str:
    return os.fsdecode(cache[offset : cache.index(b"\0", offset)])
