"""Who holds what, and what could be given out: the kubelet's pod resources API."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from grpc import aio

from node_agent.errors import KubeletError
from node_agent.kubelet.server import describe
from node_agent.wire import podresources_v1_pb2 as wire
from node_agent.wire import podresources_v1_pb2_grpc as rpc

SOCKET = Path("pod-resources/kubelet.sock")

# The answer lists every pod of the node with all its devices; the kubelet's own clients take as much.
RECEIVE_LIMIT = 16 * 1024 * 1024
TIMEOUT_SECONDS = 5.0


async def held_devices(socket: Path) -> dict[str, frozenset[str]]:
    """The ids of the devices that pods hold at this moment, by resource.

    The kubelet answers ten calls at once and a hundred a second, for all its clients together: ask seldom.

    Raises:
        KubeletError: nobody answers, or too many ask.
    """
    async with _lister(socket, "who holds what") as lister:
        answer = await lister.List(wire.ListPodResourcesRequest(), timeout=TIMEOUT_SECONDS)
    return _by_resource(
        devices for pod in answer.pod_resources for container in pod.containers for devices in container.devices
    )


async def allocatable_devices(socket: Path) -> dict[str, frozenset[str]]:
    """The ids of the devices that pods could have if no pod held any, by resource; otherwise as ``held_devices``."""
    async with _lister(socket, "what it can give out") as lister:
        answer = await lister.GetAllocatableResources(wire.AllocatableResourcesRequest(), timeout=TIMEOUT_SECONDS)
    return _by_resource(answer.devices)


@asynccontextmanager
async def _lister(socket: Path, what: str) -> AsyncIterator[rpc.PodResourcesListerStub]:
    options = [("grpc.max_receive_message_length", RECEIVE_LIMIT)]
    async with aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        try:
            yield rpc.PodResourcesListerStub(channel)
        except aio.AioRpcError as error:
            raise KubeletError(f"the kubelet does not tell on {socket} {what}: {describe(error)}") from error


def _by_resource(found: Iterable[wire.ContainerDevices]) -> dict[str, frozenset[str]]:
    by_resource: dict[str, set[str]] = {}
    for devices in found:
        by_resource.setdefault(devices.resource_name, set()).update(devices.device_ids)
    return {resource: frozenset(ids) for resource, ids in by_resource.items()}
