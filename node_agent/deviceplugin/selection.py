"""Which GPUs are offered, under which resource name, and as what. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from node_agent.config.settings import SharingRule
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.naming import matches, named
from node_agent.sharing.shares import Shared, Shares, names_of, shares
from node_agent.topology.preferred import Policy

GPU_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """GPUs whose product matches ``pattern`` are offered as ``resource``; only ``*`` is special in a pattern."""

    pattern: str
    resource: str

    def matches(self, gpu: Gpu) -> bool:
        return matches(self.pattern, gpu.product)


@dataclass(frozen=True, kw_only=True)
class Form:
    """As what a GPU is offered: under which resource, and as a whole or shared."""

    gpu: GpuUuid
    resource: str
    shared: Shared | None = None

    @cached_property
    def names(self) -> Mapping[str, None]:
        """The ids of its devices, in their order."""
        return dict.fromkeys(names_of(self.gpu, self.shared))


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """``exclude`` names GPUs that are left out, by UUID, index, stable name or product pattern.

    The first of the ``rules`` that matches gives the name of a GPU as a whole; GPUs that none matches are
    ``nvidia.com/gpu``. ``sharing`` says which are shared, and may give the shares another name; ``policy`` from which
    of these GPUs a pod gets its devices.
    """

    exclude: Sequence[str] = ()
    rules: Sequence[Rule] = ()
    sharing: Sequence[SharingRule] = ()
    policy: Policy = Policy.SPREAD

    @property
    def resources(self) -> tuple[str, ...]:
        """Every name that a GPU may get, each once, the default last."""
        renamed = (rule.resource for rule in self.sharing if rule.resource is not None)
        return tuple(dict.fromkeys([*(rule.resource for rule in self.rules), *renamed, GPU_RESOURCE]))

    def resource_of(self, gpu: Gpu) -> str | None:
        """The resource that a GPU is offered as where it is not shared; None where it is left out."""
        if named(self.exclude, gpu):
            return None
        return next((rule.resource for rule in self.rules if rule.matches(gpu)), GPU_RESOURCE)

    def shares(self, inventory: Inventory) -> Shares:
        """Which GPUs of the node are shared."""
        return shares(inventory, self.sharing, self.resource_of)

    def forms(self, inventory: Inventory) -> dict[GpuUuid, Form]:
        """As what each GPU is offered; one that is left out as nothing, nor one in MIG mode, as long as it is that."""
        shared, forms = self.shares(inventory).gpus, {}
        for gpu in inventory.gpus:
            resource = self.resource_of(gpu)
            if resource is not None and not (gpu.partition_mode is not None and gpu.partition_mode.active):
                how = shared.get(gpu.uuid)
                forms[gpu.uuid] = Form(gpu=gpu.uuid, resource=how.resource if how else resource, shared=how)
        return forms
