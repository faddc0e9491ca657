"""What slices call the attributes of a vendor's GPUs."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from node_agent.dra.features import Feature, without
from node_agent.dra.slices import PoolSettings, laid_out, pool_of
from node_agent.dra.taints import HELD, taints_of
from node_agent.hardware.amd.links import links
from node_agent.hardware.amd.scan import scan
from node_agent.hardware.inventory import joined
from node_agent.hardware.names import named
from node_agent.hardware.simulated.amd import PROFILES, SimulatedAmdNode
from node_agent.hardware.sysfs import Sysfs
from node_agent.model.device import DeviceKind
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory
from node_agent.model.vendor import AMD, NVIDIA


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    """Eight MI300X."""
    SimulatedAmdNode(PROFILES["mi300x-8"]).write_tree(tmp_path)
    sysfs = tmp_path / "sys"
    found = scan(sysfs)
    graph = links(sysfs, {gpu.uuid: gpu.pci for gpu in found.gpus})
    return joined(Inventory(vendor=AMD), found, graph, named({}, found.gpus), Sysfs(root=sysfs))


def contents(inventory: Inventory, settings: PoolSettings | None = None) -> dict[str, Any]:
    devices = laid_out(inventory, settings or PoolSettings()).devices
    return {device.published.name: device.content for device in devices}


def test_what_amd_has_a_name_for_goes_by_that_and_what_it_has_not_is_left_out(inventory: Inventory) -> None:
    attributes = contents(inventory)["gpu-0"]["attributes"]
    assert attributes["type"] == {"string": "amdgpu"}
    assert attributes["numaNode"] == attributes["resource.kubernetes.io/numaNode"] == {"int": 0}
    assert attributes.keys().isdisjoint({"migCapable", "nvlinkDomain", "nvlinkBandwidthMBps", "cudaDriverVersion"})
    assert contents(inventory)["gpu-0"]["capacity"].keys() == {"memory", "computeUnits"}


def test_the_same_gpus_under_nvidias_name_are_published_as_ever(inventory: Inventory) -> None:
    attributes = contents(replace(inventory, vendor=NVIDIA))["gpu-0"]["attributes"]
    assert attributes["type"] == {"string": "gpu"}
    assert "migCapable" in attributes
    assert "numaNode" not in attributes


def test_a_gpu_that_claims_share_has_its_compute_units_to_ask_for(inventory: Inventory) -> None:
    device = contents(inventory, PoolSettings(shares=lambda gpu: True))["gpu-0"]
    assert device["allowMultipleAllocations"]
    assert device["capacity"]["computeUnits"]["requestPolicy"]["default"] == "1"
    assert device["capacity"].keys() == {"memory", "computeUnits", "cores"}


def test_groups_stay_groups(inventory: Inventory) -> None:
    groups = [one for name, one in contents(inventory, PoolSettings(groups=True)).items() if name.startswith("group-")]
    assert groups
    assert {group["attributes"]["type"]["string"] for group in groups} == {DeviceKind.GROUP}
    assert all("computeUnits" in group["capacity"] for group in groups)


def test_without_counters_groups_go_and_gpus_stay(inventory: Inventory) -> None:
    settings = PoolSettings(groups=True)
    pool = pool_of(laid_out(inventory, settings), lambda device: ())
    left = without(pool.slices, frozenset({Feature.COUNTERS}))
    names = [device["name"] for one in left for device in one.content.get("devices", ())]
    assert sorted(names) == [f"gpu-{number}" for number in range(8)]


def test_taints_are_in_the_vendors_domain(inventory: Inventory) -> None:
    (device, *_) = [one.published for one in laid_out(inventory, PoolSettings()).devices]
    taints = taints_of(device, HealthReport(), inventory, frozenset(device.places))
    assert f"gpu.amd.com/{HELD}" in {taint.key for taint in taints}
    assert all(taint.key.startswith("gpu.amd.com/") for taint in taints)
