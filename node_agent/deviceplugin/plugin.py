"""The device plugin of one resource: keeps its offer true and its server running."""

import asyncio

from node_agent.cdi.publisher import Published
from node_agent.deviceplugin.offer import Offer, pool_of, whole_gpus, with_gone
from node_agent.deviceplugin.selection import Selection
from node_agent.deviceplugin.server import DevicePluginServer
from node_agent.deviceplugin.servicer import Give, Servicer
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log
from node_agent.kubelet.routes import Route
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory

log = Log(__name__)


class DevicePlugin:
    """Offers the GPUs that ``selection`` names ``resource``, and brings them to the kubelet by ``route``.

    ``cdi`` says which GPUs the CDI spec on disk names; None where containers get their GPUs in another way.
    """

    def __init__(
        self,
        *,
        resource: str,
        route: Route,
        selection: Selection,
        inventory: Latest[Inventory],
        health: Latest[HealthReport],
        cdi: Latest[Published] | None,
        give: Give,
    ) -> None:
        self._selection = selection
        self._inventory = inventory
        self._health = health
        self._cdi = cdi
        self.offer = Latest(Offer(resource=resource, pool=pool_of(Inventory(), ())))
        self.server = DevicePluginServer(resource, route, lambda: Servicer(self.offer, give))

    async def run(self) -> None:
        """Offer until cancelled. A node without GPUs registers nothing; once it has had one, the resource stays."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_offer(), name="offer")
            async for offer in self.offer.watch():
                if any(device.healthy for device in offer.devices):
                    break
            group.create_task(self.server.run(), name="registration")

    async def _keep_offer(self) -> None:
        made_of: tuple[int, frozenset[str]] | None = None
        sources = [source for source in (self._inventory, self._health, self._cdi) if source is not None]
        async for _ in changes(*sources):
            before, inventory = self.offer.value, self._inventory.value
            reachable = self._cdi.value.gpus if self._cdi is not None else None
            gpus = [gpu for gpu in inventory.gpus if self._selection.resource_of(gpu) == before.resource]
            devices = with_gone(whole_gpus(gpus, self._health.value, reachable), before.devices, inventory)
            ingredients = (inventory.generation, frozenset(device.id for device in devices))
            pool = before.pool if ingredients == made_of else pool_of(inventory, devices)
            made_of = ingredients
            self.offer.set(Offer(resource=before.resource, devices=devices, pool=pool))
            _say_what_changed(before, self.offer.value)


def _say_what_changed(before: Offer, after: Offer) -> None:
    known = {device.id: device for device in before.devices}
    for device in after.devices:
        was_healthy = device.id in known and known[device.id].healthy
        if device.healthy and not was_healthy:
            log.info("offered", resource=after.resource, device=device.id)
        elif was_healthy and not device.healthy:
            log.warning("withdrawn", resource=after.resource, device=device.id, reason=device.trouble)
