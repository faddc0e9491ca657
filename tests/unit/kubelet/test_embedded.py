"""The embedded kubelet does to a plugin what the real one does, its traps included."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpc import aio

from node_agent.errors import KubeletError, RegistrationRefused
from node_agent.kubelet.announcement import DEVICE_PLUGIN, Announcement, announced
from node_agent.kubelet.embedded import EmbeddedKubelet, ResourceView
from node_agent.kubelet.registration import KUBELET_SOCKET, register
from node_agent.kubelet.server import serving
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from node_agent.wire import deviceplugin_v1beta1_pb2_grpc as rpc
from tests.unit.kubelet.fakes import RESOURCE, FakePlugin, devices


@pytest.fixture
async def kubelet(folder: Path) -> AsyncIterator[EmbeddedKubelet]:
    async with EmbeddedKubelet(folder).running() as running_kubelet:
        yield running_kubelet


@pytest.fixture
async def plugin(kubelet: EmbeddedKubelet) -> AsyncIterator[FakePlugin]:
    """Four devices, registered and listed."""
    plugin = FakePlugin("a", "b", "c", "d")
    async with plugin.served(kubelet.folder / "p.sock"):
        await register(kubelet.folder, "p.sock", RESOURCE)
        await kubelet.until(RESOURCE, allocatable=4)
        yield plugin


async def lost(kubelet: EmbeddedKubelet) -> ResourceView:
    """Wait until the plugin's stream has ended."""
    async with asyncio.timeout(30):
        async for _ in kubelet.resources.watch():
            if not kubelet.view(RESOURCE).connected:
                break
    return kubelet.view(RESOURCE)


# Registration


async def test_its_start_wipes_the_sockets_of_its_folder_and_nothing_else(folder: Path) -> None:
    (folder / "stale.sock").touch()
    (folder / "kubelet_internal_checkpoint").touch()
    async with EmbeddedKubelet(folder).running():
        assert sorted(path.name for path in folder.iterdir()) == ["kubelet.sock", "kubelet_internal_checkpoint"]


async def test_it_makes_its_folder(folder: Path) -> None:
    async with EmbeddedKubelet(folder / "var" / "device-plugins").running():
        assert (folder / "var" / "device-plugins" / KUBELET_SOCKET).is_socket()


async def test_another_version_of_the_api_is_refused(kubelet: EmbeddedKubelet) -> None:
    request = wire.RegisterRequest(version="v1alpha", endpoint="p.sock", resource_name=RESOURCE)
    async with aio.insecure_channel(f"unix:{kubelet.folder / KUBELET_SOCKET}") as channel:
        with pytest.raises(aio.AioRpcError, match="'v1alpha' is not supported"):
            await rpc.RegistrationStub(channel).Register(request)


async def test_a_plugin_that_does_not_serve_yet_is_refused(kubelet: EmbeddedKubelet) -> None:
    with pytest.raises(RegistrationRefused, match="failed to dial device plugin"):
        await register(kubelet.folder, "none.sock", RESOURCE)


async def test_a_refusal_can_be_given_and_taken_back(kubelet: EmbeddedKubelet) -> None:
    async with FakePlugin("a").served(kubelet.folder / "p.sock"):
        kubelet.refusal = "out of order"
        with pytest.raises(RegistrationRefused, match="out of order"):
            await register(kubelet.folder, "p.sock", RESOURCE)
        kubelet.refusal = None
        await register(kubelet.folder, "p.sock", RESOURCE)
        await kubelet.until(RESOURCE, allocatable=1)


async def test_a_path_whose_old_stream_still_lives_cannot_register_again(
    kubelet: EmbeddedKubelet, plugin: FakePlugin
) -> None:
    with pytest.raises(RegistrationRefused, match="device plugin already connected"):
        await register(kubelet.folder, "p.sock", RESOURCE)
    assert kubelet.view(RESOURCE).allocatable == 4


async def test_a_path_whose_stream_has_ended_may_register_again(kubelet: EmbeddedKubelet, plugin: FakePlugin) -> None:
    await kubelet.drop(RESOURCE)
    await register(kubelet.folder, "p.sock", RESOURCE)
    view = await kubelet.until(RESOURCE, allocatable=4)
    assert (view.registrations, plugin.streams) == (2, 2)


