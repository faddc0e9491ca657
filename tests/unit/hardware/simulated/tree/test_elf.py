"""The shared objects that carry a SONAME, read back by tools that know ELF and by hand."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from node_agent.hardware.simulated.tree.elf import Machine, shared_object

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NULL, DT_STRTAB, DT_STRSZ, DT_SONAME = 0, 5, 10, 14
SHT_DYNAMIC = 6


def segments(image: bytes) -> dict[int, tuple[int, int]]:
    """Offset and size of each segment by its type."""
    at, size, count = struct.unpack_from("<Q", image, 32)[0], *struct.unpack_from("<HH", image, 54)
    found = {}
    for number in range(count):
        kind, _, offset, address, _, in_file, _, _ = struct.unpack_from("<IIQQQQQQ", image, at + number * size)
        assert offset == address
        found[kind] = (offset, in_file)
    return found


def dynamic(image: bytes, at: int, size: int) -> dict[int, int]:
    entries = [struct.unpack_from("<qQ", image, at + step) for step in range(0, size, 16)]
    assert entries[-1] == (DT_NULL, 0)
    return dict(entries)


def text(image: bytes, at: int) -> str:
    return image[at : image.index(b"\0", at)].decode()


@pytest.mark.parametrize("soname", ["libcuda.so.1", "libnvidia-ml.so.1", "x", "libnvidia-glcore.so.580.95.05"])
def test_the_soname_is_found_through_the_segments(soname: str) -> None:
    image = shared_object(soname)
    tags = dynamic(image, *segments(image)[PT_DYNAMIC])
    assert text(image, tags[DT_STRTAB] + tags[DT_SONAME]) == soname
    assert tags[DT_STRSZ] == len(soname) + 2


@pytest.mark.parametrize("soname", ["libcuda.so.1", "libnvidia-glcore.so.580.95.05"])
def test_the_soname_is_found_through_the_sections(soname: str) -> None:
    image = shared_object(soname)
    at = struct.unpack_from("<Q", image, 40)[0]
    size, count, names = struct.unpack_from("<HHH", image, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, at + number * size) for number in range(count)]
    labels = [text(image, sections[names][4] + section[0]) for section in sections]
    assert labels == ["", ".dynstr", ".dynamic", ".shstrtab"]
    (found,) = [section for section in sections if section[1] == SHT_DYNAMIC]
    tags = dynamic(image, found[4], found[5])
    assert text(image, sections[found[6]][4] + tags[DT_SONAME]) == soname


def test_the_whole_file_is_loaded() -> None:
    image = shared_object("libcuda.so.1")
    assert segments(image)[PT_LOAD] == (0, len(image))


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_the_machine_is_named(machine: Machine, number: int) -> None:
    assert struct.unpack_from("<HH", shared_object("libcuda.so.1", machine), 16) == (3, number)


def test_it_is_64_bit_and_little_endian() -> None:
    assert shared_object("libcuda.so.1")[:7] == b"\x7fELF\x02\x01\x01"


@pytest.mark.skipif(shutil.which("ldconfig") is None, reason="needs ldconfig")
def test_ldconfig_makes_the_link(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.580.95.05").write_bytes(shared_object("libcuda.so.1"))
    subprocess.run(["ldconfig", "-n", str(tmp_path)], check=True, capture_output=True)
    assert (tmp_path / "libcuda.so.1").readlink() == Path("libcuda.so.580.95.05")
