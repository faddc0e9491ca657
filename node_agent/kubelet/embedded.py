"""The kubelet's side of the device plugin protocol over real gRPC, for a machine without a kubelet.

It serves the demo and the tests, and does what the kubelet's device manager does as far as a plugin can tell: it wipes
the sockets of its folder when it starts, dials back during registration, takes the whole list from the stream, refuses
a socket path whose old stream still lives, turns the devices of an ended stream unhealthy, and asks for a preference
before it allocates. It knows no pods beyond the names that it is given.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from grpc import aio
from msgspec import Struct, field
from msgspec.structs import replace

from node_agent.errors import KubeletError, RegistrationRefused
from node_agent.kit.files import write_atomic
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import cancel, running
from node_agent.kubelet import podresources, written
from node_agent.kubelet.registration import API_VERSION, KUBELET_SOCKET
from node_agent.kubelet.server import describe, serving
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from node_agent.wire import deviceplugin_v1beta1_pb2_grpc as rpc
from node_agent.wire import pluginregistration_v1_pb2 as registration_wire
from node_agent.wire import pluginregistration_v1_pb2_grpc as registration_rpc
from node_agent.wire import podresources_v1_pb2 as lister_wire
from node_agent.wire import podresources_v1_pb2_grpc as lister_rpc

# The kubelet receives no larger message; a longer list ends the stream.
RECEIVE_LIMIT = 4 * 1024 * 1024
LOOK_SECONDS = 0.05


class ResourceView(Struct, frozen=True, kw_only=True):
    """What the kubelet holds of one resource: the device list as last sent, ``connected`` while its stream lives."""

    endpoint: str = ""
    connected: bool = False
    registrations: int = 0
    messages: int = 0
    devices: Mapping[str, wire.Device] = field(default_factory=dict)

    @property
    def capacity(self) -> int:
        return len(self.devices)

    @property
    def healthy(self) -> frozenset[str]:
        """The ids that may be allocated; none while the plugin is not connected."""
        if not self.connected:
            return frozenset()
        return frozenset(name for name, device in self.devices.items() if device.health == "Healthy")

    @property
    def allocatable(self) -> int:
        return len(self.healthy)


class EmbeddedKubelet(rpc.RegistrationServicer):
    """Use ``running`` around what needs a kubelet; ``resources`` shows what it knows, ``admit`` gives devices out.

    ``registry`` is a folder to watch for plugins that announce themselves. ``refusal`` is the error with which it
    answers registrations, if any; ``held`` the devices of each pod.
    """

    def __init__(self, folder: Path, registry: Path | None = None) -> None:
        self.folder = folder
        self.registry = registry
        self.resources: Latest[Mapping[str, ResourceView]] = Latest({})
        self.held: dict[str, tuple[str, frozenset[str]]] = {}
        self.refusal: str | None = None
        self._streams: dict[str, tuple[aio.Channel, asyncio.Task[None]]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator["EmbeddedKubelet"]:
        """Start, as the kubelet does, with no plugin and no socket but its own; pods keep what they hold."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for socket in self.folder.glob("*.sock"):
            socket.unlink()
        self.resources.set({})
        lister = self.pod_resources_socket
        lister.parent.mkdir(exist_ok=True)
        async with (
            serving(self.folder / KUBELET_SOCKET, partial(rpc.add_RegistrationServicer_to_server, self), grace=0.2),
            serving(lister, partial(lister_rpc.add_PodResourcesListerServicer_to_server, Lister(self)), grace=0.2),
        ):
            try:
                async with running(self._watch_registry(), name="plugin watcher"):
                    yield self
            finally:
                for channel, task in self._streams.values():
                    await cancel(task)
                    await channel.close()
                self._streams.clear()

    @property
    def pod_resources_socket(self) -> Path:
        """Where it tells who holds what: beside the folder, as below the kubelet's own."""
        return self.folder.parent / podresources.SOCKET

    async def Register(self, request: wire.RegisterRequest, context: Any) -> wire.Empty:
        try:
            if request.version != API_VERSION:
                raise RegistrationRefused(f"requested API version {request.version!r} is not supported")
            await self.connect(request.resource_name, self.folder / request.endpoint)
        except RegistrationRefused as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return wire.Empty()

    async def connect(self, resource: str, socket: Path) -> None:
        """Take the plugin that serves ``resource`` on ``socket``. Raises RegistrationRefused where that cannot be."""
        if self.refusal is not None:
            raise RegistrationRefused(self.refusal)
        endpoint = str(socket)
        if endpoint in self._streams and not self._streams[endpoint][1].done():
            raise RegistrationRefused("device plugin already connected")
        channel = aio.insecure_channel(f"unix:{socket}", options=[("grpc.max_receive_message_length", RECEIVE_LIMIT)])
        try:
            await rpc.DevicePluginStub(channel).GetDevicePluginOptions(wire.Empty(), timeout=10)
        except aio.AioRpcError as error:
            await channel.close()
            raise RegistrationRefused(f"failed to dial device plugin: {describe(error)}") from error
        count = self.view(resource).registrations + 1
        self._update(resource, endpoint=endpoint, registrations=count)
        task = asyncio.create_task(self._follow(resource, endpoint, channel))
        self._streams[endpoint] = (channel, task)

    def view(self, resource: str) -> ResourceView:
        return self.resources.value.get(resource, ResourceView())

    async def until(self, resource: str, allocatable: int, timeout: float = 30.0) -> ResourceView:
        """Wait until the resource has so many allocatable devices.

        Raises:
            KubeletError: it has not, in time.
        """
        try:
            async with asyncio.timeout(timeout):
                async for _ in self.resources.watch():
                    if self.view(resource).allocatable == allocatable:
                        break
        except TimeoutError as error:
            found = self.view(resource).allocatable
            raise KubeletError(
                f"{resource}: {found} allocatable after {timeout:g} s instead of {allocatable}"
            ) from error
        return self.view(resource)

    async def admit(self, pod: str, resource: str, count: int) -> tuple[Sequence[str], wire.ContainerAllocateResponse]:
        """Give ``count`` devices to a pod: ask for the plugin's preference, then allocate, as at pod admission.

        Raises:
            KubeletError: too few devices are free, or the plugin refused.
        """
        if pod in self.held:
            raise KubeletError(f"{pod} is there already and holds {len(self.held[pod][1])} devices")
        view = self.view(resource)
        free = self.free(resource)
        if len(free) < count:
            raise KubeletError(f"{pod} wants {count} of {resource}, {len(free)} are free")
        plugin = rpc.DevicePluginStub(self._streams[view.endpoint][0])
        wanted = wire.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=count)
        try:
            preferred = await plugin.GetPreferredAllocation(
                wire.PreferredAllocationRequest(container_requests=[wanted])
            )
            ids = [name for name in preferred.container_responses[0].deviceIDs if name in free][:count]
            ids += [name for name in free if name not in ids][: count - len(ids)]
            response = await plugin.Allocate(
                wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=ids)])
            )
        except aio.AioRpcError as error:
            raise KubeletError(f"{pod} is not admitted: Allocate failed due to {describe(error)}") from error
        self.held[pod] = (resource, frozenset(ids))
        self._write_down()
        return ids, response.container_responses[0]

    async def drop(self, resource: str) -> None:
        """Lose the stream of a resource, as on a broken connection."""
        channel, task = self._streams.pop(self.view(resource).endpoint)
        await cancel(task)
        await channel.close()

    def release(self, pod: str) -> None:
        """The pod has ended; its devices are free."""
        del self.held[pod]

    def free(self, resource: str) -> list[str]:
        """The healthy devices that no pod holds."""
        taken = {name for held, ids in self.held.values() if held == resource for name in ids}
        return sorted(self.view(resource).healthy - taken)

    async def _watch_registry(self) -> None:
        """Ask each socket that appears in the registry what it stands for, and take it; again until that works."""
        taken: set[Path] = set()
        while self.registry is not None:
            present = {path for path in self.registry.glob("*.sock") if not path.name.startswith(".")}
            taken &= present
            taken |= {socket for socket in sorted(present - taken) if await self._take_announced(socket)}
            await asyncio.sleep(LOOK_SECONDS)

    async def _take_announced(self, socket: Path) -> bool:
        async with aio.insecure_channel(f"unix:{socket}") as channel:
            registrar = registration_rpc.RegistrationStub(channel)
            try:
                info = await registrar.GetInfo(registration_wire.InfoRequest(), timeout=1)
                error = ""
                try:
                    await self.connect(info.name, Path(info.endpoint))
                except RegistrationRefused as refusal:
                    error = str(refusal)
                status = registration_wire.RegistrationStatus(plugin_registered=not error, error=error)
                await registrar.NotifyRegistrationStatus(status, timeout=5)
                return not error
            except aio.AioRpcError:
                return False  # gone again, or not answering

    async def _follow(self, resource: str, endpoint: str, channel: aio.Channel) -> None:
        """Take in the plugin's lists until its stream ends."""
        try:
            async for message in rpc.DevicePluginStub(channel).ListAndWatch(wire.Empty()):
                devices = {device.ID: device for device in message.devices}
                self._update(resource, devices=devices, connected=True, messages=self.view(resource).messages + 1)
                self._write_down()
        except aio.AioRpcError:
            pass  # whatever ended the stream, it means the same: the plugin is gone
        finally:
            if self.view(resource).endpoint == endpoint:
                self._update(resource, connected=False)

    def _write_down(self) -> None:
        """What pods have, as the kubelet does at each grant and each list."""
        entries = [
            {"PodUID": pod, "ContainerName": "main", "ResourceName": resource, "DeviceIDs": {"-1": sorted(ids)}}
            for pod, (resource, ids) in self.held.items()
        ]
        document = {"Data": {"PodDeviceEntries": entries or None, "RegisteredDevices": {}}, "Checksum": 0}
        write_atomic(self.folder / written.FILE.name, json.dumps(document).encode(), mode=0o600, lasting=False)

    def _update(self, resource: str, **changes: Any) -> None:
        view = replace(self.view(resource), **changes)
        self.resources.set({**self.resources.value, resource: view})


