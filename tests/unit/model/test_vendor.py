"""The names of a vendor in Kubernetes are those of its own programs, and the agent's own are nobody else's."""

import pytest

from node_agent.model.vendor import AMD, NVIDIA, VENDORS, Vendor

ALL = pytest.mark.parametrize("vendor", VENDORS.values(), ids=VENDORS)


def test_nvidias_names_are_those_of_nvidias_programs() -> None:
    assert (NVIDIA.resource, NVIDIA.driver) == ("nvidia.com/gpu", "gpu.nvidia.com")
    assert NVIDIA.cdi_kind == "node-agent.gpu.nvidia.com/gpu"
    assert NVIDIA.cdi_claim_kind == "node-agent.gpu.nvidia.com/claim"


def test_amds_names_are_those_of_amds_programs() -> None:
    assert (AMD.resource, AMD.driver) == ("amd.com/gpu", "gpu.amd.com")
    assert AMD.cdi_kind == "node-agent.gpu.amd.com/gpu"
    assert AMD.cdi_claim_kind == "node-agent.gpu.amd.com/claim"


@ALL
def test_no_kind_is_one_that_the_vendors_own_toolkit_defines(vendor: Vendor) -> None:
    taken = {f"{vendor.domain}/gpu", f"k8s.{vendor.driver}/gpu", f"k8s.{vendor.driver}/claim"}
    assert not taken & {vendor.cdi_kind, vendor.cdi_claim_kind}


@ALL
@pytest.mark.parametrize("name", ["gpu", "big-gpu", "gpu.shared"])
def test_a_full_name_has_the_domain_once(vendor: Vendor, name: str) -> None:
    full = vendor.full(name)
    assert full == f"{vendor.domain}/{name}"
    assert vendor.full(full) == full
    assert vendor.owns(full)
    assert not vendor.owns(name)


def test_no_vendor_owns_anothers_resources() -> None:
    for one in VENDORS.values():
        assert [other for other in VENDORS.values() if other.owns(one.resource)] == [one]


def test_a_domain_that_only_ends_like_a_vendors_is_not_its_own() -> None:
    assert not AMD.owns("samd.com/gpu")
    assert not NVIDIA.owns("nvidia.com.example.org/gpu")


@ALL
def test_a_vendor_is_called_in_the_configuration_as_it_calls_itself(vendor: Vendor) -> None:
    assert VENDORS[vendor.name.lower()] is vendor
    assert vendor.domain == f"{vendor.name.lower()}.com"
