"""A socket is there only while its server answers, for its owner alone, and nobody else's is ever removed."""

import asyncio
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from node_agent.errors import KubeletError
from node_agent.kit.unix import identity
from node_agent.kubelet.server import describe, serving
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from node_agent.wire import deviceplugin_v1beta1_pb2_grpc as rpc
from tests.unit.kubelet.fakes import RESOURCE, FakeKubelet


async def register(path: Path, timeout: float = 5.0) -> None:
    """Any call will do."""
    request = wire.RegisterRequest(resource_name=RESOURCE)
    async with aio.insecure_channel(f"unix:{path}") as channel:
        await rpc.RegistrationStub(channel).Register(request, timeout=timeout)


@asynccontextmanager
async def served(path: Path, kubelet: FakeKubelet | None = None, grace: float = 0) -> AsyncIterator[FakeKubelet]:
    kubelet = kubelet or FakeKubelet()
    async with serving(path, kubelet.add_to, grace):
        yield kubelet


class SlowKubelet(FakeKubelet):
    """Takes a moment to answer; ``busy`` is set meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.busy = asyncio.Event()

    async def Register(self, request: wire.RegisterRequest, context: Any) -> wire.Empty:
        self.busy.set()
        await asyncio.sleep(0.2)
        return wire.Empty()


async def test_a_server_that_is_cancelled_at_any_moment_of_its_start_ends_and_leaves_nothing(folder: Path) -> None:
    async def serve() -> None:
        async with served(folder / "s.sock"):
            await asyncio.Event().wait()

    for turns in range(12):
        task = asyncio.create_task(serve())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not list(folder.iterdir())


async def test_being_cancelled_at_any_moment_of_the_stop_is_not_lost(folder: Path) -> None:
    async def serve(stops: asyncio.Event) -> None:
        async with served(folder / "s.sock", grace=1):
            stops.set()
        await asyncio.sleep(5)

    for turns in range(12):
        stops = asyncio.Event()
        task = asyncio.create_task(serve(stops))
        await stops.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(30):
            await asyncio.wait([task])
        assert task.cancelled()


async def test_the_socket_answers_while_the_block_runs_and_is_gone_afterwards(folder: Path) -> None:
    async with served(folder / "s.sock") as kubelet:
        await register(folder / "s.sock")
        assert [path.name for path in folder.iterdir()] == ["s.sock"]

    assert [request.resource_name for request in kubelet.requests] == [RESOURCE]
    assert not list(folder.iterdir())


async def test_only_the_owner_may_use_the_socket(folder: Path) -> None:
    async with served(folder / "s.sock"):
        mode = (folder / "s.sock").stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


async def test_whoever_finds_the_socket_finds_it_listening_and_closed_to_others(folder: Path) -> None:
    path, found, ended = folder / "s.sock", list[tuple[int, int]](), threading.Event()

    def look() -> None:
        while not ended.is_set():
            if identity(path) is not None:
                with socket.socket(socket.AF_UNIX) as probe:
                    found.append((probe.connect_ex(str(path)), stat.S_IMODE(os.stat(path).st_mode)))
                return

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        async with served(path):
            await asyncio.to_thread(watcher.join, 5)
    finally:
        ended.set()
        watcher.join()
    assert found == [(0, 0o600)]


async def test_a_successor_takes_the_place_and_the_end_of_the_first_leaves_it_alone(folder: Path) -> None:
    path = folder / "s.sock"
    first = served(path)
    await first.__aenter__()
    async with served(path) as second:
        await first.__aexit__(None, None, None)
        await register(path)
        assert len(second.requests) == 1
    assert not path.exists()


@pytest.mark.parametrize("left", ["file", "socket"])
async def test_what_a_killed_agent_left_under_the_hidden_name_is_replaced(folder: Path, left: str) -> None:
    hidden = folder / ".s.sock"
    if left == "file":
        hidden.write_text("")
    else:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(hidden))
    async with served(folder / "s.sock"):
        await register(folder / "s.sock")
        assert not hidden.exists()


async def test_a_block_that_fails_leaves_no_socket(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with served(folder / "s.sock"):
            raise ZeroDivisionError
    assert not list(folder.iterdir())


async def test_a_socket_that_somebody_wiped_is_not_missed_at_the_end(folder: Path) -> None:
    async with served(folder / "s.sock"):
        (folder / "s.sock").unlink()
    assert not list(folder.iterdir())


async def test_a_call_in_flight_may_end_before_the_server_does(folder: Path) -> None:
    async with served(folder / "s.sock", kubelet := SlowKubelet(), grace=5):
        call = asyncio.create_task(register(folder / "s.sock"))
        await kubelet.busy.wait()
    await call


async def test_a_call_that_outlasts_the_grace_is_cut_off(folder: Path) -> None:
    async with served(folder / "s.sock", kubelet := SlowKubelet(), grace=0):
        call = asyncio.create_task(register(folder / "s.sock"))
        await kubelet.busy.wait()
    with pytest.raises(aio.AioRpcError):
        await call


async def test_a_missing_folder_is_named_with_what_to_look_at(folder: Path) -> None:
    with pytest.raises(KubeletError, match=r"cannot serve on .*/none/s\.sock: .*does the folder exist, and may the"):
        async with served(folder / "none" / "s.sock"):
            raise AssertionError("it serves nowhere")


@pytest.mark.parametrize("obstacle", ["s.sock", ".s.sock"])
async def test_a_folder_in_the_place_of_the_socket_is_an_error_and_stays(folder: Path, obstacle: str) -> None:
    (folder / obstacle / "precious").mkdir(parents=True)
    with pytest.raises(KubeletError, match="cannot serve on"):
        async with served(folder / "s.sock"):
            raise AssertionError("it serves nowhere")
    assert [path.name for path in folder.iterdir()] == [obstacle]
    assert (folder / obstacle / "precious").is_dir()


async def test_a_file_in_the_place_of_the_folder_is_an_error(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(KubeletError, match="cannot serve on"):
        async with served(folder / "file" / "s.sock"):
            raise AssertionError("it serves nowhere")


async def test_a_path_too_long_for_the_kernel_is_an_error_that_says_so(folder: Path) -> None:
    with pytest.raises(KubeletError, match="the kernel allows 107: use a shorter folder"):
        async with served(folder / ("x" * 120)):
            raise AssertionError("it serves nowhere")


async def test_a_failed_call_is_described_by_its_code_and_what_the_other_side_said(folder: Path) -> None:
    async with served(folder / "s.sock", FakeKubelet(refusal="not today")):
        with pytest.raises(aio.AioRpcError) as caught:
            await register(folder / "s.sock")
    assert describe(caught.value) == "UNKNOWN: not today"
    assert describe(grpc.RpcError("something else")) == "something else"
