"""A minimal ELF64 shared object: no code, just the SONAME by which ``ldconfig`` and container tools know a library.

One loadable segment covers the whole file, so that file offsets are addresses. Section headers are there for readers
that find the dynamic section through them.
"""

import struct
from typing import Literal

Machine = Literal["x86_64", "aarch64"]

# Figures and layouts are those of the ELF specification, under its own names.
_MACHINES = {"x86_64": 62, "aarch64": 183}

_HEADER, _SEGMENT, _SECTION, _DYNAMIC = "<16sHHIQQQIHHHHHH", "<IIQQQQQQ", "<IIQQQQIIQQ", "<qQ"
_HEADER_SIZE, _SEGMENT_SIZE, _SECTION_SIZE = 64, 56, 64
_IDENT = b"\x7fELF\x02\x01\x01" + bytes(9)

_ET_DYN, _PT_LOAD, _PT_DYNAMIC, _PF_R = 3, 1, 2, 4
_SHT_STRTAB, _SHT_DYNAMIC, _SHF_ALLOC = 3, 6, 2
_DT_NULL, _DT_STRTAB, _DT_STRSZ, _DT_SONAME = 0, 5, 10, 14
_PAGE = 0x1000

_SECTION_NAMES = b"\0.dynstr\0.dynamic\0.shstrtab\0"


def shared_object(soname: str, machine: Machine = "x86_64") -> bytes:
    """The bytes of a shared object for ``machine`` that calls itself ``soname``."""
    strings = b"\0" + soname.encode() + b"\0"
    strings_at = _HEADER_SIZE + 2 * _SEGMENT_SIZE
    dynamic_at = _aligned(strings_at + len(strings))
    dynamic = _dynamic(strings_at, len(strings))
    names_at = dynamic_at + len(dynamic)
    # Sections are not needed to load a library, but some readers look for the dynamic section by nothing else.
    sections_at = _aligned(names_at + len(_SECTION_NAMES))
    sections = _sections((strings_at, len(strings)), (dynamic_at, len(dynamic)), names_at)
    size = sections_at + len(sections)
    return b"".join(
        [
            _header(machine, sections_at, len(sections) // _SECTION_SIZE),
            struct.pack(_SEGMENT, _PT_LOAD, _PF_R, 0, 0, 0, size, size, _PAGE),
            struct.pack(_SEGMENT, _PT_DYNAMIC, _PF_R, *[dynamic_at] * 3, *[len(dynamic)] * 2, 8),
            strings.ljust(dynamic_at - strings_at, b"\0"),
            dynamic,
            _SECTION_NAMES.ljust(sections_at - names_at, b"\0"),
            sections,
        ]
    )


def _header(machine: Machine, sections_at: int, sections: int) -> bytes:
    sizes = (_HEADER_SIZE, _SEGMENT_SIZE, 2, _SECTION_SIZE, sections, sections - 1)
    return struct.pack(_HEADER, _IDENT, _ET_DYN, _MACHINES[machine], 1, 0, _HEADER_SIZE, sections_at, 0, *sizes)


def _dynamic(strings_at: int, strings_size: int) -> bytes:
    entries = [(_DT_SONAME, 1), (_DT_STRTAB, strings_at), (_DT_STRSZ, strings_size), (_DT_NULL, 0)]
    return b"".join(struct.pack(_DYNAMIC, tag, value) for tag, value in entries)


def _sections(strings: tuple[int, int], dynamic: tuple[int, int], names_at: int) -> bytes:
    """Null, ``.dynstr``, ``.dynamic`` (which names its string table by section number) and ``.shstrtab``."""
    return b"".join(
        [
            bytes(_SECTION_SIZE),
            _section(b".dynstr", _SHT_STRTAB, _SHF_ALLOC, *strings),
            _section(b".dynamic", _SHT_DYNAMIC, _SHF_ALLOC, *dynamic, link=1, entry=struct.calcsize(_DYNAMIC)),
            _section(b".shstrtab", _SHT_STRTAB, 0, names_at, len(_SECTION_NAMES)),
        ]
    )


def _section(name: bytes, kind: int, flags: int, at: int, size: int, *, link: int = 0, entry: int = 0) -> bytes:
    address = at if flags else 0
    return struct.pack(_SECTION, _SECTION_NAMES.index(name), kind, flags, address, at, size, link, 0, 8, entry)


def _aligned(offset: int) -> int:
    return -(-offset // 8) * 8
