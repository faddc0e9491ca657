"""A small HTTP/1.1 server for what a process shows of itself; ``http_client`` asks one on the same machine.

It answers GET and HEAD from a table of paths, takes no bodies, and gives nobody more than its share: of bytes, of
seconds, of connections. h11 does the protocol; a listener is a Unix socket or a TCP address, each with limits of its
own, so that a flooded port leaves the socket free.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import h11

from node_agent.kit.logs import Log
from node_agent.kit.tasks import cancel
from node_agent.kit.unix import FileIdentity, checked, identity, remove_own

# Small, since h11 lets a request that came in one piece be larger than its limit.
READ_BYTES = 4096
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

log = Log(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What was asked for: ``path`` without the ``query``, which is what followed the question mark."""

    path: str
    query: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    body: bytes = b""
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"


Routes = Mapping[str, Callable[[Request], Awaitable[Response]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one listener bears: open connections, the bytes of a request, seconds to send one and to take its answer."""

    connections: int = 64
    request_bytes: int = 16 * 1024
    request_seconds: float = 10.0
    answer_seconds: float = 30.0


@asynccontextmanager
async def serving(
    routes: Routes, where: Path | tuple[str, int], limits: Limits | None = None
) -> AsyncIterator[asyncio.Server]:
    """Answer from ``routes`` on a Unix socket (a path) or a TCP address while the block runs.

    The socket appears when it answers, for its owner and group only, in place of one that an earlier process left;
    at the end it is removed if it is still this one.

    Raises:
        OSError: the place is taken or may not be used.
        ValueError: the path is too long for a socket.
    """
    open_connections: set[asyncio.Task[None]] = set()
    accept = partial(_accept, routes, limits or Limits(), open_connections)
    if isinstance(where, Path):
        listener, own = _bind(where)
        server = await asyncio.start_unix_server(accept, sock=listener)
    else:
        own = None
        server = await asyncio.start_server(accept, *where)
    try:
        yield server
    finally:
        if isinstance(where, Path):
            remove_own(where, own)
        server.close()
        for connection in tuple(open_connections):
            await cancel(connection)
        await server.wait_closed()


def _bind(path: Path) -> tuple[socket.socket, FileIdentity | None]:
    """A listening socket that was never to be seen with other rights or without an ear."""
    hidden = checked(path.with_name(f".{path.name}"))
    hidden.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(hidden))
        os.chmod(hidden, 0o660)
        listener.listen()
        os.rename(hidden, path)
    except BaseException:
        listener.close()
        hidden.unlink(missing_ok=True)
        raise
    return listener, identity(path)


def _accept(
    routes: Routes,
    limits: Limits,
    open_connections: set[asyncio.Task[None]],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    if len(open_connections) >= limits.connections:
        writer.write(BUSY)
        writer.close()
        return
    task = asyncio.create_task(_converse(routes, limits, reader, writer))
    open_connections.add(task)
    task.add_done_callback(open_connections.discard)


async def _converse(routes: Routes, limits: Limits, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one connection's requests until either side has had enough."""
    # A drain then means that all was sent, and cutting the connection loses nothing.
    writer.transport.set_write_buffer_limits(0)
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.request_bytes)
    try:
        while await _exchange(routes, limits, http, reader, writer):
            http.start_next_cycle()
    except OSError:
        pass  # too slow or gone, which is the other side's own affair
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def _exchange(
    routes: Routes, limits: Limits, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """One request and its answer; says whether another may follow on the same connection."""
    wants_body = True
    try:
        async with asyncio.timeout(limits.request_seconds):
            asked = await _read(http, reader)
    except h11.RemoteProtocolError as error:
        response = _refusal(error.error_status_hint, str(error))
    else:
        if asked is None:
            return False
        wants_body = asked.method != b"HEAD"
        response = await _answer(routes, limits, asked)
    writer.write(_encode(http, response, wants_body))
    async with asyncio.timeout(limits.answer_seconds):
        await writer.drain()
    return http.our_state is http.their_state is h11.DONE


async def _read(http: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """The next whole request, or None where the other side has closed.

    Raises:
        h11.RemoteProtocolError: what was sent is no request, too large, or has a body.
    """
    request = None
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            raise h11.RemoteProtocolError("a request with a body is not taken", error_status_hint=413)
        else:
            return request


async def _answer(routes: Routes, limits: Limits, asked: h11.Request) -> Response:
    if asked.method not in (b"GET", b"HEAD"):
        return _refusal(405, "only GET and HEAD are answered")
    path, _, query = asked.target.decode("ascii").partition("?")
    route = routes.get(path)
    if route is None:
        return _refusal(404, f"there is {', '.join(sorted(routes))}")
    try:
        async with asyncio.timeout(limits.answer_seconds):
            return await route(Request(path=path, query=query))
    except Exception as error:
        log.error("request failed", path=path, reason=repr(error))
        return _refusal(500, "this failed; the log says why")


def _refusal(status: int, reason: str) -> Response:
    return Response(status=status, body=f"{reason}\n".encode())


def _encode(http: h11.Connection, response: Response, wants_body: bool) -> bytes:
    headers = [("content-type", response.content_type), ("content-length", str(len(response.body)))]
    if response.status == 405:
        headers.append(("allow", "GET, HEAD"))
    if http.their_state is not h11.DONE:
        headers.append(("connection", "close"))
    body = response.body if wants_body else b""
    events = [h11.Response(status_code=response.status, headers=headers), h11.Data(data=body), h11.EndOfMessage()]
    return b"".join(http.send(event) or b"" for event in events)
