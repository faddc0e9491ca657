"""Registering a plugin by the kubelet's plugin watcher: a socket in ``plugins_registry`` that says what is where.

The kubelet finds the socket, asks it what it stands for, connects, and tells whether it took the plugin. It asks again
after each of its restarts, and may ask at any time.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from node_agent.errors import KubeletError, RegistrationRefused
from node_agent.kit.latest import Latest
from node_agent.kubelet.server import serving
from node_agent.wire import pluginregistration_v1_pb2 as wire
from node_agent.wire import pluginregistration_v1_pb2_grpc as rpc

DEVICE_PLUGIN, DRA_PLUGIN = "DevicePlugin", "DRAPlugin"

# The kubelet looks at the folder once a second and gives the plugin some seconds to answer.
TIMEOUT_SECONDS = 15.0


class Announcement(Struct, frozen=True, kw_only=True):
    """What a plugin is: its ``kind``, its name there, the socket that serves it, and the versions that it speaks."""

    kind: str
    name: str
    endpoint: Path
    versions: Sequence[str]


class Verdict(Struct, frozen=True, kw_only=True):
    """What the kubelet said of the plugin, ``count`` times so far."""

    count: int = 0
    accepted: bool = False
    error: str = ""


class Registrar(rpc.RegistrationServicer):
    """Answers the kubelet for one plugin; ``verdict`` is what it said last."""

    def __init__(self, announcement: Announcement) -> None:
        self._announcement = announcement
        self.verdict = Latest(Verdict())

    async def GetInfo(self, request: wire.InfoRequest, context: Any) -> wire.PluginInfo:
        return wire.PluginInfo(
            type=self._announcement.kind,
            name=self._announcement.name,
            endpoint=str(self._announcement.endpoint),
            supported_versions=self._announcement.versions,
        )

    async def NotifyRegistrationStatus(
        self, request: wire.RegistrationStatus, context: Any
    ) -> wire.RegistrationStatusResponse:
        count = self.verdict.value.count + 1
        self.verdict.set(Verdict(count=count, accepted=request.plugin_registered, error=request.error))
        return wire.RegistrationStatusResponse()


@asynccontextmanager
async def announcing(socket: Path, announcement: Announcement) -> AsyncIterator[Registrar]:
    """Announce a plugin on ``socket`` while the block runs, whether a kubelet asks or not."""
    registrar = Registrar(announcement)
    async with serving(socket, lambda server: rpc.add_RegistrationServicer_to_server(registrar, server)):
        yield registrar


@asynccontextmanager
async def announced(
    socket: Path, announcement: Announcement, within: float = TIMEOUT_SECONDS
) -> AsyncIterator[Registrar]:
    """Announce a plugin on ``socket`` while the block runs, which starts when the kubelet has taken it.

    Raises:
        RegistrationRefused: the kubelet looked at the plugin and did not take it.
        KubeletError: no kubelet asked within ``within`` seconds.
    """
    async with announcing(socket, announcement) as registrar:
        yield await _accepted(registrar, announcement, socket, within)


async def _accepted(registrar: Registrar, announcement: Announcement, socket: Path, within: float) -> Registrar:
    try:
        async with asyncio.timeout(within):
            async for verdict in registrar.verdict.watch():
                if verdict.count:
                    break
    except TimeoutError as error:
        raise KubeletError(f"no kubelet asked for {announcement.name} on {socket} within {within:g} s") from error
    check_accepted(registrar.verdict.value, announcement)
    return registrar


def check_accepted(verdict: Verdict, announcement: Announcement) -> None:
    """Raise RegistrationRefused where the kubelet did not take the plugin."""
    if not verdict.accepted:
        raise RegistrationRefused(f"the kubelet refused {announcement.name}: {verdict.error}")
