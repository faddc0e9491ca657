"""The floors: the least that could do the job on this machine. ``bare_server`` is one more, as a process."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from grpc import aio

from benchmarks.parrot import service
from node_agent.config.settings import Settings
from node_agent.hardware.nvml.provider import NvmlProvider
from node_agent.kubelet.server import serving
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from node_agent.wire import deviceplugin_v1beta1_pb2_grpc as rpc

EMPTY_CALL = "an empty call"
FSYNCED_WRITE = "an fsynced write"
INTERPRETER = "an interpreter"
BARE_SERVER = "a bare gRPC server"
NVML_PASS = "an NVML pass"
STATS = "a stat of each file"


@asynccontextmanager
async def parrot(
    socket: Path,
    *,
    allocation: wire.AllocateResponse | None = None,
    preference: wire.PreferredAllocationResponse | None = None,
) -> AsyncIterator[rpc.DevicePluginStub]:
    """A stub of a server on ``socket`` that answers each call with a message that it was given.

    So a call to it has the same message sizes as one to the agent, over the same kind of server, and costs no thought.
    """
    prepared = service(allocation or wire.AllocateResponse(), preference or wire.PreferredAllocationResponse())
    async with serving(socket, lambda server: server.add_generic_rpc_handlers((prepared,))), plugin_at(socket) as stub:
        yield stub


@asynccontextmanager
async def plugin_at(socket: Path | str) -> AsyncIterator[rpc.DevicePluginStub]:
    """A stub for whoever serves the device plugin API on ``socket``."""
    async with aio.insecure_channel(f"unix:{socket}") as channel:
        yield rpc.DevicePluginStub(channel)


@asynccontextmanager
async def nvml_pass(settings: Settings) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """What reads every GPU of the node once, as a probe of its health does."""
    async with NvmlProvider(settings.paths.sysfs_root) as provider:
        gpus = [gpu.uuid for gpu in (await provider.discovery.scan()).gpus]

        async def read_all() -> None:
            for gpu in gpus:
                await provider.readings.read(gpu)

        yield read_all


def fsynced_write(path: Path, content: bytes) -> None:
    """Put bytes on the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
