"""The server answers its table of paths, refuses all else, and no bytes and no slowness can harm it."""

import asyncio
import os
import socket
import stat
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.kit.http import Limits, Request, Response, serving
from node_agent.kit.http_client import get, lines, post
from node_agent.kit.latest import Latest

HASTY = Limits(request_seconds=0.05, answer_seconds=0.05)
SLOW = Limits(answer_seconds=0.05)
"""For a client that is slow to ask as well, since the machine is busy."""


async def health(_: Request) -> Response:
    return Response(body=b"ok\n")


async def echo(request: Request) -> Response:
    return Response(body=request.query.encode(), status=203, content_type="text/html")


async def broken(_: Request) -> Response:
    raise ValueError("secret of the inside")


async def endless(_: Request) -> Response:
    await asyncio.Event().wait()
    return Response()


async def large(_: Request) -> Response:
    return Response(body=b"x" * 10_000_000)


async def cleared(request: Request) -> Response:
    return Response(body=f"cleared {request.query}\n".encode())


@dataclass
class Counting:
    """A route whose answers go on, a part at each ``step``; ``open`` of them have begun and not ended."""

    steps: Latest[int] = field(default_factory=lambda: Latest(0))
    last: int = 3
    open: int = 0

    async def __call__(self, _: Request) -> Response:
        return Response(body=b"first\n", more=self._parts())

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        self.open += 1
        try:
            async for step in self.steps.watch():
                if step == self.last:
                    return
                yield f"{step}\n".encode()
        finally:
            self.open -= 1


ROUTES = {"/healthz": health, "/echo": echo, "/broken": broken, "/endless": endless, "/large": large}


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[Path]:
    async with serving(ROUTES, tmp_path / "http.sock"):
        yield tmp_path / "http.sock"


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


async def exchange(path: Path, sent: bytes) -> bytes:
    """Send, end the sending side, and read until the server closes."""
    async with asyncio.timeout(30), connected(path) as (reader, writer):
        writer.write(sent)
        writer.write_eof()
        return await received(reader)


