import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.cdi.elf import SharedLibrary, read
from tests.unit.cdi.installation import AARCH64, RISCV, X86_64, elf

SOMEWHERE = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib"), Path("/usr/lib"), Path("/lib")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "lib.so"


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(("machine", "name"), [(X86_64, "x86_64"), (AARCH64, "aarch64")])
def test_a_library_tells_its_machine_and_its_soname(file: Path, machine: int, name: str) -> None:
    write(file, elf("libcuda.so.1", machine))
    assert read(file) == SharedLibrary(machine=name, soname="libcuda.so.1")


def test_a_library_without_a_soname_has_none(file: Path) -> None:
    assert read(write(file, elf(None))) == SharedLibrary(machine="x86_64", soname=None)


@pytest.mark.parametrize(
    ("content"),
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"INPUT(libcuda.so.1)", id="a linker script"),
        pytest.param(b"\x7fELF", id="cut short in the header"),
        pytest.param(elf("libcuda.so.1", bits=32), id="32 bits"),
        pytest.param(elf("libcuda.so.1", order=2), id="big-endian"),
        pytest.param(elf("libcuda.so.1", RISCV), id="another machine"),
        pytest.param(elf("libcuda.so.1")[:100], id="cut short in the segments"),
        pytest.param(elf("libcuda.so.1")[:200], id="cut short in the dynamic section"),
    ],
)
def test_what_the_nodes_programs_cannot_load_is_no_library(file: Path, content: bytes) -> None:
    assert read(write(file, content)) is None


def test_a_file_that_is_gone_says_so(file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(file)


@given(st.integers(min_value=16, max_value=len(elf("libcuda.so.1")) - 1), st.integers(min_value=0, max_value=255))
def test_a_damaged_library_never_raises(tmp_path_factory: pytest.TempPathFactory, at: int, value: int) -> None:
    content = bytearray(elf("libcuda.so.1"))
    content[at] = value
    file = write(tmp_path_factory.getbasetemp() / "damaged.so", bytes(content))
    found = read(file)
    assert found is None or found.machine in ("x86_64", "aarch64")


@pytest.mark.skipif(shutil.which("readelf") is None, reason="binutils are not installed")
def test_a_real_library_tells_what_readelf_prints() -> None:
    real = next(path for folder in SOMEWHERE for path in folder.rglob("libc.so.6"))
    printed = subprocess.run(["readelf", "-d", real], check=True, capture_output=True, text=True).stdout
    soname = re.search(r"\(SONAME\).*\[(.+)\]", printed)
    assert soname is not None
    found = read(real)
    assert found is not None
    assert found.soname == soname.group(1)
