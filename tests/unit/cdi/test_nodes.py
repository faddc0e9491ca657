import os
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent.cdi.edits import DeviceNode
from node_agent.cdi.nodes import Wanted, find_device_nodes
from node_agent.cdi.roots import DriverRoots
from node_agent.model.inventory import Inventory
from tests.fakes.builders import gpu, h200_node, inventory
from tests.unit.cdi.installation import Nodes

NODE = h200_node()
FIRST = NODE.gpus[0]


def drm(sysfs: Path, node: Inventory, *names: str) -> DriverRoots:
    """Roots whose sysfs shows DRM nodes of the first GPU."""
    for name in names:
        (sysfs / "bus/pci/devices" / node.gpus[0].pci / "drm" / name).mkdir(parents=True)
    return DriverRoots(sysfs=sysfs)


def test_a_server_has_the_nodes_of_its_gpus_and_the_drivers_own() -> None:
    found = find_device_nodes(DriverRoots(), NODE, Nodes().server(NODE))
    assert [node.path for node in found.common] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ]
    assert [nodes[0].path for nodes in found.gpus.values()] == [f"/dev/nvidia{minor}" for minor in range(8)]
    assert found.missing == found.left_out == ()


def test_a_node_carries_numbers_type_mode_and_permissions() -> None:
    found = find_device_nodes(DriverRoots(), NODE, Nodes().server(NODE, uvm=509))
    assert found.common[1] == DeviceNode(
        path="/dev/nvidia-uvm", type="c", major=509, minor=0, file_mode=0o666, permissions="rwm"
    )
    assert found.gpus[FIRST.uuid] == (
        DeviceNode(path="/dev/nvidia0", type="c", major=195, minor=0, file_mode=0o666, permissions="rwm"),
    )


def test_a_node_of_a_group_carries_the_group() -> None:
    found = find_device_nodes(DriverRoots(), NODE, Nodes().server(NODE, mode=0o660, gid=44))
    assert (found.gpus[FIRST.uuid][0].gid, found.gpus[FIRST.uuid][0].file_mode) == (44, 0o660)


def test_nodes_elsewhere_on_the_host_say_where() -> None:
    roots = DriverRoots(dev=Path("/host-dev"), host_dev=Path("/run/nvidia/driver"))
    found = find_device_nodes(roots, NODE, Nodes(roots).server(NODE))
    node = found.gpus[FIRST.uuid][0]
    assert (node.path, node.host_path) == ("/dev/nvidia0", "/run/nvidia/driver/dev/nvidia0")


def test_nodes_that_only_the_agent_sees_elsewhere_have_no_host_path() -> None:
    roots = DriverRoots(dev=Path("/host"), host_dev=Path("/"))
    found = find_device_nodes(roots, NODE, Nodes(roots).server(NODE))
    assert found.common[0].host_path is None


@pytest.mark.parametrize("place", ["/dev/nvidia-uvm", "/dev/nvidiactl"])
def test_a_node_that_every_program_needs_is_missing_and_not_just_left_out(place: str) -> None:
    found = find_device_nodes(DriverRoots(), NODE, Nodes().server(NODE).remove(place))
    assert [note.what for note in found.missing] == [place]
    assert place not in [node.path for node in found.common]
    assert found.left_out == ()


def test_a_missing_uvm_node_says_what_makes_it() -> None:
    found = find_device_nodes(DriverRoots(), NODE, Nodes().server(NODE).remove("/dev/nvidia-uvm"))
    assert "nvidia-modprobe -u" in str(found.missing[0])


def test_a_uvm_node_that_appears_later_has_the_numbers_of_that_moment() -> None:
    nodes = Nodes().server(NODE).remove("/dev/nvidia-uvm")
    assert find_device_nodes(DriverRoots(), NODE, nodes).missing
    later = find_device_nodes(DriverRoots(), NODE, nodes.add("/dev/nvidia-uvm", 237, 0))
    assert later.missing == ()
    assert later.common[1].major == 237


@pytest.mark.parametrize("place", ["/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"])
def test_an_optional_node_that_is_not_there_is_left_out(place: str) -> None:
    found = find_device_nodes(DriverRoots(), NODE, Nodes().server(NODE).remove(place))
    assert [(note.what, note.gpu) for note in found.left_out] == [(place, None)]
    assert (len(found.gpus), found.missing) == (8, ())


def test_a_gpu_without_its_node_is_left_out_alone() -> None:
    found = find_device_nodes(DriverRoots(), NODE, Nodes().server(NODE).remove("/dev/nvidia3"))
    assert set(found.gpus) == {gpu.uuid for gpu in NODE.gpus} - {NODE.gpus[3].uuid}
    (note,) = found.left_out
    assert (note.what, note.gpu) == ("/dev/nvidia3", NODE.gpus[3].uuid)
    assert "gpu-3" in note.why


