"""Which GPUs and partitions are shared, into how many shares, and by which means.

Pure: the rules of the configuration met with the node. ``deviceplugin`` offers the shares; the means are set up by this
package's other parts.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field

from node_agent.config.settings import SharingRule
from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.partition import DeviceUuid, PartitionUuid
from node_agent.model.unit import Unit

_SEPARATOR = "::"


class Strategy(StrEnum):
    """By which means the users of a GPU share it."""

    TIME_SLICING = "time-slicing"
    """They take turns. Nothing limits what memory each of them takes."""

    MPS = "mps"
    """They run side by side, as clients of an MPS daemon that holds them to their limits."""


class Interval(StrEnum):
    """How long a turn is; how long each of these lasts is not published."""

    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"

    @property
    def number(self) -> int:
        """The driver's number for it."""
        return list(Interval).index(self)


class Shared(Struct, frozen=True, kw_only=True):
    """How one GPU or partition is shared: ``replicas`` devices of it are offered as ``resource``.

    ``renamed``: that is another name than the GPU has as a whole. ``at_most_one`` refuses a container that asks for
    several. ``interval`` is None where nobody asked for one. ``memory`` in bytes and ``threads`` in percent are the
    limits of each share under MPS, None where they follow from the number of replicas; with ``overcommit`` they may add
    up to more than the GPU has. ``multi_user``: clients of several users at once.
    """

    strategy: Strategy
    replicas: int
    resource: str
    renamed: bool = False
    at_most_one: bool = False
    interval: Interval | None = None
    memory: int | None = None
    threads: int | None = None
    overcommit: bool = False
    multi_user: bool = False


class Shares(Struct, frozen=True, kw_only=True):
    """What is shared; ``notes`` say which words of the rules mean nothing on this node."""

    gpus: Mapping[DeviceUuid, Shared] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


Whole = Mapping[Unit, str]
"""What is offered where it is not shared, with the name of the resource."""


def shares(inventory: Inventory, rules: Sequence[SharingRule], whole: Whole) -> Shares:
    """What the rules make of the node: of several that mean a GPU or partition the first one holds."""
    found: dict[DeviceUuid, Shared] = {}
    for rule in rules:
        for unit in _meant(rule, inventory, whole):
            found.setdefault(unit.uuid, _shared(rule, whole[unit]))
    return Shares(gpus=found, notes=tuple(_notes(inventory, rules, whole)))


def _meant(rule: SharingRule, inventory: Inventory, whole: Whole) -> Iterator[Unit]:
    """The GPUs and partitions that a rule means."""
    units = [unit for unit, name in whole.items() if rule.of in (None, name) and unit.is_meant(rule.devices)]
    # One that cannot be read at the moment keeps its place: another one must not be shared in its stead.
    places = sorted({*map(_place, units), *((missing.index, -1) for missing in inventory.missing)})
    first = set(places[: rule.first])
    yield from (unit for unit in units if _place(unit) in first)


def _place(unit: Unit) -> tuple[int, int]:
    """Where it stands among all of the node."""
    return unit.gpu.index, -1 if unit.partition is None else unit.partition.index


def _shared(rule: SharingRule, resource: str) -> Shared:
    return Shared(
        strategy=Strategy(rule.strategy),
        replicas=rule.shares,
        resource=rule.resource or resource,
        renamed=rule.resource not in (None, resource),
        at_most_one=rule.fail_requests_greater_than_one,
        # The default is what a GPU has anyway, and some know no other: nothing is asked of them.
        interval=None if rule.time_slice == "Default" else Interval(rule.time_slice),
        memory=rule.memory_per_share,
        threads=rule.thread_percentage_per_share,
        overcommit=rule.overcommit,
        multi_user=rule.multi_user,
    )


def _notes(inventory: Inventory, rules: Iterable[SharingRule], whole: Collection[Unit]) -> Iterator[str]:
    missing = {word for gpu in inventory.missing for word in (gpu.uuid, str(gpu.index))}
    units = [*whole, *(Unit(gpu=gpu) for gpu in inventory.gpus)]
    for word in dict.fromkeys(word for rule in rules for word in rule.devices):
        if word != "*" and word not in missing and not any(unit.is_meant((word,)) for unit in units):
            yield f"sharing: {word!r} means no GPU of this node; the rules hold for the others"


def share_name(device: DeviceUuid, number: int) -> str:
    """The kubelet's id of a share, in NVIDIA's form: ``GPU-9f0d…::3``."""
    return f"{device}{_SEPARATOR}{number}"


def names_of(device: DeviceUuid, shared: Shared | None) -> tuple[str, ...]:
    """The ids of the devices that a GPU or partition is offered as."""
    if shared is None:
        return (device,)
    return tuple(share_name(device, number) for number in range(shared.replicas))


def alike(device: DeviceUuid, shared: Shared | None) -> Iterator[tuple[str, int]]:
    """Of the ids that it is offered as one of each length, and how many have that length."""
    if shared is None:
        yield device, 1
        return
    first, more = 0, 10
    while first < shared.replicas:
        yield share_name(device, first), min(more, shared.replicas) - first
        first, more = more, more * 10


def parts_of(name: str) -> tuple[DeviceUuid, str | None]:
    """The GPU or partition that a device id stands for, and which share of it; None for the whole."""
    device, separator, number = name.partition(_SEPARATOR)
    uuid = PartitionUuid(device) if is_partition(device) else GpuUuid(device)
    return uuid, number if separator else None


def is_partition(device: str) -> bool:
    """Whether an id is one of a partition or of a share of one."""
    return device.startswith("MIG-")
