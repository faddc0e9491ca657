"""What a claim wants of which domain, by its opaque configuration: ``resource.nvidia.com/v1beta1``. Pure.

It is read strictly, as that of GPUs is; NVIDIA's controller writes it into the templates of its claims.
"""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from node_agent.computedomain.names import DEVICES, DRIVER, Kind
from node_agent.errors import ClaimConfigInvalid, UnknownDevice
from node_agent.model.claim import AllocatedDevice, Claim

# A UID of Kubernetes; it becomes a part of paths and labels.
DomainId = Annotated[str, Meta(pattern="^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", tag_field="kind"):
    api_version: Literal["resource.nvidia.com/v1beta1"]
    domain_id: DomainId = msgspec.field(name="domainID")


class ComputeDomainChannelConfig(_Section, frozen=True, kw_only=True, tag=True):
    """A workload's: one channel of the domain, or all that the driver has."""

    allocation_mode: Literal["", "Single", "All"] = "Single"


class ComputeDomainDaemonConfig(_Section, frozen=True, kw_only=True, tag=True):
    """That of the domain's daemon."""


_KINDS = {ComputeDomainChannelConfig: Kind.CHANNEL, ComputeDomainDaemonConfig: Kind.DAEMON}


class Wish(Struct, frozen=True, kw_only=True):
    """What a claim is for: a device of ``kind`` in the domain with the UID ``domain``; ``every`` channel, or one."""

    domain: str
    kind: Kind
    result: AllocatedDevice
    every: bool = False


def wish_of(claim: Claim) -> Wish:
    """What a claim is for.

    Raises:
        UnknownDevice: it has another device of this driver than this node offers.
        ClaimConfigInvalid: it has no configuration that fits, or more than one device; names the path.
    """
    results = claim.of_driver(DRIVER)
    if len(results) != 1:
        raise ClaimConfigInvalid(
            f"claim {claim.full_name}: expected one device of {DRIVER}; got {len(results)}: a pod is in one domain"
        )
    (result,) = results
    if (kind := DEVICES.get(result.device)) is None:
        raise UnknownDevice(f"claim {claim.full_name}: this node offers no device {result.device} of {DRIVER}")
    config = _config_for(result, kind, claim)
    every = isinstance(config, ComputeDomainChannelConfig) and config.allocation_mode == "All"
    return Wish(domain=config.domain_id, kind=kind, result=result, every=every)


def _config_for(
    result: AllocatedDevice, kind: Kind, claim: Claim
) -> ComputeDomainChannelConfig | ComputeDomainDaemonConfig:
    """The last one that is meant for the device."""
    found = None
    for number, config in enumerate(claim.configs):
        named = bool({result.request, result.base_request} & set(config.requests))
        if config.driver != DRIVER or (config.requests and not named):
            continue
        place = f"{'class' if config.from_class else 'claim'} config[{number}].opaque.parameters"
        decoded = _decode(config.parameters, place)
        if _KINDS[type(decoded)] is kind:
            found = decoded
        elif named:
            raise ClaimConfigInvalid(f"{place}: a {type(decoded).__name__} does not fit {result.device}")
    if found is None:
        raise ClaimConfigInvalid(
            f"claim {claim.full_name}: it names no ComputeDomain; claims are made from the template of one"
        )
    return found


def _decode(parameters: object, place: str) -> ComputeDomainChannelConfig | ComputeDomainDaemonConfig:
    try:
        return msgspec.convert(parameters, ComputeDomainChannelConfig | ComputeDomainDaemonConfig)
    except msgspec.ValidationError as error:
        what, _, at = str(error).partition(" - at `$")
        raise ClaimConfigInvalid(f"{place}{at.rstrip('`')}: {re.sub(r'`', '', what)}") from error
