"""The few facts of a shared library that matter here: whether the node's programs can load it, and its SONAME.

The SONAME is the name that other programs ask the loader for; on a plain host ldconfig makes a link of that name, in a
container somebody else has to. Reads the program headers and the dynamic section, not the whole library.
"""

import os
import struct
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

# The machines that NVIDIA's data-centre driver is built for, by their number in ELF, named as the kernel does.
MACHINES = {62: "x86_64", 183: "aarch64"}

_HEADER = struct.Struct("<4sBB10xHHIQQQIHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_ELF64, _LITTLE_ENDIAN = 2, 1
_LOAD, _DYNAMIC = 1, 2
_NO_MORE, _STRINGS, _SONAME = 0, 5, 14
_LONGEST_NAME = 256
_PAST_THE_END = 1 << 40
_LARGEST_PART = 1 << 20


class SharedLibrary(Struct, frozen=True, kw_only=True):
    """``machine`` as in ``MACHINES``; ``soname`` is None where the library has none."""

    machine: str
    soname: str | None


class _Segment(NamedTuple):
    type: int
    offset: int
    address: int
    size: int


def read(path: Path) -> SharedLibrary | None:
    """What the file is; None where it is no 64-bit library of a known machine, or is cut short. Raises OSError."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return None
        magic, bits, order, _, machine, _, _, segments, _, _, _, size, count = _HEADER.unpack(header)
        if (magic, bits, order) != (b"\x7fELF", _ELF64, _LITTLE_ENDIAN) or machine not in MACHINES:
            return None
        try:
            return SharedLibrary(
                machine=MACHINES[machine], soname=_soname(file, _segments(file, segments, size, count))
            )
        except struct.error:
            return None


def _segments(file: BufferedReader, offset: int, size: int, count: int) -> list[_Segment]:
    table = _at(file, offset, size * count)
    headers = [_SEGMENT.unpack_from(table, index * size) for index in range(count)]
    return [_Segment(kind, offset, address, length) for kind, _, offset, address, _, length, _, _ in headers]


def _soname(file: BufferedReader, segments: list[_Segment]) -> str | None:
    for segment in segments:
        if segment.type == _DYNAMIC:
            facts = dict(_dynamic(_at(file, segment.offset, segment.size)))
            if _SONAME in facts and _STRINGS in facts:
                start = _file_offset(segments, facts[_STRINGS]) + facts[_SONAME]
                return os.fsdecode(_at(file, start, _LONGEST_NAME).partition(b"\0")[0])
    return None


def _dynamic(section: bytes) -> Iterator[tuple[int, int]]:
    for tag, value in _ENTRY.iter_unpack(section):
        if tag == _NO_MORE:
            return
        yield tag, value


def _file_offset(segments: list[_Segment], address: int) -> int:
    """Where in the file the bytes of an address lie; the address itself where no segment holds it."""
    for segment in segments:
        if segment.type == _LOAD and segment.address <= address < segment.address + segment.size:
            return address - segment.address + segment.offset
    return address


def _at(file: BufferedReader, offset: int, size: int) -> bytes:
    # A damaged header can name offsets that no file system takes, and sizes that no memory holds.
    file.seek(min(offset, _PAST_THE_END))
    return file.read(min(size, _LARGEST_PART))