def test_a_gpu_whose_minor_the_driver_does_not_tell_is_left_out() -> None:
    node = inventory([replace(gpu(0), minor=None), gpu(1)])
    found = find_device_nodes(DriverRoots(), node, Nodes().server(inventory([gpu(1)])))
    assert set(found.gpus) == {node.gpus[1].uuid}
    assert found.left_out[0].gpu == node.gpus[0].uuid


@pytest.mark.parametrize("kind", [stat.S_IFREG, stat.S_IFBLK, stat.S_IFDIR])
def test_what_is_no_character_device_is_no_device_node(kind: int) -> None:
    nodes = Nodes().server(NODE).add("/dev/nvidia3", 195, 3, kind=kind)
    (note,) = find_device_nodes(DriverRoots(), NODE, nodes).left_out
    assert "no character device" in str(note)


def test_a_node_that_cannot_be_looked_at_says_why() -> None:
    usual = Nodes().server(NODE)

    def look(path: Path) -> os.stat_result:
        if path.name == "nvidia3":
            raise PermissionError(13, "Permission denied", str(path))
        return usual(path)

    (note,) = find_device_nodes(DriverRoots(), NODE, look).left_out
    assert "Permission denied" in note.why
    assert note.gpu == NODE.gpus[3].uuid


def test_drm_nodes_are_found_by_the_address_of_the_gpu(tmp_path: Path) -> None:
    roots = drm(tmp_path, NODE, "card1", "renderD129")
    nodes = Nodes().server(NODE).add("/dev/dri/card1", 226, 1, mode=0o660, gid=44)
    found = find_device_nodes(roots, NODE, nodes.add("/dev/dri/renderD129", 226, 129, mode=0o660, gid=110))
    assert [(node.path, node.gid) for node in found.gpus[FIRST.uuid]] == [
        ("/dev/nvidia0", None),
        ("/dev/dri/card1", 44),
        ("/dev/dri/renderD129", 110),
    ]
    assert [node.path for node in found.gpus[NODE.gpus[1].uuid]] == ["/dev/nvidia1"]


def test_a_drm_node_that_is_not_there_does_not_take_the_gpu_away(tmp_path: Path) -> None:
    found = find_device_nodes(drm(tmp_path, NODE, "renderD129"), NODE, Nodes().server(NODE))
    assert [node.path for node in found.gpus[FIRST.uuid]] == ["/dev/nvidia0"]
    assert [(note.what, note.gpu) for note in found.left_out] == [("/dev/dri/renderD129", None)]


def test_a_node_without_gpus_has_only_the_drivers_own_nodes() -> None:
    found = find_device_nodes(DriverRoots(), Inventory(), Nodes().server(NODE))
    assert len(found.common) == 4
    assert found.gpus == {}


def test_the_real_null_device_is_looked_at_with_real_stat(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").symlink_to("/dev/null")
    found = find_device_nodes(DriverRoots(dev=tmp_path), Inventory())
    assert [(node.path, node.host_path) for node in found.common] == [
        ("/dev/nvidiactl", str(tmp_path / "dev/nvidiactl"))
    ]
    assert (found.common[0].major, found.common[0].minor) == (1, 3)


# IMEX channels

CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"


@pytest.mark.parametrize("required", [False, True])
def test_a_configured_channel_goes_to_every_container(required: bool) -> None:
    nodes = Nodes().server(NODE).add(CHANNEL, 236, 0)
    found = find_device_nodes(DriverRoots(), NODE, nodes, Wanted().with_channels([0], required=required))
    channel = next(node for node in found.common if node.path == CHANNEL)
    assert (channel.major, channel.minor, channel.file_mode) == (236, 0, 0o666)
    assert found.missing == found.left_out == ()


def test_a_channel_that_is_not_there_is_left_out_and_costs_no_gpu() -> None:
    wanted = Wanted().with_channels([0], required=False)
    found = find_device_nodes(DriverRoots(), NODE, Nodes().server(NODE), wanted)
    assert [(note.what, note.gpu) for note in found.left_out] == [(CHANNEL, None)]
    assert len(found.gpus) == 8
    assert found.missing == ()


def test_a_required_channel_that_is_not_there_is_missing_with_what_to_do() -> None:
    wanted = Wanted().with_channels([0], required=True)
    (missing,) = find_device_nodes(DriverRoots(), NODE, Nodes().server(NODE), wanted).missing
    assert missing.what == CHANNEL
    assert "NVreg_CreateImexChannel0=1" in missing.why


def test_nobody_gets_a_channel_that_was_not_asked_for() -> None:
    found = find_device_nodes(DriverRoots(), NODE, Nodes().server(NODE).add(CHANNEL, 236, 0))
    assert CHANNEL not in [node.path for node in found.common]
