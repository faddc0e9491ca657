"""What a claim says that it wants: read strictly, as users may write anything there."""

from typing import Any

import pytest

from node_agent.computedomain.configs import wish_of
from node_agent.computedomain.names import DRIVER, Kind
from node_agent.errors import ClaimConfigInvalid
from node_agent.model.claim import AllocatedDevice, Claim, ClaimUid, OpaqueConfig
from tests.unit.computedomain.world import config

DOMAIN = "0b0f3a3e-1111-4000-8000-000000000000"
CHANNEL, DAEMON = config("ComputeDomainChannelConfig", DOMAIN), config("ComputeDomainDaemonConfig", DOMAIN)


def claim(*configs: OpaqueConfig, device: str = "channel-0", count: int = 1) -> Claim:
    result = AllocatedDevice(request="channel/first", driver=DRIVER, pool="n", device=device)
    foreign = AllocatedDevice(request="gpu", driver="gpu.nvidia.com", pool="n", device="gpu-0")
    return Claim(
        uid=ClaimUid("u"), namespace="a", name="c", results=(foreign, *[result] * count), configs=tuple(configs)
    )


def opaque(parameters: Any, *requests: str, driver: str = DRIVER) -> OpaqueConfig:
    return OpaqueConfig(driver=driver, parameters=parameters, requests=requests)


@pytest.mark.parametrize(
    ("device", "parameters", "kind", "every"),
    [
        ("channel-0", CHANNEL, Kind.CHANNEL, False),
        ("channel-0", {**CHANNEL, "allocationMode": "Single"}, Kind.CHANNEL, False),
        ("channel-0", {**CHANNEL, "allocationMode": ""}, Kind.CHANNEL, False),
        ("channel-0", {**CHANNEL, "allocationMode": "All"}, Kind.CHANNEL, True),
        ("daemon-0", DAEMON, Kind.DAEMON, False),
    ],
)
def test_the_controllers_configurations_are_understood(device: str, parameters: Any, kind: Kind, every: bool) -> None:
    wish = wish_of(claim(opaque(parameters), device=device))
    assert (wish.domain, wish.kind, wish.every, wish.result.device) == (DOMAIN, kind, every, device)


def test_of_several_the_last_one_that_is_meant_holds() -> None:
    other = "0b0f3a3e-2222-4000-8000-000000000000"
    last = opaque({**CHANNEL, "domainID": other}, "channel")
    not_meant = [opaque({"anything": 1}, driver="gpu.nvidia.com"), opaque(CHANNEL, "elsewhere"), opaque(DAEMON)]
    assert wish_of(claim(opaque(CHANNEL), last, *not_meant)).domain == other


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({**CHANNEL, "domainID": ""}, "parameters.domainID: Expected `str` matching"),
        ({**CHANNEL, "domainID": f"{DOMAIN}/.."}, "parameters.domainID: Expected"),
        ({key: value for key, value in CHANNEL.items() if key != "domainID"}, "missing required field domainID"),
        ({**CHANNEL, "allocationMode": "Some"}, "parameters.allocationMode: Invalid enum value"),
        ({**CHANNEL, "more": 1}, "unknown field more"),
        ({**CHANNEL, "kind": "GpuConfig"}, "parameters.kind: Invalid value"),
        ({**CHANNEL, "apiVersion": "resource.nvidia.com/v2"}, "parameters.apiVersion: Invalid enum value"),
        ("text", "Expected `object`"),
    ],
)
def test_what_is_not_understood_is_named_with_its_path(parameters: Any, complaint: str) -> None:
    with pytest.raises(ClaimConfigInvalid) as raised:
        wish_of(claim(opaque(parameters)))
    assert str(raised.value).startswith("claim config[0].opaque.parameters")
    assert complaint.replace("`", "") in str(raised.value)


@pytest.mark.parametrize("configs", [[], [opaque(DAEMON)], [opaque(CHANNEL, "elsewhere")]])
def test_a_claim_that_names_no_domain_is_refused(configs: list[OpaqueConfig]) -> None:
    with pytest.raises(ClaimConfigInvalid, match="a/c: it names no ComputeDomain"):
        wish_of(claim(*configs))


def test_a_configuration_of_the_other_kind_for_just_this_request_is_a_mistake() -> None:
    with pytest.raises(ClaimConfigInvalid, match="a ComputeDomainDaemonConfig does not fit channel-0"):
        wish_of(claim(opaque(DAEMON, "channel")))


@pytest.mark.parametrize("count", [0, 2])
def test_a_claim_has_one_device_of_the_driver(count: int) -> None:
    with pytest.raises(ClaimConfigInvalid, match=rf"expected one device of {DRIVER}; got {count}"):
        wish_of(claim(opaque(CHANNEL), count=count))
