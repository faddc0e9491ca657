"""A small HTTP/1.1 server for what a process shows of itself; ``http_client`` asks one on the same machine.

It answers from a table of paths, takes no bodies, and gives nobody more than its share: of bytes, of seconds, of
connections, of answers that go on. h11 does the protocol; a listener is a Unix socket or a TCP address, each with
limits of its own, so that a flooded port leaves the socket free.
"""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import h11
from msgspec import Struct, field

from node_agent.kit.logs import Log
from node_agent.kit.tasks import cancel
from node_agent.kit.unix import FileIdentity, checked, identity, remove_own

# Small, since h11 lets a request that came in one piece be larger than its limit.
READ_BYTES = 4096
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

log = Log(__name__)


class Request(Struct, frozen=True, kw_only=True):
    """What was asked for: ``path`` without the ``query``, which is what followed the question mark.

    ``accept`` says, as the header of that name, in which forms the answer is wanted.
    """

    path: str
    query: str = ""
    accept: str = ""


class Response(Struct, frozen=True, kw_only=True):
    """An answer; ``more`` are parts that follow the body as they come, until they end or the other side is gone.

    ``headers`` are those of an answer that is whole, besides the usual ones.
    """

    body: bytes = b""
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    more: AsyncGenerator[bytes, None] | None = None
    allow: str = ""
    headers: Sequence[tuple[str, str]] = ()


Route = Callable[[Request], Awaitable[Response]]
Routes = Mapping[str, Route]
"""By path, for GET and HEAD; what changes something is by ``POST`` and the path, as ``POST /clear``."""


class Limits(Struct, frozen=True, kw_only=True):
    """What one listener bears: open connections, how many of them with an answer that goes on, the bytes of a request,
    seconds to send one and to take its answer, or a part of one that goes on.
    """

    connections: int = 64
    streams: int = 16
    request_bytes: int = 16 * 1024
    request_seconds: float = 10.0
    answer_seconds: float = 30.0


class _Listener(Struct, frozen=True, kw_only=True):
    """What the connections of one listener have in common."""

    routes: Routes
    limits: Limits
    connections: set[asyncio.Task[None]] = field(default_factory=set)
    streams: set[asyncio.Task[None]] = field(default_factory=set)


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
    common = _Listener(routes=routes, limits=limits or Limits())
    accept = partial(_accept, common)
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
        for connection in tuple(common.connections):
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


def _accept(common: _Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if len(common.connections) >= common.limits.connections:
        writer.write(BUSY)
        writer.close()
        return
    task = asyncio.create_task(_converse(common, reader, writer))
    common.connections.add(task)
    task.add_done_callback(common.connections.discard)
    task.add_done_callback(common.streams.discard)


async def _converse(common: _Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one connection's requests until either side has had enough."""
    # A drain then means that all was sent, and cutting the connection loses nothing.
    writer.transport.set_write_buffer_limits(0)
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=common.limits.request_bytes)
    try:
        while await _exchange(common, http, reader, writer):
            http.start_next_cycle()
    except OSError:
        pass  # too slow or gone, which is the other side's own affair
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def _exchange(
    common: _Listener, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """One request and its answer; says whether another may follow on the same connection."""
    wants_body = True
    try:
        async with asyncio.timeout(common.limits.request_seconds):
            asked = await _read(http, reader)
    except h11.RemoteProtocolError as error:
        response = _refusal(error.error_status_hint, str(error))
    else:
        if asked is None:
            return False
        wants_body = asked.method != b"HEAD"
        response = await _answer(common, asked)
    if response.more is not None and wants_body:
        await _go_on(common, http, response, response.more, writer)
        return False
    await _send(common, writer, _encode(http, response, wants_body))
    return http.our_state is http.their_state is h11.DONE


async def _go_on(
    common: _Listener,
    http: h11.Connection,
    response: Response,
    more: AsyncGenerator[bytes, None],
    writer: asyncio.StreamWriter,
) -> None:
    """Send an answer that goes on; the connection ends with it."""
    async with aclosing(more):
        if len(common.streams) >= common.limits.streams:
            refusal = _refusal(503, f"{common.limits.streams} watch already, which are all that may; ask again later")
            await _send(common, writer, _encode(http, refusal, wants_body=True))
            return
        common.streams.add(_this_task())
        headers = [("content-type", response.content_type), ("connection", "close")]
        begin = [h11.Response(status_code=response.status, headers=headers), h11.Data(data=response.body)]
        await _send(common, writer, _bytes(http, begin))
        try:
            async for part in more:
                await _send(common, writer, _bytes(http, [h11.Data(data=part)]))
        except OSError:
            raise
        except Exception as error:
            log.error("answer broken off", reason=repr(error))
            return
        await _send(common, writer, _bytes(http, [h11.EndOfMessage()]))


def _this_task() -> "asyncio.Task[None]":
    task = asyncio.current_task()
    assert task is not None
    return task


async def _send(common: _Listener, writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(content)
    async with asyncio.timeout(common.limits.answer_seconds):
        await writer.drain()


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


async def _answer(common: _Listener, asked: h11.Request) -> Response:
    method = asked.method.decode()
    path, _, query = asked.target.decode("ascii").partition("?")
    route = common.routes.get(f"POST {path}" if method == "POST" else path)
    if route is None or method not in ("GET", "HEAD", "POST"):
        return _nowhere(common.routes, path)
    try:
        async with asyncio.timeout(common.limits.answer_seconds):
            return await route(Request(path=path, query=query, accept=_header(asked, b"accept")))
    except Exception as error:
        log.error("request failed", path=path, reason=repr(error))
        return _refusal(500, "this failed; the log says why")


def _header(asked: h11.Request, name: bytes) -> str:
    return ", ".join(value.decode("latin-1") for key, value in asked.headers if key == name)


def _nowhere(routes: Routes, path: str) -> Response:
    """What a request gets that no route is for: the methods that there are, or where others lead."""
    allowed = _allowed(routes, path)
    if not allowed:
        return _refusal(404, f"there is {', '.join(sorted(routes))}")
    return _refusal(405, f"this path answers {' and '.join(allowed)} only", allow=", ".join(allowed))


def _allowed(routes: Routes, path: str) -> list[str]:
    return ["GET", "HEAD"] * (path in routes) + ["POST"] * (f"POST {path}" in routes)


def _refusal(status: int, reason: str, allow: str = "") -> Response:
    return Response(status=status, body=f"{reason}\n".encode(), allow=allow)


def _encode(http: h11.Connection, response: Response, wants_body: bool) -> bytes:
    length = ("content-length", str(len(response.body)))
    headers = [("content-type", response.content_type), length, *response.headers]
    if response.allow:
        headers.append(("allow", response.allow))
    if http.their_state is not h11.DONE:
        headers.append(("connection", "close"))
    body = response.body if wants_body else b""
    return _bytes(
        http,
        [h11.Response(status_code=response.status, headers=headers), h11.Data(data=body), h11.EndOfMessage()],
    )


def _bytes(http: h11.Connection, events: Sequence[h11.Event]) -> bytes:
    return b"".join(http.send(event) or b"" for event in events)
