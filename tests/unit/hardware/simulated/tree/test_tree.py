"""The files of a node: what kernel and driver package would show of its profile, kept up to date."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from node_agent.hardware.simulated import SimulatedNode, load_profile
from node_agent.hardware.simulated.tree.kernel import instance_minor
from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import EVERY_PROFILE, WITH_GPUS, gpu


def grown(name: str, root: Path) -> SimulatedNode:
    node = SimulatedNode(load_profile(name))
    node.write_tree(root, devices="placeholder")
    return node


@pytest.fixture
def h200_tree(tmp_path: Path) -> Iterator[tuple[SimulatedNode, Path]]:
    yield grown("h200-8", tmp_path), tmp_path


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def pci(root: Path, bus: str) -> Path:
    return root / "sys/bus/pci/devices" / bus


# PCI


@pytest.mark.parametrize("name", WITH_GPUS)
def test_every_gpu_is_on_the_bus(tmp_path: Path, name: str) -> None:
    profile = grown(name, tmp_path).profile
    for place in profile.gpus:
        board = profile.board_of(place)
        folder = pci(tmp_path, place.bus)
        assert read(folder / "vendor") == "0x10de"
        assert int(read(folder / "device"), 16) == board.pci.device
        assert int(read(folder / "class"), 16) == board.pci.class_code
        assert read(folder / "numa_node") == str(-1 if place.numa is None else place.numa)


@pytest.mark.parametrize(
    ("name", "bus", "resolved"),
    [
        ("h200-8", "0000:1b:00.0", "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:1b:00.0"),
        ("gb200-4", "0018:01:00.0", "pci0018:00/0018:00:00.0/0018:01:00.0"),
        ("h100-vm-8", "0000:00:04.0", "pci0000:00/0000:00:04.0"),
    ],
)
def test_the_path_of_a_gpu_starts_at_its_root_complex(tmp_path: Path, name: str, bus: str, resolved: str) -> None:
    grown(name, tmp_path)
    assert pci(tmp_path, bus).resolve() == tmp_path / "sys/devices" / resolved


@pytest.mark.parametrize("name", EVERY_PROFILE)
def test_no_link_leads_nowhere(tmp_path: Path, name: str) -> None:
    grown(name, tmp_path)
    dangling = {path.name for path in tmp_path.rglob("*") if path.is_symlink() and not path.exists()}
    assert dangling == set()


def test_bridges_are_on_the_bus_too(h200_tree: tuple[SimulatedNode, Path]) -> None:
    _, root = h200_tree
    for bridge in ("0000:15:01.0", "0000:16:00.0", "0000:17:00.0"):
        assert read(pci(root, bridge) / "class") == "0x060400"


def test_a_switch_below_two_gpus_is_one_folder(tmp_path: Path) -> None:
    grown("l40s-8", tmp_path)
    first, second = (pci(tmp_path, bus).resolve() for bus in ("0000:13:00.0", "0000:14:00.0"))
    assert first.parent != second.parent
    assert first.parent.parent == second.parent.parent


def test_nvswitches_are_bridges_of_nvidia(tmp_path: Path) -> None:
    grown("a100-40gb-8", tmp_path)
    folder = pci(tmp_path, "0000:c4:00.0")
    assert [read(folder / name) for name in ("vendor", "device", "class")] == ["0x10de", "0x1af1", "0x068000"]


def test_a_link_has_a_speed_and_a_width(tmp_path: Path) -> None:
    grown("l40s-8", tmp_path)
    folder = pci(tmp_path, "0000:13:00.0")
    assert read(folder / "max_link_speed") == "16.0 GT/s PCIe"
    assert read(folder / "current_link_speed") == "2.5 GT/s PCIe"
    assert read(folder / "max_link_width") == read(folder / "current_link_width") == "16"


def test_cpus_are_listed_by_node_and_by_gpu(h200_tree: tuple[SimulatedNode, Path]) -> None:
    _, root = h200_tree
    assert read(root / "sys/devices/system/node/node1/cpulist") == "56-111,168-223"
    assert read(pci(root, "0000:df:00.0") / "local_cpulist") == "56-111,168-223"


def test_a_gpu_without_a_node_is_near_all_cpus(tmp_path: Path) -> None:
    grown("h100-vm-8", tmp_path)
    assert read(pci(tmp_path, "0000:00:04.0") / "local_cpulist") == "0-103,104-207"


def test_nodes_made_of_gpu_memory_have_no_cpus(tmp_path: Path) -> None:
    grown("gb200-4", tmp_path)
    nodes = {path.parent.name: read(path) for path in (tmp_path / "sys/devices/system/node").glob("*/cpulist")}
    assert nodes == {"node0": "0-71", "node1": "72-143", "node2": "", "node10": "", "node18": "", "node26": ""}


def test_a_gpu_is_bound_to_the_driver(h200_tree: tuple[SimulatedNode, Path]) -> None:
    _, root = h200_tree
    assert (pci(root, "0000:1b:00.0") / "driver").resolve() == root / "sys/bus/pci/drivers/nvidia"
    assert len(list((root / "sys/bus/pci/drivers/nvidia").iterdir())) == 8


# The driver in /proc


@pytest.mark.parametrize(
    ("name", "banner"),
    [
        ("h200-8", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"),
        ("gb200-4", "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build"),
        ("v100-8", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.127.05  Release Build"),
    ],
)
def test_the_module_tells_its_version(tmp_path: Path, name: str, banner: str) -> None:
    node = grown(name, tmp_path)
    assert read(tmp_path / "proc/driver/nvidia/version").splitlines()[0] == banner
    assert read(tmp_path / "sys/module/nvidia/version") == node.profile.driver.version


def test_a_gpu_tells_who_it_is(simulate: Simulate, tmp_path: Path) -> None:
    simulate("h200-8").write_tree(tmp_path, devices="placeholder")
    lines = read(tmp_path / "proc/driver/nvidia/gpus/0000:1b:00.0/information").splitlines()
    values = dict(line.split(":", 1) for line in lines)
    told = {key: value.strip() for key, value in values.items()}
    assert told["Model"] == "NVIDIA H200"
    assert told["GPU UUID"] == pynvml.nvmlDeviceGetUUID(gpu(0))
    assert told["Bus Location"] == "0000:1b:00.0"
    assert told["Device Minor"] == "2"
    assert told["GPU Firmware"] == "580.95.05"


def test_majors_are_listed_for_every_kind_of_device(h200_tree: tuple[SimulatedNode, Path]) -> None:
    _, root = h200_tree
    lines = [line.split() for line in read(root / "proc/devices").splitlines()]
    majors = {name: major for major, name in (line for line in lines if line and line[0].isdigit())}
    assert majors["nvidia"] == "195"
    assert {"nvidia-uvm", "nvidia-caps", "nvidia-caps-imex-channels", "nvidia-nvswitch"} < majors.keys()


def test_parameters_are_key_and_value(h200_tree: tuple[SimulatedNode, Path]) -> None:
    _, root = h200_tree
    parameters = dict(line.split(": ") for line in read(root / "proc/driver/nvidia/params").splitlines())
    assert parameters["ModifyDeviceFiles"] == "1"
    assert parameters["ExcludedGpus"] == '""'


# Device nodes


def test_device_nodes_go_by_minor(tmp_path: Path) -> None:
    node = SimulatedNode(load_profile("h200-8"))
    node.write_tree(tmp_path, devices="auto")
    for place in node.profile.gpus:
        path = tmp_path / f"dev/nvidia{place.minor}"
        if stat.S_ISCHR(path.stat().st_mode):
            assert (os.major(path.stat().st_rdev), os.minor(path.stat().st_rdev)) == (195, place.minor)
        else:
            assert read(path) == f"c 195:{place.minor}"


@pytest.mark.parametrize(
    ("path", "device"),
    [
        ("nvidiactl", "c 195:255"),
        ("nvidia-modeset", "c 195:254"),
        ("nvidia-uvm", "c 510:0"),
        ("nvidia-uvm-tools", "c 510:1"),
        ("nvidia-nvswitch3", "c 234:3"),
        ("nvidia-nvswitchctl", "c 234:255"),
        ("nvidia-caps/nvidia-cap1", "c 238:1"),
        ("dri/card1", "c 226:1"),
        ("dri/renderD128", "c 226:128"),
    ],
)
def test_shared_device_nodes(h200_tree: tuple[SimulatedNode, Path], path: str, device: str) -> None:
    _, root = h200_tree
    assert read(root / "dev" / path) == device


def test_graphics_nodes_are_found_by_the_gpu(h200_tree: tuple[SimulatedNode, Path]) -> None:
    _, root = h200_tree
    assert (root / "dev/dri/by-path/pci-0000:43:00.0-render").resolve() == root / "dev/dri/renderD129"
    assert read(pci(root, "0000:43:00.0") / "drm/renderD129/dev") == "226:129"


# MIG


@pytest.mark.parametrize(
    ("gpu_minor", "instance", "compute", "minor"),
    [
        (0, 0, None, 3),
        (0, 1, None, 12),
        (0, 7, None, 66),
        (0, 7, 0, 67),
        (1, 0, None, 138),
        (2, 9, 0, 355),
        (31, 14, 7, 4322),
    ],
)
def test_minors_of_capabilities_follow_the_drivers_count(
    gpu_minor: int, instance: int, compute: int | None, minor: int
) -> None:
    assert instance_minor(gpu_minor, instance, compute) == minor


def test_all_minors_are_listed_whether_or_not_they_are_used(h200_tree: tuple[SimulatedNode, Path]) -> None:
    _, root = h200_tree
    minors = dict(line.split() for line in read(root / "proc/driver/nvidia-caps/mig-minors").splitlines())
    assert len(minors) == 4322
    assert (minors["config"], minors["monitor"], minors["gpu0/gi0/access"]) == ("1", "2", "3")
    assert minors["gpu31/gi14/ci7/access"] == "4322"


def test_capabilities_of_live_instances_are_there(tmp_path: Path) -> None:
    grown("a30-2", tmp_path)
    folder = tmp_path / "proc/driver/nvidia/capabilities"
    assert (folder / "gpu0/mig").is_dir()
    assert list((folder / "gpu0/mig").iterdir()) == []
    assert sorted(path.name for path in (folder / "gpu1/mig").iterdir()) == ["gi1", "gi3", "gi4"]
    minor = instance_minor(1, 3, 0)
    lines = read(folder / "gpu1/mig/gi3/ci0/access").splitlines()
    assert lines == [f"DeviceFileMinor: {minor}", "DeviceFileMode: 292", "DeviceFileModify: 1"]
    assert read(tmp_path / f"dev/nvidia-caps/nvidia-cap{minor}") == f"c 238:{minor}"
    assert "DeviceFileMode: 256" in read(folder / "mig/config")


def test_boards_without_mig_have_no_capabilities(tmp_path: Path) -> None:
    grown("t4-4", tmp_path)
    assert not (tmp_path / "proc/driver/nvidia/capabilities").exists()
    assert not (tmp_path / "dev/nvidia-caps").exists()


# The driver package


def test_libraries_carry_the_drivers_version(h200_tree: tuple[SimulatedNode, Path]) -> None:
    _, root = h200_tree
    folder = root / "usr/lib/x86_64-linux-gnu"
    assert (folder / "libcuda.so").resolve() == folder / "libcuda.so.580.95.05"
    assert (folder / "libnvidia-ml.so.1").resolve() == folder / "libnvidia-ml.so.580.95.05"
    assert (folder / "libnvidia-nvvm.so.4").readlink() == Path("libnvidia-nvvm.so.580.95.05")
    assert (folder / "libcuda.so.580.95.05").read_bytes().startswith(b"\x7fELF")
    assert (folder / "gbm/nvidia-drm_gbm.so").resolve() == folder / "libnvidia-allocator.so.580.95.05"


def test_other_machines_have_another_folder(tmp_path: Path) -> None:
    grown("gb200-4", tmp_path)
    assert (tmp_path / "usr/lib/aarch64-linux-gnu/libcuda.so.1").exists()
    assert not (tmp_path / "usr/lib/x86_64-linux-gnu").exists()


def test_programs_can_be_run(h200_tree: tuple[SimulatedNode, Path]) -> None:
    _, root = h200_tree
    assert os.access(root / "usr/bin/nvidia-smi", os.X_OK)


def test_services_have_their_sockets(h200_tree: tuple[SimulatedNode, Path], tmp_path: Path) -> None:
    _, root = h200_tree
    assert (root / "run/nvidia-persistenced/socket").is_socket()
    assert (root / "run/nvidia-fabricmanager/socket").is_socket()


def test_only_nvswitches_need_a_fabric_manager(tmp_path: Path) -> None:
    grown("l4-2", tmp_path)
    assert not (tmp_path / "run/nvidia-fabricmanager").exists()


@pytest.mark.parametrize(("name", "has"), [("h200-8", True), ("v100-8", False), ("vgpu-1", False)])
def test_only_some_boards_need_firmware(tmp_path: Path, name: str, has: bool) -> None:
    node = grown(name, tmp_path)
    path = tmp_path / f"lib/firmware/nvidia/{node.profile.driver.version}/gsp_ga10x.bin"
    assert path.exists() == has


# Up to date


def test_an_unplugged_gpu_leaves_no_file(h200_tree: tuple[SimulatedNode, Path]) -> None:
    node, root = h200_tree
    before = {path.relative_to(root) for path in root.rglob("*")}
    node.faults.unplug(0)
    assert not os.path.lexists(pci(root, "0000:1b:00.0"))
    assert not (root / "dev/nvidia2").exists()
    assert not (root / "proc/driver/nvidia/gpus/0000:1b:00.0").exists()
    assert len(list((root / "sys/bus/pci/drivers/nvidia").iterdir())) == 7
    node.faults.plug(0)
    assert {path.relative_to(root) for path in root.rglob("*")} == before


def test_a_lost_gpu_keeps_its_files(h200_tree: tuple[SimulatedNode, Path]) -> None:
    node, root = h200_tree
    node.faults.lose(0)
    assert (root / "dev/nvidia2").exists()
    assert pci(root, "0000:1b:00.0").exists()


def test_without_the_module_only_the_bus_is_left(h200_tree: tuple[SimulatedNode, Path]) -> None:
    node, root = h200_tree
    node.faults.driver("not-loaded")
    assert not (root / "proc").exists()
    assert not (root / "dev").exists()
    assert not (root / "sys/module").exists()
    assert pci(root, "0000:1b:00.0").exists()
    assert not os.path.lexists(pci(root, "0000:1b:00.0") / "driver")
    node.faults.driver("loaded")
    assert (root / "dev/nvidia2").exists()


def test_a_new_driver_brings_its_own_libraries(h200_tree: tuple[SimulatedNode, Path]) -> None:
    node, root = h200_tree
    node.faults.driver("loaded", version="590.48.01")
    folder = root / "usr/lib/x86_64-linux-gnu"
    assert (folder / "libcuda.so.1").readlink() == Path("libcuda.so.590.48.01")
    assert not (folder / "libcuda.so.580.95.05").exists()
    assert read(root / "sys/module/nvidia/version") == "590.48.01"


def test_instances_come_and_go_with_their_capabilities(simulate: Simulate, tmp_path: Path) -> None:
    simulate("h200-8").write_tree(tmp_path, devices="placeholder")
    folder = tmp_path / "proc/driver/nvidia/capabilities/gpu2/mig"
    pynvml.nvmlDeviceSetMigMode(gpu(0), 1)
    instance = pynvml.nvmlDeviceCreateGpuInstance(gpu(0), 9)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    assert read(folder / "gi1/access").startswith(f"DeviceFileMinor: {instance_minor(2, 1)}")
    assert (folder / "gi1/ci0/access").exists()
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert folder.is_dir()
    assert list(folder.iterdir()) == []


def test_several_trees_are_kept(tmp_path: Path) -> None:
    node = grown("l4-2", tmp_path / "one")
    node.write_tree(tmp_path / "two", devices="placeholder")
    node.faults.unplug(0)
    assert not (tmp_path / "one/dev/nvidia0").exists()
    assert not (tmp_path / "two/dev/nvidia0").exists()
