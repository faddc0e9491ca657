"""A GPU's values are checked when it is made, and what is unknown is None."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from node_agent.model.gpu import ComputeCapability, DeviceName, Gpu, GpuUuid, PartitionMode, device_name
from node_agent.model.pci import pci_address


def gpu(**changes: Any) -> Gpu:
    known: dict[str, Any] = {
        "uuid": GpuUuid("GPU-1"),
        "name": DeviceName("gpu-0"),
        "index": 0,
        "product": "NVIDIA H200",
        "pci": pci_address("0000:19:00.0"),
    }
    return Gpu(**{**known, **changes})


@pytest.mark.parametrize("name", ["gpu-0", "0", "a", "gpu-0-mig-1", "a" * 63])
def test_a_device_name_is_a_dns_label(name: str) -> None:
    assert device_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "GPU-0", "gpu_0", "gpu.0", "a" * 64, "gpu-0\n", "größe"])
def test_a_name_that_kubernetes_would_refuse_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="is no device name"):
        device_name(name)


@given(st.text(max_size=70))
def test_every_accepted_name_follows_the_rule_of_rfc_1123(name: str) -> None:
    try:
        device_name(name)
    except ValueError:
        return
    assert len(name) <= 63
    assert re.fullmatch(r"[a-z0-9-]+", name)
    assert not name.startswith("-") and not name.endswith("-")


def test_a_gpu_whose_hardware_tells_nothing_more_is_fine() -> None:
    known = {field.name: getattr(gpu(), field.name) for field in fields(Gpu)}
    assert [name for name, value in known.items() if value is None] == [
        "minor",
        "brand",
        "architecture",
        "compute_capability",
        "memory",
        "multiprocessors",
        "numa_node",
        "pcie_root",
        "partition_mode",
        "nvlink_domain",
        "ecc_enabled",
        "addressing_mode",
        "nvlink_generation",
        "power_limit",
        "device_id",
        "subsystem_id",
        "serial",
        "vbios",
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("index", -1),
        ("minor", -1),
        ("numa_node", -1),
        ("memory", 0),
        ("memory", -1),
        ("multiprocessors", 0),
        ("power_limit", 0),
    ],
)
def test_an_impossible_figure_is_an_error_that_names_gpu_and_figure(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"gpu-0: {field} cannot be {value}; leave out what is unknown"):
        gpu(**{field: value})


def test_the_least_possible_figures_are_accepted() -> None:
    least = gpu(index=0, minor=0, numa_node=0, memory=1, multiprocessors=1)
    assert (least.minor, least.numa_node, least.memory) == (0, 0, 1)


def test_a_gpu_needs_a_uuid_and_a_name_that_kubernetes_takes() -> None:
    with pytest.raises(ValueError, match="needs a UUID"):
        gpu(uuid="")
    with pytest.raises(ValueError, match="'GPU 0' is no device name"):
        gpu(name="GPU 0")


def test_compute_capabilities_are_ordered_as_numbers_not_as_text() -> None:
    assert ComputeCapability(major=10, minor=0) > ComputeCapability(major=9, minor=0)
    assert ComputeCapability(major=7, minor=5) > ComputeCapability(major=7, minor=0)
    assert str(ComputeCapability(major=9, minor=0)) == "9.0"


@pytest.mark.parametrize(
    ("mode", "active"),
    [("disabled", False), ("enabled", True), ("enable-pending", False), ("disable-pending", True)],
)
def test_a_pending_change_of_mode_is_not_yet_in_force(mode: str, active: bool) -> None:
    assert PartitionMode(mode).active is active
