"""Which GPUs are offered, and under which resource name. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from node_agent.model.gpu import Gpu
from node_agent.model.naming import matches, named

GPU_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """GPUs whose product matches ``pattern`` are offered as ``resource``; only ``*`` is special in a pattern."""

    pattern: str
    resource: str

    def matches(self, gpu: Gpu) -> bool:
        return matches(self.pattern, gpu.product)


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """``exclude`` names GPUs that are left out, by UUID, index, stable name or product pattern.

    The first rule that matches gives the name; GPUs that none matches are ``nvidia.com/gpu``.
    """

    exclude: Sequence[str] = ()
    rules: Sequence[Rule] = ()

    @property
    def resources(self) -> tuple[str, ...]:
        """Every name that a GPU may get, each once, the default last."""
        return tuple(dict.fromkeys([*(rule.resource for rule in self.rules), GPU_RESOURCE]))

    def resource_of(self, gpu: Gpu) -> str | None:
        """The resource that a GPU is offered as; None where it is left out."""
        if named(self.exclude, gpu):
            return None
        return next((rule.resource for rule in self.rules if rule.matches(gpu)), GPU_RESOURCE)
