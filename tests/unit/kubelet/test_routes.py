"""Both ways to the kubelet, seen through the one interface that a device plugin knows."""

from pathlib import Path

import pytest

from node_agent.errors import KubeletError, RegistrationRefused
from node_agent.kubelet.embedded import EmbeddedKubelet
from node_agent.kubelet.routes import Route, SocketRoute, WatcherRoute
from node_agent.kubelet.written import FILE
from tests.unit.kubelet.fakes import RESOURCE, FakePlugin


@pytest.fixture
def kubelet(folder: Path) -> EmbeddedKubelet:
    (folder / "plugins_registry").mkdir()
    return EmbeddedKubelet(folder / "device-plugins", folder / "plugins_registry")


@pytest.fixture(params=["socket", "watcher"])
def route(request: pytest.FixtureRequest, folder: Path, kubelet: EmbeddedKubelet) -> Route:
    if request.param == "socket":
        return SocketRoute(folder / "device-plugins")
    (folder / "own").mkdir()
    return WatcherRoute(folder / "plugins_registry", folder / "own")


async def test_a_plugin_is_taken_and_its_devices_are_listed(kubelet: EmbeddedKubelet, route: Route) -> None:
    socket, plugin = route.folder / "gpu-1.sock", FakePlugin("a", "b")
    async with kubelet.running(), plugin.served(socket), route.registered(socket, RESOURCE):
        view = await kubelet.until(RESOURCE, allocatable=2)
    assert view.endpoint == str(socket)


async def test_a_refusal_reaches_the_plugin(kubelet: EmbeddedKubelet, route: Route) -> None:
    kubelet.refusal = "no such resource"
    async with kubelet.running(), FakePlugin("a").served(route.folder / "gpu-1.sock") as socket:
        with pytest.raises(RegistrationRefused, match="no such resource"):
            async with route.registered(socket, RESOURCE):
                raise AssertionError("it was refused")


async def test_a_restarted_kubelet_is_another_one(kubelet: EmbeddedKubelet, route: Route) -> None:
    async with kubelet.running():
        first = route.kubelet()
    async with kubelet.running():
        second = route.kubelet()
    assert None not in (first, second)
    assert first != second


async def test_nothing_of_the_route_is_left_in_its_folders(kubelet: EmbeddedKubelet, route: Route) -> None:
    socket, plugin = route.folder / "gpu-1.sock", FakePlugin("a")
    async with kubelet.running(), plugin.served(socket), route.registered(socket, RESOURCE):
        assert socket.exists()
    left = {path.name for folder in route.folders for path in folder.iterdir()}
    assert left <= {FILE.name}, "the file is the kubelet's own"


def test_where_there_is_no_kubelet_both_routes_say_so(folder: Path) -> None:
    assert SocketRoute(folder / "device-plugins").kubelet() is None
    assert WatcherRoute(folder / "plugins_registry", folder).kubelet() is None


def test_a_kubelet_with_another_root_shows_by_its_registry(folder: Path) -> None:
    (folder / "plugins_registry").mkdir()
    assert WatcherRoute(folder / "plugins_registry", folder).kubelet() is not None


async def test_the_announcement_stands_beside_those_of_others_under_a_name_of_its_own(
    folder: Path, kubelet: EmbeddedKubelet
) -> None:
    route = WatcherRoute(folder / "plugins_registry", folder)
    socket, plugin = folder / "gpu-1.sock", FakePlugin("a")
    async with kubelet.running(), plugin.served(socket), route.registered(socket, RESOURCE):
        assert [path.name for path in route.registry.iterdir()] == ["gpu-1-reg.sock"]


async def test_a_call_to_no_kubelet_fails_at_once(folder: Path) -> None:
    with pytest.raises(KubeletError, match="no kubelet answers"):
        async with SocketRoute(folder).registered(folder / "gpu-1.sock", RESOURCE):
            raise AssertionError("nobody took it")
