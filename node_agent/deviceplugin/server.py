"""Keeps one resource served and registered, whatever the kubelet does.

The kubelet forgets every plugin when it restarts, wipes their sockets, and never dials again by itself. So each
session has a socket of a fresh name (a name used twice can wedge the kubelet until its restart), lasts until the
kubelet, the socket or the stream is gone, and is followed by the next one.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path

from node_agent.deviceplugin.servicer import Servicer
from node_agent.errors import KubeletError
from node_agent.kit.backoff import pauses
from node_agent.kit.hints import Hints
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log, Steady
from node_agent.kit.unix import FileIdentity, identity
from node_agent.kubelet.registration import Phase, Registration
from node_agent.kubelet.routes import Route
from node_agent.kubelet.server import remove_dead_sockets, serving
from node_agent.wire import deviceplugin_v1beta1_pb2_grpc as rpc

SOCKET_PREFIX = "node-agent-"
# How often to look whether the kubelet has opened its stream; and the first pause between two sessions.
LOOK_SECONDS = 0.5
# The kubelet opens its stream at once after it has accepted a registration.
STREAM_SECONDS = 10.0
# A folder that is wiped loses its sockets one after another: the kubelet's own may be gone a moment after the plugin's.
WIPE_SECONDS = 0.2
# A session that lasted this long was a good one: the next trouble is tried again soon.
STEADY_SECONDS = 30.0

log = Log(__name__)


class DevicePluginServer:
    """Serves one resource and brings it to the kubelet by ``route``, with a new servicer for each session."""

    def __init__(self, resource: str, route: Route, servicer: Callable[[], Servicer]) -> None:
        self._resource = resource
        self._route = route
        self._servicer = servicer
        self._refusals = Steady()
        self._renewals = Latest(0)
        self.registration = Latest(Registration())

    def renew(self) -> None:
        """Register anew, where the kubelet has accepted this resource and goes by the list of another plugin."""
        self._renewals.set(self._renewals.value + 1)

    async def run(self) -> None:
        """Serve and register until cancelled."""
        for folder in self._route.folders:
            remove_dead_sockets(folder, SOCKET_PREFIX)
        tries = _tries()
        with Hints(*self._route.watched) as hints:
            while True:
                kubelet = await self._kubelet(hints)
                began = time.monotonic()
                await self._served(hints)
                if time.monotonic() - began > STEADY_SECONDS:
                    tries = _tries()
                await self._pause(next(tries), kubelet, hints)

    async def _served(self, hints: Hints) -> None:
        """One session, and a word about its end."""
        try:
            ended = await self._session(hints)
        except KubeletError as error:
            self._stand(Phase.REFUSED, str(error))
            if self._refusals.should_say(str(error)):
                log.warning("registration failed", resource=self._resource, reason=error)
        else:
            self._stand(Phase.REGISTERING, ended)
            log.info("registration ended", resource=self._resource, reason=ended)

    async def _pause(self, seconds: float, kubelet: Hashable, hints: Hints) -> None:
        """Wait before the next try; a new kubelet is worth one at once."""
        end = time.monotonic() + seconds
        async for _ in changes(hints.changed, every=lambda: min(hints.pause(), end - time.monotonic())):
            if time.monotonic() >= end or self._route.kubelet() != kubelet:
                return

    async def _kubelet(self, hints: Hints) -> Hashable:
        """Wait until a kubelet is there; answers which one."""
        async for _ in changes(hints.changed, every=hints.pause):
            if (kubelet := self._route.kubelet()) is not None:
                return kubelet
            self._stand(Phase.WAITING, f"no kubelet at {self._route.folder}")
        raise AssertionError("changes never end")

    async def _session(self, hints: Hints) -> str:
        """One registration from the socket to its end; answers why it ended."""
        try:
            self._route.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise KubeletError(f"cannot make {self._route.folder}: {error.strerror}") from error
        path = self._route.folder / fresh_socket_name(self._resource)
        servicer = self._servicer()
        async with serving(path, lambda server: rpc.add_DevicePluginServicer_to_server(servicer, server)):
            try:
                own = identity(path)
                self._stand(Phase.REGISTERING, path.name)
                async with self._route.registered(path, self._resource):
                    self._stand(Phase.REGISTERED, path.name, counts=True)
                    self._refusals.clear()
                    log.info("registered", resource=self._resource, socket=path.name)
                    # Asked now: the kubelet that took it may have started while the plugin stood announced.
                    return await self._lost(self._route.kubelet(), path, own, servicer, hints)
            finally:
                servicer.close()

    async def _lost(
        self, kubelet: Hashable, path: Path, own: FileIdentity | None, servicer: Servicer, hints: Hints
    ) -> str:
        """Wait until the registration is worth nothing any more; answers why."""
        opened, deadline, renewals = False, time.monotonic() + STREAM_SECONDS, self._renewals.value
        sources = servicer.streams, self._renewals, hints.changed
        async for _ in changes(*sources, every=lambda: hints.pause() if servicer.streams.value else LOOK_SECONDS):
            opened = opened or servicer.streams.value > 0
            if not servicer.streams.value and (opened or time.monotonic() > deadline):
                break
            # While the kubelet's socket is missing nobody can register again, so the stream is held on to.
            if (now := self._route.kubelet()) is None:
                continue
            if now != kubelet:
                return "the kubelet restarted"
            if identity(path) != own:
                await asyncio.sleep(WIPE_SECONDS)
                if self._route.kubelet() is None:
                    continue
                return "the plugin's socket was removed"
            if self._renewals.value != renewals:
                return "the kubelet has the devices of another plugin"
        return "the kubelet closed its stream" if opened else "the kubelet opened no stream"

    def _stand(self, phase: Phase, detail: str, counts: bool = False) -> None:
        count = self.registration.value.count + counts
        self.registration.set(Registration(phase=phase, detail=detail, count=count))


def _tries() -> Iterator[float]:
    return pauses(first=LOOK_SECONDS, longest=15.0)


def fresh_socket_name(resource: str) -> str:
    """A socket name that was never used before, such as ``node-agent-gpu-9c1f03ab.sock``."""
    return f"{SOCKET_PREFIX}{resource.rpartition('/')[2]}-{secrets.token_hex(4)}.sock"
