"""The plugin announced in the kubelet's plugins_registry instead of calling the kubelet."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from node_agent.deviceplugin.plugin import DevicePlugin
from node_agent.errors import KubeletError
from node_agent.kit.tasks import running
from node_agent.kubelet.announcement import DEVICE_PLUGIN, Announcement, announced
from node_agent.kubelet.embedded import EmbeddedKubelet
from node_agent.kubelet.registration import Phase
from node_agent.kubelet.routes import WatcherRoute
from tests.unit.deviceplugin.conftest import RESOURCE, World


@pytest.fixture
def kubelet() -> Iterator[EmbeddedKubelet]:
    with TemporaryDirectory(prefix="route-", dir="/tmp") as name:  # pytest's own are too long for a socket's path
        registry = Path(name, "registry")
        registry.mkdir()
        yield EmbeddedKubelet(Path(name, "device-plugins"), registry)


@pytest.fixture
async def plugin(world: World, kubelet: EmbeddedKubelet) -> AsyncIterator[DevicePlugin]:
    assert kubelet.registry is not None
    own = kubelet.registry.with_name("own")
    plugin = world.plugin(kubelet.folder, route=WatcherRoute(kubelet.registry, own))
    async with running(plugin.run()):
        yield plugin


async def test_the_kubelet_finds_the_plugin_by_itself(kubelet: EmbeddedKubelet, plugin: DevicePlugin) -> None:
    async with kubelet.running():
        view = await kubelet.until(RESOURCE, allocatable=8)
        ids, _ = await kubelet.admit("pod", RESOURCE, 2)

    assert Path(view.endpoint).parent.name == "own"
    assert len(ids) == 2
    assert plugin.server.registration.value.count == 1


async def test_a_restarted_kubelet_finds_it_again_and_keeps_it(kubelet: EmbeddedKubelet, plugin: DevicePlugin) -> None:
    async with kubelet.running():
        await kubelet.until(RESOURCE, allocatable=8)
    async with kubelet.running():
        await kubelet.until(RESOURCE, allocatable=8)
        await asyncio.sleep(1.5)
        assert (await kubelet.until(RESOURCE, allocatable=8)).connected


async def test_a_kubelet_that_comes_after_the_announcement_is_not_taken_for_a_restarted_one(
    kubelet: EmbeddedKubelet, plugin: DevicePlugin
) -> None:
    await asyncio.sleep(0.3)
    async with kubelet.running():
        await kubelet.until(RESOURCE, allocatable=8)
        await asyncio.sleep(1.2)
        assert (await kubelet.until(RESOURCE, allocatable=8)).registrations == 1


async def test_what_a_killed_agent_has_announced_is_removed(world: World, tmp_path: Path) -> None:
    dead = tmp_path / "node-agent-gpu-1-reg.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(dead))
    plugin = world.plugin(tmp_path, route=WatcherRoute(tmp_path, tmp_path / "own"))
    async with running(plugin.run()), asyncio.timeout(30):
        while dead.exists():
            await asyncio.sleep(0.02)


async def test_a_refusal_is_said_and_the_plugin_announced_anew(kubelet: EmbeddedKubelet, plugin: DevicePlugin) -> None:
    kubelet.refusal = "no such resource"
    async with kubelet.running():
        async for registration in plugin.server.registration.watch():
            if registration.phase is Phase.REFUSED:
                break
        assert "no such resource" in plugin.server.registration.value.detail
        kubelet.refusal = None
        await kubelet.until(RESOURCE, allocatable=8)


async def test_an_announcement_that_nobody_reads_is_an_error_that_names_the_socket(tmp_path: Path) -> None:
    announcement = Announcement(kind=DEVICE_PLUGIN, name=RESOURCE, endpoint=tmp_path / "x.sock", versions=["v1beta1"])
    with pytest.raises(KubeletError, match=r"no kubelet asked for nvidia\.com/gpu on .*reg\.sock within 0\.1 s"):
        async with announced(tmp_path / "reg.sock", announcement, within=0.1):
            raise AssertionError("nobody took the plugin")
    assert not list(tmp_path.iterdir())
