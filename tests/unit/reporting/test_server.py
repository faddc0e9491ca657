"""The health endpoints and the status document, asked over real sockets."""

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from node_agent.errors import ConfigError
from node_agent.kit.http_client import get, lines, post
from node_agent.kit.tasks import running
from node_agent.reporting.health import CauseStatus, HealthDocument
from node_agent.reporting.parts import PartState, PartStatus
from node_agent.reporting.server import StatusServer
from node_agent.reporting.status import Status
from tests.fakes.builders import uuid
from tests.fakes.health import Ward, remap, xid

READY = Status(version="1", node="node-a", started=0.0)
TROUBLED = msgspec.structs.replace(READY, trouble=("the driver hangs in nvmlInit for 7 s", "no CDI spec"))


@dataclass
class Agent:
    """Something that has a status."""

    now: Status = READY

    def status(self) -> Status:
        return self.now


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def ward() -> Ward:
    return Ward()


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="status-", dir="/tmp") as name:
        yield Path(name) / "agent.sock"


@pytest.fixture
async def server(agent: Agent, ward: Ward, path: Path) -> AsyncIterator[Path]:
    async with running(StatusServer(agent.status, ward.view, path, clear=ward.clear).run()):
        yield await listening(path)


async def listening(path: Path) -> Path:
    async with asyncio.timeout(30):
        while not path.exists():
            await asyncio.sleep(0.01)
    return path


async def ask(path: Path, target: str) -> tuple[int, str]:
    status, body = await asyncio.to_thread(get, path, target)
    return status, body.decode()


async def test_an_agent_at_work_is_alive_and_ready(server: Path) -> None:
    assert await ask(server, "/healthz") == (200, "alive\n")
    assert await ask(server, "/readyz") == (200, "ready\n")


async def test_an_agent_in_trouble_is_alive_and_says_what_hangs(server: Path, agent: Agent) -> None:
    agent.now = TROUBLED
    assert await ask(server, "/healthz") == (200, "alive\nthe driver hangs in nvmlInit for 7 s\nno CDI spec\n")


async def test_an_agent_in_trouble_is_not_ready_and_says_why(server: Path, agent: Agent) -> None:
    agent.now = TROUBLED
    assert await ask(server, "/readyz") == (503, "not ready\nthe driver hangs in nvmlInit for 7 s\nno CDI spec\n")


async def test_a_probe_that_wants_more_is_told_how_each_part_stands(server: Path, agent: Agent) -> None:
    parts = (
        PartStatus(name="driver", state=PartState.FAILED, reason="DriverHangs", messages=("it hangs",)),
        PartStatus(name="mps", state=PartState.DEGRADED, reason="DaemonsNotServing"),
    )
    agent.now = msgspec.structs.replace(READY, trouble=("it hangs",), parts=parts)
    said = "[-]driver failed: DriverHangs\n[+]mps degraded: DaemonsNotServing\n"
    assert await ask(server, "/readyz?verbose") == (503, f"not ready\nit hangs\n{said}")
    agent.now = msgspec.structs.replace(READY, parts=parts[1:])
    assert await ask(server, "/readyz?verbose=1") == (200, "ready\n[+]mps degraded: DaemonsNotServing\n")


async def test_it_is_ready_again_as_soon_as_the_trouble_is_over(server: Path, agent: Agent) -> None:
    agent.now = TROUBLED
    assert (await ask(server, "/readyz"))[0] == 503
    agent.now = READY
    assert (await ask(server, "/readyz"))[0] == 200


async def test_the_whole_document_is_answered_as_json(server: Path, agent: Agent) -> None:
    agent.now = TROUBLED
    code, body = await ask(server, "/status")
    assert code == 200
    assert msgspec.json.decode(body, type=Status) == TROUBLED


