"""Which GPUs are shared, into how many shares, and by which means: the rules of the configuration met with the node.

Pure. ``deviceplugin`` offers the shares; the means are set up by this package's other parts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from node_agent.config.settings import SharingRule
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.naming import named, names

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """How one GPU is shared: ``replicas`` devices of it are offered as ``resource``.

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """The GPUs that are shared; ``notes`` say which words of the rules mean no GPU of this node."""

    gpus: Mapping[GpuUuid, Shared] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def shares(inventory: Inventory, rules: Sequence[SharingRule], resource_of: Callable[[Gpu], str | None]) -> Shares:
    """What the rules make of the node: of several that mean a GPU the first one holds.

    ``resource_of`` tells under which name a GPU would be offered as a whole, None where it is not offered.
    """
    found: dict[GpuUuid, Shared] = {}
    offered = {gpu.uuid: name for gpu in inventory.gpus if (name := resource_of(gpu)) is not None}
    for rule in rules:
        for gpu in _meant(rule, inventory, offered):
            found.setdefault(gpu, _shared(rule, offered[gpu]))
    return Shares(gpus=found, notes=tuple(_notes(inventory, rules)))


def _meant(rule: SharingRule, inventory: Inventory, offered: Mapping[GpuUuid, str]) -> Iterator[GpuUuid]:
    """The GPUs that a rule means, of those that are offered under these names."""
    gpus = [
        gpu
        for gpu in inventory.gpus
        if gpu.uuid in offered and rule.of in (None, offered[gpu.uuid]) and named(rule.devices, gpu)
    ]
    # One that cannot be read at the moment keeps its place: another one must not be shared in its stead.
    places = sorted({*(gpu.index for gpu in gpus), *(missing.index for missing in inventory.missing)})
    first = set(places[: rule.first])
    yield from (gpu.uuid for gpu in gpus if gpu.index in first)


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


def _notes(inventory: Inventory, rules: Iterable[SharingRule]) -> Iterator[str]:
    missing = {word for gpu in inventory.missing for word in (gpu.uuid, str(gpu.index))}
    for word in dict.fromkeys(word for rule in rules for word in rule.devices):
        if word != "*" and word not in missing and not any(names(word, gpu) for gpu in inventory.gpus):
            yield f"sharing: {word!r} means no GPU of this node; the rules hold for the others"


def share_name(gpu: GpuUuid, number: int) -> str:
    """The kubelet's id of a share, in NVIDIA's form: ``GPU-9f0d…::3``."""
    return f"{gpu}{_SEPARATOR}{number}"


def names_of(gpu: GpuUuid, shared: Shared | None) -> tuple[str, ...]:
    """The ids of the devices that a GPU is offered as."""
    if shared is None:
        return (gpu,)
    return tuple(share_name(gpu, number) for number in range(shared.replicas))


def alike(gpu: GpuUuid, shared: Shared | None) -> Iterator[tuple[str, int]]:
    """Of the ids of a GPU's devices one of each length, and how many have that length."""
    if shared is None:
        yield gpu, 1
        return
    first, more = 0, 10
    while first < shared.replicas:
        yield share_name(gpu, first), min(more, shared.replicas) - first
        first, more = more, more * 10


def parts_of(name: str) -> tuple[GpuUuid, str | None]:
    """The GPU that a device id stands for, and which share of it; None for the whole."""
    gpu, separator, number = name.partition(_SEPARATOR)
    return GpuUuid(gpu), number if separator else None
