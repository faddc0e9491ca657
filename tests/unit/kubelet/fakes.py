"""The other side of each conversation: a device plugin for the embedded kubelet, a kubelet for the agent's calls."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from node_agent.kit.latest import Latest
from node_agent.kubelet.server import serving
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from node_agent.wire import deviceplugin_v1beta1_pb2_grpc as rpc

RESOURCE = "nvidia.com/gpu"

Prefer = Callable[[Sequence[str], int], Sequence[str]]


def devices(*names: str, sick: Iterable[str] = ()) -> tuple[wire.Device, ...]:
    return tuple(wire.Device(ID=name, health="Unhealthy" if name in set(sick) else "Healthy") for name in names)


class FakePlugin(rpc.DevicePluginServicer):
    """Lists ``devices``, prefers what ``prefer`` picks, and refuses allocations with ``refusal``."""

    def __init__(self, *names: str) -> None:
        self.devices = Latest(devices(*names))
        self.prefer: Prefer = lambda available, size: available[:size]
        self.refusal: str | None = None
        self.asked: list[Sequence[str]] = []
        self.streams = 0

    async def GetDevicePluginOptions(self, request: wire.Empty, context: Any) -> wire.DevicePluginOptions:
        return wire.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: wire.Empty, context: Any) -> AsyncIterator[wire.ListAndWatchResponse]:
        self.streams += 1
        async for listed in self.devices.watch():
            yield wire.ListAndWatchResponse(devices=listed)

    async def GetPreferredAllocation(
        self, request: wire.PreferredAllocationRequest, context: Any
    ) -> wire.PreferredAllocationResponse:
        (wanted,) = request.container_requests
        self.asked.append(list(wanted.available_deviceIDs))
        chosen = self.prefer(list(wanted.available_deviceIDs), wanted.allocation_size)
        return wire.PreferredAllocationResponse(
            container_responses=[wire.ContainerPreferredAllocationResponse(deviceIDs=chosen)]
        )

    async def Allocate(self, request: wire.AllocateRequest, context: Any) -> wire.AllocateResponse:
        if self.refusal is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refusal)
        (wanted,) = request.container_requests
        envs = {"DEVICES": ",".join(wanted.devices_ids)}
        return wire.AllocateResponse(container_responses=[wire.ContainerAllocateResponse(envs=envs)])

    async def PreStartContainer(
        self, request: wire.PreStartContainerRequest, context: Any
    ) -> wire.PreStartContainerResponse:
        raise NotImplementedError

    @asynccontextmanager
    async def served(self, socket: Path) -> AsyncIterator[Path]:
        async with serving(socket, lambda server: rpc.add_DevicePluginServicer_to_server(self, server), grace=0):
            yield socket


class FakeKubelet(rpc.RegistrationServicer):
    """Writes down what is registered, and refuses with ``refusal``."""

    def __init__(self, refusal: str | None = None) -> None:
        self.refusal = refusal
        self.requests: list[wire.RegisterRequest] = []

    async def Register(self, request: wire.RegisterRequest, context: Any) -> wire.Empty:
        self.requests.append(request)
        if self.refusal is not None:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        return wire.Empty()

    def add_to(self, server: aio.Server) -> None:
        rpc.add_RegistrationServicer_to_server(self, server)
