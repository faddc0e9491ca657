"""The device plugin of one resource: keeps its offer true and its server running."""

import asyncio
from collections.abc import Mapping

from node_agent.allocation.grants import Door, Grant
from node_agent.cdi.publisher import Published
from node_agent.deviceplugin.holding import Held
from node_agent.deviceplugin.offer import Offer, forget, pool_of, whole_gpus, with_absent
from node_agent.deviceplugin.selection import Selection
from node_agent.deviceplugin.server import DevicePluginServer
from node_agent.deviceplugin.servicer import Give, Servicer, Take, check_size
from node_agent.errors import KubeletError
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log, Steady
from node_agent.kubelet.routes import Route
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory

log = Log(__name__)


class DevicePlugin:
    """Offers the GPUs that ``selection`` names ``resource``, and brings them to the kubelet by ``route``.

    ``cdi`` says which GPUs the CDI spec on disk names; None where containers get their GPUs in another way. ``held`` is
    asked every ``forget_seconds`` while the list has devices that are gone. ``grants`` are the ledger's: what a claim
    holds is withdrawn here; ``take`` puts there what a pod gets.
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
        held: Held,
        grants: Latest[Mapping[str, Grant]],
        take: Take,
        forget_seconds: float = 10.0,
    ) -> None:
        self._selection = selection
        self._inventory = inventory
        self._health = health
        self._cdi = cdi
        self._held = held
        self._grants = grants
        self._forget_seconds = forget_seconds
        self.offer = Latest(Offer(resource=resource, pool=pool_of(Inventory(), ())))
        self.server = DevicePluginServer(resource, route, lambda: Servicer(self.offer, give, take))

    async def run(self) -> None:
        """Offer until cancelled. A node without GPUs registers nothing; once it has had one, the resource stays.

        Raises ConfigError where the list is larger than the kubelet takes.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_offer(), name="offer")
            group.create_task(self._forget_the_gone(), name="forget")
            async for offer in self.offer.watch():
                if any(device.healthy for device in offer.devices):
                    break
            group.create_task(self.server.run(), name="registration")

    async def _keep_offer(self) -> None:
        made_of: tuple[int, frozenset[str]] | None = None
        seen: tuple[object, ...] = ()
        sources = (self._inventory, self._health, self._cdi, self._grants)
        async for _ in changes(*(source for source in sources if source is not None)):
            before, inventory = self.offer.value, self._inventory.value
            reachable, claimed = self._cdi.value.gpus if self._cdi is not None else None, self._claimed()
            # Each pod that is given a device changes the grants, but only what claims hold matters here.
            if seen == (seen := (inventory, self._health.value, reachable, claimed)):
                continue
            gpus = [gpu for gpu in inventory.gpus if self._selection.resource_of(gpu) == before.resource]
            whole = whole_gpus(gpus, self._health.value, reachable, claimed)
            devices = with_absent(whole, before.devices, inventory)
            ingredients = (inventory.generation, frozenset(device.id for device in devices))
            pool = before.pool if ingredients == made_of else pool_of(inventory, devices)
            made_of = ingredients
            offer = Offer(resource=before.resource, devices=devices, pool=pool)
            check_size(offer)
            self.offer.set(offer)
            _say_what_changed(before, offer)

    def _claimed(self) -> Mapping[GpuUuid, str]:
        """The GPUs that claims hold, and which ones."""
        return {
            gpu: f"held by {grant.holder}"
            for grant in self._grants.value.values()
            if grant.holder.door is Door.CLAIM
            for hold in grant.holds
            if not hold.admin
            for gpu in hold.gpus
        }

    async def _forget_the_gone(self) -> None:
        """Drop what is gone from the list as soon as no pod holds it: then the kubelet cannot trip over it."""
        trouble = Steady()
        while True:
            await asyncio.sleep(self._forget_seconds)
            if not any(device.gone for device in self.offer.value.devices):
                continue
            try:
                held = (await self._held()).get(self.offer.value.resource, ())
            except KubeletError as error:
                if trouble.should_say(str(error)):
                    log.warning("devices that are gone stay listed", resource=self.offer.value.resource, reason=error)
                continue
            self.offer.set(forget(self.offer.value, held))


def _say_what_changed(before: Offer, after: Offer) -> None:
    known = {device.id: device for device in before.devices}
    for device in after.devices:
        was_healthy = device.id in known and known[device.id].healthy
        if device.healthy and not was_healthy:
            log.info("offered", resource=after.resource, device=device.id)
        elif was_healthy and not device.healthy:
            log.warning("withdrawn", resource=after.resource, device=device.id, reason=device.trouble)
