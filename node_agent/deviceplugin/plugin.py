"""The device plugin of one resource: keeps its offer true and its server running."""

import asyncio
import dataclasses
import math
from collections.abc import Collection, Mapping
from contextlib import suppress

from msgspec.structs import replace

from node_agent.allocation.grants import Door, Grant
from node_agent.cdi.publisher import Published
from node_agent.deviceplugin.holding import Held
from node_agent.deviceplugin.listing import former_devices, listing
from node_agent.deviceplugin.offer import Offer, OfferedDevice, forget, pool_of, taken, trouble_of, with_absent
from node_agent.deviceplugin.selection import Form, Forms, Selection
from node_agent.deviceplugin.server import DevicePluginServer
from node_agent.deviceplugin.servicer import Give, Servicer, Take, check_size
from node_agent.errors import ConfigError, KubeletError
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log, Steady
from node_agent.kubelet.routes import Route
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory
from node_agent.model.partition import DeviceUuid
from node_agent.sharing.shares import Strategy

# While the driver hangs over a GPU that has not been looked at yet, the others are offered after this time.
PROBE_SECONDS = 1.0

log = Log(__name__)


class DevicePlugin:
    """Offers what ``selection`` names ``resource``, and brings it to the kubelet by ``route``.

    Another selection changes the list; its server goes on, and who holds a device keeps it.

    ``cdi`` says which GPUs the CDI spec on disk names; None where containers get their GPUs in another way. ``held`` is
    asked every ``forget_seconds`` while the list has devices that are gone. ``grants`` are the ledger's: what others
    hold is withdrawn here, and what pods hold of another form of a GPU takes its place; ``take`` puts there what a pod
    gets. ``daemons`` tells of GPUs that are shared by MPS what keeps their daemon from its work, None where it answers;
    also of those that are shared so no more, until it has ended. The list is sent again as ``again`` changes.
    ``trouble`` says why there is no list.
    """

    def __init__(
        self,
        *,
        resource: str,
        route: Route,
        selection: Latest[Selection],
        inventory: Latest[Inventory],
        health: Latest[HealthReport],
        cdi: Latest[Published] | None,
        give: Give,
        held: Held,
        grants: Latest[Mapping[str, Grant]],
        take: Take,
        daemons: Latest[Mapping[DeviceUuid, str | None]],
        again: Latest[int],
        forget_seconds: float = 10.0,
    ) -> None:
        self._selection = selection
        self._inventory = inventory
        self._health = health
        self._cdi = cdi
        self._held = held
        self._grants = grants
        self._daemons = daemons
        self._again = again
        self._forget_seconds = forget_seconds
        self._forms: Forms = {}
        self._pool_of: tuple[object, ...] = ()
        self.trouble: Latest[str | None] = Latest(None)
        self.offer = Latest(Offer(resource=resource, pool=pool_of(Inventory(), ())))
        self.server = DevicePluginServer(resource, route, lambda: Servicer(self.offer, give, take, again))

    async def run(self) -> None:
        """Offer until cancelled. A node without GPUs registers nothing; once it has had one, the resource stays.

        At first nothing is in service, and what is not, is not registered: of an agent before the kubelet may have all
        of it, and gives it out until it has our list. But where a list is wanted (``again``) it gets that: somebody
        waits for what the kubelet makes of it.
        """
        asked = self._again.value
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_offer(), name="offer")
            group.create_task(self._forget_the_gone(), name="forget")
            async for _ in changes(self.offer, self._again):
                devices = self.offer.value.devices
                if any(device.healthy for device in devices) or (devices and self._again.value != asked):
                    break
            with suppress(TimeoutError):
                async with asyncio.timeout(PROBE_SECONDS):
                    await self._until_all_are_known()
            group.create_task(self.server.run(), name="registration")

    async def _until_all_are_known(self) -> None:
        """Until each GPU has been looked at, as one after the other is, and something is in service."""
        async for _ in changes(self.offer, self._health):
            devices, health = self.offer.value.devices, self._health.value
            if any(one.healthy for one in devices) and all(health.known_of(one.gpu).probed for one in devices):
                return

    async def _keep_offer(self) -> None:
        formed_of: tuple[object, ...] = ()
        seen: tuple[object, ...] = ()
        fits = True
        sources = (self._inventory, self._health, self._cdi, self._grants, self._selection, self._daemons)
        async for _ in changes(*(source for source in sources if source is not None)):
            inventory, selection = self._inventory.value, self._selection.value
            if formed_of != (formed_of := (inventory, selection)):
                self._forms = selection.forms(inventory)
                fits = self._fits()
            served = self._served
            former = former_devices(self._grants.value.values(), self._forms, served) if fits else {}
            reachable, held = self._reachable, taken(self._forms, self._grants.value.values())
            # Each pod that is given a device changes the grants, but that alone changes nothing in the list.
            if seen == (seen := (formed_of, former, held, reachable, self._health.value, self._daemons.value)):
                continue
            troubles = self._troubles(held, reachable)
            forms, resource = self._forms if fits else {}, self.offer.value.resource
            self._offer(listing(resource, forms, former=former, trouble=troubles.get, served=served))

    @property
    def _reachable(self) -> Collection[DeviceUuid] | None:
        """What a container can be given by now; None where that needs no preparation."""
        return None if self._cdi is None else self._cdi.value.gpus | self._cdi.value.partitions

    def _fits(self) -> bool:
        """Whether the kubelet takes a list of what there is to offer."""
        resource, before = self.offer.value.resource, self.trouble.value
        try:
            check_size(resource, self._forms)
        except ConfigError as error:
            self.trouble.set(str(error))
            if before != str(error):
                log.error("nothing is offered", resource=resource, reason=error)
            return False
        self.trouble.set(None)
        return True

    def _troubles(
        self, held: Mapping[DeviceUuid, str], reachable: Collection[DeviceUuid] | None
    ) -> Mapping[DeviceUuid, str]:
        """The GPUs and partitions of which nothing must be given out, and why."""
        health = self._health.value
        return {
            uuid: trouble
            for uuid, form in self._forms.items()
            if (trouble := trouble_of(form.unit, health, held, reachable) or self._without_daemon(form))
        }

    @property
    def _served(self) -> frozenset[DeviceUuid]:
        """What is not shared by MPS any more, and whose daemon has not ended yet."""
        return frozenset(one for one in self._daemons.value if one in self._forms and not _by_mps(self._forms[one]))

    def _without_daemon(self, form: Form) -> str | None:
        if not _by_mps(form):
            return None
        return self._daemons.value.get(form.unit.uuid, "its MPS daemon has not been started")

    def _offer(self, devices: Collection[OfferedDevice]) -> None:
        """Put these in the list."""
        before, inventory, selection = self.offer.value, self._inventory.value, self._selection.value
        # Of a name that is not used any more nothing is expected to come back.
        expected = inventory if selection.may_use(before.resource) else replace(inventory, missing=(), unlisted={})
        listed = with_absent(devices, before.devices, expected)
        ingredients = (inventory.generation, selection.policy, frozenset(device.id for device in listed))
        pool = before.pool if ingredients == self._pool_of else pool_of(inventory, listed, selection.policy)
        self._pool_of = ingredients
        self.offer.set(dataclasses.replace(before, devices=listed, pool=pool))
        _say_what_changed(before, self.offer.value)

    def _is_own(self, grant: Grant) -> bool:
        return grant.holder.door is Door.LIMIT and grant.holder.name == self.offer.value.resource

    @property
    def draining(self) -> tuple[str, ...]:
        """The devices that are not offered any more, and that pods still hold."""
        held = self._granted()
        return tuple(device.id for device in self.offer.value.devices if device.gone and device.id in held)

    def _granted(self) -> set[str]:
        return {hold.device for grant in self._grants.value.values() if self._is_own(grant) for hold in grant.holds}

    async def _forget_the_gone(self) -> None:
        """Drop what is gone from the list as soon as no pod holds it: then the kubelet cannot trip over it."""
        trouble = Steady()

        def pause() -> float:
            return self._forget_seconds if any(device.gone for device in self.offer.value.devices) else math.inf

        async for _ in changes(self.offer, every=pause):
            if pause() == math.inf:
                continue
            try:
                # The kubelet does not list what it is just giving out; the ledger has that.
                held = {*(await self._held()).get(self.offer.value.resource, ()), *self._granted()}
            except KubeletError as error:
                if trouble.should_say(str(error)):
                    log.warning("devices that are gone stay listed", resource=self.offer.value.resource, reason=error)
                continue
            self.offer.set(forget(self.offer.value, held))


def _by_mps(form: Form) -> bool:
    return form.shared is not None and form.shared.strategy is Strategy.MPS


def _say_what_changed(before: Offer, after: Offer) -> None:
    """A line for each device, or for each GPU of which several have changed."""
    healthy = {device.id for device in before.devices if device.healthy}
    changed: dict[tuple[GpuUuid, str | None], list[str]] = {}
    for device in after.devices:
        if device.healthy != (device.id in healthy):
            changed.setdefault((device.gpu, device.trouble), []).append(device.id)
    for (gpu, trouble), ids in changed.items():
        facts = {"device": ids[0]} if len(ids) == 1 else {"gpu": gpu, "devices": len(ids)}
        if trouble is None:
            log.info("offered", resource=after.resource, **facts)
        else:
            log.warning("withdrawn", resource=after.resource, **facts, reason=trouble)