class Lister(lister_rpc.PodResourcesListerServicer):
    """The kubelet's pod resources API, as far as it tells which pod holds which devices and which there are."""

    def __init__(self, kubelet: EmbeddedKubelet) -> None:
        self._kubelet = kubelet

    async def List(
        self, request: lister_wire.ListPodResourcesRequest, context: Any
    ) -> lister_wire.ListPodResourcesResponse:
        pods = [
            _pod_resources(pod, _devices(resource, ids, self._kubelet.view(resource)))
            for pod, (resource, ids) in self._kubelet.held.items()
        ]
        return lister_wire.ListPodResourcesResponse(pod_resources=pods)

    async def GetAllocatableResources(
        self, request: lister_wire.AllocatableResourcesRequest, context: Any
    ) -> lister_wire.AllocatableResourcesResponse:
        views = self._kubelet.resources.value
        devices = [_devices(resource, view.healthy, view) for resource, view in views.items()]
        return lister_wire.AllocatableResourcesResponse(devices=[one for of in devices for one in of])

    async def Get(
        self, request: lister_wire.GetPodResourcesRequest, context: Any
    ) -> lister_wire.GetPodResourcesResponse:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the embedded kubelet knows no pod by its name")
        raise AssertionError


def _pod_resources(pod: str, devices: list[lister_wire.ContainerDevices]) -> lister_wire.PodResources:
    container = lister_wire.ContainerResources(name="main", devices=devices)
    return lister_wire.PodResources(name=pod, namespace="default", containers=[container])


def _devices(resource: str, ids: frozenset[str], view: ResourceView) -> list[lister_wire.ContainerDevices]:
    """Those of one NUMA node together, as the kubelet tells them."""
    by_nodes: dict[tuple[int, ...], list[str]] = {}
    for name in sorted(ids):
        nodes = view.devices[name].topology.nodes if name in view.devices else ()
        by_nodes.setdefault(tuple(node.ID for node in nodes), []).append(name)
    return [
        lister_wire.ContainerDevices(
            resource_name=resource,
            device_ids=names,
            topology=lister_wire.TopologyInfo(nodes=[lister_wire.NUMANode(ID=node) for node in nodes]),
        )
        for nodes, names in by_nodes.items()
    ]
