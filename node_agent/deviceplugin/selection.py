"""Which GPUs and partitions are offered, under which resource name, and as what. Pure.

A GPU in MIG mode is used through its partitions: by the strategy they are not offered (none), offered as GPUs would be
(single), or by a name of their profile (mixed). Where NVIDIA's device plugin gives up the node because something does
not fit its strategy, only that is left out here, and a note says why.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal

from msgspec import Struct, field

from node_agent.config.settings import SharingRule
from node_agent.model.gpu import Gpu
from node_agent.model.inventory import Inventory
from node_agent.model.naming import matches, named
from node_agent.model.partition import DeviceUuid, Place
from node_agent.model.unit import Unit
from node_agent.model.vendor import NVIDIA, Vendor
from node_agent.partition.names import profile_of, resource_name
from node_agent.sharing.shares import Shared, Shares, names_of, shares
from node_agent.topology.preferred import Policy


class Rule(Struct, frozen=True, kw_only=True):
    """What matches ``pattern`` is offered as ``resource``; only ``*`` is special in a pattern.

    A GPU is matched by its product, a partition by its profile.
    """

    pattern: str
    resource: str

    def matches(self, text: str) -> bool:
        return matches(self.pattern, text)


class Form(Struct, frozen=True, kw_only=True, dict=True):
    """As what a GPU or partition is offered: under which resource, and as a whole or shared."""

    unit: Unit
    resource: str
    shared: Shared | None = None

    @cached_property
    def place(self) -> Place:
        return self.unit.place

    @cached_property
    def names(self) -> Mapping[str, None]:
        """The ids of its devices, in their order."""
        return dict.fromkeys(names_of(self.unit.uuid, self.shared))


Forms = Mapping[DeviceUuid, Form]


class Whole(Struct, frozen=True, kw_only=True):
    """What would be offered of a node if nothing were shared, and under which names; ``notes`` say what is not."""

    units: Mapping[Unit, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Selection(Struct, frozen=True, kw_only=True):
    """``exclude`` names GPUs that are left to others, by UUID, index, stable name or product pattern, and partitions.
    Those that are ``moving`` are offered under no name for now: the kubelet has to hear that they have left theirs.

    The first of the ``rules`` that matches gives the name of a GPU as a whole; GPUs that none matches are
    the ``vendor``'s. ``partition_rules`` give other names than the ``strategy`` has for partitions. Of the GPUs
    that ``on_demand`` names no partition is offered: they are the claims'. ``sharing`` says what is shared, and may
    give the shares another name; ``policy`` from which GPUs a pod gets its devices.
    """

    vendor: Vendor = NVIDIA
    exclude: Sequence[str] = ()
    moving: Sequence[DeviceUuid] = ()
    rules: Sequence[Rule] = ()
    partition_rules: Sequence[Rule] = ()
    strategy: Literal["none", "single", "mixed"] = "none"
    on_demand: Sequence[str] = ()
    sharing: Sequence[SharingRule] = ()
    policy: Policy = Policy.SPREAD

    @property
    def resources(self) -> tuple[str, ...]:
        """Every name that a GPU may get, each once, the default last."""
        renamed = (rule.resource for rule in self.sharing if rule.resource is not None)
        return tuple(dict.fromkeys([*(rule.resource for rule in self.rules), *renamed, self.vendor.resource]))

    def resources_on(self, inventory: Inventory) -> tuple[str, ...]:
        """The names to offer under on this node: those, and those of the partitions that there are."""
        return tuple(dict.fromkeys([*self.resources, *(form.resource for form in self.forms(inventory).values())]))

    @property
    def _kept_back(self) -> tuple[str, ...]:
        return (*self.exclude, *self.moving)

    def may_use(self, resource: str) -> bool:
        """Whether something of that name may be there at another time, such as a partition of a GPU that is missing."""
        if resource in self.resources or any(rule.resource == resource for rule in self.partition_rules):
            return True
        return self.strategy == "mixed" and _is_of_a_profile(resource)

    def resource_of(self, gpu: Gpu) -> str | None:
        """The resource that a GPU is offered as where it is not shared; None where it is left out."""
        if named(self._kept_back, gpu):
            return None
        return next((rule.resource for rule in self.rules if rule.matches(gpu.product)), self.vendor.resource)

    def whole(self, inventory: Inventory) -> Whole:
        """What there is to offer, shared or not."""
        units: dict[Unit, str] = {}
        notes: list[str] = []
        for gpu in inventory.gpus:
            resource = self.resource_of(gpu)
            if resource is None:
                continue
            if not gpu.partitioned or named(self.on_demand, gpu):
                units[Unit(gpu=gpu)] = resource
                continue
            found, why = self._partitions(gpu, resource, inventory)
            units |= found
            notes += why
        return _uniform(units, notes) if self.strategy == "single" else Whole(units=units, notes=tuple(notes))

    def shares(self, inventory: Inventory) -> Shares:
        """What of the node is shared."""
        return shares(inventory, self.sharing, self.whole(inventory).units)

    def forms(self, inventory: Inventory) -> dict[DeviceUuid, Form]:
        """As what each GPU and partition is offered; what is left out is not in there."""
        whole = self.whole(inventory).units
        shared = shares(inventory, self.sharing, whole).gpus
        return {
            unit.uuid: Form(unit=unit, resource=how.resource if how else resource, shared=how)
            for unit, resource in whole.items()
            for how in (shared.get(unit.uuid),)
        }

    def left_to_others(self, inventory: Inventory) -> tuple[Gpu, ...]:
        """The GPUs that the agent has nothing to do with but to watch them."""
        return tuple(gpu for gpu in inventory.gpus if named(self.exclude, gpu))

    def kept(self, inventory: Inventory) -> tuple[Gpu, ...]:
        """The GPUs that are not left to others."""
        return tuple(gpu for gpu in inventory.gpus if not named(self.exclude, gpu))

    def notes(self, inventory: Inventory) -> tuple[str, ...]:
        """What is not offered although it is there, and what the rules name in vain."""
        whole = self.whole(inventory)
        left = ", ".join(gpu.name for gpu in self.left_to_others(inventory))
        excluded = (f"{left}: left to others by agent.devices.exclude",) if left else ()
        return (*excluded, *whole.notes, *shares(inventory, self.sharing, whole.units).notes)

    def _partitions(self, gpu: Gpu, resource: str, inventory: Inventory) -> tuple[dict[Unit, str], list[str]]:
        """The partitions of a GPU with their names, and what of it is not offered."""
        live = [one for one in inventory.partitions.values() if one.parent == gpu.uuid]
        if gpu.uuid in inventory.unlisted:
            return {}, [f"{gpu.name}: its MIG devices cannot be listed: {inventory.unlisted[gpu.uuid]}"]
        if not live:
            return {}, [f"{gpu.name} is in MIG mode and has no MIG devices: nothing of it can be used"]
        if self.strategy == "none":
            return {}, [f"{gpu.name} is in MIG mode; flags.migStrategy single or mixed offers its MIG devices"]
        units = [unit for unit in (Unit(gpu=gpu, partition=one) for one in live) if not unit.is_meant(self._kept_back)]
        names = {unit: self._resource_of_partition(unit, resource) for unit in units}
        return (
            {unit: name for unit, name in names.items() if name is not None},
            [f"{unit.name}: no resource can be named by its profile" for unit, name in names.items() if name is None],
        )

    def _resource_of_partition(self, unit: Unit, of_gpu: str) -> str | None:
        assert unit.partition is not None
        profile = unit.partition.profile
        ruled = next((rule.resource for rule in self.partition_rules if rule.matches(profile)), None)
        if ruled is not None or self.strategy == "single":
            return ruled or of_gpu
        try:
            return resource_name(profile)
        except ValueError:
            # The driver may know profiles that have no name.
            return None


def _uniform(units: Mapping[Unit, str], notes: Iterable[str]) -> Whole:
    """Of each resource what a pod may take for the same: whole GPUs, or else partitions of one profile."""
    left: dict[Unit, str] = {}
    said = list(notes)
    for resource in dict.fromkeys(units.values()):
        of_it = [unit for unit, name in units.items() if name == resource]
        shapes = {unit.partition.profile if unit.partition else "" for unit in of_it}
        fit = [unit for unit in of_it if len(shapes) == 1 or ("" in shapes and unit.partition is None)]
        left |= dict.fromkeys(fit, resource)
        said += _left_out(resource, shapes)
    return Whole(units={unit: name for unit, name in units.items() if unit in left}, notes=tuple(said))


def _left_out(resource: str, shapes: set[str]) -> Iterator[str]:
    profiles = ", ".join(sorted(shapes - {""}))
    if len(shapes) == 1:
        return
    if "" in shapes:
        yield f"{resource}: flags.migStrategy single offers whole GPUs, and no MIG devices ({profiles}) beside them"
    else:
        yield f"{resource}: flags.migStrategy single offers no MIG devices that differ: there are {profiles}"


def _is_of_a_profile(resource: str) -> bool:
    try:
        profile_of(resource)
    except ValueError:
        return False
    return True
