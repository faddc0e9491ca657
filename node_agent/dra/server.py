"""Keeps the DRA services served and announced to the kubelet.

The kubelet finds the announcement by itself, also after its own restart, and keeps a connection open for as long as the
driver is there: the server never closes one. Sockets have fresh names, so that two agents may overlap during an update;
each removes only its own.
"""

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path

from grpc import aio

from node_agent.dra.health import HealthFeed, HealthServicerV1, HealthServicerV1Alpha1
from node_agent.dra.operations import Operations
from node_agent.dra.servicer import ServicerV1, ServicerV1Beta1
from node_agent.errors import KubeletError
from node_agent.kit.backoff import pauses
from node_agent.kit.hints import Hints
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log, Steady
from node_agent.kit.unix import identity
from node_agent.kubelet.announcement import DRA_PLUGIN, Announcement, Verdict, announcing, check_accepted
from node_agent.kubelet.registration import Phase, Registration
from node_agent.kubelet.server import remove_dead_sockets, serving
from node_agent.wire import dra_health_v1_pb2_grpc, dra_health_v1alpha1_pb2_grpc, dra_v1_pb2_grpc, dra_v1beta1_pb2_grpc

# In the order of preference: of the DRA services the kubelet takes the first one that it knows.
CLAIM_SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
SERVICES = (*CLAIM_SERVICES, "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")

# The pause before the next try.
AGAIN_SECONDS = 0.5

log = Log(__name__)


class DraServer:
    """Serves ``driver`` in ``folder``, and announces it in the kubelet's ``registry``.

    Without a ``feed`` nothing is told of its devices' health.
    """

    def __init__(
        self,
        *,
        driver: str,
        folder: Path,
        registry: Path,
        operations: Operations,
        feed: Callable[[], HealthFeed] | None = None,
    ) -> None:
        self._driver = driver
        self._folder = folder
        self._registry = registry
        self._operations = operations
        self._feed = feed
        self.registration = Latest(Registration())

    async def run(self) -> None:
        """Serve and announce until cancelled."""
        trouble, tries = Steady(), pauses(first=AGAIN_SECONDS, longest=15.0)
        while True:
            try:
                await self._session()
                tries = pauses(first=AGAIN_SECONDS, longest=15.0)
            except (KubeletError, OSError) as error:
                self._stand(Phase.REFUSED, str(error))
                if trouble.should_say(str(error)):
                    log.warning("registration failed", driver=self._driver, reason=error)
            await asyncio.sleep(next(tries))

    async def _session(self) -> None:
        """Serve until one of the sockets is gone; somebody wipes the folder, and only a new one helps."""
        self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        remove_dead_sockets(self._folder, "dra-")
        remove_dead_sockets(self._registry, f"{self._driver}-")
        name = secrets.token_hex(4)
        endpoint, socket = self._folder / f"dra-{name}.sock", self._registry / f"{self._driver}-{name}-reg.sock"
        feed = self._feed() if self._feed is not None else None
        versions = CLAIM_SERVICES if feed is None else SERVICES
        announcement = Announcement(kind=DRA_PLUGIN, name=self._driver, endpoint=endpoint, versions=versions)
        async with serving(endpoint, lambda server: self._add_services(server, feed)):
            try:
                async with announcing(socket, announcement) as registrar:
                    self._stand(Phase.REGISTERING, socket.name)
                    await self._follow(registrar.verdict, announcement, socket)
            finally:
                if feed is not None:
                    feed.close()
        log.info("registration ended", driver=self._driver, reason="its socket was removed")

    async def _follow(self, verdict: Latest[Verdict], announcement: Announcement, socket: Path) -> None:
        """Say each time that the kubelet has taken the driver, until one of its sockets is gone."""
        said = verdict.value
        with Hints(announcement.endpoint.parent, socket.parent) as hints:
            async for _ in changes(verdict, hints.changed, every=hints.pause):
                if verdict.value != said:
                    said = verdict.value
                    check_accepted(said, announcement)
                    self._stand(Phase.REGISTERED, socket.name, counts=True)
                    log.info("registered", driver=self._driver, socket=socket.name)
                if identity(announcement.endpoint) is None or identity(socket) is None:
                    return

    def _add_services(self, server: aio.Server, feed: HealthFeed | None) -> None:
        dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(ServicerV1(self._operations), server)
        dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(ServicerV1Beta1(self._operations), server)
        if feed is None:
            return
        dra_health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(HealthServicerV1(feed), server)
        dra_health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(HealthServicerV1Alpha1(feed), server)

    def _stand(self, phase: Phase, detail: str, counts: bool = False) -> None:
        count = self.registration.value.count + counts
        self.registration.set(Registration(phase=phase, detail=detail, count=count))
