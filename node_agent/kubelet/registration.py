"""Telling the kubelet about a device plugin: one call on ``device-plugins/kubelet.sock``.

Before it answers, the kubelet dials the plugin's socket back and asks for its options, so the plugin serves first.
"""

from enum import StrEnum
from pathlib import Path

import grpc
from grpc import aio
from msgspec import Struct

from node_agent.errors import KubeletError, RegistrationRefused
from node_agent.kubelet.server import describe
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from node_agent.wire import deviceplugin_v1beta1_pb2_grpc as rpc

API_VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"

# The kubelet waits up to 10 s for the socket that it dials back.
TIMEOUT_SECONDS = 12.0

_NOBODY_THERE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Phase(StrEnum):
    WAITING = "waiting for the kubelet"
    REGISTERING = "registering"
    REGISTERED = "registered"
    REFUSED = "refused"


class Registration(Struct, frozen=True, kw_only=True):
    """Where a plugin stands with the kubelet, in words for people, and how often it was registered."""

    phase: Phase = Phase.WAITING
    detail: str = ""
    count: int = 0


async def register(folder: Path, endpoint: str, resource: str) -> None:
    """Register the socket named ``endpoint`` in the kubelet's device-plugins ``folder`` for ``resource``.

    Raises:
        RegistrationRefused: the kubelet answered with an error.
        KubeletError: nobody answers on the kubelet's socket.
    """
    request = wire.RegisterRequest(version=API_VERSION, endpoint=endpoint, resource_name=resource)
    socket = folder / KUBELET_SOCKET
    async with aio.insecure_channel(f"unix:{socket}") as channel:
        try:
            await rpc.RegistrationStub(channel).Register(request, timeout=TIMEOUT_SECONDS)
        except aio.AioRpcError as error:
            if error.code() in _NOBODY_THERE:
                raise KubeletError(f"no kubelet answers on {socket}: {describe(error)}") from error
            raise RegistrationRefused(f"the kubelet refused {resource} at {endpoint}: {describe(error)}") from error
