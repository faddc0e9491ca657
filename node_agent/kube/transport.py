"""HTTP/1.1 to one server, over connections that are kept for the next request: what ``client`` speaks.

Whatever goes wrong on the way is an OSError; ``Unreached`` is one that came before the request was sent. A host given
by its address is reached without a thread; asyncio looks names up on one.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress

import h11
from msgspec import Struct, field

CONNECT_SECONDS = 5.0
# Servers close idle connections after a minute or more; a request into one that just closes is lost.
IDLE_SECONDS = 30.0
IDLE_CONNECTIONS = 4
READ_BYTES = 64 * 1024
HEAD_BYTES = 64 * 1024
BODY_BYTES = 64 * 1024 * 1024
# More than the largest object that an API server takes.
LINE_BYTES = 8 * 1024 * 1024
# A peer that is gone without a word is noticed within half a minute, however quiet the connection is.
KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)


class Unreached(ConnectionError):
    """No connection came about, so the request was not sent."""


class Outgoing(Struct, frozen=True, kw_only=True):
    """A request; ``target`` is the path with the query."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Answer(Struct, frozen=True, kw_only=True):
    """A whole answer; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where the server is. ``tls`` gives the context for a new connection, None for plain HTTP."""

    host: str
    port: int
    server_name: str = ""
    tls: Callable[[], ssl.SSLContext | None] = lambda: None

    @property
    def authority(self) -> str:
        """Host and port as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Transport:
    """Connections to one endpoint. An async context manager: what is idle at its end is closed."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._idle: list[_Connection] = []

    async def __aenter__(self) -> "Transport":
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._idle:
            await self._idle.pop().close()

    async def request(self, outgoing: Outgoing, timeout: float) -> Answer:
        """Ask, and wait for the whole answer, ``timeout`` seconds in all.

        Raises:
            Unreached: no connection came about.
            OSError: it broke, took too long, or what came is not HTTP or too large.
            ssl.SSLCertVerificationError: the server is not who it should be.
        """
        async with asyncio.timeout(timeout), self._connection() as connection:
            head = await connection.ask(self._endpoint.authority, outgoing)
            return Answer(status=head.status_code, headers=_headers(head), body=await connection.body())

    @asynccontextmanager
    async def stream(
        self, outgoing: Outgoing, *, timeout: float, silence: float
    ) -> AsyncIterator["Answer | AsyncIterator[bytes]"]:
        """Ask for an answer that goes on: its lines as they come, or the whole answer where it is no success.

        ``timeout`` is in seconds and for the beginning of the answer, ``silence`` for each pause in it. The connection
        is closed with the block.

        Raises:
            As ``request``; the lines too.
        """
        async with self._connection() as connection:
            async with asyncio.timeout(timeout):
                head = await connection.ask(self._endpoint.authority, outgoing)
                whole = head.status_code != 200
                body = await connection.body() if whole else b""
            if whole:
                yield Answer(status=head.status_code, headers=_headers(head), body=body)
                return
            async with aclosing(connection.lines(silence)) as lines:
                yield lines

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator["_Connection"]:
        """An idle connection or a new one; it is kept if its exchange has come to its end, and closed otherwise."""
        connection = await self._take() or await self._open()
        try:
            yield connection
        finally:
            if connection.start_next() and len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append(connection)
            else:
                await connection.close()

    async def _take(self) -> "_Connection | None":
        while self._idle:
            connection, fresh = self._idle.pop(), False
            try:
                fresh = await connection.fresh()
            finally:
                # Also where the wait was cancelled: nobody else knows of it by now.
                if not fresh:
                    await connection.close()
            if fresh:
                return connection
        return None

    async def _open(self) -> "_Connection":
        endpoint, tls = self._endpoint, self._endpoint.tls()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    endpoint.host,
                    endpoint.port,
                    ssl=tls,
                    server_hostname=(endpoint.server_name or endpoint.host) if tls is not None else None,
                )
        except ssl.SSLCertVerificationError:
            raise  # the next try would end as this one did
        except OSError as error:
            raise Unreached(_reason(error)) from error
        for option in KEEP_ALIVE:
            writer.get_extra_info("socket").setsockopt(*option)
        return _Connection(reader, writer)


class _Connection:
    """One connection and where its exchange stands."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        self._since = time.monotonic()

    async def fresh(self) -> bool:
        """Whether an idle connection can be used: it is young, and nothing has come on it, not even its end."""
        if self._reader.exception() is not None or time.monotonic() - self._since > IDLE_SECONDS:
            return False
        # A reader tells only by reading whether it has something; a pause of no length is enough for that.
        try:
            async with asyncio.timeout(0):
                await self._reader.read(1)
        except TimeoutError:
            return True
        return False

    def start_next(self) -> bool:
        """Make ready for another exchange; says whether that is possible."""
        # What came beyond the answer would be taken for the next one.
        whole = self._http.our_state is self._http.their_state is h11.DONE
        if not whole or self._http.trailing_data != (b"", False):
            return False
        self._http.start_next_cycle()
        self._since = time.monotonic()
        return True

    async def close(self) -> None:
        # Nothing is left to be said, and a farewell of TLS may wait for a peer that is gone.
        self._writer.transport.abort()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def ask(self, authority: str, outgoing: Outgoing) -> h11.Response:
        """Send a request; returns the beginning of the answer."""
        headers = {"Host": authority} | dict(outgoing.headers)
        if outgoing.body:
            headers["Content-Length"] = str(len(outgoing.body))
        request = h11.Request(method=outgoing.method, target=outgoing.target, headers=list(headers.items()))
        events = (request, h11.Data(data=outgoing.body), h11.EndOfMessage())
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))
        await self._writer.drain()
        while not isinstance(event := await self._next(None), h11.Response):
            pass  # "100 Continue" and its like
        return event

    async def body(self) -> bytes:
        parts, size = [], 0
        while (part := await self._part(None)) is not None:
            parts.append(part)
            size += len(part)
            if size > BODY_BYTES:
                raise ConnectionError(f"the answer is larger than {BODY_BYTES} bytes")
        return b"".join(parts)

    async def lines(self, silence: float) -> AsyncGenerator[bytes, None]:
        rest = b""
        while (part := await self._part(silence)) is not None:
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                yield line
            if len(rest) > LINE_BYTES:
                raise ConnectionError(f"a line of the answer is larger than {LINE_BYTES} bytes")

    async def _part(self, silence: float | None) -> bytes | None:
        """Some of the answer's content, None at its end."""
        event = await self._next(silence)
        return bytes(event.data) if isinstance(event, h11.Data) else None

    async def _next(self, silence: float | None) -> h11.Event:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                async with asyncio.timeout(silence):
                    self._http.receive_data(await self._reader.read(READ_BYTES))
        except h11.RemoteProtocolError as error:
            raise ConnectionError(self._complaint(error)) from error
        assert isinstance(event, h11.Event)
        return event

    def _complaint(self, error: h11.RemoteProtocolError) -> str:
        if self._reader.at_eof():
            return "the server closed the connection before its answer was complete"
        return f"what answers does not speak HTTP/1.1: {error}"


def _headers(head: h11.Response) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}


def _reason(error: OSError) -> str:
    return f"no connection within {CONNECT_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error)
