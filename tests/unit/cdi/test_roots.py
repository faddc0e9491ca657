from pathlib import Path, PurePosixPath

import pytest

from node_agent.cdi.roots import DriverRoots


def place(text: str) -> PurePosixPath:
    return PurePosixPath(text)


def link(root: Path, at: str, target: str) -> None:
    path = root / at
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def test_on_a_plain_host_every_place_is_where_it_says() -> None:
    roots = DriverRoots()
    assert roots.driver_file(place("/usr/bin/nvidia-smi")) == Path("/usr/bin/nvidia-smi")
    assert roots.driver_file_on_host(place("/usr/bin/nvidia-smi")) == "/usr/bin/nvidia-smi"
    assert roots.device_node(place("/dev/nvidia0")) == Path("/dev/nvidia0")
    assert roots.device_node_on_host(place("/dev/nvidia0")) == "/dev/nvidia0"


def test_an_agent_in_a_container_looks_under_its_mount_and_writes_the_hosts_path() -> None:
    roots = DriverRoots(
        driver=Path("/driver-root"),
        host_driver=Path("/run/nvidia/driver"),
        dev=Path("/host-dev"),
        host_dev=Path("/run/nvidia/driver"),
    )
    assert roots.driver_file(place("/usr/bin/nvidia-smi")) == Path("/driver-root/usr/bin/nvidia-smi")
    assert roots.driver_file_on_host(place("/usr/bin/nvidia-smi")) == "/run/nvidia/driver/usr/bin/nvidia-smi"
    assert roots.device_node(place("/dev/nvidia0")) == Path("/host-dev/dev/nvidia0")
    assert roots.device_node_on_host(place("/dev/nvidia0")) == "/run/nvidia/driver/dev/nvidia0"


def test_a_path_of_the_host_becomes_a_place_in_the_drivers_root() -> None:
    roots = DriverRoots(driver=Path("/driver-root"), host_driver=Path("/run/nvidia/driver"))
    assert roots.place_on_host("/run/nvidia/driver/lib/firmware") == place("/lib/firmware")
    assert roots.place_on_host("/opt/firmware") == place("/opt/firmware")
    assert DriverRoots().place_on_host("/opt/firmware") == place("/opt/firmware")


def test_relative_links_are_followed(tmp_path: Path) -> None:
    link(tmp_path, "lib", "usr/lib")
    link(tmp_path, "usr/lib/libcuda.so.1", "libcuda.so.570.1")
    assert DriverRoots(driver=tmp_path).resolve(place("/lib/libcuda.so.1")) == place("/usr/lib/libcuda.so.570.1")


def test_an_absolute_link_starts_at_the_drivers_root(tmp_path: Path) -> None:
    link(tmp_path, "usr/lib/libcuda.so.1", "/etc/alternatives/libcuda")
    link(tmp_path, "etc/alternatives/libcuda", "/usr/lib/nvidia/current/libcuda.so.570.1")
    found = DriverRoots(driver=tmp_path).resolve(place("/usr/lib/libcuda.so.1"))
    assert found == place("/usr/lib/nvidia/current/libcuda.so.570.1")


def test_a_link_with_needless_slashes_is_followed(tmp_path: Path) -> None:
    link(tmp_path, "a", "//usr//lib/")
    assert DriverRoots(driver=tmp_path).resolve(place("/a/x")) == place("/usr/lib/x")


def test_no_link_leads_out_of_the_drivers_root(tmp_path: Path) -> None:
    link(tmp_path, "a/b", "../../../../../etc/passwd")
    assert DriverRoots(driver=tmp_path).resolve(place("/a/b")) == place("/etc/passwd")


def test_links_in_a_link_are_followed_from_where_it_lies(tmp_path: Path) -> None:
    link(tmp_path, "opt/driver", "versions/current")
    link(tmp_path, "opt/versions/current", "570")
    found = DriverRoots(driver=tmp_path).resolve(place("/opt/driver/../570/lib"))
    assert found == place("/opt/versions/570/lib")


def test_what_does_not_exist_is_taken_as_it_is_written(tmp_path: Path) -> None:
    assert DriverRoots(driver=tmp_path).resolve(place("/usr/lib/none.so")) == place("/usr/lib/none.so")


def test_what_lies_below_a_file_is_taken_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "usr").write_text("no folder")
    assert DriverRoots(driver=tmp_path).resolve(place("/usr/lib/x")) == place("/usr/lib/x")


def test_a_place_that_cannot_be_looked_at_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="name too long"):
        DriverRoots(driver=tmp_path).resolve(place(f"/{'x' * 300}"))


def test_links_that_go_round_in_circles_are_an_error(tmp_path: Path) -> None:
    link(tmp_path, "a", "b")
    link(tmp_path, "b", "a")
    with pytest.raises(OSError, match="circles"):
        DriverRoots(driver=tmp_path).resolve(place("/a"))
