"""The opaque configuration of claims and device classes: NVIDIA's group ``resource.nvidia.com/v1beta1``. Pure.

It is read strictly, since whoever may write a claim may write anything here: an unknown field, a wrong type or a kind
that does not fit the device fails that claim with the path of the trouble, and nothing else.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from node_agent.config.quantities import MIB, PATTERN, amount
from node_agent.errors import ClaimConfigInvalid
from node_agent.model.claim import AllocatedDevice, OpaqueConfig
from node_agent.model.device import DeviceKind

API_VERSION: Literal["resource.nvidia.com/v1beta1"] = "resource.nvidia.com/v1beta1"

Percentage = Annotated[int, Meta(ge=0, le=100)]
Quantity = Annotated[str, Meta(pattern=PATTERN)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A part of a configuration: no key but these."""


class TimeSlicingConfig(_Section, frozen=True, kw_only=True):
    interval: Literal["Default", "Short", "Medium", "Long"] = "Default"


class MpsConfig(_Section, frozen=True, kw_only=True):
    default_active_thread_percentage: Percentage | None = None
    default_pinned_device_memory_limit: Quantity | None = None
    default_per_device_pinned_memory_limit: dict[str, Quantity] = {}
    multi_user: bool = False

    def limits(self) -> Iterator[tuple[str, str]]:
        """Every limit of memory, with its path."""
        if self.default_pinned_device_memory_limit is not None:
            yield "defaultPinnedDeviceMemoryLimit", self.default_pinned_device_memory_limit
        for name, limit in self.default_per_device_pinned_memory_limit.items():
            yield f"defaultPerDevicePinnedMemoryLimit.{name}", limit


class Sharing(_Section, frozen=True, kw_only=True):
    """Each strategy takes its own settings only."""

    strategy: Literal["TimeSlicing", "MPS"]
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None


class GpuConfig(_Section, frozen=True, kw_only=True, tag_field="kind", tag="GpuConfig"):
    api_version: Literal["resource.nvidia.com/v1beta1"]
    sharing: Sharing | None = None


class MigDeviceConfig(_Section, frozen=True, kw_only=True, tag_field="kind", tag="MigDeviceConfig"):
    api_version: Literal["resource.nvidia.com/v1beta1"]
    sharing: Sharing | None = None


class VfioDeviceConfig(_Section, frozen=True, kw_only=True, tag_field="kind", tag="VfioDeviceConfig"):
    api_version: Literal["resource.nvidia.com/v1beta1"]
    iommu: dict[str, object] = {}


Config = GpuConfig | MigDeviceConfig | VfioDeviceConfig

DEFAULT = GpuConfig(api_version=API_VERSION)
"""What holds where nobody said anything: the device is left as it is."""

_FITS: dict[type[Config], frozenset[DeviceKind]] = {
    GpuConfig: frozenset({DeviceKind.GPU, DeviceKind.GROUP}),
    MigDeviceConfig: frozenset({DeviceKind.MIG}),
    VfioDeviceConfig: frozenset(),
}


def config_for(result: AllocatedDevice, kind: DeviceKind, configs: Iterable[OpaqueConfig]) -> Config:
    """The configuration that holds for an allocated device: the last one that is meant for it, or ``DEFAULT``.

    One that names the device's request is meant for it, and so is one that names the request of which it is a
    subrequest. One that names no request is meant for every device of the kinds that it fits.

    Raises:
        ClaimConfigInvalid: names the path of what is wrong.
    """
    found: Config = DEFAULT
    for number, config in enumerate(configs):
        if config.driver != result.driver:
            continue
        named = bool({result.request, result.base_request} & set(config.requests))
        if config.requests and not named:
            continue
        decoded = decode(config, number)
        if kind in _FITS[type(decoded)]:
            found = decoded
        elif named:
            what = decoded.__struct_config__.tag
            raise ClaimConfigInvalid(f"{_place(config, number)}: a {what} does not fit {result.device}, a {kind}")
    return found


def decode(config: OpaqueConfig, number: int) -> Config:
    """Read one configuration strictly; ``number`` is its place in the list. Raises ClaimConfigInvalid."""
    place = _place(config, number)
    try:
        decoded: Config = msgspec.convert(config.parameters, Config)
    except msgspec.ValidationError as error:
        what, _, at = str(error).partition(" - at `$")
        raise ClaimConfigInvalid(f"{place}{at.rstrip('`')}: {what}") from error
    _check_sharing(decoded, place)
    return decoded


def _check_sharing(config: Config, place: str) -> None:
    sharing = config.sharing if isinstance(config, GpuConfig | MigDeviceConfig) else None
    if sharing is None:
        return
    foreign = {"TimeSlicing": sharing.mps_config, "MPS": sharing.time_slicing_config}[sharing.strategy]
    if foreign is not None:
        key = {"TimeSlicing": "mpsConfig", "MPS": "timeSlicingConfig"}[sharing.strategy]
        raise ClaimConfigInvalid(f"{place}.sharing.{key}: does not go with the strategy {sharing.strategy}")
    slices = sharing.time_slicing_config
    if isinstance(config, MigDeviceConfig) and slices is not None and slices.interval != "Default":
        raise ClaimConfigInvalid(
            f"{place}.sharing.timeSlicingConfig.interval: a MIG device has no interval of its own; got "
            f"{slices.interval!r}, and only 'Default' can be had"
        )
    for path, limit in sharing.mps_config.limits() if sharing.mps_config is not None else ():
        if amount(limit) < MIB:
            raise ClaimConfigInvalid(f"{place}.sharing.mpsConfig.{path}: expected at least 1Mi; got {limit!r}")


def _place(config: OpaqueConfig, number: int) -> str:
    return f"{'class' if config.from_class else 'claim'} config[{number}].opaque.parameters"
