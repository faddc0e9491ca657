"""Whose GPUs a machine has, by what the PCI bus and the kernel's modules show."""

from pathlib import Path

import pytest

from node_agent.hardware.simulated import SimulatedNode, load_profile, profile_names
from node_agent.hardware.simulated.amd import PROFILES, SimulatedAmdNode
from node_agent.hardware.vendors import vendor_of
from node_agent.model.vendor import AMD, NVIDIA, Vendor


def amd_node(root: Path) -> SimulatedAmdNode:
    node = SimulatedAmdNode(PROFILES["mi300x-8"])
    node.write_tree(root)
    return node


@pytest.mark.parametrize("profile", profile_names())
def test_every_simulated_node_with_nvidias_library_is_nvidias(profile: str, tmp_path: Path) -> None:
    SimulatedNode(load_profile(profile)).write_tree(tmp_path)
    assert vendor_of(tmp_path / "sys") == NVIDIA


def test_gpus_that_amdgpu_drives_are_amds(tmp_path: Path) -> None:
    amd_node(tmp_path)
    assert vendor_of(tmp_path / "sys") == AMD


def test_a_machine_without_gpus_waits_for_nvidias_driver(tmp_path: Path) -> None:
    assert vendor_of(tmp_path / "sys") == NVIDIA


def test_amdgpu_without_a_gpu_makes_no_node_amds(tmp_path: Path) -> None:
    node = amd_node(tmp_path)
    for uuid in node.uuids:
        node.lose(uuid)
    assert vendor_of(tmp_path / "sys") == NVIDIA


@pytest.mark.parametrize(("kind", "vendor"), [("0x030200", NVIDIA), ("0x020000", AMD)], ids=["gpu", "network card"])
def test_a_gpu_of_nvidias_beside_one_of_amds_in_the_processor_makes_the_node_nvidias_and_a_network_card_does_not(
    kind: str, vendor: Vendor, tmp_path: Path
) -> None:
    amd_node(tmp_path)
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir()
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text(f"{kind}\n")
    assert vendor_of(tmp_path / "sys") == vendor


def test_nvidias_module_makes_the_node_nvidias_though_its_gpu_has_fallen_off_the_bus(tmp_path: Path) -> None:
    amd_node(tmp_path)
    (tmp_path / "sys/module/nvidia").mkdir()
    assert vendor_of(tmp_path / "sys") == NVIDIA
