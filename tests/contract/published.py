"""What the agent publishes of a simulated node, as other systems read it from the API server."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from node_agent.agent.live import pool_of, selection_of
from node_agent.agent.node_labels import node_labels
from node_agent.config.resolve import resolve
from node_agent.config.settings import Settings
from node_agent.dra.slices import laid_out
from node_agent.dra.slices import pool_of as pool_published
from node_agent.hardware.machine import UNKNOWN
from node_agent.kube.resources import Object
from node_agent.model.inventory import Inventory
from tests.fakes.nodes import inventory_of


@dataclass(frozen=True, kw_only=True)
class Published:
    """One node with these settings, on which no pod runs."""

    settings: Settings
    inventory: Inventory

    @cached_property
    def labels(self) -> dict[str, str]:
        return node_labels(selection_of(self.settings), self.inventory, UNKNOWN) or {}

    @cached_property
    def allocatable(self) -> Counter[str]:
        """The devices of each resource, as the kubelet counts them in the Node's status."""
        if not self.settings.device_plugin:
            return Counter()
        forms = selection_of(self.settings).forms(self.inventory).values()
        return Counter(form.resource for form in forms for _ in form.names)

    @cached_property
    def devices(self) -> list[Object]:
        """The devices of all ResourceSlices of the node."""
        if self.settings.dra is False:
            return []
        slices = pool_published(laid_out(self.inventory, pool_of(self.settings)), lambda device: ()).slices
        return [device for one in slices for device in one.content.get("devices", ())]


def published(profile: str = "h200-8", **flags: object) -> Published:
    """``flags`` are keys of the configuration with ``_`` in the place of ``.``."""
    settings = resolve(None, {}, {key.replace("_", "."): value for key, value in flags.items()}).settings
    return Published(settings=settings, inventory=inventory_of(profile))
