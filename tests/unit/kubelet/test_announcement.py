"""A plugin announced in the kubelet's plugins_registry: what the kubelet reads there, and what it says of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from node_agent.errors import KubeletError, RegistrationRefused
from node_agent.kit.tasks import running
from node_agent.kubelet.announcement import DEVICE_PLUGIN, DRA_PLUGIN, Announcement, announced, announcing
from node_agent.wire import pluginregistration_v1_pb2 as wire
from node_agent.wire import pluginregistration_v1_pb2_grpc as rpc
from tests.unit.kubelet.fakes import RESOURCE

PLUGIN = Announcement(kind=DEVICE_PLUGIN, name=RESOURCE, endpoint=Path("/run/gpu.sock"), versions=["v1beta1"])


class Watcher:
    """The kubelet's plugin watcher, as far as one socket goes."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket

    async def ask(self) -> wire.PluginInfo:
        async with self._registrar() as registrar:
            info: wire.PluginInfo = await registrar.GetInfo(wire.InfoRequest())
            return info

    async def tell(self, registered: bool, error: str = "") -> None:
        async with self._registrar() as registrar:
            await registrar.NotifyRegistrationStatus(wire.RegistrationStatus(plugin_registered=registered, error=error))

    async def take(self) -> None:
        """Wait for the socket, then take what it stands for."""
        while not self.socket.exists():
            await asyncio.sleep(0.01)
        await self.tell(True)

    @asynccontextmanager
    async def _registrar(self) -> AsyncIterator[Any]:
        async with aio.insecure_channel(f"unix:{self.socket}") as channel:
            yield rpc.RegistrationStub(channel)


@pytest.fixture
def watcher(folder: Path) -> Watcher:
    return Watcher(folder / "gpu-reg.sock")


@pytest.mark.parametrize(
    "announcement",
    [
        PLUGIN,
        Announcement(
            kind=DRA_PLUGIN, name="gpu.nvidia.com", endpoint=Path("/run/d"), versions=["v1.DRAPlugin", "v1beta1"]
        ),
    ],
    ids=lambda announcement: announcement.kind,
)
async def test_the_kubelet_reads_what_the_plugin_is_where_and_which_versions_it_speaks(
    watcher: Watcher, announcement: Announcement
) -> None:
    async with running(watcher.take()), announced(watcher.socket, announcement):
        info = await watcher.ask()
    assert (info.type, info.name, info.endpoint, list(info.supported_versions)) == (
        announcement.kind,
        announcement.name,
        str(announcement.endpoint),
        announcement.versions,
    )


async def test_the_block_starts_when_the_kubelet_has_taken_the_plugin_and_ends_with_the_socket(
    watcher: Watcher,
) -> None:
    async with running(watcher.take()), announced(watcher.socket, PLUGIN) as registrar:
        assert registrar.verdict.value.accepted
        assert watcher.socket.exists()
    assert not watcher.socket.exists()


async def test_a_plugin_that_the_kubelet_does_not_take_is_refused_with_its_words(watcher: Watcher) -> None:
    async def refuse() -> None:
        while not watcher.socket.exists():
            await asyncio.sleep(0.01)
        await watcher.tell(False, "version v1beta1 is not supported")

    async with running(refuse()):
        with pytest.raises(RegistrationRefused, match=r"refused nvidia\.com/gpu: version v1beta1 is not supported"):
            async with announced(watcher.socket, PLUGIN):
                raise AssertionError("it was not taken")
    assert not watcher.socket.exists()


async def test_a_kubelet_that_asks_and_never_tells_is_given_up(watcher: Watcher) -> None:
    async def only_ask() -> None:
        while not watcher.socket.exists():
            await asyncio.sleep(0.01)
        await watcher.ask()

    async with running(only_ask()):
        with pytest.raises(KubeletError, match=r"no kubelet asked for nvidia\.com/gpu on .* within 2 s"):
            async with announced(watcher.socket, PLUGIN, within=2.0):
                raise AssertionError("it was not taken")


async def test_who_only_announces_waits_for_nobody_and_hears_of_a_kubelet_that_comes_late(watcher: Watcher) -> None:
    async with announcing(watcher.socket, PLUGIN) as registrar:
        assert watcher.socket.exists()
        assert registrar.verdict.value.count == 0
        await watcher.take()
        assert (registrar.verdict.value.count, registrar.verdict.value.accepted) == (1, True)


async def test_a_restarted_kubelet_may_ask_and_tell_again(watcher: Watcher) -> None:
    async with running(watcher.take()), announced(watcher.socket, PLUGIN) as registrar:
        assert (await watcher.ask()).name == RESOURCE
        await watcher.tell(False, "busy")
        assert (registrar.verdict.value.count, registrar.verdict.value.error) == (2, "busy")
