"""IMEX channels and their management follow from the driver's own numbers, whether their nodes are there or not."""

from pathlib import Path

import pytest

from node_agent.cdi.edits import DeviceNode
from node_agent.cdi.imex import USUAL_COUNT, channel_count, channel_nodes, has_channels, management_node
from node_agent.cdi.roots import DriverRoots
from node_agent.errors import CdiError
from tests.unit.cdi.installation import Capabilities


@pytest.fixture
def roots(tmp_path: Path) -> DriverRoots:
    return driver(tmp_path / "proc", count=4)


def driver(proc: Path, *, count: int | None, major: int = 236) -> DriverRoots:
    Capabilities(proc)
    devices = (proc / "devices").read_text()
    (proc / "devices").write_text(
        devices.replace("238 nvidia-caps", f"{major} nvidia-caps-imex-channels\n238 nvidia-caps")
    )
    folder = proc / "driver/nvidia"
    (folder / "capabilities").mkdir(parents=True, exist_ok=True)
    text = "ModifyDeviceFiles: 1\n" + (f"ImexChannelCount: {count}\n" if count is not None else "")
    (folder / "params").write_text(text)
    (folder / "capabilities/fabric-imex-mgmt").write_text("DeviceFileMinor: 4323\nDeviceFileMode: 256\n")
    return DriverRoots(proc=proc)


def test_a_channel_has_the_major_of_this_boot_and_its_number_for_a_minor(roots: DriverRoots) -> None:
    first, second = channel_nodes(roots, 2)
    assert first == DeviceNode(
        path="/dev/nvidia-caps-imex-channels/channel0",
        type="c",
        major=236,
        minor=0,
        file_mode=0o666,
        permissions="rwm",
    )
    assert (second.path, second.minor) == ("/dev/nvidia-caps-imex-channels/channel1", 1)


def test_channels_of_a_driver_container_say_where_the_host_has_them(tmp_path: Path) -> None:
    roots = driver(tmp_path, count=1)
    elsewhere = DriverRoots(proc=roots.proc, host_dev=Path("/run/nvidia/driver"))
    (node,) = channel_nodes(elsewhere, 1)
    assert node.host_path == "/run/nvidia/driver/dev/nvidia-caps-imex-channels/channel0"


def test_more_channels_than_the_driver_has_are_refused_with_its_parameter(roots: DriverRoots) -> None:
    with pytest.raises(CdiError, match=r"has 4 IMEX channels, and 5 are wanted: see NVreg_ImexChannelCount"):
        channel_nodes(roots, 5)


def test_a_driver_that_does_not_tell_has_its_modules_default(tmp_path: Path) -> None:
    assert channel_count(driver(tmp_path, count=None)) == USUAL_COUNT
    assert channel_count(DriverRoots(proc=tmp_path / "none")) == USUAL_COUNT


def test_a_driver_has_channels_or_not_and_a_node_without_driver_has_none(tmp_path: Path) -> None:
    assert has_channels(driver(tmp_path / "some", count=4))
    assert not has_channels(driver(tmp_path / "off", count=0))
    assert not has_channels(DriverRoots(proc=Capabilities(tmp_path / "old").proc))
    assert not has_channels(DriverRoots(proc=tmp_path / "none"))


def test_a_node_without_channels_says_so_and_where(tmp_path: Path) -> None:
    roots = DriverRoots(proc=Capabilities(tmp_path / "proc").proc)
    with pytest.raises(CdiError, match=r"proc/devices does not say .*nvidia-caps-imex-channels"):
        channel_nodes(roots, 1)


def test_the_daemons_node_is_the_drivers_capability(roots: DriverRoots) -> None:
    node = management_node(roots)
    assert (node.path, node.major, node.minor) == ("/dev/nvidia-caps/nvidia-cap4323", 238, 4323)
    assert node.file_mode == 0o400


def test_a_driver_without_that_capability_is_named_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(CdiError, match=r"capabilities/fabric-imex-mgmt cannot be read: No such file"):
        management_node(DriverRoots(proc=Capabilities(tmp_path).proc))
