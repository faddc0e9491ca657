"""Who holds what, and what could be given out: the kubelet's pod resources API."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from grpc import aio
from msgspec import Struct

from node_agent.errors import KubeletError
from node_agent.kit.latest import Latest
from node_agent.kit.unix import FileIdentity, identity
from node_agent.kubelet.server import describe
from node_agent.wire import podresources_v1_pb2 as wire
from node_agent.wire import podresources_v1_pb2_grpc as rpc

SOCKET = Path("pod-resources/kubelet.sock")

# The answer lists every pod of the node with all its devices; the kubelet's own clients take as much.
RECEIVE_LIMIT = 16 * 1024 * 1024
TIMEOUT_SECONDS = 5.0


class PodDevice(Struct, frozen=True, kw_only=True):
    """A device that a container has, by its id within ``of``: a resource, or the driver of a ``claim``.

    ``claim`` is ``namespace/name``, ``pool`` and ``share_id`` are the claim's; all are empty for a resource.
    """

    of: str
    device: str
    namespace: str = ""
    pod: str = ""
    container: str = ""
    claim: str = ""
    pool: str = ""
    share_id: str | None = None


class PodDevices:
    """What the kubelet tells of its pods: ``last`` is its last answer, whoever asked, and stays while it is silent.

    ``pods`` are all of them, also those without devices, as ``namespace/name``. A context manager: to connect takes
    several times what a call does, so the connection is kept while the same kubelet answers. Who asks waits for who
    has asked before: whoever gives the connection up would cancel the other's call with it.
    """

    def __init__(self, socket: Path, own_pod: str = "") -> None:
        self._socket = socket
        self._own_pod = own_pod
        self._channel: aio.Channel | None = None
        self._kubelet: FileIdentity | None = None
        self._turn = asyncio.Lock()
        self._told: FileIdentity | None = None
        self._since: float | None = None
        self.last: Latest[tuple[PodDevice, ...]] = Latest(())
        self.pods: frozenset[str] = frozenset()

    async def __aenter__(self) -> "PodDevices":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._disconnect()

    async def held(self) -> dict[str, frozenset[str]]:
        """The ids of the devices that pods hold at this moment by their limits, by resource.

        The kubelet answers ten calls at once and a hundred a second, for all its clients together: ask seldom.

        Raises:
            KubeletError: nobody answers, or too many ask.
        """
        async with self._turn:
            answer = await self._answer()
            self._note(answer)
        self.pods = frozenset(f"{pod.namespace}/{pod.name}" for pod in answer.pod_resources)
        self.last.set(tuple(dict.fromkeys(_pod_devices(answer))))
        return _by_resource((one.of, (one.device,)) for one in self.last.value if not one.claim)

    async def _answer(self) -> wire.ListPodResourcesResponse:
        kubelet = rpc.PodResourcesListerStub(await self._connection())
        try:
            with _telling(self._socket, "who holds what"):
                return await kubelet.List(wire.ListPodResourcesRequest(), timeout=TIMEOUT_SECONDS)
        except KubeletError:
            await self._disconnect()  # a new connection is tried at once; one that has failed waits longer each time
            raise

    async def _connection(self) -> aio.Channel:
        kubelet = identity(self._socket)
        if self._channel is not None and kubelet != self._kubelet:
            await self._disconnect()
        if self._channel is None:
            self._channel, self._kubelet = _channel(self._socket), kubelet
        return self._channel

    async def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def since(self) -> float | None:
        """Since when the present kubelet tells of the API server's pods, in wall-clock seconds; None before it does.

        One that was just started knows none of them, and as long as the API server is away none but static ones; where
        the agent is a pod, it is one of them.
        """
        return self._since if self._told is not None and self._told == identity(self._socket) else None

    def _note(self, answer: wire.ListPodResourcesResponse) -> None:
        new, self._told = self._told != self._kubelet, self._kubelet
        if not new and self._since is not None:
            return
        knows = not self._own_pod or any(pod.name == self._own_pod for pod in answer.pod_resources)
        if not knows or self._kubelet is None:
            self._since = None
        else:
            self._since = self._kubelet.modified_ns / 1e9 if new else time.time()


async def allocatable_devices(socket: Path) -> dict[str, frozenset[str]]:
    """The ids of the devices that pods could have if no pod held any, by resource; otherwise as ``held``."""
    async with lister(socket, "what it can give out") as asked:
        answer = await asked.GetAllocatableResources(wire.AllocatableResourcesRequest(), timeout=TIMEOUT_SECONDS)
    return _by_resource((entry.resource_name, entry.device_ids) for entry in answer.devices)


@asynccontextmanager
async def lister(socket: Path, what: str) -> AsyncIterator[rpc.PodResourcesListerStub]:
    """The kubelet's side of the API. Raises KubeletError where it does not tell ``what`` is asked."""
    async with _channel(socket) as channel:
        with _telling(socket, what):
            yield rpc.PodResourcesListerStub(channel)


def _channel(socket: Path) -> aio.Channel:
    """A channel with connections of its own: gRPC would give it one that has just failed, and waits."""
    options = [("grpc.max_receive_message_length", RECEIVE_LIMIT), ("grpc.use_local_subchannel_pool", 1)]
    return aio.insecure_channel(f"unix:{socket}", options=options)


@contextmanager
def _telling(socket: Path, what: str) -> Iterator[None]:
    try:
        yield
    except aio.AioRpcError as error:
        raise KubeletError(f"the kubelet does not tell on {socket} {what}: {describe(error)}") from error


def _pod_devices(answer: wire.ListPodResourcesResponse) -> Iterator[PodDevice]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            device = partial(PodDevice, namespace=pod.namespace, pod=pod.name, container=container.name)
            for entry in container.devices:
                yield from (device(of=entry.resource_name, device=name) for name in entry.device_ids)
            for claim in container.dynamic_resources:
                name = f"{claim.claim_namespace}/{claim.claim_name}"
                yield from (_claimed(device, name, entry) for entry in claim.claim_resources)


def _claimed(device: Callable[..., PodDevice], claim: str, entry: wire.ClaimResource) -> PodDevice:
    share_id = entry.share_id if entry.HasField("share_id") else None
    return device(of=entry.driver_name, device=entry.device_name, claim=claim, pool=entry.pool_name, share_id=share_id)


def _by_resource(found: Iterable[tuple[str, Iterable[str]]]) -> dict[str, frozenset[str]]:
    by_resource: dict[str, set[str]] = {}
    for resource, devices in found:
        by_resource.setdefault(resource, set()).update(devices)
    return {resource: frozenset(ids) for resource, ids in by_resource.items()}
