from pathlib import Path

import pytest

from node_agent.cdi.driver import DriverFiles, find_driver_files
from node_agent.cdi.roots import DriverRoots
from node_agent.errors import DriverFilesMissing
from tests.unit.cdi.installation import AARCH64, DEBIAN, KERNEL, SONAMES, VERSION, Installation


@pytest.fixture
def host(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def find(host: Installation, version: str | None = VERSION) -> DriverFiles:
    return find_driver_files(DriverRoots(driver=host.root, host_driver=Path("/")), version, KERNEL)


def left_out(files: DriverFiles) -> set[str]:
    return {note.what for note in files.left_out}


def test_a_servers_driver_is_found_whole(host: Installation) -> None:
    files = find(host.server())
    assert (files.version, files.architecture) == (VERSION, "x86_64")
    assert {library.name for library in files.libraries} == {f"{name}.so.{VERSION}" for name in SONAMES}
    assert {mount.container_path for mount in files.mounts} == {
        "/usr/bin/nvidia-smi",
        "/usr/bin/nvidia-debugdump",
        "/usr/bin/nvidia-persistenced",
        "/usr/bin/nvidia-cuda-mps-control",
        "/usr/bin/nvidia-cuda-mps-server",
        "/usr/bin/nvidia-imex",
        "/usr/bin/nvidia-imex-ctl",
        "/run/nvidia-persistenced/socket",
        "/run/nvidia-fabricmanager/socket",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin",
        "/etc/OpenCL/vendors/nvidia.icd",
    }


def test_libraries_that_a_server_does_not_install_are_noted_with_their_use(host: Installation) -> None:
    notes = {note.what: note.why for note in find(host.server()).left_out}
    assert "graphics" in notes[f"libGLX_nvidia.so.{VERSION}"]
    assert "video" in notes[f"libvdpau_nvidia.so.{VERSION}"]
    assert f"libcuda.so.{VERSION}" not in notes


def test_a_driver_with_graphics_misses_little(host: Installation) -> None:
    missing = left_out(find(host.server().graphics()))
    assert not [what for what in missing if what.startswith("lib")]


@pytest.mark.parametrize(("there", "absent"), [("libcuda", "libnvidia-ml"), ("libnvidia-ml", "libcuda")])
def test_either_of_the_two_main_libraries_is_a_driver(host: Installation, there: str, absent: str) -> None:
    host.library(there, f"{there}.so.1")
    files = find(host)
    assert [library.name for library in files.libraries] == [f"{there}.so.{VERSION}"]
    assert f"{absent}.so.{VERSION}" in left_out(files)


def test_the_architecture_is_that_of_the_main_library(host: Installation) -> None:
    host.library("libcuda", "libcuda.so.1", "/usr/lib/aarch64-linux-gnu", AARCH64)
    assert find(host).architecture == "aarch64"


def test_an_empty_root_says_what_was_searched_where(host: Installation) -> None:
    host.file(f"{DEBIAN}/libc.so.6")
    with pytest.raises(DriverFilesMissing) as error:
        find(host)
    for said in (f"libcuda.so.{VERSION}", f"libnvidia-ml.so.{VERSION}", str(host.root), DEBIAN, "install the driver"):
        assert said in str(error.value)


def test_a_root_that_is_not_mounted_says_so(tmp_path: Path) -> None:
    with pytest.raises(DriverFilesMissing, match="no library folder exists there"):
        find(Installation(tmp_path / "driver-root"))


def test_a_driver_that_is_upgraded_on_disk_only_asks_for_a_reload(host: Installation) -> None:
    Installation(host.root, "575.57.08").library("libcuda", "libcuda.so.1")
    with pytest.raises(DriverFilesMissing, match=r"found libcuda\.so\.575\.57\.08 instead: reload the driver"):
        find(host)


def test_of_two_versions_on_disk_the_running_one_is_taken_whole(host: Installation) -> None:
    Installation(host.root, "550.90.12").server()
    host.server()
    files = find(host)
    assert not [path for path in map(str, (files.libraries, files.mounts)) if "550.90.12" in path]


@pytest.mark.parametrize("version", [None, ""])
def test_without_a_version_nothing_is_searched(host: Installation, version: str | None) -> None:
    host.server()
    with pytest.raises(DriverFilesMissing, match="did not report its version"):
        find(host, version)


def test_a_root_that_cannot_be_read_is_a_missing_driver(host: Installation) -> None:
    host.link(f"{DEBIAN}/libcuda.so.{VERSION}", f"libcuda.so.{VERSION}")
    with pytest.raises(DriverFilesMissing, match="circles") as error:
        find(host)
    assert isinstance(error.value.__cause__, OSError)


def test_the_kernels_release_is_the_running_one_unless_given(host: Installation) -> None:
    files = find_driver_files(DriverRoots(driver=host.server().root), VERSION)
    assert len(files.libraries) == len(SONAMES)
    assert files.libraries[0].host_path.startswith(str(host.root))
