import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.cdi.ldcache import read
from tests.unit.cdi.installation import loader_cache

LIBC6_X86_64, LIBC6_AARCH64, LIBC6_I386, LIBC6_X32 = 0x0303, 0x0A03, 0x0003, 0x0803
CUDA = ("libcuda.so.1", "/opt/nvidia/lib/libcuda.so.1", LIBC6_X86_64)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "ld.so.cache"


def found(path: Path, content: bytes) -> dict[str, str]:
    path.write_bytes(content)
    return {name: str(place) for name, place in read(path).items()}


@pytest.mark.parametrize("old_format_too", [False, True])
def test_a_cache_tells_where_libraries_are(cache: Path, old_format_too: bool) -> None:
    grace = ("libnvidia-ml.so.1", "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1", LIBC6_AARCH64)
    assert found(cache, loader_cache([CUDA, grace], old_format_too)) == {
        "libcuda.so.1": "/opt/nvidia/lib/libcuda.so.1",
        "libnvidia-ml.so.1": "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
    }


@pytest.mark.parametrize("flags", [LIBC6_I386, LIBC6_X32])
def test_libraries_that_are_not_64_bit_are_passed_over(cache: Path, flags: int) -> None:
    twin = ("libcuda.so.1", "/usr/lib/i386-linux-gnu/libcuda.so.1", flags)
    assert found(cache, loader_cache([twin, CUDA])) == {"libcuda.so.1": CUDA[1]}


def test_of_two_libraries_of_one_name_the_loader_takes_the_first(cache: Path) -> None:
    second = ("libcuda.so.1", "/usr/local/cuda/compat/libcuda.so.1", LIBC6_X86_64)
    assert found(cache, loader_cache([CUDA, second])) == {"libcuda.so.1": CUDA[1]}


def test_a_root_without_a_cache_has_nothing_in_it(cache: Path) -> None:
    assert read(cache) == {}


@pytest.mark.parametrize(
    "content", [b"", b"ld.so-1.7.0\0\1\0\0\0", loader_cache([CUDA])[:60], loader_cache([CUDA])[:90]]
)
def test_a_cache_that_cannot_be_read_has_nothing_in_it(cache: Path, content: bytes) -> None:
    assert found(cache, content) == {}


@given(st.binary(max_size=200))
def test_a_damaged_cache_never_raises(tmp_path_factory: pytest.TempPathFactory, rest: bytes) -> None:
    cache = tmp_path_factory.getbasetemp() / "damaged.cache"
    cache.write_bytes(b"glibc-ld.so.cache1.1" + rest)
    assert all(isinstance(place, PurePosixPath) for place in read(cache).values())


@pytest.mark.skipif(
    shutil.which("ldconfig") is None or not Path("/etc/ld.so.cache").exists(),
    reason="this machine has no loader's cache",
)
def test_the_cache_of_this_machine_holds_what_ldconfig_prints() -> None:
    printed = subprocess.run(["ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    expected: dict[str, str] = {}
    for name, place in re.findall(r"^\t(\S+) \(libc6,(?:x86-64|AArch64)[^)]*\) => (\S+)$", printed, re.MULTILINE):
        expected.setdefault(name, place)
    assert expected
    assert {name: str(place) for name, place in read(Path("/etc/ld.so.cache")).items()} == expected