async def test_devices_of_an_ended_stream_are_not_to_be_had_until_the_next_one_lists_them(
    kubelet: EmbeddedKubelet, plugin: FakePlugin
) -> None:
    await kubelet.drop(RESOURCE)
    async with FakePlugin().served(kubelet.folder / "q.sock"):
        await register(kubelet.folder, "q.sock", RESOURCE)
        assert kubelet.view(RESOURCE).allocatable == 0


async def test_a_handover_has_no_gap(kubelet: EmbeddedKubelet, plugin: FakePlugin) -> None:
    async with FakePlugin("a", "b", "c", "d").served(kubelet.folder / "q.sock"):
        await register(kubelet.folder, "q.sock", RESOURCE)
        assert kubelet.view(RESOURCE).endpoint.endswith("/q.sock")
        assert kubelet.view(RESOURCE).allocatable == 4


async def test_a_second_plugin_of_the_same_resource_takes_over(kubelet: EmbeddedKubelet, plugin: FakePlugin) -> None:
    async with FakePlugin("x").served(kubelet.folder / "q.sock"):
        await register(kubelet.folder, "q.sock", RESOURCE)
        view = await kubelet.until(RESOURCE, allocatable=1)
        assert view.endpoint.endswith("/q.sock")


async def test_a_restart_forgets_the_resources_and_keeps_what_pods_hold(folder: Path) -> None:
    kubelet = EmbeddedKubelet(folder)
    async with kubelet.running(), FakePlugin("a", "b").served(folder / "p.sock"):
        await register(folder, "p.sock", RESOURCE)
        await kubelet.until(RESOURCE, allocatable=2)
        ids, _ = await kubelet.admit("pod", RESOURCE, 1)
    async with kubelet.running():
        assert kubelet.view(RESOURCE) == ResourceView()
        assert kubelet.held == {"pod": (RESOURCE, frozenset(ids))}


# The list


async def test_each_message_replaces_the_whole_list(kubelet: EmbeddedKubelet, plugin: FakePlugin) -> None:
    plugin.devices.set(devices("a", "e", sick=["e"]))
    view = await kubelet.until(RESOURCE, allocatable=1)
    assert (view.capacity, view.healthy, view.messages) == (2, frozenset("a"), 2)


async def test_the_devices_of_an_ended_stream_stay_and_none_is_allocatable(
    kubelet: EmbeddedKubelet, plugin: FakePlugin
) -> None:
    await kubelet.drop(RESOURCE)
    view = await lost(kubelet)
    assert (view.capacity, view.allocatable) == (4, 0)


FOUR_MEBIBYTES = 4 * 1024 * 1024


