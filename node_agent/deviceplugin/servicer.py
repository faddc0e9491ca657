"""The five calls of the device plugin API for one resource: protobuf in, protobuf out, nothing decided here.

The kubelet calls from its main loop and sets no time limit for GetPreferredAllocation and Allocate, so both are
look-ups in memory.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import grpc

from node_agent.deviceplugin.answer import Answer
from node_agent.deviceplugin.offer import Offer, OfferedDevice, check_request
from node_agent.deviceplugin.selection import Form, Forms
from node_agent.errors import ConfigError, DeviceWithdrawn, NodeAgentError, UnknownDevice
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log
from node_agent.sharing.shares import alike
from node_agent.telemetry.catalogue import ALLOCATIONS
from node_agent.topology.preferred import DeviceId, PreferredRequest, preferred
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from node_agent.wire import deviceplugin_v1beta1_pb2_grpc as rpc

Give = Callable[[Sequence[OfferedDevice]], Answer]
"""How a container gets the devices."""

Take = Callable[[str, Sequence[OfferedDevice]], Awaitable[None]]
"""Holds devices of a resource for a pod; raises AllocationError where somebody else has one."""

# The kubelet receives no larger message.
LIST_LIMIT = 4 * 1024 * 1024

log = Log(__name__)


class Servicer(rpc.DevicePluginServicer):
    """Serves one resource until ``close``. ``streams`` counts the open lists, which ``again`` has sent once more."""

    def __init__(self, offer: Latest[Offer], give: Give, take: Take, again: Latest[int]) -> None:
        self._offer = offer
        self._give = give
        self._take = take
        self._again = again
        self._closed = Latest(False)
        self.streams = Latest(0)

    def close(self) -> None:
        """End every stream, so that the server can stop without waiting for them."""
        self._closed.set(True)

    async def GetDevicePluginOptions(self, request: wire.Empty, context: Any) -> wire.DevicePluginOptions:
        return wire.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: wire.Empty, context: Any) -> AsyncIterator[wire.ListAndWatchResponse]:
        self.streams.set(self.streams.value + 1)
        try:
            async for _ in changes(self._offer, self._again, self._closed):
                if self._closed.value:
                    return
                yield device_list(self._offer.value.devices)
        finally:
            self.streams.set(self.streams.value - 1)

    async def GetPreferredAllocation(
        self, request: wire.PreferredAllocationRequest, context: Any
    ) -> wire.PreferredAllocationResponse:
        answers = [
            wire.ContainerPreferredAllocationResponse(deviceIDs=self._prefer(part))
            for part in request.container_requests
        ]
        return wire.PreferredAllocationResponse(container_responses=answers)

    async def Allocate(self, request: wire.AllocateRequest, context: Any) -> wire.AllocateResponse:
        try:
            with ALLOCATIONS.timed(self._offer.value.resource):
                answers = [await self._allocate(part.devices_ids) for part in request.container_requests]
        except NodeAgentError as error:
            log.error("allocation refused", reason=error)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise  # abort raises by itself; this tells the type checker
        return wire.AllocateResponse(container_responses=answers)

    async def PreStartContainer(
        self, request: wire.PreStartContainerRequest, context: Any
    ) -> wire.PreStartContainerResponse:
        return wire.PreStartContainerResponse()

    def _prefer(self, part: wire.ContainerPreferredAllocationRequest) -> Sequence[str]:
        offer, must = self._offer.value, part.must_include_deviceIDs
        choice = preferred(
            PreferredRequest(
                available=frozenset(map(DeviceId, part.available_deviceIDs)),
                must_include=frozenset(map(DeviceId, must)),
                size=max(part.allocation_size, len(must)),
            ),
            offer.pool,
        )
        log.debug("preferred", resource=offer.resource, size=part.allocation_size, devices=choice.ids)
        return choice.ids

    async def _allocate(self, ids: Sequence[str]) -> wire.ContainerAllocateResponse:
        offer = self._offer.value
        devices = [_usable(offer, device_id) for device_id in sorted(ids)]
        check_request(offer.resource, devices, offer.pool.policy)
        await self._take(offer.resource, devices)
        answer = self._give(devices)
        # The kubelet's main loop waits for the answer and not for the line, which is written right after it.
        names = [device.id for device in devices]
        say = partial(log.info, "allocated", resource=offer.resource, devices=names, cdi=answer.cdi_names)
        asyncio.get_running_loop().call_soon(say)
        return container_response(answer)


def _usable(offer: Offer, device_id: str) -> OfferedDevice:
    device = offer.by_id.get(device_id)
    if device is None:
        raise UnknownDevice(f"{offer.resource} has no device {device_id!r} on this node")
    if device.trouble is not None:
        raise DeviceWithdrawn(f"{device_id} is out of service: {device.trouble}")
    return device


def device_list(devices: Iterable[OfferedDevice]) -> wire.ListAndWatchResponse:
    """The list as the kubelet wants it: always whole, anything but ``Healthy`` counts as unhealthy."""
    return wire.ListAndWatchResponse(devices=[_device(device) for device in devices])


def list_size(resource: str, forms: Forms) -> tuple[int, int]:
    """How many devices a resource has, and the bytes of a list in which all of them are unhealthy.

    Worked out without making the list, which may be enormous.
    """
    mine = [(uuid, form) for uuid, form in forms.items() if form.resource == resource]
    alikes = [(form, name, count) for uuid, form in mine for name, count in alike(uuid, form.shared)]
    return sum(count for *_, count in alikes), sum(count * _entry_size(form, name) for form, name, count in alikes)


def check_size(resource: str, forms: Forms) -> None:
    """Refuse a list that the kubelet would not take: it drops the stream, and the node would offer nothing at all.

    Raises:
        ConfigError: says how large it is, and the limit.
    """
    count, size = list_size(resource, forms)
    if size > LIST_LIMIT:
        raise ConfigError(
            f"{resource} has {count} devices, whose list takes {size} bytes; the kubelet takes {LIST_LIMIT}: "
            "offer fewer, by fewer replicas a GPU or under several names"
        )


def _entry_size(form: Form, name: str) -> int:
    gpu = form.unit.gpu
    device = OfferedDevice(id=name, gpu=gpu.uuid, index=form.unit.index, numa_node=gpu.numa_node, trouble="any")
    return device_list([device]).ByteSize()


def _device(device: OfferedDevice) -> wire.Device:
    health = "Healthy" if device.healthy else "Unhealthy"
    if device.numa_node is None:
        return wire.Device(ID=device.id, health=health)
    return wire.Device(
        ID=device.id, health=health, topology=wire.TopologyInfo(nodes=[wire.NUMANode(ID=device.numa_node)])
    )


def container_response(answer: Answer) -> wire.ContainerAllocateResponse:
    """The answer in the kubelet's words."""
    return wire.ContainerAllocateResponse(
        envs=dict(answer.environment),
        annotations=dict(answer.annotations),
        mounts=[
            wire.Mount(host_path=mount.host_path, container_path=mount.container_path, read_only=mount.read_only)
            for mount in answer.mounts
        ],
        cdi_devices=[wire.CDIDevice(name=name) for name in answer.cdi_names],
    )
