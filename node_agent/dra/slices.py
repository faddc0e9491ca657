"""What the node publishes: its devices, in slices that the API takes. Pure; ``publisher`` keeps them true.

``laid_out`` says which devices there are, ``pool_of`` adds their taints and cuts the whole into slices.

The scheduler takes the first devices that fit, in the order of the slices' names and of the devices in them. So GPUs
come in topology order, where neighbours are close: whoever takes the first four that are free gets four that belong
together. Groups follow, the small ones first, so that one who takes any group breaks no large one.

Groups (opt-in) share their GPUs with each other and with the GPUs as devices of their own. A counter for each GPU, of
which each device that has a part in the GPU takes its part, keeps the scheduler from giving out a GPU twice:

- A device may draw on two counter sets at most and a set has 32 counters, while a group needs up to eight GPUs. So the
  counters of up to 32 GPUs are in one set, and every device needs that one only. Groups never span two sets, since runs
  of 32 in topology order never cut a group.
- The second set is left for MIG devices: each is to take its share of the GPU's counter (``125m`` for one memory slice
  of eight) and its memory slices and engines from a set of its GPU's own. A counter is 1 whatever its GPU can do, so
  that it need not change under devices that are allocated: the scheduler counts what is published now, and a counter
  below what is allocated would block the whole pool.

For the same reason a name always means the same GPUs: a group is called by the numbers of its members. And a GPU that
has dropped out keeps its place and its groups, see ``remembered``.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from node_agent.dra.attributes import (
    gpu_attributes,
    gpu_capacity,
    group_attributes,
    group_capacity,
    nvlink_facts,
    shared_capacity,
)
from node_agent.dra.taints import Taint
from node_agent.model.device import DeviceKind, PublishedDevice
from node_agent.model.gpu import DeviceName, Gpu, GpuUuid, device_name
from node_agent.model.inventory import Inventory
from node_agent.model.links import LinkGraph
from node_agent.topology.groups import aligned_groups, topology_order

T = TypeVar("T")
Content = Mapping[str, Any]
"""A part of a slice's spec, as the API has it."""

# 128 without taints and counters, but a taint may come any time, and the devices should then stay where they are.
DEVICES_PER_SLICE = 64
SETS_PER_SLICE = 8
COUNTERS_PER_SET = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolSettings:
    """``groups`` publishes groups, too. ``offered`` says which GPUs of a node are published, ``shares`` which ones
    several claims may have at once."""

    groups: bool = False
    offered: Callable[[Inventory], Collection[GpuUuid]] = lambda inventory: inventory.by_uuid
    shares: Callable[[Gpu], bool] = lambda gpu: False