async def received(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server closes; what was cut off counts as closed."""
    parts = []
    try:
        while part := await reader.read(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def status_of(answer: bytes) -> int:
    version, status, _ = answer.split(b" ", 2)
    assert version == b"HTTP/1.1"
    return int(status)


async def ask(path: Path, target: str) -> tuple[int, bytes]:
    return await asyncio.to_thread(get, path, target)


async def test_a_path_of_the_table_is_answered(path: Path) -> None:
    assert await ask(path, "/healthz") == (200, b"ok\n")


async def test_a_route_gets_the_query_and_chooses_status_and_type(path: Path) -> None:
    assert await ask(path, "/echo?a=1&b=%20") == (203, b"a=1&b=%20")
    assert b"content-type: text/html\r\n" in (await exchange(path, b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")).lower()


async def test_another_path_is_not_found_and_the_answer_names_those_that_there_are(path: Path) -> None:
    status, body = await ask(path, "/healthz/")
    assert status == 404
    assert body == b"there is /broken, /echo, /endless, /healthz, /large\n"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "BREW"])
async def test_other_methods_are_refused_with_those_that_are_allowed(path: Path, method: str) -> None:
    answer = await exchange(path, f"{method} /healthz HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert status_of(answer) == 405
    assert b"\r\nallow: get, head\r\n" in answer.lower()


async def test_what_changes_something_is_done_by_post_alone(tmp_path: Path) -> None:
    async with serving({"POST /clear": cleared}, tmp_path / "s"):
        assert await asyncio.to_thread(post, tmp_path / "s", "/clear?gpu=3") == (200, b"cleared gpu=3\n")
        answer = await exchange(tmp_path / "s", b"GET /clear HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status_of(answer) == 405
    assert b"\r\nallow: post\r\n" in answer.lower()


async def test_an_answer_that_goes_on_is_sent_part_by_part_until_it_ends(tmp_path: Path) -> None:
    counting = Counting()

    def read() -> list[bytes]:
        got = []
        with lines(tmp_path / "s", "/count") as (_, parts):
            for part in parts:
                got.append(part)
                loop.call_soon_threadsafe(counting.steps.set, len(got) - 1)
        return got

    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30), serving({"/count": counting}, tmp_path / "s"):
        assert await asyncio.to_thread(read) == [b"first\n", b"0\n", b"1\n", b"2\n"]
    assert counting.open == 0


async def test_an_answer_that_goes_on_ends_with_its_client_and_leaves_room_for_another(tmp_path: Path) -> None:
    counting = Counting()
    request = b"GET /count HTTP/1.1\r\nHost: x\r\n\r\n"
    async with asyncio.timeout(30), serving({"/count": counting}, tmp_path / "s", Limits(streams=1)):
        async with connected(tmp_path / "s") as (reader, writer):
            writer.write(request)
            await reader.readuntil(b"0\n")
            assert status_of(await exchange(tmp_path / "s", request)) == 503
        while counting.open:
            # The next part that cannot be sent tells that nobody reads any more.
            counting.steps.set(counting.steps.value - 1)
            await asyncio.sleep(0.01)
        async with connected(tmp_path / "s") as (reader, writer):
            writer.write(request)
            assert b"200" in await reader.readuntil(b"\r\n")


async def test_head_asks_for_the_beginning_of_an_answer_that_goes_on(tmp_path: Path) -> None:
    counting = Counting()
    async with serving({"/count": counting}, tmp_path / "s"):
        assert status_of(await exchange(tmp_path / "s", b"HEAD /count HTTP/1.1\r\nHost: x\r\n\r\n")) == 200
    assert counting.open == 0


async def test_an_answer_that_fails_on_its_way_is_broken_off_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def parts() -> AsyncGenerator[bytes, None]:
        yield b"1"
        raise ValueError("no two")

    async def route(_: Request) -> Response:
        return Response(more=parts())

    async with serving({"/count": route}, tmp_path / "s"):
        answer = await exchange(tmp_path / "s", b"GET /count HTTP/1.1\r\nHost: x\r\n\r\n")
    assert not answer.endswith(b"0\r\n\r\n")
    assert [record.getMessage() for record in caplog.records] == ["answer broken off"]


async def test_head_answers_as_get_without_the_body(path: Path) -> None:
    answer = await exchange(path, b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status_of(answer) == 200
    assert b"content-length: 3\r\n" in answer.lower()
    assert answer.endswith(b"\r\n\r\n")


async def test_a_route_that_fails_answers_500_logs_why_and_tells_no_stranger(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    status, body = await ask(path, "/broken")
    assert status == 500
    assert b"secret" not in body
    assert [record.getMessage() for record in caplog.records] == ["request failed"]
    assert "secret of the inside" in caplog.records[0].__dict__["facts"]["reason"]
    assert await ask(path, "/healthz") == (200, b"ok\n")


async def test_a_route_that_hangs_is_given_up(tmp_path: Path) -> None:
    async with serving(ROUTES, tmp_path / "s", SLOW):
        assert (await ask(tmp_path / "s", "/endless"))[0] == 500


async def test_a_large_answer_arrives_whole(path: Path) -> None:
    status, body = await ask(path, "/large")
    assert (status, len(body)) == (200, 10_000_000)


async def test_a_connection_serves_many_requests_one_by_one_or_sent_at_once(path: Path) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with connected(path) as (reader, writer):
        for _ in range(3):
            writer.write(request)
            await reader.readuntil(b"ok\n")
    assert (await exchange(path, request * 5)).count(b"ok\n") == 5


@pytest.mark.parametrize(
    "request_head",
    [b"GET /healthz HTTP/1.0\r\n\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"],
)
async def test_a_client_that_wants_no_more_gets_the_connection_closed(path: Path, request_head: bytes) -> None:
    async with asyncio.timeout(30), connected(path) as (reader, writer):
        writer.write(request_head)
        answer = await received(reader)
    assert answer.endswith(b"ok\n")
    assert b"connection: close\r\n" in answer.lower()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody", 413),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n", 413),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nCookie: " + b"a" * 30_000 + b"\r\n\r\n", 431),
        (b"G" * 30_000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
)
async def test_what_is_no_request_without_a_body_is_refused(path: Path, sent: bytes, status: int) -> None:
    answer = await exchange(path, sent)
    assert status_of(answer) == status
    assert b"connection: close\r\n" in answer.lower()


REQUEST = b"GET /healthz?q HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n"
MUTATED = st.lists(st.tuples(st.integers(0, len(REQUEST) - 1), st.integers(0, 3), st.binary(max_size=6)), max_size=6)


def mutate(changes: list[tuple[int, int, bytes]]) -> bytes:
    """A good request with some bytes replaced, dropped or put in."""
    data = REQUEST
    for place, dropped, inserted in changes:
        data = data[:place] + inserted + data[place + dropped :]
    return data


@settings(max_examples=300)
@given(sent=st.one_of(st.binary(max_size=200), MUTATED.map(mutate), st.lists(MUTATED.map(mutate)).map(b"".join)))
async def test_no_bytes_do_more_than_get_an_answer_or_the_connection_closed(sent: bytes) -> None:
    failures = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s")
        async with serving(ROUTES, path, Limits(request_bytes=1024)):
            answer = await exchange(path, sent)
            assert answer == b"" or status_of(answer) in {200, 400, 404, 405, 413, 431, 501, 505}
            assert (await exchange(path, REQUEST)).endswith(b"ok\n")
    assert not failures


async def test_who_sends_nothing_or_never_ends_a_request_is_cut_off(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(30),
        serving(ROUTES, tmp_path / "s", HASTY),
        connected(tmp_path / "s") as (silent, _),
        connected(tmp_path / "s") as (slow, writer),
    ):
        for _ in range(3):
            writer.write(b"G")
            await asyncio.sleep(0.01)
        assert await received(silent) == b""
        assert await received(slow) == b""


async def test_who_does_not_take_the_answer_is_cut_off(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(30),
        serving(ROUTES, tmp_path / "s", SLOW),
        connected(tmp_path / "s") as (reader, writer),
    ):
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.3)
        assert 0 < len(await received(reader)) < 10_000_000


async def test_a_connection_above_the_limit_is_told_that_the_server_is_busy(tmp_path: Path) -> None:
    async with serving(ROUTES, tmp_path / "s", Limits(connections=2)):
        async with connected(tmp_path / "s"), connected(tmp_path / "s"):
            await asyncio.sleep(0.01)
            assert status_of(await exchange(tmp_path / "s", b"")) == 503
        await asyncio.sleep(0.01)
        assert await ask(tmp_path / "s", "/healthz") == (200, b"ok\n")


async def test_a_client_that_goes_away_in_the_middle_harms_nobody(path: Path) -> None:
    for sent in (
        b"",
        b"GET /he",
        b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        async with connected(path) as (_, writer):
            writer.write(sent)
            await asyncio.sleep(0.01)
    assert await ask(path, "/healthz") == (200, b"ok\n")


async def test_the_end_of_the_block_cuts_open_connections_and_what_they_wait_for(tmp_path: Path) -> None:
    async with asyncio.timeout(30), asyncio.TaskGroup() as group, serving(ROUTES, tmp_path / "s"):
        idle, waiting = (group.create_task(exchange_open(tmp_path / "s", target)) for target in ("", "/endless"))
        await asyncio.sleep(0.05)
    assert (idle.result(), waiting.result()) == (b"", b"")
    assert os.listdir(tmp_path) == []


async def exchange_open(path: Path, target: str) -> bytes:
    """Send a request, or nothing, keep the sending side open, and read until the server closes."""
    async with connected(path) as (reader, writer):
        if target:
            writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return await received(reader)


async def test_a_tcp_address_serves_the_same_table(tmp_path: Path) -> None:
    async with serving(ROUTES, ("127.0.0.1", 0)) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await received(reader)).endswith(b"ok\n")
        writer.close()
        await writer.wait_closed()


async def test_a_tcp_address_that_is_taken_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            async with serving(ROUTES, taken.getsockname()):
                pytest.fail("served on an address that is taken")


async def test_the_socket_is_for_its_owner_and_group_only(path: Path) -> None:
    assert stat.S_IMODE(os.lstat(path).st_mode) == 0o660
    assert os.listdir(path.parent) == [path.name]


async def test_a_socket_that_a_killed_process_left_is_replaced_and_removed_at_the_end(tmp_path: Path) -> None:
    for name in ("s", ".s"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / name))
    async with serving(ROUTES, tmp_path / "s"):
        assert await ask(tmp_path / "s", "/healthz") == (200, b"ok\n")
    assert os.listdir(tmp_path) == []


async def test_the_socket_of_a_successor_is_left_alone(tmp_path: Path) -> None:
    async with serving(ROUTES, tmp_path / "s"):
        await asyncio.sleep(0.02)
        successor = serving(ROUTES, tmp_path / "s")
        await successor.__aenter__()
    assert await ask(tmp_path / "s", "/healthz") == (200, b"ok\n")
    await successor.__aexit__(None, None, None)


async def test_a_socket_that_cannot_be_made_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        async with serving(ROUTES, tmp_path / "taken"):
            pytest.fail("served in place of a folder")
    with pytest.raises(FileNotFoundError):
        async with serving(ROUTES, tmp_path / "gone" / "s"):
            pytest.fail("served in a folder that does not exist")
    with pytest.raises(ValueError, match="use a shorter folder"):
        async with serving(ROUTES, tmp_path / ("s" * 107)):
            pytest.fail("served on a path that no client can name")
    assert os.listdir(tmp_path) == ["taken"]
