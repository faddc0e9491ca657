"""What an API server does not keep of a slice, and what is published there instead. Pure.

A server drops the fields whose feature gate is off, or that it is too old to know, without a word; ``publisher``
compares what it sent with what was stored.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from node_agent.dra.attributes import CORES
from node_agent.dra.devices import Content
from node_agent.dra.slices import SliceSpec
from node_agent.dra.taints import Effect
from node_agent.model.device import DeviceKind


class Feature(StrEnum):
    """Parts of the resource API that a server may lack, by their feature gates."""

    TAINTS = "DRADeviceTaints"
    COUNTERS = "DRAPartitionableDevices"
    SHARING = "DRAConsumableCapacity"


# A field's last name is enough: no other field of a slice has the same.
_FIELDS = {
    "taints": Feature.TAINTS,
    "sharedCounters": Feature.COUNTERS,
    "consumesCounters": Feature.COUNTERS,
    "allowMultipleAllocations": Feature.SHARING,
    "requestPolicy": Feature.SHARING,
}

# What is not safe without counters: it draws on GPUs that others may have as well.
_DRAWING = (DeviceKind.GROUP, DeviceKind.MIG)


def alike(one: Any, other: Any) -> bool:
    """Whether two values are equal but for what says nothing, since servers leave that out."""
    if one == other:  # so most of a slice is compared at once
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        both = ((one.get(key), other.get(key)) for key in one.keys() | other.keys())
        return all(alike(*pair) or all(map(_says_nothing, pair)) for pair in both)
    return _pairs(one, other) and all(map(alike, one, other))


def not_kept(sent: Any, stored: Any, path: str = "") -> Iterator[str]:
    """The paths, without the numbers of list entries, of what was sent and is not stored, or as something else."""
    if sent == stored:
        return
    if isinstance(sent, Mapping) and isinstance(stored, Mapping):
        for key, value in sent.items():
            if not _says_nothing(value):
                yield from not_kept(value, stored.get(key), f"{path}.{key}" if path else key)
    elif _pairs(sent, stored):
        for one, other in zip(sent, stored, strict=True):
            yield from not_kept(one, other, path)
    else:
        yield path


def _pairs(one: Any, other: Any) -> bool:
    """Whether two values are lists of one length."""
    return isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other)


def _says_nothing(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_says_nothing, value.values()))
    return value is None or (isinstance(value, list | tuple) and not value)


def lacking(paths: Iterable[str]) -> frozenset[Feature]:
    """The features without which a server drops these fields."""
    names = {name for path in paths for name in path.split(".")}
    return frozenset(feature for name, feature in _FIELDS.items() if name in names)


def without(slices: Iterable[SliceSpec], features: frozenset[Feature]) -> tuple[SliceSpec, ...]:
    """The slices for a server that lacks these features.

    Without taints a device that nobody should get leaves its slice, and without counters all groups do, and MIG devices
    that claims make: nothing would keep the scheduler from giving out their GPUs twice.
    """
    return tuple(
        replace(one, content={"devices": [_bare(device, features) for device in _safe(one.content, features)]})
        if "devices" in one.content
        else one
        for one in slices
        if Feature.COUNTERS not in features or "sharedCounters" not in one.content
    )


def _safe(content: Content, features: frozenset[Feature]) -> Iterator[Content]:
    for device in content["devices"]:
        withdrawn = any(taint["effect"] != Effect.NONE for taint in device.get("taints", ()))
        # A whole GPU is safe by itself once everything else that draws on it is gone.
        counted = "consumesCounters" in device and device["attributes"]["type"]["string"] in _DRAWING
        if not (withdrawn and Feature.TAINTS in features) and not (counted and Feature.COUNTERS in features):
            yield device


def _bare(device: Content, features: frozenset[Feature]) -> Content:
    dropped = {name for name, feature in _FIELDS.items() if feature in features}
    bare = {name: value for name, value in device.items() if name not in dropped}
    if "capacity" in bare and "requestPolicy" in dropped:
        # Cores in percent are there to be shared only.
        plain = {name: {"value": each["value"]} for name, each in bare["capacity"].items() if name != CORES}
        bare.pop("capacity")
        bare |= {"capacity": plain} if plain else {}
    return bare
