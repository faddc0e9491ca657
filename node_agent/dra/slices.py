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
- The second set is for MIG devices of GPUs that claims cut: each takes its share of the GPU's counter (``125m`` for one
  memory slice of eight) and its memory slices and engines from a set of its GPU's own. A counter is 1 whatever its GPU
  can do, so that it need not change under devices that are allocated: the scheduler counts what is published now, and a
  counter below what is allocated would block the whole pool.

A GPU whose MIG mode is on and that claims do not cut is published as the MIG devices that lie on it: nothing else draws
on its hardware, and so it is not counted.

For the same reason a name always means the same GPUs: a group is called by the numbers of its members. And a GPU that
has dropped out keeps its place and its groups, see ``remembered``.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from node_agent.dra.attributes import gpu_attributes, nvlink_facts
from node_agent.dra.devices import Content, LaidOutDevice, as_called_by, group, live_partitions, pieces, whole_gpu
from node_agent.dra.taints import Taint
from node_agent.model.device import PublishedDevice
from node_agent.model.gpu import DeviceName, Gpu, GpuUuid, PartitionMode
from node_agent.model.inventory import Inventory
from node_agent.model.links import LinkGraph
from node_agent.partition.counters import counter_set
from node_agent.partition.layout import Rules, rules_of
from node_agent.topology.groups import aligned_groups, topology_order

T = TypeVar("T")
# 128 without taints and counters, but a taint may come any time, and the devices should then stay where they are.
DEVICES_PER_SLICE = 64
SETS_PER_SLICE = 8
COUNTERS_PER_SET = 32


class PoolSettings(Struct, frozen=True, kw_only=True):
    """``groups`` publishes groups, too. ``offered`` says which GPUs of a node are published, ``shares`` which ones
    several claims may have at once, and ``on_demand`` which ones claims cut."""

    groups: bool = False
    offered: Callable[[Inventory], Collection[GpuUuid]] = lambda inventory: inventory.by_uuid
    shares: Callable[[Gpu], bool] = lambda gpu: False
    on_demand: Callable[[Gpu], bool] = lambda gpu: False


class Layout(Struct, frozen=True, kw_only=True):
    """All devices in order, and the counter sets that they draw on."""

    devices: tuple[LaidOutDevice, ...] = ()
    counter_sets: tuple[Content, ...] = ()


class SliceSpec(Struct, frozen=True, kw_only=True):
    """One slice of the pool: ``name`` within it, in the order of which the scheduler goes, and what is in it."""

    name: str
    content: Content


class Pool(Struct, frozen=True, kw_only=True):
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
        profiles={**_kept(before.profiles, away), **now.profiles},
        instances={**_kept(before.instances, away), **now.instances},
        links=LinkGraph(links=links).among(gpu.uuid for gpu in gpus),
        driver=before.driver if now.problem is not None else now.driver,
        problem=None,
    )


def at_rest(inventory: Inventory, settings: PoolSettings) -> Inventory:
    """The inventory without what claims change of it: two that are equal then have one layout."""
    demanded = {gpu.uuid for gpu in inventory.gpus if cut_on_demand(gpu, inventory, settings) is not None}
    return replace(
        inventory,
        generation=0,
        gpus=tuple(
            replace(gpu, partition_mode=PartitionMode.DISABLED) if gpu.uuid in demanded and gpu.resetless else gpu
            for gpu in inventory.gpus
        ),
        instances={gpu: lying for gpu, lying in inventory.instances.items() if gpu not in demanded},
    )


def laid_out(inventory: Inventory, settings: PoolSettings) -> Layout:
    """The devices of a node; takes some milliseconds on a large one."""
    layout, vendor = _laid_out(inventory, settings), inventory.vendor
    if not vendor.attributes:
        return layout
    return replace(layout, devices=tuple(as_called_by(vendor, device) for device in layout.devices))


