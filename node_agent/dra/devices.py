"""The devices that a node can publish, each with its content in the API. Pure; ``slices`` says which ones it does.

A partition is published where it lies, or, of a GPU that claims cut, at every place where one could be made.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from node_agent.dra.attributes import (
    STANDARD,
    gpu_capacity,
    group_attributes,
    group_capacity,
    partition_attributes,
    partition_capacity,
    shared_capacity,
)
from node_agent.dra.values import Value
from node_agent.model.device import DeviceKind, PublishedDevice
from node_agent.model.gpu import DeviceName, Gpu, device_name
from node_agent.model.partition import Instance, Part
from node_agent.model.vendor import Vendor
from node_agent.partition.counters import devices_of, draws_of
from node_agent.partition.layout import Rules
from node_agent.partition.names import is_named, partition_name

Content = Mapping[str, Any]
"""A part of a slice's spec, as the API has it."""

Attributes = Mapping[str, Value]


class LaidOutDevice(Struct, frozen=True, kw_only=True):
    """A device without its taints: what it stands for, and its content in the API."""

    published: PublishedDevice
    content: Content


def whole_gpu(gpu: Gpu, attributes: Attributes, shared: bool) -> LaidOutDevice:
    content: dict[str, Any] = {"name": gpu.name, "attributes": attributes}
    if capacity := shared_capacity(gpu) if shared else gpu_capacity(gpu):
        content["capacity"] = capacity
    if shared:
        content["allowMultipleAllocations"] = True
    published = PublishedDevice(name=gpu.name, kind=DeviceKind.GPU, gpus=(gpu.uuid,))
    return LaidOutDevice(published=published, content=content)


def group(gpus: Sequence[Gpu], attributes: Sequence[Attributes]) -> LaidOutDevice:
    """A group of GPUs with these attributes, called by their numbers."""
    name = device_name(f"group-{'-'.join(sorted((_number(gpu) for gpu in gpus), key=lambda each: (len(each), each)))}")
    content: dict[str, Any] = {"name": name, "attributes": group_attributes(attributes)}
    if capacity := group_capacity(gpus):
        content["capacity"] = capacity
    published = PublishedDevice(name=name, kind=DeviceKind.GROUP, gpus=tuple(gpu.uuid for gpu in gpus))
    return LaidOutDevice(published=published, content=content)


def pieces(gpu: Gpu, attributes: Attributes, rules: Rules, gpus: str) -> Iterator[LaidOutDevice]:
    """Every partition that could be made on a GPU; ``gpus`` is the counter set that counts it as a whole."""
    shapes = {
        name: (partition_attributes(attributes, name), partition_capacity(profile))
        for name, profile in rules.by_name.items()
    }
    for name, piece in devices_of(gpu.name, rules):
        own, capacity = shapes[piece.profile]
        draws = draws_of(gpu.name, rules, piece, gpus)
        part = Part(profile=piece.profile, placement=piece.placement)
        content = {"name": name, "attributes": own, "capacity": capacity, "consumesCounters": draws}
        yield _partition(name, gpu, part, content)


def live_partitions(gpu: Gpu, attributes: Attributes, instances: Sequence[Instance]) -> Iterator[LaidOutDevice]:
    """The partitions that lie on a GPU."""
    for one in (partition for instance in instances for partition in instance.partitions):
        part = one.part
        if not is_named(part.profile):
            continue
        start = part.computes[0] if part.computes is not None else None
        name = partition_name(gpu.name, part.profile, part.placement, start)
        content = {
            "name": name,
            "attributes": partition_attributes(attributes, part.profile, one.uuid),
            "capacity": partition_capacity(one, part.placement),
        }
        yield _partition(name, gpu, part, content)


def as_called_by(vendor: Vendor, device: LaidOutDevice) -> LaidOutDevice:
    """The device in the vendor's own names of attributes and capacities."""
    content = dict(device.content)
    attributes = dict(content["attributes"])
    if device.published.kind is DeviceKind.GPU:
        attributes["type"] = {"string": vendor.gpu_type}
    if vendor.own_numa_node and (node := attributes.get(f"{STANDARD}/numaNode")):
        attributes["numaNode"] = node
    content["attributes"] = _renamed(attributes, vendor)
    if "capacity" in content:
        content["capacity"] = _renamed(content["capacity"], vendor)
    return replace(device, content=content)


def _renamed(values: Mapping[str, Any], vendor: Vendor) -> dict[str, Any]:
    names = {name: vendor.attributes.get(name, name) for name in values}
    return {names[name]: value for name, value in values.items() if names[name]}


def _partition(name: DeviceName, gpu: Gpu, part: Part, content: Content) -> LaidOutDevice:
    published = PublishedDevice(name=name, kind=DeviceKind.MIG, gpus=(gpu.uuid,), part=part)
    return LaidOutDevice(published=published, content=content)


def _number(gpu: Gpu) -> str:
    return gpu.name.removeprefix("gpu-")
