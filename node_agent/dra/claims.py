"""Reads a ResourceClaim as the API server has it. Pure; ``resource.k8s.io/v1`` in, ``model.claim`` out.

What is not understood is an error that names its path: a claim that is prepared by guesswork would give a pod hardware
that nobody allocated to it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from node_agent.errors import ClaimUnreadable
from node_agent.model.claim import AllocatedDevice, Claim, ClaimUid, OpaqueConfig

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
# Both become parts of paths; the one is the API server's to check, the other any user's to write.
_Request = Annotated[str, Meta(pattern=rf"^{_LABEL}(/{_LABEL})?\Z")]
_POD_CLAIM = re.compile(_LABEL)


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the object as far as it is read; keys that are not named here are passed over."""


class _Result(_Part, frozen=True, kw_only=True):
    request: _Request
    driver: str
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, str] = {}


class _Opaque(_Part, frozen=True, kw_only=True):
    driver: str
    parameters: dict[str, Any] = {}


class _Config(_Part, frozen=True, kw_only=True):
    source: str
    requests: tuple[str, ...] = ()
    opaque: _Opaque | None = None


class _Devices(_Part, frozen=True, kw_only=True):
    results: tuple[_Result, ...] = ()
    config: tuple[_Config, ...] = ()


class _Allocation(_Part, frozen=True, kw_only=True):
    devices: _Devices = _Devices()


class _Status(_Part, frozen=True, kw_only=True):
    allocation: _Allocation | None = None


class _Metadata(_Part, frozen=True, kw_only=True):
    uid: str
    namespace: str
    name: str
    generation: int = 0
    annotations: dict[str, str] = {}


class _Claim(_Part, frozen=True, kw_only=True):
    metadata: _Metadata
    status: _Status = _Status()


def claim_of(document: Mapping[str, Any]) -> Claim:
    """The claim that an API object is. Raises ClaimUnreadable, which names the path of what is not understood."""
    try:
        found = msgspec.convert(document, _Claim)
    except msgspec.ValidationError as error:
        name = document.get("metadata", {}).get("name") if isinstance(document.get("metadata"), dict) else None
        raise ClaimUnreadable(f"claim {name or '?'} cannot be read: {error}") from error
    allocation = found.status.allocation
    return Claim(
        uid=ClaimUid(found.metadata.uid),
        namespace=found.metadata.namespace,
        name=found.metadata.name,
        generation=found.metadata.generation,
        pod_claim_name=_pod_claim_name(found.metadata.annotations),
        results=None if allocation is None else tuple(map(_result, allocation.devices.results)),
        configs=() if allocation is None else _configs(allocation.devices.config),
    )


def _pod_claim_name(annotations: Mapping[str, str]) -> str | None:
    """What a pod calls the claim that a template made for it; anything that no pod can call one is passed over."""
    name = annotations.get(POD_CLAIM_NAME, "")
    return name if _POD_CLAIM.fullmatch(name) else None


def _result(found: _Result) -> AllocatedDevice:
    return AllocatedDevice(
        request=found.request,
        driver=found.driver,
        pool=found.pool,
        device=found.device,
        share_id=found.share_id,
        admin=found.admin_access,
        consumed=found.consumed_capacity,
    )


def _configs(found: Sequence[_Config]) -> tuple[OpaqueConfig, ...]:
    """The opaque ones, a class' before a claim's: a later one goes before an earlier one."""
    configs = [
        OpaqueConfig(
            driver=config.opaque.driver,
            parameters=config.opaque.parameters,
            requests=config.requests,
            from_class=config.source == "FromClass",
        )
        for config in found
        if config.opaque is not None
    ]
    return tuple(sorted(configs, key=lambda config: not config.from_class))