def _laid_out(inventory: Inventory, settings: PoolSettings) -> Layout:
    forms, nvlink = _forms(inventory, settings), nvlink_facts(inventory)
    told = {gpu.uuid: gpu_attributes(gpu, inventory.driver, nvlink) for gpu in inventory.gpus}
    part = replace(inventory, gpus=forms.whole, links=inventory.links.among(gpu.uuid for gpu in forms.whole))
    order, grouped = topology_order(part), _groups(part) if settings.groups else []
    whole = [
        *(whole_gpu(gpu, told[gpu.uuid], settings.shares(gpu)) for gpu in order),
        *(group(gpus, [told[gpu.uuid] for gpu in gpus]) for gpus in grouped),
    ]
    live = [
        one for gpu in forms.cut for one in live_partitions(gpu, told[gpu.uuid], inventory.instances.get(gpu.uuid, ()))
    ]
    if not grouped and not forms.on_demand:
        return Layout(devices=(*whole, *live))
    counted = (*order, *(gpu for gpu in forms.on_demand if gpu not in order))
    sets, rules = _counter_sets(counted), forms.on_demand
    cut = [(gpu, rules[gpu]) for gpu in counted if gpu in rules]
    made = [one for gpu, rule in cut for one in pieces(gpu, told[gpu.uuid], rule, _set_of([gpu.name], sets)["name"])]
    return Layout(
        devices=(*(_drawing(one, inventory, sets) for one in whole), *made, *live),
        counter_sets=(*sets, *(counter_set(gpu.name, rule) for gpu, rule in cut)),
    )


def _kept(values: Mapping[GpuUuid, T], gpus: Collection[GpuUuid]) -> dict[GpuUuid, T]:
    return {gpu: value for gpu, value in values.items() if gpu in gpus}


def pool_of(layout: Layout, taints: Callable[[PublishedDevice], Iterable[Taint]]) -> Pool:
    """The slices that publish a layout while its devices have these taints."""
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


class _Forms(Struct, frozen=True, kw_only=True):
    """The GPUs that are offered, by the forms in which they are; those that claims cut may be whole ones as well."""

    whole: tuple[Gpu, ...]
    cut: tuple[Gpu, ...]
    on_demand: Mapping[Gpu, Rules]


def _forms(inventory: Inventory, settings: PoolSettings) -> _Forms:
    chosen = settings.offered(inventory)
    offered = [gpu for gpu in inventory.gpus if gpu.uuid in chosen]
    # Where the mode is not to be changed without a reset, the present one says which form there is.
    demanded = {gpu: rules for gpu in offered if (rules := cut_on_demand(gpu, inventory, settings)) is not None}
    return _Forms(
        whole=tuple(gpu for gpu in offered if not gpu.partitioned or (gpu in demanded and gpu.resetless)),
        cut=tuple(gpu for gpu in offered if gpu.partitioned and gpu not in demanded),
        on_demand={gpu: rules for gpu, rules in demanded.items() if gpu.partitioned or gpu.resetless},
    )


def cut_on_demand(gpu: Gpu, inventory: Inventory, settings: PoolSettings) -> Rules | None:
    """How a GPU can be cut whose partitions claims make; None for all others."""
    rules = rules_of(inventory.profiles.get(gpu.uuid, ()))
    return rules if rules.profiles and len(rules.totals) <= COUNTERS_PER_SET and settings.on_demand(gpu) else None


def _groups(inventory: Inventory) -> list[Sequence[Gpu]]:
    """Groups come from the large ones down, and are published from the small ones up."""
    return sorted((gpus for gpus in aligned_groups(inventory) if _of_one_product(gpus)), key=len)


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
    names = [inventory.by_uuid[gpu].name for gpu in device.published.gpus]
    drawn = {"counterSet": _set_of(names, sets)["name"], "counters": {name: {"value": "1"} for name in names}}
    return replace(device, content={**device.content, "consumesCounters": [drawn]})


def _set_of(gpus: Collection[DeviceName], sets: Iterable[Content]) -> Content:
    """The counter set that counts these GPUs."""
    return next(one for one in sets if one["counters"].keys() >= set(gpus))


def _tainted(device: LaidOutDevice, taints: Callable[[PublishedDevice], Iterable[Taint]]) -> Content:
    found = [taint.content for taint in taints(device.published)]
    return {**device.content, "taints": found} if found else device.content


def _slices(kind: str, key: str, items: Sequence[Content], most: int) -> Iterator[SliceSpec]:
    for number, part in enumerate(_batched(items, most)):
        yield SliceSpec(name=_slice_name(kind, number), content={key: list(part)})


def _slice_name(kind: str, number: int) -> str:
    return f"{kind}-{number:03}"


def _batched(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (items[start : start + most] for start in range(0, len(items), most))
