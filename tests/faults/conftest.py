"""An agent on a simulated node beside a kubelet: the real agent in process, all around it on disk and on sockets.

The tests of this folder meet the agent as its users do: they break the node, and look at what the kubelet, the CDI
folder and the status document have. Nothing inside the agent is replaced, only its intervals are short.
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest
from grpc import aio
from msgspec.structs import replace

from node_agent.agent.agent import Agent
from node_agent.agent.build import built
from node_agent.cdi import publisher
from node_agent.cdi.names import file_name
from node_agent.config.resolve import resolve
from node_agent.config.settings import Settings
from node_agent.hardware import inventory
from node_agent.hardware.nvml import events, readings
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.placeholders import stat
from node_agent.hardware.simulated.profile import NodeProfile
from node_agent.health import watcher
from node_agent.kit.http_client import get
from node_agent.kit.logs import FACTS
from node_agent.kit.tasks import running
from node_agent.kubelet.embedded import EmbeddedKubelet, ResourceView
from node_agent.reporting.status import GpuStatus, Status
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from node_agent.wire import deviceplugin_v1beta1_pb2_grpc as rpc
from tests.fakes.names import GPU_RESOURCE, KIND

PATIENCE = 30.0
"""Seconds after which a test gives up; on a busy machine everything may take its time."""


class Place:
    """A simulated node with its files, the folders of the agent and of the kubelet, and the kubelet."""

    def __init__(self, folder: Path, profile: NodeProfile) -> None:
        self.folder, self.tree = folder, folder / "node"
        self.node = SimulatedNode(profile)
        self.node.write_tree(self.tree, devices="placeholder")
        self.kubelet = EmbeddedKubelet(folder / "kubelet" / "device-plugins")
        self.settings = self._settings()

    def _settings(self) -> Settings:
        flags = {
            "agent.paths.sysfsRoot": str(self.tree / "sys"),
            "agent.paths.procRoot": str(self.tree / "proc"),
            "agent.paths.devRoot": str(self.tree),
            "flags.nvidiaDriverRoot": str(self.tree),
            "agent.paths.kubeletDir": str(self.folder / "kubelet"),
            "agent.paths.cdiDir": str(self.folder / "cdi"),
            "agent.paths.stateDir": str(self.folder / "state"),
            "agent.paths.runDir": str(self.folder / "run"),
            "agent.nodeName": "node",
        }
        resolved = resolve(file=None, environment={}, flags=flags).settings
        return replace(resolved, rescan_interval=0.2, health=replace(resolved.health, probe_interval=0.1))

    def with_settings(self, **changes: Any) -> Settings:
        """The place's settings with some of them changed."""
        return replace(self.settings, **changes)

    def shipped(self) -> Settings:
        """The place's settings with the intervals that are shipped."""
        usual = Settings()
        return replace(self.settings, rescan_interval=usual.rescan_interval, health=usual.health)

    def agent(self, settings: Settings | None = None) -> AbstractAsyncContextManager[Agent]:
        """The agent at work while the block runs; another settings than the place's own, where given."""
        return _at_work(settings or self.settings)

    @asynccontextmanager
    async def serving(self, settings: Settings | None = None) -> AsyncIterator[Agent]:
        """The agent at work beside the kubelet, which has all GPUs of the node allocatable when the block begins."""
        async with self.kubelet.running(), self.agent(settings) as agent:
            await self.allocatable(len(self.node.profile.gpus))
            await until(lambda: agent.ledger.trouble is None)
            yield agent

    def uuid(self, gpu: int) -> str:
        """The UUID of a GPU by its place in the profile."""
        return self.node.faults.gpu(gpu).uuid

    @property
    def uuids(self) -> list[str]:
        return [self.uuid(slot) for slot in range(len(self.node.profile.gpus))]

    @property
    def view(self) -> ResourceView:
        """What the kubelet has."""
        return self.kubelet.view(GPU_RESOURCE)

    async def allocatable(self, count: int) -> ResourceView:
        """Wait until the kubelet has so many GPUs to give out."""
        return await self.kubelet.until(GPU_RESOURCE, allocatable=count, timeout=PATIENCE)

    async def offered_within(self, seconds: float) -> frozenset[str]:
        """All GPUs that the kubelet could give out at any moment from now on."""
        found = self.view.healthy
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async for _ in self.kubelet.resources.watch():
                    found |= self.view.healthy
        return found

    def count_calls(self, *names: str) -> list[str]:
        """The calls of these C functions from now on, in a list that grows; without names, of all."""
        calls: list[str] = []

        def listening(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            return partial(_called, calls, name, function) if not names or name in names else function

        _overlay(listening)
        return calls

    def answer(self, name: str, function: Callable[..., int]) -> None:
        """Let a C function be another one: it gets the C function's arguments, and answers its return code."""
        _overlay(lambda other, before: function if other == name else before)

    async def only_withdrawn(self, *gpus: int) -> None:
        """Wait until the kubelet has all GPUs to give out but these, all of them still in its list."""
        expected = {uuid for slot, uuid in enumerate(self.uuids) if slot not in gpus}
        await until(lambda: self.view.healthy == expected and self.view.devices.keys() == set(self.uuids))

    async def refusal(self, ids: Sequence[str]) -> str:
        """What Allocate says to these ids, which must not be given out."""
        request = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=ids)])
        async with aio.insecure_channel(f"unix:{self.view.endpoint}") as channel:
            with pytest.raises(aio.AioRpcError) as refused:
                await rpc.DevicePluginStub(channel).Allocate(request)
        return refused.value.details() or ""

    async def ask(self, path: str) -> tuple[int, str]:
        """What the agent's HTTP socket answers, once it is there: the status code and the text."""
        socket = self.settings.paths.run_dir / "agent.sock"
        await until(socket.exists)
        code, body = await asyncio.to_thread(get, socket, path)
        return code, body.decode()

    async def status(self) -> Status:
        return msgspec.json.decode((await self.ask("/status"))[1], type=Status)

    async def status_of(self, gpu: int) -> GpuStatus:
        """What the status document says of a GPU, once it lists it."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for found in (await self.status()).gpus:
                    if found.uuid == self.uuid(gpu):
                        return found
                await asyncio.sleep(0.02)

    async def causes(self, gpu: int, *reasons: str) -> GpuStatus:
        """Wait until these are the open causes of a GPU, in any order."""
        async with asyncio.timeout(PATIENCE):
            while True:
                found = await self.status_of(gpu)
                if sorted(cause.reason for cause in found.causes) == sorted(reasons):
                    return found
                await asyncio.sleep(0.02)

    async def ready(self) -> None:
        """Wait until the agent says that it is ready."""
        async with asyncio.timeout(PATIENCE):
            while (await self.ask("/readyz"))[0] != 200:
                await asyncio.sleep(0.02)

    async def trouble(self, words: str) -> None:
        """Wait until the agent says that it is not ready, and why, in these words."""
        async with asyncio.timeout(PATIENCE):
            while words not in (found := await self.ask("/readyz"))[1] or found[0] != 503:
                await asyncio.sleep(0.02)

    @property
    def spec_file(self) -> Path:
        return self.settings.paths.cdi_dir / file_name(KIND)

    def spec(self) -> dict[str, Any]:
        """The CDI spec on disk."""
        found: dict[str, Any] = json.loads(self.spec_file.read_text())
        return found

    def files_missing_of_spec(self) -> list[str]:
        """The paths of the spec that are not on the node's disk."""
        found = self.spec()
        edits = [found["containerEdits"], *(device["containerEdits"] for device in found["devices"])]
        mounts = [mount["hostPath"] for part in edits for mount in part.get("mounts", [])]
        nodes = [node.get("hostPath", node["path"]) for part in edits for node in part.get("deviceNodes", [])]
        return sorted({path for path in (*mounts, *nodes) if not Path(path).exists()})


