"""The labels of a node with AMD's GPUs: AMD's domain, no word of CUDA, and what AMD's node labeller says as well."""

import pytest
from msgspec.structs import replace

from node_agent.model.inventory import DriverInfo, Inventory
from node_agent.model.vendor import AMD
from node_agent.reporting.label_names import meaning
from node_agent.reporting.labels import labels
from tests.fakes.builders import switched_node

GIB = 1 << 30


@pytest.fixture
def inventory() -> Inventory:
    found = switched_node((0, 0, 1, 1))
    gpus = [
        replace(
            gpu,
            product="AMD Instinct MI300X OAM",
            memory=205822885888,
            multiprocessors=304,
            device_id=0x74A1,
            compute_capability=None,
            partition_mode=None,
            nvlink_generation=None,
        )
        for gpu in found.gpus
    ]
    return replace(found, vendor=AMD, gpus=tuple(gpus), driver=DriverInfo(version="6.10.5"), profiles={}, instances={})


def test_every_label_is_in_amds_domain_and_says_nothing_of_cuda(inventory: Inventory) -> None:
    found = labels(inventory)
    assert found
    assert {key.partition("/")[0] for key in found} == {"amd.com", "node-agent.gpu.amd.com"}
    assert not [key for key in found if any(word in key for word in ("cuda", "mig", "mps", "vgpu", "nvlink"))]


def test_amds_labellers_names_have_its_forms(inventory: Inventory) -> None:
    found = labels(inventory) or {}
    assert found["amd.com/gpu.product-name"] == "AMD_Instinct_MI300X_OAM"
    assert (found["amd.com/gpu.vram"], found["amd.com/gpu.cu-count"]) == ("192G", "304")
    assert (found["amd.com/gpu.device-id"], found["amd.com/gpu.driver-version"]) == ("74a1", "6.10.5")


def test_gpus_that_differ_have_no_label_of_what_they_differ_in(inventory: Inventory) -> None:
    first, *rest = inventory.gpus
    other = replace(first, product="AMD Instinct MI210", device_id=0x740F, memory=64 * GIB)
    found = labels(replace(inventory, gpus=(other, *rest))) or {}
    assert found.keys().isdisjoint({"amd.com/gpu.product-name", "amd.com/gpu.device-id", "amd.com/gpu.vram"})
    assert found["amd.com/gpu.AMD-Instinct-MI210.count"] == "1"
    assert found["amd.com/gpu.cu-count"] == "304"


def test_the_module_without_a_version_has_no_label_for_it(inventory: Inventory) -> None:
    assert "amd.com/gpu.driver-version" not in (labels(replace(inventory, driver=DriverInfo())) or {})


def test_every_label_is_in_the_page_of_labels(inventory: Inventory) -> None:
    found = labels(inventory) or {}
    assert {key for key in found if meaning(key) is None} == set()
