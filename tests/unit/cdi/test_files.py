from pathlib import Path

import pytest

from node_agent.cdi.edits import Mount
from node_agent.cdi.files import READ_ONLY, SOCKET, find_files
from node_agent.cdi.left_out import LeftOut
from node_agent.cdi.roots import DriverRoots
from tests.unit.cdi.installation import KERNEL, VERSION, Installation


@pytest.fixture
def host(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "root")


def look(host: Installation, *, host_driver: str = "/", architecture: str = "x86_64") -> list[Mount | LeftOut]:
    roots = DriverRoots(driver=host.root, host_driver=Path(host_driver), sysfs=host.root.parent / "sys")
    return list(find_files(roots, version=VERSION, architecture=architecture, kernel=KERNEL))


def mounts(host: Installation, *, host_driver: str = "/", architecture: str = "x86_64") -> dict[str, Mount]:
    found = look(host, host_driver=host_driver, architecture=architecture)
    return {item.container_path: item for item in found if isinstance(item, Mount)}


def left_out(host: Installation) -> dict[str, str]:
    return {item.what: item.why for item in look(host) if isinstance(item, LeftOut)}


def firmware_parameter(host: Installation, value: str) -> None:
    file = host.root.parent / "sys/module/firmware_class/parameters/path"
    file.parent.mkdir(parents=True)
    file.write_text(value)


def test_an_empty_root_leaves_out_everything_and_fails_at_nothing(host: Installation) -> None:
    assert mounts(host) == {}
    notes = left_out(host)
    assert {"nvidia-smi", "/run/nvidia-persistenced/socket", "OpenCL/vendors/nvidia.icd"} <= set(notes)
    assert {f"nvidia/{VERSION}/gsp*.bin", "/tmp/nvidia-mps"} <= set(notes)
    assert all(notes.values())


def test_a_program_is_mounted_where_the_host_has_it(host: Installation) -> None:
    host.file("/usr/bin/nvidia-smi", mode=0o755)
    assert mounts(host) == {
        "/usr/bin/nvidia-smi": Mount(
            host_path="/usr/bin/nvidia-smi", container_path="/usr/bin/nvidia-smi", options=READ_ONLY
        )
    }


def test_the_first_folder_of_the_path_wins(host: Installation) -> None:
    host.file("/usr/bin/nvidia-smi")
    host.file("/usr/local/bin/nvidia-smi")
    assert set(mounts(host)) == {"/usr/local/bin/nvidia-smi"}


def test_a_program_behind_a_link_is_mounted_from_where_the_link_leads(host: Installation) -> None:
    host.link("/usr/bin/nvidia-smi", "/etc/alternatives/nvidia-smi")
    host.link("/etc/alternatives/nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
    assert mounts(host) == {}
    host.file("/usr/lib/nvidia/current/nvidia-smi")
    (mount,) = mounts(host).values()
    assert (mount.host_path, mount.container_path) == ("/usr/lib/nvidia/current/nvidia-smi", "/usr/bin/nvidia-smi")


@pytest.mark.parametrize(
    "place", ["/run/nvidia-persistenced/socket", "/var/run/nvidia-fabricmanager/socket", "/tmp/nvidia-mps"]
)
def test_a_socket_is_mounted_so_that_a_program_can_connect(host: Installation, place: str) -> None:
    host.file(place)
    assert mounts(host)[place].options == SOCKET
    assert "ro" not in SOCKET


def test_run_goes_before_var_run(host: Installation) -> None:
    host.file("/run/nvidia-persistenced/socket")
    host.link("/var/run", "../run")
    assert set(mounts(host)) == {"/run/nvidia-persistenced/socket"}


def test_firmware_of_the_drivers_version_is_mounted(host: Installation) -> None:
    for version in (VERSION, "550.90.12"):
        host.file(f"/lib/firmware/nvidia/{version}/gsp_ga10x.bin")
    host.file(f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin")
    host.file(f"/lib/firmware/nvidia/{VERSION}/ucodes_x.bin")
    host.file(f"/lib/firmware/nvidia/{VERSION}/README")
    assert set(mounts(host)) == {
        f"/lib/firmware/nvidia/{VERSION}/{name}" for name in ("gsp_ga10x.bin", "gsp_tu10x.bin", "ucodes_x.bin")
    }


def test_firmware_is_searched_as_the_kernel_searches_it(host: Installation) -> None:
    folders = [
        "/lib/firmware",
        f"/lib/firmware/{KERNEL}",
        "/lib/firmware/updates",
        f"/lib/firmware/updates/{KERNEL}",
        "/opt/firmware",
    ]
    firmware_parameter(host, "/opt/firmware\n")
    for folder in folders:
        host.file(f"{folder}/nvidia/{VERSION}/gsp_ga10x.bin")
        assert set(mounts(host)) == {f"{folder}/nvidia/{VERSION}/gsp_ga10x.bin"}


def test_a_firmware_folder_in_a_driver_container_is_named_by_the_hosts_path(host: Installation) -> None:
    firmware_parameter(host, "/run/nvidia/driver/lib/firmware")
    host.file(f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    (mount,) = mounts(host, host_driver="/run/nvidia/driver").values()
    assert mount.container_path == f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"
    assert mount.host_path == f"/run/nvidia/driver{mount.container_path}"


def test_an_unset_firmware_parameter_names_no_folder(host: Installation) -> None:
    firmware_parameter(host, "\n")
    host.file(f"/nvidia/{VERSION}/gsp_ga10x.bin")
    assert mounts(host) == {}


def test_settings_are_mounted_where_the_containers_loaders_search(host: Installation) -> None:
    host.file("/usr/local/share/glvnd/egl_vendor.d/10_nvidia.json")
    host.file("/usr/share/vulkan/icd.d/nvidia_icd.json")
    host.file("/etc/OpenCL/vendors/nvidia.icd")
    assert {path: mount.host_path for path, mount in mounts(host).items()} == {
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": "/usr/local/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/etc/vulkan/icd.d/nvidia_icd.json": "/usr/share/vulkan/icd.d/nvidia_icd.json",
        "/etc/OpenCL/vendors/nvidia.icd": "/etc/OpenCL/vendors/nvidia.icd",
    }


def test_vulkan_settings_at_the_top_of_a_drivers_root_are_found(host: Installation) -> None:
    host.file("/vulkan/icd.d/nvidia_icd.json")
    assert mounts(host)["/etc/vulkan/icd.d/nvidia_icd.json"].host_path == "/vulkan/icd.d/nvidia_icd.json"


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_vulkan_settings_may_carry_the_architecture(host: Installation, architecture: str) -> None:
    for each in ("x86_64", "aarch64"):
        host.file(f"/usr/share/vulkan/icd.d/nvidia_icd.{each}.json")
    assert set(mounts(host, architecture=architecture)) == {f"/etc/vulkan/icd.d/nvidia_icd.{architecture}.json"}


def test_application_profiles_are_those_of_the_version(host: Installation) -> None:
    host.file(f"/usr/share/nvidia/nvidia-application-profiles-{VERSION}-rc")
    host.file("/usr/share/nvidia/nvidia-application-profiles-550.90.12-rc")
    assert set(mounts(host)) == {f"/usr/share/nvidia/nvidia-application-profiles-{VERSION}-rc"}
