"""Who holds what: the kubelet's pod resources API."""

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
    options = [("grpc.max_receive_message_length", RECEIVE_LIMIT)]
    async with aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        try:
            answer = await rpc.PodResourcesListerStub(channel).List(
                wire.ListPodResourcesRequest(), timeout=TIMEOUT_SECONDS
            )
        except aio.AioRpcError as error:
            raise KubeletError(f"the kubelet does not tell on {socket} who holds what: {describe(error)}") from error
    held: dict[str, set[str]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                held.setdefault(devices.resource_name, set()).update(devices.device_ids)
    return {resource: frozenset(ids) for resource, ids in held.items()}