async def test_the_document_says_that_it_is_json(server: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(server)
    writer.write(b"HEAD /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert b"content-type: application/json\r\n" in head


async def test_another_path_is_not_found_and_told_what_there_is(server: Path) -> None:
    code, body = await ask(server, "/healthy")
    assert code == 404
    assert {"/health,", "/healthz,", "/readyz,", "/status,"} <= set(body.split())


async def test_only_the_agents_user_and_group_may_ask(server: Path) -> None:
    assert os.stat(server).st_mode & 0o777 == 0o660


async def test_the_socket_ends_with_the_server(agent: Agent, path: Path) -> None:
    async with running(StatusServer(agent.status, Ward().view, path).run()):
        await listening(path)
    assert not path.exists()


async def test_a_tcp_address_is_served_beside_the_socket(agent: Agent, path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    over_tcp_too = StatusServer(agent.status, Ward().view, ("127.0.0.1", port))
    async with running(StatusServer(agent.status, Ward().view, path).run()), running(over_tcp_too.run()):
        await listening(path)
        assert await over_tcp(port) == await over_socket(path)


async def test_a_port_that_is_taken_is_named_with_its_setting(agent: Agent) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"agent\.http\.address \(127\.0\.0\.1:{port}\): cannot listen there"):
            await StatusServer(agent.status, Ward().view, ("127.0.0.1", port)).run()


async def test_the_health_of_all_gpus_is_one_document(server: Path, ward: Ward) -> None:
    ward.ail(1, xid(79))
    code, body = await ask(server, "/health")
    document = msgspec.json.decode(body, type=HealthDocument)
    assert (code, document) == (200, ward.view.document)
    assert [gpu.health for gpu in document.gpus] == ["healthy", "withdrawn"]


async def test_who_watches_the_health_gets_a_line_for_each_change(server: Path, ward: Ward) -> None:
    loop = asyncio.get_running_loop()

    def watch() -> list[str]:
        with lines(server, "/health?watch=1") as (code, found):
            assert code == 200
            first = msgspec.json.decode(next(found), type=HealthDocument)
            loop.call_soon_threadsafe(ward.ail, 0, xid())
            second = msgspec.json.decode(next(found), type=HealthDocument)
        return [document.gpus[0].health for document in (first, second)]

    async with asyncio.timeout(30):
        assert await asyncio.to_thread(watch) == ["healthy", "withdrawn"]


async def clear(path: Path, query: str) -> tuple[int, str]:
    code, body = await asyncio.to_thread(post, path, f"/health/clear?{query}")
    return code, body.decode()


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("gpu=gpu-1", []),
        (f"gpu={uuid(1)}&cause=xid", ["reset-needed"]),
        ("gpu=gpu-1&xid=79", ["xid", "reset-needed"]),
        ("gpu=gpu-1&cause=xid&xid=48", ["xid", "reset-needed"]),
    ],
)
async def test_the_causes_that_are_meant_are_cleared_and_told(
    server: Path, ward: Ward, query: str, left: list[str]
) -> None:
    ward.ail(1, xid(79), xid(48), remap())
    code, body = await clear(server, query)
    cleared = msgspec.json.decode(body, type=tuple[CauseStatus, ...])
    remaining = ward.view.document.gpus[1].causes
    assert code == 200
    assert [cause.reason for cause in remaining] == left
    assert len(cleared) + len(remaining) == 3


async def test_a_gpu_that_is_not_there_is_not_cleared(server: Path) -> None:
    code, body = await clear(server, "gpu=gpu-9")
    assert (code, body) == (404, "no GPU is called 'gpu-9' here; did you mean gpu-1 or gpu-0?\n")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("gpu=gpu-0&cause=xids", "cause: expected xid, gpu-lost, "),
        ("gpu=gpu-0&cause=", "cause: expected xid, "),
        ("gpu=gpu-0&xid=many", "xid: expected the number of an Xid"),
        ("gpu=gpu-0&xid=", "xid: expected the number of an Xid"),
        ("gpu=gpu-0&xids=79", "xids: unknown; there is gpu, cause, xid"),
    ],
)
async def test_what_is_not_understood_clears_nothing(server: Path, ward: Ward, query: str, said: str) -> None:
    ward.ail(0, xid())
    code, body = await clear(server, query)
    assert code == 400
    assert body.startswith(said)
    assert ward.view.document.gpus[0].causes


async def test_nothing_can_be_cleared_where_no_way_was_given_to_do_it(agent: Agent, ward: Ward, path: Path) -> None:
    ward.ail(0, xid())
    async with running(StatusServer(agent.status, ward.view, path).run()):
        code, _ = await clear(await listening(path), "gpu=gpu-0")
    assert code == 404
    assert ward.view.document.gpus[0].causes


async def over_tcp(port: int) -> bytes:
    async with asyncio.timeout(30):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
                continue
            return await exchange(reader, writer)


async def over_socket(path: Path) -> bytes:
    return await exchange(*await asyncio.open_unix_connection(path))


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.endswith(b"\r\n\r\nready\n")
    return answer
