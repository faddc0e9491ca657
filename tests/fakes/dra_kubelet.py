"""The kubelet's side of a DRA driver's life over real gRPC: it finds the driver by its announcement and calls it.

It does what the kubelet's plugin and DRA managers do as far as a driver can tell: it looks into the registry, asks what
each new socket stands for, connects, says whether it took it, and drops what was announced by a socket that is gone.
Of a driver with several instances it calls the newest, and of the services that one serves the first that it knows.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpc import aio

from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.wire import dra_health_v1_pb2 as health_v1
from node_agent.wire import dra_health_v1_pb2_grpc as health_v1_rpc
from node_agent.wire import dra_health_v1alpha1_pb2 as health_v1alpha1
from node_agent.wire import dra_health_v1alpha1_pb2_grpc as health_v1alpha1_rpc
from node_agent.wire import dra_v1_pb2 as v1
from node_agent.wire import dra_v1_pb2_grpc as v1_rpc
from node_agent.wire import dra_v1beta1_pb2 as v1beta1
from node_agent.wire import dra_v1beta1_pb2_grpc as v1beta1_rpc
from node_agent.wire import pluginregistration_v1_pb2 as registration
from node_agent.wire import pluginregistration_v1_pb2_grpc as registration_rpc

DRA: dict[str, tuple[Any, Any]] = {"v1.DRAPlugin": (v1, v1_rpc), "v1beta1.DRAPlugin": (v1beta1, v1beta1_rpc)}
HEALTH: dict[str, tuple[Any, Any]] = {
    "v1.DRAResourceHealth": (health_v1, health_v1_rpc),
    "v1alpha1.DRAResourceHealth": (health_v1alpha1, health_v1alpha1_rpc),
}
LOOK_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One announced driver: by which socket, where it is served, and what it serves."""

    announced_by: Path
    name: str
    endpoint: Path
    services: tuple[str, ...]
    channel: aio.Channel

    def stub(self, known: Mapping[str, tuple[Any, Any]], name: str) -> tuple[Any, Any]:
        """The messages and the stub of the first service that both sides know."""
        chosen = next(service for service in self.services if service in known)
        messages, rpc = known[chosen]
        return messages, getattr(rpc, f"{name}Stub")(self.channel)


class DraKubelet:
    """Use ``running`` around what needs a kubelet. ``instances`` are those that it took, the newest last.

    ``knows`` are the services that it can call, ``refusal`` what it says to whoever announces itself, if anything;
    ``asked`` counts how often it has asked a socket what it stands for.
    """

    def __init__(self, registry: Path, knows: Sequence[str] = (*DRA, *HEALTH)) -> None:
        self.registry = registry
        self.instances: Latest[tuple[Instance, ...]] = Latest(())
        self.refusal: str | None = None
        self.asked = 0
        self._dra = {name: DRA[name] for name in knows if name in DRA}
        self._health = {name: HEALTH[name] for name in knows if name in HEALTH}

    @asynccontextmanager
    async def running(self) -> AsyncIterator["DraKubelet"]:
        """From its start to its end: at its end it forgets all drivers, whose sockets it leaves as they are."""
        self.registry.mkdir(parents=True, exist_ok=True)
        try:
            async with running(self._watch(), name="plugin watcher"):
                yield self
        finally:
            await self._drop(self.instances.value)

    @property
    def newest(self) -> Instance:
        return self.instances.value[-1]

    async def until(self, count: int, *, other_than: Sequence[Instance] = ()) -> Instance:
        """Wait for so many instances, none of them among the others; answers the newest."""
        async with asyncio.timeout(30):
            async for instances in self.instances.watch():
                if len(instances) == count and not set(instances) & set(other_than):
                    break
        return self.newest

    async def prepare(self, *uids: str) -> Mapping[str, Any]:
        """The driver's answers by the claims' UIDs: messages with ``devices`` and ``error``."""
        messages, stub = self.newest.stub(self._dra, "DRAPlugin")
        claims = [messages.Claim(uid=uid, namespace="default", name=f"claim-{uid}") for uid in uids]
        answer = await stub.NodePrepareResources(messages.NodePrepareResourcesRequest(claims=claims), timeout=45)
        return dict(answer.claims)

    async def unprepare(self, *uids: str) -> Mapping[str, str]:
        """What went wrong with each claim, by its UID; empty for nothing."""
        messages, stub = self.newest.stub(self._dra, "DRAPlugin")
        claims = [messages.Claim(uid=uid, namespace="default", name=f"claim-{uid}") for uid in uids]
        answer = await stub.NodeUnprepareResources(messages.NodeUnprepareResourcesRequest(claims=claims), timeout=45)
        return {uid: claim.error for uid, claim in answer.claims.items()}

    async def health(self) -> AsyncGenerator[Mapping[str, str], None]:
        """The health of the devices by name, each time that the driver sends it, until it ends the stream."""
        messages, stub = self.newest.stub(self._health, "DRAResourceHealth")
        async for answer in stub.NodeWatchResources(messages.NodeWatchResourcesRequest()):
            yield {one.device.device_name: messages.HealthStatus.Name(one.health) for one in answer.devices}

    async def _watch(self) -> None:
        while True:
            present = {path for path in self.registry.glob("*.sock") if not path.name.startswith(".")}
            await self._drop([one for one in self.instances.value if one.announced_by not in present])
            for path in sorted(present - {one.announced_by for one in self.instances.value}):
                await self._take(path)
            await asyncio.sleep(LOOK_SECONDS)

    async def _take(self, path: Path) -> None:
        """Ask a socket what it stands for and take that, or not; one that does not answer is asked again."""
        async with aio.insecure_channel(f"unix:{path}") as channel:
            registrar = registration_rpc.RegistrationStub(channel)
            try:
                info = await registrar.GetInfo(registration.InfoRequest(), timeout=1)
                self.asked += 1
                error = self.refusal or self._objection(info)
                if not error:
                    self._add(path, info)
                status = registration.RegistrationStatus(plugin_registered=not error, error=error)
                await registrar.NotifyRegistrationStatus(status, timeout=5)
            except aio.AioRpcError:
                return

    def _objection(self, info: registration.PluginInfo) -> str:
        if info.type != "DRAPlugin":
            return f"no handler for plugins of type {info.type}"
        if not set(info.supported_versions) & set(self._dra):
            return f"none of {list(info.supported_versions)} is supported"
        if any(one.endpoint == Path(info.endpoint) for one in self.instances.value):
            return f"endpoint {info.endpoint} is already registered"
        return ""

    def _add(self, path: Path, info: registration.PluginInfo) -> None:
        instance = Instance(
            announced_by=path,
            name=info.name,
            endpoint=Path(info.endpoint),
            services=tuple(info.supported_versions),
            channel=aio.insecure_channel(f"unix:{info.endpoint}"),
        )
        self.instances.set((*self.instances.value, instance))

    async def _drop(self, gone: Sequence[Instance]) -> None:
        """Call these no more; calls that are under way may end."""
        self.instances.set(tuple(one for one in self.instances.value if one not in gone))
        for one in gone:
            await one.channel.close(grace=5)
