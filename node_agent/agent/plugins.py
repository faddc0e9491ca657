"""One device plugin for each resource name, while the names change."""

import asyncio
import math
from collections.abc import Callable, Mapping

from node_agent.agent.live import SETTLE_SECONDS
from node_agent.agent.supervisor import Supervisor
from node_agent.deviceplugin.plugin import DevicePlugin
from node_agent.deviceplugin.selection import Selection
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log
from node_agent.model.inventory import Inventory

LOOK_SECONDS = 0.5

log = Log(__name__)


class DevicePlugins:
    """A service: has the ``supervisor`` run what ``make`` makes of each resource name that the ``selection`` has for
    what is in the ``inventory``.

    The plugin of a name that is used no more goes on until its list is empty and the kubelet has heard of that: then
    the name stays on the node with a count of zero. Pods that hold its devices are waited for.
    """

    def __init__(
        self,
        selection: Latest[Selection],
        inventory: Latest[Inventory],
        make: Callable[[str], DevicePlugin],
        supervisor: Supervisor,
    ) -> None:
        self._selection = selection
        self._inventory = inventory
        self._notes: tuple[str, ...] = ()
        self._make = make
        self._supervisor = supervisor
        self._plugins: dict[str, DevicePlugin] = {}
        self._add_missing()

    @property
    def plugins(self) -> Mapping[str, DevicePlugin]:
        """The plugins at work, by the name of their resource."""
        return self._plugins

    async def run(self) -> None:
        """Follow until cancelled."""
        async for _ in changes(self._selection, self._inventory, every=self._pause):
            self._say_what_is_not_offered()
            self._add_missing()
            for resource in self._unused():
                if not self._plugins[resource].offer.value.devices:
                    await self._remove(resource)

    def _pause(self) -> float:
        return LOOK_SECONDS if self._unused() else math.inf

    def _unused(self) -> list[str]:
        used = self._used()
        return [resource for resource in self._plugins if resource not in used]

    def _used(self) -> tuple[str, ...]:
        return self._selection.value.resources_on(self._inventory.value)

    def _say_what_is_not_offered(self) -> None:
        notes = self._selection.value.notes(self._inventory.value)
        for note in notes:
            if note not in self._notes:
                log.warning("not offered", reason=note)
        self._notes = notes

    def _add_missing(self) -> None:
        for resource in self._used():
            if resource not in self._plugins:
                plugin = self._plugins[resource] = self._make(resource)
                self._supervisor.add(_service(resource), plugin.run)

    async def _remove(self, resource: str) -> None:
        await asyncio.sleep(SETTLE_SECONDS)
        if resource in self._unused():
            del self._plugins[resource]
            await self._supervisor.remove(_service(resource))
            log.info("resource withdrawn", resource=resource)


def _service(resource: str) -> str:
    return f"device-plugin {resource}"
