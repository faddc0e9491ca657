"""Requests go over kept connections and come back whole; what breaks says so, and every connection is closed."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.kube import transport as transport_module
from node_agent.kube.transport import Answer, Endpoint, Outgoing, Transport, Unreached
from tests.fakes import certificates

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
GET = Outgoing(method="GET", target="/")

Script = Callable[["Peer"], Awaitable[None]]


@dataclass
class Peer:
    """One connection as the scripted server sees it; ``requests`` has the heads of what came in."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    requests: list[bytes] = field(default_factory=list)

    async def request(self) -> bytes:
        """The next request's head; raises IncompleteReadError where the client has closed."""
        self.requests.append(await self.reader.readuntil(b"\r\n\r\n"))
        return self.requests[-1]

    async def answer(self, *parts: bytes) -> None:
        await self.request()
        await self.say(*parts)

    async def say(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            await asyncio.sleep(0.001)

    async def closed(self) -> bool:
        """Whether the client closes, and says nothing more."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


class Server:
    """Plays its script on every connection."""

    def __init__(self, script: Script) -> None:
        self.peers: list[Peer] = []
        self.endpoint = Endpoint(host="127.0.0.1", port=0)
        self.tasks: set[asyncio.Task[None]] = set()
        self._script = script

    async def play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self.peers.append(peer)
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self._script(peer)
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client has gone, which is how most scripts end
        finally:
            writer.transport.abort()
            self.tasks.discard(task)


@asynccontextmanager
async def serving(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(script)
    listening = await asyncio.start_server(server.play, "127.0.0.1", 0, ssl=tls)
    server.endpoint = Endpoint(host="127.0.0.1", port=listening.sockets[0].getsockname()[1])
    async with listening:
        yield server
        async with asyncio.timeout(30):
            while server.tasks:
                await asyncio.sleep(0.001)


def always(*parts: bytes) -> Script:
    async def script(peer: Peer) -> None:
        while True:
            await peer.answer(*parts)

    return script


def once(*parts: bytes) -> Script:
    async def script(peer: Peer) -> None:
        await peer.answer(*parts)

    return script


async def closed(server: Server) -> None:
    """Wait until the server has closed all connections, and the client can know it."""
    while server.tasks:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)


async def silence(peer: Peer) -> None:
    await peer.closed()


async def asked(server: Server, outgoing: Outgoing = GET, timeout: float = 5.0) -> Answer:
    async with Transport(server.endpoint) as transport:
        return await transport.request(outgoing, timeout)


async def lines_of(server: Server, silence: float = 5.0) -> list[bytes]:
    async with (
        Transport(server.endpoint) as transport,
        transport.stream(GET, timeout=5.0, silence=silence) as lines,
    ):
        assert not isinstance(lines, Answer)
        return [line async for line in lines]


async def test_a_request_has_what_was_given_and_what_http_wants() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        assert await peer.reader.readexactly(5) == b"hello"
        await peer.say(b"HTTP/1.1 201 Created\r\nX-Said: Thanks\r\ncontent-length: 4\r\n\r\nbody")

    async with serving(script) as server:
        outgoing = Outgoing(method="POST", target="/a?b=c", headers={"Authorization": "Bearer t"}, body=b"hello")
        answer = await asked(server, outgoing)
        head = server.peers[0].requests[0].decode().split("\r\n")
    assert (answer.status, answer.body, answer.headers["x-said"]) == (201, b"body", "Thanks")
    assert head[0] == "POST /a?b=c HTTP/1.1"
    assert {"Authorization: Bearer t", "Content-Length: 5", f"Host: {server.endpoint.authority}"} <= set(head)


@pytest.mark.parametrize(
    "parts",
    [
        (OK,),
        tuple(bytes([byte]) for byte in OK),
        (CHUNKED, b"1\r\no\r\n", b"1\r\nk\r\n", b"0\r\n\r\n"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", OK),
        (b"HTTP/1.0 200 OK\r\n\r\nok",),
    ],
)
async def test_an_answer_is_whole_however_it_comes(parts: tuple[bytes, ...]) -> None:
    async with serving(once(*parts)) as server:
        assert (await asked(server)).body == b"ok"


async def test_requests_one_after_another_share_a_connection() -> None:
    async with serving(always(OK)) as server, Transport(server.endpoint) as transport:
        for _ in range(5):
            assert (await transport.request(GET, 5.0)).body == b"ok"
        assert len(server.peers) == 1


async def test_requests_at_once_have_connections_of_their_own_and_few_are_kept() -> None:
    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await asyncio.sleep(0.02)
            await peer.say(OK)

    async with serving(script) as server, Transport(server.endpoint) as transport:
        await asyncio.gather(*(transport.request(GET, 5.0) for _ in range(10)))
        assert len(server.peers) == 10
        while len(server.tasks) > transport_module.IDLE_CONNECTIONS:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        assert len(server.tasks) == transport_module.IDLE_CONNECTIONS


async def test_a_connection_that_the_server_has_closed_is_not_used_again() -> None:
    async with serving(once(OK)) as server, Transport(server.endpoint) as transport:
        for count in (1, 2, 3):
            assert (await transport.request(GET, 5.0)).body == b"ok"
            await closed(server)
            assert len(server.peers) == count


async def test_a_connection_that_says_it_closes_is_not_used_again() -> None:
    last = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"
    async with serving(always(last)) as server, Transport(server.endpoint) as transport:
        for _ in range(3):
            await transport.request(GET, 5.0)
        assert len(server.peers) == 3


async def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "IDLE_SECONDS", 0.0)
    async with serving(always(OK)) as server, Transport(server.endpoint) as transport:
        for _ in range(3):
            await transport.request(GET, 5.0)
        assert len(server.peers) == 3


async def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next() -> None:
    async with serving(always(OK + OK.replace(b"ok", b"no"))) as server, Transport(server.endpoint) as transport:
        assert (await transport.request(GET, 5.0)).body == b"ok"
        assert (await transport.request(GET, 5.0)).body == b"ok"


async def test_a_server_that_is_not_there_was_not_reached() -> None:
    async with serving(silence) as server:
        pass
    with pytest.raises(Unreached, match="Connect call failed"):
        await asked(server)


async def test_a_server_that_does_not_shake_hands_was_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "CONNECT_SECONDS", 0.1)
    async with serving(silence) as server:
        endpoint = Endpoint(host="127.0.0.1", port=server.endpoint.port, tls=ssl.create_default_context)
        async with Transport(endpoint) as transport:
            with pytest.raises(Unreached, match=r"no connection within 0\.1 s"):
                await transport.request(GET, 5.0)


async def test_a_server_without_tls_where_it_should_be_was_not_reached() -> None:
    async def script(peer: Peer) -> None:
        await peer.say(OK)

    async with serving(script) as server:
        endpoint = Endpoint(host="127.0.0.1", port=server.endpoint.port, tls=ssl.create_default_context)
        async with Transport(endpoint) as transport:
            with pytest.raises(Unreached, match="SSL"):
                await transport.request(GET, 5.0)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((), "closed the connection before its answer was complete"),
        ((b"HTTP/1.1 200",), "closed the connection before its answer was complete"),
        ((OK[:-1],), "closed the connection before its answer was complete"),
        ((CHUNKED, b"5\r\nab"), "closed the connection before its answer was complete"),
        ((b"SSH-2.0-OpenSSH_9.7\r\n\r\n",), "does not speak HTTP/1.1"),
        ((CHUNKED, b"xyz\r\n"), "does not speak HTTP/1.1"),
    ],
)
async def test_an_answer_that_breaks_off_or_is_none_is_an_error(parts: tuple[bytes, ...], said: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(*parts)
        if said.startswith("does"):
            await peer.closed()

    async with serving(script) as server:
        with pytest.raises(ConnectionError, match=said) as broken:
            await asked(server)
    assert not isinstance(broken.value, Unreached)


async def test_an_answer_that_does_not_come_is_given_up_and_its_connection_closed() -> None:
    closed = []

    async def script(peer: Peer) -> None:
        await peer.request()
        closed.append(await peer.closed())

    async with serving(script) as server:
        with pytest.raises(TimeoutError):
            await asked(server, timeout=0.05)
    assert closed == [True]


async def test_a_cancelled_request_leaves_no_connection() -> None:
    arrived = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        arrived.set()
        assert await peer.closed()

    async with serving(script) as server, Transport(server.endpoint) as transport:
        task = asyncio.create_task(transport.request(GET, 5.0))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while server.tasks:
            await asyncio.sleep(0.001)


async def test_a_head_or_a_body_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(always(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000)) as server:
        with pytest.raises(ConnectionError, match=r"does not speak HTTP/1\.1"):
            await asked(server)
    monkeypatch.setattr(transport_module, "BODY_BYTES", 100_000)
    async with serving(always(CHUNKED + b"fffff\r\n" + b"x" * 0xFFFFF)) as server:
        with pytest.raises(ConnectionError, match="larger than 100000 bytes"):
            await asked(server)


async def test_a_large_answer_arrives_whole() -> None:
    body = bytes(range(256)) * 20_000
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    async with serving(always(head + body)) as server:
        assert (await asked(server)).body == body


async def test_a_large_request_arrives_whole() -> None:
    body, got = bytes(range(256)) * 10_000, []

    async def script(peer: Peer) -> None:
        await peer.request()
        got.append(await peer.reader.readexactly(len(body)))
        await peer.say(OK)

    async with serving(script) as server:
        await asked(server, Outgoing(method="PUT", target="/", body=body))
    assert got == [body]


async def test_lines_come_one_by_one_while_the_answer_goes_on() -> None:
    said = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.answer(CHUNKED, b"4\r\none\n\r\n")
        await said.wait()
        await peer.say(b"4\r\ntwo\n\r\n", b"0\r\n\r\n")

    async with (
        serving(script) as server,
        Transport(server.endpoint) as transport,
        transport.stream(GET, timeout=5.0, silence=5.0) as lines,
    ):
        assert not isinstance(lines, Answer)
        assert await anext(lines) == b"one"
        said.set()
        assert [line async for line in lines] == [b"two"]


@settings(max_examples=30)
@given(st.lists(st.integers(1, 12), max_size=8))
async def test_lines_are_whole_however_they_were_cut(cuts: list[int]) -> None:
    text = b'{"a": 1}\n{"b": 2}\n\n{"c": 3}\n'
    pieces, at = [], 0
    for cut in [*cuts, len(text)]:
        pieces.append(text[at : at + cut])
        at += cut
    chunks = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece]
    async with serving(once(CHUNKED, *chunks, b"0\r\n\r\n")) as server:
        assert await lines_of(server) == [b'{"a": 1}', b'{"b": 2}', b"", b'{"c": 3}']


async def test_lines_of_an_answer_that_is_no_success_are_the_whole_answer() -> None:
    refusal = OK.replace(b"200 OK", b"410 Gone")
    async with serving(always(refusal)) as server, Transport(server.endpoint) as transport:
        async with transport.stream(GET, timeout=5.0, silence=5.0) as answer:
            assert isinstance(answer, Answer)
            assert (answer.status, answer.body) == (410, b"ok")
        await transport.request(GET, 5.0)
        assert len(server.peers) == 1


async def test_lines_that_break_off_are_an_error_after_those_that_came() -> None:
    async with (
        serving(once(CHUNKED, b"4\r\none\n\r\n")) as server,
        Transport(server.endpoint) as transport,
        transport.stream(GET, timeout=5.0, silence=5.0) as lines,
    ):
        assert not isinstance(lines, Answer)
        assert await anext(lines) == b"one"
        with pytest.raises(ConnectionError, match="before its answer was complete"):
            await anext(lines)


async def test_lines_that_stop_coming_are_given_up() -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(CHUNKED, b"4\r\none\n\r\n")
        await peer.closed()

    async with serving(script) as server:
        with pytest.raises(TimeoutError):
            await lines_of(server, silence=0.05)


async def test_a_line_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "LINE_BYTES", 100_000)

    async def script(peer: Peer) -> None:
        await peer.answer(CHUNKED)
        while True:
            await peer.say(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")

    async with serving(script) as server:
        with pytest.raises(ConnectionError, match="a line of the answer is larger"):
            await lines_of(server)


async def test_leaving_the_lines_early_closes_their_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.answer(CHUNKED, b"8\r\none\ntwo\n\r\n")
        assert await peer.closed()

    async with serving(script) as server, Transport(server.endpoint) as transport:
        async with transport.stream(GET, timeout=5.0, silence=5.0) as lines:
            assert not isinstance(lines, Answer)
            async for line in lines:
                assert line == b"one"
                break
        while server.tasks:
            await asyncio.sleep(0.001)


def secure(server: Server, *contexts: ssl.SSLContext) -> Transport:
    """A transport that trusts the authority of each context in turn, connection by connection."""
    following = iter(contexts)
    return Transport(Endpoint(host="127.0.0.1", port=server.endpoint.port, tls=lambda: next(following)))


def trusting(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority)


async def test_tls_connections_are_kept_and_closed_too() -> None:
    async with serving(always(OK), certificates.serving()) as server:
        async with secure(server, trusting(certificates.AUTHORITY)) as transport:
            for _ in range(3):
                assert (await transport.request(GET, 5.0)).body == b"ok"
        assert len(server.peers) == 1


async def test_a_new_connection_uses_the_context_as_it_then_is() -> None:
    contexts = [trusting(certificates.AUTHORITY), trusting(certificates.STRANGER)]
    async with serving(once(OK), certificates.serving()) as server, secure(server, *contexts) as transport:
        assert (await transport.request(GET, 5.0)).body == b"ok"
        await closed(server)
        with pytest.raises(ssl.SSLCertVerificationError):
            await transport.request(GET, 5.0)


async def test_an_address_of_the_sixth_version_has_brackets_in_urls() -> None:
    assert Endpoint(host="fd00::1", port=6443).authority == "[fd00::1]:6443"
    assert Endpoint(host="10.96.0.1", port=443).authority == "10.96.0.1:443"


async def test_a_dead_peer_is_noticed_on_a_quiet_connection() -> None:
    """Only the options are looked at: a peer that vanishes cannot be made on one machine without rights."""
    async with serving(always(OK)) as server, Transport(server.endpoint) as transport:
        await transport.request(GET, 5.0)
        connection = transport._idle[0]._writer.get_extra_info("socket")
        for level, option, value in transport_module.KEEP_ALIVE:
            assert connection.getsockopt(level, option) == value
