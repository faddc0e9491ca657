"""Opaque configuration: read strictly, and chosen by request, kind and precedence."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.dra.configs import DEFAULT, GpuConfig, config_for, decode
from node_agent.errors import ClaimConfigInvalid
from node_agent.model.claim import AllocatedDevice, OpaqueConfig
from node_agent.model.device import DeviceKind
from tests.unit.dra.test_claims import JSON

VERSION = "resource.nvidia.com/v1beta1"
BIG = AllocatedDevice(request="gpus/big", driver="gpu.nvidia.com", pool="n", device="gpu-3")


def gpu_config(interval: str) -> dict[str, Any]:
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}
    return {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": sharing}


def mps_config(**settings: object) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": {"strategy": "MPS", "mpsConfig": settings}}


def config(
    parameters: dict[str, Any], *requests: str, from_class: bool = False, driver: str = "gpu.nvidia.com"
) -> OpaqueConfig:
    return OpaqueConfig(driver=driver, parameters=parameters, requests=requests, from_class=from_class)


def interval_for(*configs: OpaqueConfig, result: AllocatedDevice = BIG) -> str | None:
    found = config_for(result, DeviceKind.GPU, configs)
    assert isinstance(found, GpuConfig)
    if found.sharing is None or found.sharing.time_slicing_config is None:
        return None
    return found.sharing.time_slicing_config.interval


def test_without_configuration_a_device_is_left_as_it_is() -> None:
    assert config_for(BIG, DeviceKind.GPU, []) == DEFAULT
    assert interval_for(config(gpu_config("Long"), driver="other.example")) is None


def test_a_claims_configuration_goes_before_its_class() -> None:
    assert interval_for(config(gpu_config("Long"), from_class=True), config(gpu_config("Short"))) == "Short"


@pytest.mark.parametrize(
    ("requests", "expected"), [((), "Long"), (("gpus",), "Long"), (("gpus/big",), "Long"), (("gpus/small",), None)]
)
def test_a_configuration_is_meant_for_all_the_request_or_its_subrequest(
    requests: tuple[str, ...], expected: str | None
) -> None:
    assert interval_for(config(gpu_config("Long"), *requests)) == expected


def test_one_of_another_kind_is_passed_over_unless_it_names_the_request() -> None:
    mig = {"apiVersion": VERSION, "kind": "MigDeviceConfig"}
    assert interval_for(config(gpu_config("Long")), config(mig)) == "Long"
    with pytest.raises(
        ClaimConfigInvalid, match=r"claim config\[0\].opaque.parameters: a MigDeviceConfig does not fit"
    ):
        config_for(BIG, DeviceKind.GPU, [config(mig, "gpus")])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({**gpu_config("Long"), "shareing": {}}, r"opaque\.parameters: Object contains unknown field `shareing`"),
        (
            gpu_config("Longest"),
            r"opaque\.parameters\.sharing\.timeSlicingConfig\.interval: Invalid enum value 'Longest'",
        ),
        ({**gpu_config("Long"), "kind": "GpuConfiguration"}, r"parameters\.kind: Invalid value 'GpuConfiguration'"),
        ({**gpu_config("Long"), "apiVersion": "v1"}, r"parameters\.apiVersion: Invalid enum value 'v1'"),
        ({"kind": "GpuConfig"}, "missing required field `apiVersion`"),
        ({}, "missing required field `kind`"),
        ({"apiVersion": VERSION, "kind": "GpuConfig", "sharing": {}}, "missing required field `strategy`"),
        (
            {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", "mpsConfig": {}}},
            r"sharing\.mpsConfig: does not go with the strategy TimeSlicing",
        ),
        (
            {"apiVersion": VERSION, "kind": "GpuConfig", "sharing": {"strategy": "MPS", "timeSlicingConfig": {}}},
            r"sharing\.timeSlicingConfig: does not go with the strategy MPS",
        ),
        (
            mps_config(defaultPinnedDeviceMemoryLimit="1k"),
            r"sharing\.mpsConfig\.defaultPinnedDeviceMemoryLimit: expected at least 1Mi; got '1k'",
        ),
        (
            mps_config(defaultPerDevicePinnedMemoryLimit={"0": "0"}),
            r"sharing\.mpsConfig\.defaultPerDevicePinnedMemoryLimit\.0: expected at least 1Mi; got '0'",
        ),
        # As a number it would be infinite.
        (mps_config(defaultPinnedDeviceMemoryLimit="1" * 400), r"sharing\.mpsConfig\.defaultPinnedDeviceMemoryLimit: "),
    ],
)
def test_a_mistake_is_an_error_that_names_its_path(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ClaimConfigInvalid, match=message):
        decode(config(parameters), 0)


def test_an_empty_section_means_its_defaults() -> None:
    empty = {
        "apiVersion": VERSION,
        "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {}},
    }
    assert interval_for(config(empty)) == "Default"


def test_the_place_says_whose_configuration_and_which() -> None:
    with pytest.raises(ClaimConfigInvalid, match=r"^class config\[7\]\.opaque\.parameters"):
        decode(config({}, from_class=True), 7)


@given(st.dictionaries(st.sampled_from(["apiVersion", "kind", "sharing", "iommu", "x"]), JSON, max_size=4))
def test_whatever_a_user_writes_is_read_or_refused(parameters: dict[str, Any]) -> None:
    try:
        decode(config(parameters), 0)
    except ClaimConfigInvalid as error:
        assert "opaque.parameters" in str(error)
