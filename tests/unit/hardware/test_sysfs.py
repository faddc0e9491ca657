"""What /sys tells of a PCI device, in the odd forms that platforms have."""

from pathlib import Path

import pytest

from node_agent.hardware.sysfs import Sysfs
from node_agent.model.pci import PciAddress, pci_address

GPU = pci_address("0000:19:00.0")
ROOT_PORT = "devices/pci0000:15/0000:15:01.0"
HYPER_V = "devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/0d2b-4c/pci0001:00"


def device(root: Path, pci: PciAddress, folder: str, numa_node: str | None = None) -> Sysfs:
    """A /sys with one device below ``folder``, linked as the kernel does."""
    place = root / folder / pci
    place.mkdir(parents=True)
    if numa_node is not None:
        (place / "numa_node").write_text(numa_node)
    link = root / "bus/pci/devices" / pci
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(place)
    return Sysfs(root=root)


def test_a_device_names_its_numa_node_and_root_complex(tmp_path: Path) -> None:
    sysfs = device(tmp_path, GPU, ROOT_PORT, "1\n")
    assert sysfs.numa_node(GPU) == 1
    assert sysfs.pcie_root(GPU) == "pci0000:15"


def test_a_device_on_the_root_bus_itself_names_that_root(tmp_path: Path) -> None:
    sysfs = device(tmp_path, GPU, "devices/pci0000:00", "0\n")
    assert sysfs.pcie_root(GPU) == "pci0000:00"
    assert sysfs.numa_node(GPU) == 0


@pytest.mark.parametrize("content", ["-1\n", "", "none\n"])
def test_a_platform_without_a_numa_node_tells_none(tmp_path: Path, content: str) -> None:
    assert device(tmp_path, GPU, ROOT_PORT, content).numa_node(GPU) is None


def test_a_missing_numa_file_tells_none(tmp_path: Path) -> None:
    assert device(tmp_path, GPU, ROOT_PORT).numa_node(GPU) is None


def test_a_hyper_v_path_has_no_root_complex(tmp_path: Path) -> None:
    gpu = pci_address("0001:00:00.0")
    sysfs = device(tmp_path, gpu, HYPER_V, "-1\n")
    assert sysfs.pcie_root(gpu) is None
    assert sysfs.numa_node(gpu) is None


@pytest.mark.parametrize("spelling", ["00000001:00:00.0", "0001:00:00.0"])
def test_nvml_and_sysfs_spellings_find_the_same_device(tmp_path: Path, spelling: str) -> None:
    sysfs = device(tmp_path, pci_address("0001:00:00.0"), "devices/pci0001:00", "1\n")
    assert sysfs.numa_node(pci_address(spelling)) == 1
    assert sysfs.pcie_root(pci_address(spelling)) == "pci0001:00"


def test_a_domain_of_more_than_four_digits_is_found(tmp_path: Path) -> None:
    gpu = pci_address("10000:e1:00.0")
    assert device(tmp_path, gpu, "devices/pci10000:e0/10000:e0:01.0").pcie_root(gpu) == "pci10000:e0"


def test_a_device_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    sysfs = Sysfs(root=tmp_path)
    assert sysfs.numa_node(GPU) is None
    assert sysfs.pcie_root(GPU) is None


def test_a_dangling_link_tells_nothing(tmp_path: Path) -> None:
    link = tmp_path / "bus/pci/devices" / GPU
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "devices/pci0000:15/gone")
    assert Sysfs(root=tmp_path).pcie_root(GPU) is None


def test_a_link_that_leads_out_of_the_devices_tells_no_root(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere/pci0000:15"
    elsewhere.mkdir(parents=True)
    link = tmp_path / "sys/bus/pci/devices" / GPU
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    assert Sysfs(root=tmp_path / "sys").pcie_root(GPU) is None


def test_a_root_that_is_itself_a_link_is_followed(tmp_path: Path) -> None:
    device(tmp_path / "real", GPU, ROOT_PORT)
    (tmp_path / "sys").symlink_to(tmp_path / "real")
    assert Sysfs(root=tmp_path / "sys").pcie_root(GPU) == "pci0000:15"


@pytest.mark.parametrize(("content", "code"), [("0x030200\n", 0x030200), ("030000", 0x030000), ("", None), ("?", None)])
def test_a_device_tells_its_class(tmp_path: Path, content: str, code: int | None) -> None:
    sysfs = device(tmp_path, GPU, ROOT_PORT)
    (tmp_path / ROOT_PORT / GPU / "class").write_text(content)
    assert sysfs.pci_class(GPU) == code


def test_a_device_that_is_gone_has_no_class(tmp_path: Path) -> None:
    assert Sysfs(root=tmp_path).pci_class(GPU) is None


@pytest.mark.parametrize(("content", "name"), [(b"PowerEdge XE9680\n", "PowerEdge XE9680"), (b" \n", None)])
def test_the_firmware_names_the_machine(tmp_path: Path, content: bytes, name: str | None) -> None:
    (tmp_path / "class/dmi/id").mkdir(parents=True)
    (tmp_path / "class/dmi/id/product_name").write_bytes(content)
    assert Sysfs(root=tmp_path).machine() == name


def test_a_machine_without_such_firmware_has_no_name(tmp_path: Path) -> None:
    assert Sysfs(root=tmp_path).machine() is None
