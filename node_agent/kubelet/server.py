"""A gRPC server on a Unix socket that appears only when it is ready to answer."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from node_agent.errors import KubeletError
from node_agent.kit.logs import Log
from node_agent.kit.unix import FileIdentity, checked, identity, remove_own

# How long RPCs in flight may take to end when the server stops: the kubelet's longest wait for a short call is 5 s.
GRACE_SECONDS = 5.0

log = Log(__name__)


@asynccontextmanager
async def serving(
    path: Path, add_services: Callable[[aio.Server], None], grace: float = GRACE_SECONDS
) -> AsyncIterator[None]:
    """Serve on ``path`` while the block runs; ``add_services`` puts the servicers on the server.

    The socket is bound under a hidden name and renamed once it answers, so that neither a watcher of the folder nor
    the kubelet ever finds one that does not. At the end only this very socket is removed: another instance may have
    put its own in the same place.

    Raises:
        KubeletError: the socket cannot be made there.
    """
    hidden = _hidden(path)
    server = aio.server()
    add_services(server)
    try:
        own = await _appear(server, hidden, path)
        try:
            yield
        finally:
            remove_own(path, own)
    finally:
        await _whole(server.stop(grace))
        if hidden.is_socket():
            hidden.unlink(missing_ok=True)


def _hidden(path: Path) -> Path:
    try:
        return checked(path.with_name(f".{path.name}"))
    except ValueError as error:
        raise KubeletError(str(error)) from error


async def _appear(server: aio.Server, hidden: Path, path: Path) -> FileIdentity | None:
    """Start to answer on ``path``; what a killed agent left under the hidden name is replaced."""
    try:
        hidden.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{hidden}")
        await _whole(server.start())
        os.chmod(hidden, 0o600)
        os.rename(hidden, path)
    except (OSError, RuntimeError) as error:
        raise KubeletError(
            f"cannot serve on {path}: {error}; does the folder exist, and may the agent write there?"
        ) from error
    return identity(path)


async def _whole(step: Coroutine[Any, Any, None]) -> None:
    """Take a step of grpc's to its end; being cancelled meanwhile takes effect afterwards.

    Half a start breaks grpc's own loop, and its stop drops a cancellation that comes together with the end (it uses
    ``wait_for``, which does so in Python 3.11).
    """
    task = asyncio.create_task(step)
    try:
        await asyncio.shield(task)
    finally:
        await task


def remove_dead_sockets(folder: Path, prefix: str) -> None:
    """Remove the sockets ``prefix*.sock`` that a killed agent left behind; those of a living one answer and stay."""
    # A kill between bind and rename leaves the hidden name.
    for path in (*folder.glob(f"{prefix}*.sock"), *folder.glob(f".{prefix}*.sock")):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
                log.info("removed the socket of an agent that has ended", socket=path.name)
            except FileNotFoundError:
                continue


def describe(error: grpc.RpcError) -> str:
    """A gRPC failure in one line: its status code and what the other side said."""
    if isinstance(error, aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