def list_of_bytes(size: int) -> tuple[wire.Device, ...]:
    """A list that takes exactly so many bytes on the wire."""
    listed = devices(*(f"{number:01000}" for number in range(size // 1100)), "x" * 1000)
    missing = size - wire.ListAndWatchResponse(devices=listed).ByteSize()
    # A longer id also takes more bytes to tell its length.
    for length in range(1000 + missing - 8, 1000 + missing + 1):
        grown = (*listed[:-1], *devices("x" * length))
        if wire.ListAndWatchResponse(devices=grown).ByteSize() == size:
            return grown
    raise AssertionError(f"no list takes {size} bytes")


async def test_a_list_of_four_mebibytes_is_taken_and_one_byte_more_ends_the_stream(
    kubelet: EmbeddedKubelet, plugin: FakePlugin
) -> None:
    largest = list_of_bytes(FOUR_MEBIBYTES)
    plugin.devices.set(largest)
    await kubelet.until(RESOURCE, allocatable=len(largest))

    plugin.devices.set(list_of_bytes(FOUR_MEBIBYTES + 1))
    view = await lost(kubelet)
    assert (view.capacity, view.allocatable, view.messages) == (len(largest), 0, 2)


# Pods


async def test_a_pod_gets_what_the_plugin_prefers(kubelet: EmbeddedKubelet, plugin: FakePlugin) -> None:
    plugin.prefer = lambda available, size: ["d", "b"]
    ids, response = await kubelet.admit("pod", RESOURCE, 2)
    assert ids == ["d", "b"]
    assert response.envs["DEVICES"] == "d,b"


@pytest.mark.parametrize(
    ("preferred", "given"),
    [([], ["a", "b"]), (["c"], ["c", "a"]), (["nobody", "c"], ["c", "a"]), (["c", "b", "a"], ["c", "b"])],
)
async def test_a_preference_that_does_not_fit_is_cut_and_filled_up(
    kubelet: EmbeddedKubelet, plugin: FakePlugin, preferred: list[str], given: list[str]
) -> None:
    plugin.prefer = lambda available, size: preferred
    assert (await kubelet.admit("pod", RESOURCE, 2))[0] == given


async def test_only_healthy_devices_that_no_pod_holds_are_to_be_had(
    kubelet: EmbeddedKubelet, plugin: FakePlugin
) -> None:
    await kubelet.admit("first", RESOURCE, 1)
    plugin.devices.set(devices("a", "b", "c", "d", sick=["b"]))
    await kubelet.until(RESOURCE, allocatable=3)
    await kubelet.admit("second", RESOURCE, 1)
    assert plugin.asked == [["a", "b", "c", "d"], ["c", "d"]]
    assert kubelet.free(RESOURCE) == ["d"]


async def test_a_pod_that_wants_more_than_is_free_is_not_admitted(kubelet: EmbeddedKubelet, plugin: FakePlugin) -> None:
    with pytest.raises(KubeletError, match=r"pod wants 5 of nvidia\.com/gpu, 4 are free"):
        await kubelet.admit("pod", RESOURCE, 5)
    assert not kubelet.held


async def test_a_pod_is_admitted_once(kubelet: EmbeddedKubelet, plugin: FakePlugin) -> None:
    await kubelet.admit("pod", RESOURCE, 1)
    with pytest.raises(KubeletError, match="pod is there already and holds 1 devices"):
        await kubelet.admit("pod", RESOURCE, 1)


async def test_a_pod_whose_allocation_is_refused_holds_nothing(kubelet: EmbeddedKubelet, plugin: FakePlugin) -> None:
    plugin.refusal = "GPU a is withdrawn"
    with pytest.raises(KubeletError, match=r"pod is not admitted: Allocate failed due to .*GPU a is withdrawn"):
        await kubelet.admit("pod", RESOURCE, 1)
    assert kubelet.free(RESOURCE) == ["a", "b", "c", "d"]


async def test_what_a_pod_held_is_free_after_its_end(kubelet: EmbeddedKubelet, plugin: FakePlugin) -> None:
    await kubelet.admit("pod", RESOURCE, 4)
    assert kubelet.free(RESOURCE) == []
    kubelet.release("pod")
    assert kubelet.free(RESOURCE) == ["a", "b", "c", "d"]


# The plugin watcher


async def test_an_announced_plugin_is_found_and_one_that_is_hidden_is_not(folder: Path) -> None:
    registry = folder / "registry"
    registry.mkdir()
    announcement = Announcement(kind=DEVICE_PLUGIN, name=RESOURCE, endpoint=folder / "p.sock", versions=["v1beta1"])
    async with EmbeddedKubelet(folder, registry).running() as kubelet, FakePlugin("a").served(folder / "p.sock"):
        with pytest.raises(KubeletError, match="no kubelet asked"):
            async with announced(registry / ".hidden.sock", announcement, within=0.3):
                raise AssertionError("a hidden socket was taken")
        async with announced(registry / "p-reg.sock", announcement, within=5):
            await kubelet.until(RESOURCE, allocatable=1)


async def test_an_announced_socket_that_does_not_answer_is_asked_again(folder: Path) -> None:
    registry = folder / "registry"
    registry.mkdir()
    kubelet, plugin, socket = EmbeddedKubelet(folder, registry), FakePlugin("a"), registry / "p-reg.sock"
    announcement = Announcement(kind=DEVICE_PLUGIN, name=RESOURCE, endpoint=folder / "p.sock", versions=["v1beta1"])
    async with kubelet.running(), plugin.served(folder / "p.sock"), serving(socket, lambda server: None, grace=0):
        await asyncio.sleep(0.2)
        assert RESOURCE not in kubelet.resources.value
        # The same name without a pause: nobody saw the socket go.
        async with announced(socket, announcement, within=5):
            await kubelet.until(RESOURCE, allocatable=1)
