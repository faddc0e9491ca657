"""What amdgpu's files tell of the GPUs that it drives, and what is made of those that tell less."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent.errors import DriverUnavailable
from node_agent.hardware.amd.scan import bound, scan
from node_agent.hardware.simulated.amd import PROFILES, AmdProfile, SimulatedAmdNode
from node_agent.model.gpu import GpuUuid

PROFILE = PROFILES["mi300x-8"]
REFUSED = Path("/proc/sys/vm/compact_memory")
FIRST = GpuUuid("GPU-4cbc8b2b2e1ad900")


def written(root: Path, profile: AmdProfile) -> Path:
    SimulatedAmdNode(profile).write_tree(root)
    return root / "sys"


def test_all_gpus_are_found_in_the_order_of_the_bus(node: SimulatedAmdNode, sysfs: Path) -> None:
    found = scan(sysfs)
    assert [gpu.pci for gpu in found.gpus] == sorted(gpu.bus for gpu in PROFILE.gpus)
    assert [gpu.index for gpu in found.gpus] == list(range(8))
    assert tuple(gpu.uuid for gpu in found.gpus) == node.uuids
    assert found.missing == ()
    assert found.driver.version == "6.10.5"


def test_a_gpu_is_known_by_all_that_its_files_say(node: SimulatedAmdNode, sysfs: Path) -> None:
    gpu = scan(sysfs).gpus[0]
    assert (gpu.uuid, gpu.product, gpu.memory) == (FIRST, "AMD Instinct MI300X OAM", 205822885888)
    assert (gpu.architecture, gpu.multiprocessors, gpu.power_limit) == ("gfx942", 304, 750)
    assert (gpu.device_id, gpu.subsystem_id) == (0x74A1, 0x74A11002)
    assert gpu.vbios == "113-M3000100-103"
    assert (gpu.minor, gpu.partition_mode, gpu.compute_capability) == (None, None, None)


def test_an_architecture_is_spelled_as_compilers_spell_it(tmp_path: Path) -> None:
    sysfs = written(tmp_path, replace(PROFILE, board=replace(PROFILE.board, gfx=90010)))
    assert {gpu.architecture for gpu in scan(sysfs).gpus} == {"gfx90a"}


def test_a_gpu_without_a_number_of_its_own_goes_by_its_place(tmp_path: Path) -> None:
    sysfs = written(tmp_path, replace(PROFILE, gpus=(replace(PROFILE.gpus[0], unique=0),)))
    assert [gpu.uuid for gpu in scan(sysfs).gpus] == ["GPU-0000:05:00.0"]


def test_a_number_of_nothing_but_zeros_is_none(node: SimulatedAmdNode, sysfs: Path) -> None:
    (sysfs / "bus/pci/devices/0000:05:00.0/unique_id").write_text("0000000000000000\n")
    assert scan(sysfs).gpus[0].uuid == "GPU-0000:05:00.0"


def test_a_board_that_does_not_tell_its_name_is_called_by_its_model(node: SimulatedAmdNode, sysfs: Path) -> None:
    (sysfs / "bus/pci/devices/0000:05:00.0/product_name").write_text("\n")
    (sysfs / "bus/pci/devices/0000:26:00.0/product_name").unlink()
    (sysfs / "bus/pci/devices/0000:26:00.0/device").unlink()
    assert [gpu.product for gpu in scan(sysfs).gpus[:2]] == ["AMD GPU 0x74a1", "AMD GPU"]


def test_the_module_of_the_kernel_itself_has_no_version(tmp_path: Path) -> None:
    assert scan(written(tmp_path, replace(PROFILE, driver=None))).driver.version is None


def test_without_kfd_a_gpu_is_known_by_what_the_bus_shows(node: SimulatedAmdNode, sysfs: Path) -> None:
    for path in sysfs.glob("class/kfd/kfd/topology/nodes/*/properties"):
        path.unlink()
    gpu = scan(sysfs).gpus[0]
    assert (gpu.architecture, gpu.multiprocessors, gpu.memory) == (None, None, 205822885888)


def test_kfd_that_tells_nothing_to_whom_may_not_open_its_gpus_costs_none_of_them(
    node: SimulatedAmdNode, sysfs: Path
) -> None:
    # In the agent's container, which may open no device, each of these files is refused at read(2), for root as well.
    for path in sysfs.glob("class/kfd/kfd/topology/nodes/*/properties"):
        path.unlink()
        path.symlink_to(REFUSED)
    with pytest.raises(PermissionError):
        path.read_text()
    found = scan(sysfs)
    assert tuple(gpu.uuid for gpu in found.gpus) == node.uuids
    assert {(gpu.architecture, gpu.multiprocessors) for gpu in found.gpus} == {(None, None)}
    assert all("device cgroup" in gpu.failed["multiprocessors"] for gpu in found.gpus)


def test_a_place_in_kfds_topology_that_cannot_be_is_nobodys(node: SimulatedAmdNode, sysfs: Path) -> None:
    path = next(iter(sorted(sysfs.glob("class/kfd/kfd/topology/nodes/2/properties"))))
    path.write_text(path.read_text().replace("location_id ", "location_id 99999"))
    found = scan(sysfs)
    assert len(found.gpus) == 8
    assert [gpu.multiprocessors for gpu in found.gpus].count(None) == 1


def test_where_the_module_is_not_loaded_nothing_can_be_asked(tmp_path: Path) -> None:
    with pytest.raises(DriverUnavailable, match="amdgpu is not loaded: modprobe amdgpu"):
        scan(tmp_path / "sys")


def test_a_gpu_that_is_cut_is_counted_and_said_to_be_cut(node: SimulatedAmdNode, sysfs: Path) -> None:
    node.change(FIRST, partition="CPX")
    found = scan(sysfs)
    assert len(found.gpus) == 7
    (missing,) = found.missing
    assert (missing.index, missing.uuid) == (0, FIRST)
    assert "compute partitions (CPX)" in missing.reason


def test_a_gpu_that_has_left_is_not_counted(node: SimulatedAmdNode, sysfs: Path) -> None:
    node.lose(FIRST)
    assert [len(scan(sysfs).gpus), len(scan(sysfs).missing), len(bound(sysfs))] == [7, 0, 7]
    node.restore(FIRST)
    assert len(scan(sysfs).gpus) == 8


def test_a_gpu_that_the_kernel_is_taking_away_gets_no_other_identity(node: SimulatedAmdNode, sysfs: Path) -> None:
    folder = sysfs / "bus/pci/devices/0000:05:00.0"
    (folder / "unique_id").unlink()
    (folder / "drm/renderD128/dev").unlink()
    (folder / "drm/renderD128").rmdir()
    found = scan(sysfs)
    assert [missing.uuid for missing in found.missing] == [None]
    assert tuple(gpu.uuid for gpu in found.gpus) == node.uuids[1:]


def test_what_else_lies_among_the_drivers_devices_is_no_gpu(node: SimulatedAmdNode, sysfs: Path) -> None:
    for name in ("bind", "module", "new_id"):
        (sysfs / "bus/pci/drivers/amdgpu" / name).write_text("")
    assert len(bound(sysfs)) == 8


def test_a_file_that_cannot_be_read_costs_its_own_gpu_only(node: SimulatedAmdNode, sysfs: Path) -> None:
    broken = sysfs / "bus/pci/devices/0000:26:00.0/vbios_version"
    broken.unlink()
    broken.mkdir()
    found = scan(sysfs)
    assert len(found.gpus) == 7
    assert [missing.index for missing in found.missing] == [1]
    assert "0000:26:00.0 cannot be read" in found.missing[0].reason