@dataclass(frozen=True, kw_only=True, slots=True)
class LaidOutDevice:
    """A device without its taints: what it stands for, and its content in the API."""

    published: PublishedDevice
    content: Content


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """All devices in order, and the counter sets that they draw on."""

    devices: tuple[LaidOutDevice, ...] = ()
    counter_sets: tuple[Content, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceSpec:
    """One slice of the pool: ``name`` within it, in the order of which the scheduler goes, and what is in it."""

    name: str
    content: Content


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """All that is published, and the devices by their names."""

    slices: tuple[SliceSpec, ...] = ()
    devices: Mapping[DeviceName, PublishedDevice]


def remembered(before: Inventory, now: Inventory) -> Inventory:
    """The inventory with the GPUs of ``before`` that have dropped out, and their links.

    Their devices keep their names, their order and their groups: only so does the scheduler go on counting what is
    allocated of them. One whose place on the bus is taken is gone for good. An agent that is started while a GPU is
    away does not know it, so its devices leave; what a claim holds of them is then to be withheld, see ``pool``.
    """
    gone = {missing.uuid for missing in now.missing}
    places = {gpu.pci for gpu in now.gpus}
    absent = [gpu for gpu in before.gpus if gpu.uuid in gone - now.by_uuid.keys() and gpu.pci not in places]
    gpus = sorted([*now.gpus, *absent], key=lambda gpu: gpu.pci)
    away = {gpu.uuid for gpu in absent}
    links = {ends: link for ends, link in before.links.links.items() if ends & away} | dict(now.links.links)
    return replace(
        now,
        gpus=tuple(gpus),
        links=LinkGraph(links=links).among(gpu.uuid for gpu in gpus),
        driver=before.driver if now.problem is not None else now.driver,
        problem=None,
    )


def laid_out(inventory: Inventory, settings: PoolSettings) -> Layout:
    """The devices of a node; takes some milliseconds on a large one. A GPU in MIG mode cannot be given out whole."""
    chosen = settings.offered(inventory)
    offered = [gpu for gpu in inventory.gpus if gpu.uuid in chosen and not _partitioned(gpu)]
    part = replace(inventory, gpus=tuple(offered), links=inventory.links.among(gpu.uuid for gpu in offered))
    order, nvlink = topology_order(part), nvlink_facts(inventory)
    whole = {gpu.uuid: _gpu(gpu, gpu_attributes(gpu, inventory.driver, nvlink), settings.shares(gpu)) for gpu in order}
    # Aligned groups come from the large ones down, and are published from the small ones up.
    grouped = [gpus for gpus in aligned_groups(part) if _of_one_product(gpus)] if settings.groups else []
    if not grouped:
        return Layout(devices=tuple(whole.values()))
    groups = [_group(gpus, [whole[gpu.uuid] for gpu in gpus]) for gpus in sorted(grouped, key=len)]
    sets = _counter_sets(order)
    return Layout(
        devices=tuple(_drawing(one, inventory, sets) for one in (*whole.values(), *groups)), counter_sets=sets
    )


def pool_of(layout: Layout, taints: Callable[[Collection[GpuUuid]], Iterable[Taint]]) -> Pool:
    """The slices that publish a layout while devices of these GPUs have these taints."""
    devices = [_tainted(device, taints) for device in layout.devices]
    slices = [
        *_slices("counters", "sharedCounters", layout.counter_sets, SETS_PER_SLICE),
        *_slices("devices", "devices", devices, DEVICES_PER_SLICE),
    ]
    # A node without devices says so by an empty slice: the driver is there.
    return Pool(
        slices=tuple(slices) or (SliceSpec(name=_slice_name("devices", 0), content={}),),
        devices={device.published.name: device.published for device in layout.devices},
    )


def _gpu(gpu: Gpu, attributes: Content, shared: bool) -> LaidOutDevice:
    content: dict[str, Any] = {"name": gpu.name, "attributes": attributes}
    if capacity := shared_capacity(gpu) if shared else gpu_capacity(gpu):
        content["capacity"] = capacity
    if shared:
        content["allowMultipleAllocations"] = True
    published = PublishedDevice(name=gpu.name, kind=DeviceKind.GPU, gpus=(gpu.uuid,))
    return LaidOutDevice(published=published, content=content)


def _group(gpus: Sequence[Gpu], members: Sequence[LaidOutDevice]) -> LaidOutDevice:
    name = device_name(f"group-{'-'.join(sorted((_number(gpu) for gpu in gpus), key=lambda each: (len(each), each)))}")
    content: dict[str, Any] = {
        "name": name,
        "attributes": group_attributes([member.content["attributes"] for member in members]),
    }
    if capacity := group_capacity(gpus):
        content["capacity"] = capacity
    published = PublishedDevice(name=name, kind=DeviceKind.GROUP, gpus=tuple(gpu.uuid for gpu in gpus))
    return LaidOutDevice(published=published, content=content)


def _number(gpu: Gpu) -> str:
    return gpu.name.removeprefix("gpu-")


def _partitioned(gpu: Gpu) -> bool:
    return gpu.partition_mode is not None and gpu.partition_mode.active


def _of_one_product(gpus: Sequence[Gpu]) -> bool:
    """Nobody who asks for a group wants unlike GPUs."""
    return len({gpu.product for gpu in gpus}) == 1


def _counter_sets(order: Sequence[Gpu]) -> tuple[Content, ...]:
    return tuple(
        {"name": f"gpus-{number}", "counters": {gpu.name: {"value": "1"} for gpu in gpus}}
        for number, gpus in enumerate(_batched(order, COUNTERS_PER_SET))
    )


def _drawing(device: LaidOutDevice, inventory: Inventory, sets: Sequence[Content]) -> LaidOutDevice:
    """The device with what it takes of its GPUs: all."""
    counters = {inventory.by_uuid[gpu].name: {"value": "1"} for gpu in device.published.gpus}
    drawn = [
        {"counterSet": one["name"], "counters": counters} for one in sets if counters.keys() <= one["counters"].keys()
    ]
    return replace(device, content={**device.content, "consumesCounters": drawn})


def _tainted(device: LaidOutDevice, taints: Callable[[Collection[GpuUuid]], Iterable[Taint]]) -> Content:
    found = [taint.content for taint in taints(device.published.gpus)]
    return {**device.content, "taints": found} if found else device.content


def _slices(kind: str, key: str, items: Sequence[Content], most: int) -> Iterator[SliceSpec]:
    for number, part in enumerate(_batched(items, most)):
        yield SliceSpec(name=_slice_name(kind, number), content={key: list(part)})


def _slice_name(kind: str, number: int) -> str:
    return f"{kind}-{number:03}"


def _batched(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (items[start : start + most] for start in range(0, len(items), most))
