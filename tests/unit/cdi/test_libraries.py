from pathlib import Path, PurePosixPath

import pytest

from node_agent.cdi.libraries import Library, find_libraries, library_folders
from node_agent.cdi.roots import DriverRoots
from tests.unit.cdi.installation import AARCH64, DEBIAN, RED_HAT, VERSION, Installation, elf, loader_cache


@pytest.fixture
def host(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def roots(host: Installation) -> DriverRoots:
    return DriverRoots(driver=host.root, host_driver=Path("/"))


def libraries(host: Installation, version: str = VERSION) -> dict[str, Library]:
    where = roots(host)
    return {library.name: library for library in find_libraries(where, library_folders(where), version)}


def links(host: Installation, name: str) -> dict[str, str]:
    return dict(libraries(host)[f"{name}.so.{VERSION}"].links)


@pytest.mark.parametrize("folder", [DEBIAN, RED_HAT, "/usr/lib", f"{DEBIAN}/nvidia/current", "/lib64", "/"])
def test_libraries_are_found_in_the_usual_folders(host: Installation, folder: str) -> None:
    host.library("libcuda", "libcuda.so.1", folder)
    found = libraries(host)[f"libcuda.so.{VERSION}"]
    assert found.folder == PurePosixPath(folder)
    assert found.host_path == str(PurePosixPath(folder, found.name))
    assert (found.architecture, found.below) == ("x86_64", "")


def test_an_unusual_folder_is_found_through_the_loaders_cache(host: Installation) -> None:
    host.library("libcuda", "libcuda.so.1", "/opt/nvidia/lib")
    host.library("libnvidia-encode", "libnvidia-encode.so.1", "/opt/nvidia/lib")
    assert libraries(host) == {}
    host.file("/etc/ld.so.cache", loader_cache([("libcuda.so.1", "/opt/nvidia/lib/libcuda.so.1", 0x0303)]))
    assert set(libraries(host)) == {f"libcuda.so.{VERSION}", f"libnvidia-encode.so.{VERSION}"}


def test_a_folder_of_the_cache_that_holds_nothing_of_the_driver_is_not_searched(host: Installation) -> None:
    host.library("libcuda", "libcuda.so.1", "/opt/other")
    host.file("/etc/ld.so.cache", loader_cache([("libz.so.1", "/opt/other/libz.so.1", 0x0303)]))
    assert libraries(host) == {}


def test_a_folder_with_two_names_is_searched_once(host: Installation) -> None:
    host.library("libcuda", "libcuda.so.1")
    host.link("/lib", "usr/lib")
    assert library_folders(roots(host)) == (PurePosixPath(DEBIAN), PurePosixPath("/usr/lib"), PurePosixPath("/"))
    assert libraries(host)[f"libcuda.so.{VERSION}"].folder == PurePosixPath(DEBIAN)


def test_of_two_files_of_one_name_the_first_folder_has_it(host: Installation) -> None:
    host.library("libcuda", "libcuda.so.1", RED_HAT)
    host.library("libcuda", "libcuda.so.1", DEBIAN)
    assert libraries(host)[f"libcuda.so.{VERSION}"].folder == PurePosixPath(DEBIAN)


def test_libraries_of_another_version_are_not_taken(host: Installation) -> None:
    host.library("libcuda", "libcuda.so.1")
    Installation(host.root, "550.90.12").file(f"{DEBIAN}/libcuda.so.550.90.12", elf("libcuda.so.1"))
    assert set(libraries(host)) == {f"libcuda.so.{VERSION}"}
    assert set(libraries(host, "550.90.12")) == {"libcuda.so.550.90.12"}


def test_every_library_of_the_version_is_taken_known_or_not(host: Installation) -> None:
    host.library("libnvidia-tileiras")
    assert set(libraries(host)) == {f"libnvidia-tileiras.so.{VERSION}"}


def test_a_link_that_leads_nowhere_is_no_library(host: Installation) -> None:
    host.library("libcuda", "libcuda.so.1")
    host.link(f"{DEBIAN}/libnvidia-egl-gbm.so.1.1", "libnvidia-egl-gbm.so.1.1.0")
    assert set(libraries(host)) == {f"libcuda.so.{VERSION}"}


def test_a_32_bit_twin_is_not_taken(host: Installation) -> None:
    host.file(f"/usr/lib/libcuda.so.{VERSION}", elf("libcuda.so.1", bits=32))
    assert libraries(host) == {}


def test_an_arm_server_has_arm_libraries(host: Installation) -> None:
    host.library("libcuda", "libcuda.so.1", "/usr/lib/aarch64-linux-gnu", AARCH64)
    assert libraries(host)[f"libcuda.so.{VERSION}"].architecture == "aarch64"


def test_a_library_answers_to_its_soname(host: Installation) -> None:
    host.library("libnvidia-ml", "libnvidia-ml.so.1")
    assert links(host, "libnvidia-ml") == {"libnvidia-ml.so.1": f"libnvidia-ml.so.{VERSION}"}


def test_the_soname_is_read_from_the_library_and_not_from_the_hosts_links(host: Installation) -> None:
    host.file(f"{DEBIAN}/libnvidia-nvvm.so.{VERSION}", elf("libnvidia-nvvm.so.4"))
    assert links(host, "libnvidia-nvvm") == {"libnvidia-nvvm.so.4": f"libnvidia-nvvm.so.{VERSION}"}


@pytest.mark.parametrize("soname", [None, f"libnvidia-glcore.so.{VERSION}"])
def test_a_library_that_is_loaded_by_its_file_name_needs_no_other(host: Installation, soname: str | None) -> None:
    host.file(f"{DEBIAN}/libnvidia-glcore.so.{VERSION}", elf(soname))
    assert links(host, "libnvidia-glcore") == {}


def test_programs_that_open_libcuda_without_a_version_find_it(host: Installation) -> None:
    host.library("libcuda", "libcuda.so.1")
    assert links(host, "libcuda") == {"libcuda.so.1": f"libcuda.so.{VERSION}", "libcuda.so": "libcuda.so.1"}


@pytest.mark.parametrize(
    ("name", "soname", "link", "target"),
    [
        ("libGLX_nvidia", "libGLX_nvidia.so.0", "libGLX_indirect.so.0", f"libGLX_nvidia.so.{VERSION}"),
        (
            "libnvidia-opticalflow",
            "libnvidia-opticalflow.so.1",
            "libnvidia-opticalflow.so",
            "libnvidia-opticalflow.so.1",
        ),
        ("libnvidia-allocator", "libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
    ],
)
def test_names_that_no_ldconfig_makes_are_known(
    host: Installation, name: str, soname: str, link: str, target: str
) -> None:
    host.library(name, soname)
    assert links(host, name) == {soname: f"{name}.so.{VERSION}", link: target}


def test_links_that_packages_made_on_the_host_are_kept(host: Installation) -> None:
    host.library("libnvcuvid", "libnvcuvid.so.1")
    host.link(f"{DEBIAN}/libnvcuvid.so", "libnvcuvid.so.1")
    host.link(f"{DEBIAN}/libnvcuvid.so.0", f"libnvcuvid.so.{VERSION}")
    host.link(f"{DEBIAN}/libnvcuvid.so.9", "somewhere-else.so")
    file = f"libnvcuvid.so.{VERSION}"
    assert links(host, "libnvcuvid") == {
        "libnvcuvid.so.1": file,
        "libnvcuvid.so": "libnvcuvid.so.1",
        "libnvcuvid.so.0": file,
    }


def test_egl_platforms_have_versions_of_their_own(host: Installation) -> None:
    host.file(f"{DEBIAN}/libnvidia-egl-gbm.so.1.1.2", elf("libnvidia-egl-gbm.so.1"))
    host.link(f"{DEBIAN}/libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.2")
    host.link(f"{DEBIAN}/libnvidia-egl-gbm.so.1.1", "libnvidia-egl-gbm.so.1.1.2")
    (found,) = libraries(host).values()
    assert found.name == "libnvidia-egl-gbm.so.1.1.2"
    assert set(found.links) == {"libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1"}


def test_vdpau_keeps_its_subfolder(host: Installation) -> None:
    host.library("libvdpau_nvidia", "libvdpau_nvidia.so.1", f"{DEBIAN}/vdpau")
    found = libraries(host)[f"libvdpau_nvidia.so.{VERSION}"]
    assert (found.folder, found.below) == (PurePosixPath(f"{DEBIAN}/vdpau"), "vdpau")


def test_modules_of_the_x_server_stay_where_they_are(host: Installation) -> None:
    host.graphics()
    found = libraries(host)
    module = found[f"libglxserver_nvidia.so.{VERSION}"]
    assert (module.folder, module.below) == (PurePosixPath("/usr/lib/xorg/modules/extensions"), None)
    assert module.links == {"libglxserver_nvidia.so": module.name}
    assert found["nvidia_drv.so"].links == {}


def test_modules_of_the_x_server_beside_the_libraries_are_found(host: Installation) -> None:
    host.library("libcuda", "libcuda.so.1")
    host.file(f"{DEBIAN}/nvidia/xorg/nvidia_drv.so", elf("nvidia_drv.so"))
    assert libraries(host)["nvidia_drv.so"].folder == PurePosixPath(f"{DEBIAN}/nvidia/xorg")


def test_a_link_to_a_store_is_followed_for_the_host_and_kept_for_the_container(host: Installation) -> None:
    host.file(f"/nix/store/x-driver/lib/libcuda.so.{VERSION}", elf("libcuda.so.1"))
    host.link(f"/usr/lib64/libcuda.so.{VERSION}", f"/nix/store/x-driver/lib/libcuda.so.{VERSION}")
    host.link("/usr/lib64/libcuda.so.1", f"/nix/store/x-driver/lib/libcuda.so.{VERSION}")
    found = libraries(host)[f"libcuda.so.{VERSION}"]
    assert found.host_path == f"/nix/store/x-driver/lib/libcuda.so.{VERSION}"
    assert found.folder == PurePosixPath(RED_HAT)
    assert set(found.links) == {"libcuda.so.1", "libcuda.so"}