@asynccontextmanager
async def _at_work(settings: Settings) -> AsyncIterator[Agent]:
    async with built(settings, stat) as agent, running(agent.run(), name="agent"):
        yield agent


class _Overlay:
    """A library with some of its functions changed."""

    def __init__(self, library: object, change: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
        self._library, self._change = library, change

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return self._change(name, getattr(self._library, name))


def _overlay(change: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
    """Change functions of the library that is installed; the end of the test puts everything back."""
    pynvml.nvmlLib = _Overlay(pynvml.nvmlLib, change)
    # The binding keeps every function that it has looked up.
    pynvml._nvmlGetFunctionPointer_cache.clear()


def _called(calls: list[str], name: str, function: Callable[..., Any], *arguments: object) -> object:
    calls.append(name)
    return function(*arguments)


async def until(wanted: Callable[[], object], within: float = PATIENCE) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(within):
        while not wanted():
            await asyncio.sleep(0.01)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """The facts of every line that was logged of an event."""
    return [getattr(record, FACTS) for record in caplog.records if record.getMessage() == event]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator cannot set, and nobody wants to wait for here."""
    monkeypatch.setattr(events, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(readings, "SLOW_SECONDS", 0.1)
    monkeypatch.setattr(watcher, "USELESS_SECONDS", 0.2)
    monkeypatch.setattr(inventory, "_REST_SECONDS", 0.02)
    monkeypatch.setattr(publisher, "SOON_SECONDS", 0.2)
    monkeypatch.setattr(publisher, "SELDOM_SECONDS", 0.5)


Simulate = Callable[[str | NodeProfile], Place]

# Profiles are values: one reading of the YAML serves all tests.
profile_named = cache(load_profile)


@pytest.fixture
def simulate() -> Iterator[Simulate]:
    """Makes a place of a profile, which stands in for the real node until the test ends."""
    with ExitStack() as stack:

        def make(profile: str | NodeProfile) -> Place:
            # Not pytest's folder: the path of a socket may not be longer than 107 bytes.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-", dir="/tmp"))
            place = Place(Path(folder), profile_named(profile) if isinstance(profile, str) else profile)
            stack.enter_context(install(place.node))
            stack.callback(place.node.faults.clear)
            return place

        yield make


@pytest.fixture
def h200(simulate: Simulate) -> Place:
    """Eight H200."""
    return simulate("h200-8")
