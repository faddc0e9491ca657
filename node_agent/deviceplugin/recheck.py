"""Notices that the kubelet gives out other devices than are offered, and offers them again.

The kubelet keeps the last list that it was sent of a resource, also when the plugin that sent it is gone. So one that
came after the agent and ended leaves its own list behind: on such a node no GPU was given out any more.
"""

import asyncio
from collections.abc import Callable, Mapping

from node_agent.deviceplugin.holding import Held
from node_agent.deviceplugin.plugin import DevicePlugin
from node_agent.errors import KubeletError
from node_agent.kit.logs import Log, Steady
from node_agent.kubelet.registration import Phase

# The kubelet answers few such calls, and what differs only once is a change that is under way.
EVERY_SECONDS, AGAIN_SECONDS = 30.0, 5.0

log = Log(__name__)


class Recheck:
    """A service: looks at ``listed``, what the kubelet can give out, and has a plugin that differs twice register anew.

    ``plugins`` are those at work by their resource, which may become others.

    It does not look while the agent is not ``alone`` on its node: of two agents the kubelet has the newest one's list.
    """

    def __init__(
        self,
        plugins: Mapping[str, DevicePlugin],
        *,
        listed: Held,
        alone: Callable[[], bool],
        every_seconds: float = EVERY_SECONDS,
        again_seconds: float = AGAIN_SECONDS,
    ) -> None:
        self._plugins = plugins
        self._listed = listed
        self._alone = alone
        self._every_seconds = every_seconds
        self._again_seconds = again_seconds
        self._trouble = Steady()

    async def run(self) -> None:
        """Look until cancelled."""
        doubted: list[DevicePlugin] = []
        while True:
            await asyncio.sleep(self._again_seconds if doubted else self._every_seconds)
            wrong = await self._wrong() if self._alone() else []
            for plugin in wrong:
                if plugin in doubted:
                    log.warning("another plugin has left its devices", resource=plugin.offer.value.resource)
                    plugin.server.renew()
            doubted = [plugin for plugin in wrong if plugin not in doubted]

    async def is_right(self) -> bool:
        """Whether the kubelet has the devices of the plugins, as far as it tells.

        Where it has not, a list that is sent again would hide that: it is taken, and pods still go to the other plugin.
        """
        return not await self._wrong()

    async def _wrong(self) -> list[DevicePlugin]:
        """The plugins whose devices the kubelet has not, or not alone."""
        registered = [one for one in self._plugins.values() if one.server.registration.value.phase is Phase.REGISTERED]
        if not registered:
            return []
        try:
            listed = await self._listed()
        except KubeletError as error:
            if self._trouble.should_say(str(error)):
                log.warning("the kubelet's devices are not compared", reason=error)
            return []
        self._trouble.clear()
        return [one for one in registered if one.offer.value.healthy != set(listed.get(one.offer.value.resource, ()))]
