"""The plugin and a kubelet that comes, goes, restarts and misbehaves, over real gRPC."""

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent.cdi.publisher import Published
from node_agent.config.settings import SharingRule
from node_agent.deviceplugin import plugin
from node_agent.deviceplugin.listing import listing
from node_agent.deviceplugin.selection import Form, Selection
from node_agent.deviceplugin.server import SOCKET_PREFIX, fresh_socket_name
from node_agent.deviceplugin.servicer import check_size, device_list, list_size
from node_agent.errors import ConfigError, KubeletError
from node_agent.kit import hints
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import cancel, running
from node_agent.kubelet.embedded import EmbeddedKubelet
from node_agent.kubelet.registration import Phase
from node_agent.kubelet.server import remove_dead_sockets
from node_agent.model.gpu import GpuUuid, PartitionMode
from node_agent.model.health import HEALTHY, Cause, DeviceHealth, HealthReport, Reason, Severity
from node_agent.model.inventory import Inventory, MissingGpu
from node_agent.model.partition import DeviceUuid
from node_agent.model.unit import Unit
from tests.fakes.health import NOT_PROBED
from tests.unit.deviceplugin.conftest import RESOURCE, World, node, served


async def test_all_gpus_are_offered_with_their_numa_nodes(world: World, kubelet: EmbeddedKubelet) -> None:
    async with kubelet.running(), served(world, kubelet):
        view = await kubelet.until(RESOURCE, allocatable=8)

    assert {name: device.topology.nodes[0].ID for name, device in view.devices.items()} == {
        **{f"GPU-{number}": 0 for number in range(4)},
        **{f"GPU-{number}": 1 for number in range(4, 8)},
    }


async def test_the_plugin_waits_for_a_kubelet_that_starts_later(world: World, kubelet: EmbeddedKubelet) -> None:
    async with served(world, kubelet) as plugin:
        await asyncio.sleep(0.1)
        phases = [plugin.server.registration.value.phase]
        async with kubelet.running():
            await kubelet.until(RESOURCE, allocatable=8)
            phases.append(plugin.server.registration.value.phase)

    assert phases == [Phase.WAITING, Phase.REGISTERED]


class Exhausted:
    @staticmethod
    def inotify_init1(flags: int) -> int:
        return -1


async def test_a_restarted_kubelet_gets_everything_again(world: World, kubelet: EmbeddedKubelet) -> None:
    async with served(world, kubelet):
        async with kubelet.running():
            first = await kubelet.until(RESOURCE, allocatable=8)
        async with kubelet.running():
            second = await kubelet.until(RESOURCE, allocatable=8, timeout=30.0)

    assert second.endpoint != first.endpoint


async def test_where_inotify_has_no_instance_left_a_restarted_kubelet_is_met_all_the_same(
    world: World, kubelet: EmbeddedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "_libc", lambda: Exhausted)
    await test_a_restarted_kubelet_gets_everything_again(world, kubelet)


async def test_a_restarted_kubelet_and_a_wiped_socket_are_heard_of_without_a_look(
    world: World, kubelet: EmbeddedKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "SELDOM_SECONDS", 3600.0)
    monkeypatch.setattr(hints, "OFTEN_SECONDS", 3600.0)
    await test_a_restarted_kubelet_gets_everything_again(world, kubelet)
    await test_a_socket_wiped_without_a_kubelet_restart_is_made_again(world, kubelet)


async def test_two_kubelet_restarts_within_a_second_end_well(world: World, kubelet: EmbeddedKubelet) -> None:
    async with served(world, kubelet):
        for _ in range(3):
            async with kubelet.running():
                await asyncio.sleep(0.3)
        async with kubelet.running():
            assert (await kubelet.until(RESOURCE, allocatable=8)).connected


async def test_a_socket_wiped_without_a_kubelet_restart_is_made_again(world: World, kubelet: EmbeddedKubelet) -> None:
    async with kubelet.running(), served(world, kubelet) as plugin:
        view = await kubelet.until(RESOURCE, allocatable=8)
        Path(view.endpoint).unlink()
        async for registration in plugin.server.registration.watch():
            if registration.count == 2:
                break
        assert (await kubelet.until(RESOURCE, allocatable=8)).endpoint != view.endpoint


async def test_a_list_is_sent_again_for_the_kubelet_to_write_down_what_pods_have(
    world: World, kubelet: EmbeddedKubelet
) -> None:
    async with kubelet.running(), served(world, kubelet):
        before = (await kubelet.until(RESOURCE, allocatable=8)).messages
        world.again.set(1)
        async with asyncio.timeout(30):
            async for _ in kubelet.resources.watch():
                if kubelet.view(RESOURCE).messages > before:
                    break
        assert kubelet.view(RESOURCE).allocatable == 8


async def test_a_stream_is_held_on_to_while_no_socket_of_a_kubelet_allows_another(
    world: World, kubelet: EmbeddedKubelet
) -> None:
    async with kubelet.running(), served(world, kubelet):
        await kubelet.until(RESOURCE, allocatable=8)
        for path in kubelet.folder.glob("*.sock"):
            path.unlink()
        await asyncio.sleep(1.2)
        view = kubelet.view(RESOURCE)
        assert (view.allocatable, view.registrations) == (8, 1)


async def test_a_stream_is_held_on_to_where_the_kubelets_socket_is_wiped_a_moment_after_the_plugins(
    world: World, kubelet: EmbeddedKubelet
) -> None:
    async with kubelet.running(), served(world, kubelet):
        own = Path((await kubelet.until(RESOURCE, allocatable=8)).endpoint)
        own.unlink()
        await asyncio.sleep(0.02)
        for path in kubelet.folder.glob("*.sock"):
            path.unlink()
        await asyncio.sleep(1.2)
        view = kubelet.view(RESOURCE)
        assert (view.allocatable, view.registrations) == (8, 1)


async def test_a_stream_that_the_kubelet_drops_is_registered_again(world: World, kubelet: EmbeddedKubelet) -> None:
    async with kubelet.running(), served(world, kubelet):
        await kubelet.until(RESOURCE, allocatable=8)
        await kubelet.drop(RESOURCE)
        await kubelet.until(RESOURCE, allocatable=0)
        assert (await kubelet.until(RESOURCE, allocatable=8)).registrations == 2


async def test_a_refused_registration_is_said_and_tried_again(world: World, kubelet: EmbeddedKubelet) -> None:
    kubelet.refusal = "resource name is not extended"
    async with kubelet.running(), served(world, kubelet) as plugin:
        async for registration in plugin.server.registration.watch():
            if registration.phase is Phase.REFUSED:
                break
        assert "resource name is not extended" in plugin.server.registration.value.detail
        kubelet.refusal = None
        await kubelet.until(RESOURCE, allocatable=8)


async def test_a_withdrawn_gpu_leaves_allocatable_at_once_and_stays_in_the_list(
    world: World, kubelet: EmbeddedKubelet
) -> None:
    cause = Cause(reason=Reason.XID, severity=Severity.WITHDRAWN, message="Xid 79", since=0.0, code=79)
    async with kubelet.running(), served(world, kubelet):
        await kubelet.until(RESOURCE, allocatable=8)
        world.health.set(HealthReport(devices={GpuUuid("GPU-2"): DeviceHealth(causes=(cause,))}))
        view = await kubelet.until(RESOURCE, allocatable=7)
        assert view.capacity == 8
        assert view.devices["GPU-2"].health == "Unhealthy"
        world.health.set(HealthReport())
        assert (await kubelet.until(RESOURCE, allocatable=8)).registrations == 1


async def test_a_gpu_that_is_missing_stays_listed_as_unhealthy(world: World, kubelet: EmbeddedKubelet) -> None:
    lost = MissingGpu(index=7, uuid=GpuUuid("GPU-7"), reason="it has fallen off the bus")
    async with kubelet.running(), served(world, kubelet):
        await kubelet.until(RESOURCE, allocatable=8)
        world.inventory.set(replace(node(7, generation=2), missing=(lost,)))
        await kubelet.until(RESOURCE, allocatable=7)
        await asyncio.sleep(0.2)
        assert kubelet.view(RESOURCE).capacity == 8
        world.inventory.set(node(8, generation=3))
        await kubelet.until(RESOURCE, allocatable=8)


async def test_a_resource_whose_gpus_went_into_mig_mode_ends_as_an_empty_list_once_no_pod_holds_them(
    world: World, kubelet: EmbeddedKubelet
) -> None:
    world.held = {"GPU-1"}
    async with kubelet.running(), served(world, kubelet):
        await kubelet.until(RESOURCE, allocatable=8)
        cut = tuple(replace(gpu, partition_mode=PartitionMode.ENABLED) for gpu in node(8).gpus)
        world.inventory.set(Inventory(generation=2, gpus=cut))
        await kubelet.until(RESOURCE, allocatable=0)
        await _until(lambda: set(kubelet.view(RESOURCE).devices) == {"GPU-1"})
        world.held = None
        await asyncio.sleep(0.2)
        assert set(kubelet.view(RESOURCE).devices) == {"GPU-1"}
        world.held = ()
        await _until(lambda: kubelet.view(RESOURCE).capacity == 0)
        world.inventory.set(node(8, generation=3))
        assert (await kubelet.until(RESOURCE, allocatable=8)).registrations == 1


async def test_a_list_larger_than_the_kubelet_takes_is_refused_before_it_registers(
    world: World, kubelet: EmbeddedKubelet
) -> None:
    one = node(1).gpus[0]
    many = [replace(one, uuid=GpuUuid(f"GPU-{number:060}")) for number in range(58_000)]
    forms: dict[DeviceUuid, Form] = {gpu.uuid: Form(unit=Unit(gpu=gpu), resource=RESOURCE) for gpu in many}
    with pytest.raises(ConfigError, match=r"58000 devices, whose list takes 4\d{6} bytes; the kubelet takes 4194304"):
        check_size(RESOURCE, forms)
    check_size(RESOURCE, dict(list(forms.items())[:48_000]))
    check_size("nvidia.com/other", forms)


@pytest.mark.parametrize("replicas", [1, 9, 10, 11, 1234])
def test_the_size_of_a_list_is_known_before_there_is_one(replicas: int) -> None:
    inventory = node(3)
    rule = SharingRule(strategy="mps", shares=replicas, devices=("0", "1"))
    forms = Selection(sharing=(rule,)).forms(inventory)
    devices = listing(RESOURCE, forms, former={}, trouble=lambda _: "unhealthy")
    assert list_size(RESOURCE, forms) == (len(devices), device_list(devices).ByteSize())


def test_a_list_that_would_not_fit_in_any_memory_is_refused_at_once() -> None:
    forms = Selection(sharing=(SharingRule(strategy="time-slicing", shares=10**12),)).forms(node(3))
    with pytest.raises(ConfigError, match="3000000000000 devices"):
        check_size(RESOURCE, forms)


async def test_a_node_without_gpus_registers_nothing_until_one_appears(kubelet: EmbeddedKubelet, world: World) -> None:
    world.inventory.set(node(0))
    async with kubelet.running(), served(world, kubelet):
        await asyncio.sleep(0.8)
        assert RESOURCE not in kubelet.resources.value
        world.inventory.set(node(1, generation=2))
        await kubelet.until(RESOURCE, allocatable=1)


async def test_gpus_are_offered_only_when_a_container_can_be_given_them(world: World, kubelet: EmbeddedKubelet) -> None:
    world.cdi = Latest(Published())
    async with kubelet.running(), served(world, kubelet):
        await asyncio.sleep(0.3)
        assert RESOURCE not in kubelet.resources.value
        world.cdi.set(Published(gpus=frozenset(GpuUuid(f"GPU-{number}") for number in range(8))))
        await kubelet.until(RESOURCE, allocatable=8)


async def test_gpus_out_of_service_are_listed_once_the_kubelet_is_to_be_sent_a_list(
    world: World, kubelet: EmbeddedKubelet
) -> None:
    """It writes down what pods have at each list; what has ended may be all that keeps these out of service."""
    world.cdi = Latest(Published())
    async with kubelet.running(), served(world, kubelet):
        await asyncio.sleep(0.3)
        assert RESOURCE not in kubelet.resources.value
        world.again.set(1)
        async with asyncio.timeout(30):
            while kubelet.view(RESOURCE).capacity != 8:
                await asyncio.sleep(0.01)
        assert kubelet.view(RESOURCE).allocatable == 0


@pytest.mark.parametrize("wanted", [0, 1])
async def test_nothing_is_registered_before_each_gpu_has_been_looked_at(
    world: World, kubelet: EmbeddedKubelet, monkeypatch: pytest.MonkeyPatch, wanted: int
) -> None:
    """The kubelet still has all of them from the agent before, and a pod that gets one of ours too early has failed."""
    monkeypatch.setattr(plugin, "PROBE_SECONDS", 60.0)
    new = DeviceHealth(causes=(NOT_PROBED,))
    world.health = Latest(HealthReport(devices={GpuUuid("GPU-0"): HEALTHY}, others=new))
    async with kubelet.running(), served(world, kubelet):
        world.again.set(wanted)
        await asyncio.sleep(0.3)
        assert RESOURCE not in kubelet.resources.value
        world.health.set(HealthReport())
        await kubelet.until(RESOURCE, allocatable=8)


async def test_one_gpu_over_which_the_driver_hangs_holds_up_the_others_for_a_moment_only(
    world: World, kubelet: EmbeddedKubelet
) -> None:
    hanging = DeviceHealth(causes=(NOT_PROBED,))
    world.health = Latest(HealthReport(devices={GpuUuid("GPU-3"): hanging}))
    async with kubelet.running(), served(world, kubelet):
        await kubelet.until(RESOURCE, allocatable=7)


async def test_two_agents_of_a_rolling_update_hand_over_without_a_gap(world: World, kubelet: EmbeddedKubelet) -> None:
    async with kubelet.running(), running(world.plugin(kubelet.folder).run()) as old_agent:
        old = await kubelet.until(RESOURCE, allocatable=8)
        async with running(world.plugin(kubelet.folder).run()):
            while kubelet.view(RESOURCE).endpoint == old.endpoint:
                await asyncio.sleep(0.05)
            assert Path(old.endpoint).exists()
            await cancel(old_agent)
            await asyncio.sleep(0.1)
            new = await kubelet.until(RESOURCE, allocatable=8)
            assert not Path(old.endpoint).exists()
            assert Path(new.endpoint).exists()
            assert (new.allocatable, new.registrations) == (8, 2)


async def test_the_end_of_the_plugin_removes_its_socket_quickly(world: World, kubelet: EmbeddedKubelet) -> None:
    async with kubelet.running():
        async with served(world, kubelet):
            view = await kubelet.until(RESOURCE, allocatable=8)
            began = time.monotonic()
        assert time.monotonic() - began < 20
        assert not Path(view.endpoint).exists()
        await kubelet.until(RESOURCE, allocatable=0)


def test_every_session_has_a_socket_name_of_its_own() -> None:
    names = {fresh_socket_name("nvidia.com/gpu") for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("node-agent-gpu-") and name.endswith(".sock") for name in names)


def test_only_the_sockets_of_dead_agents_are_removed(tmp_path: Path) -> None:
    def bound(name: str) -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(tmp_path / name))
        server.listen()
        return server

    with bound("node-agent-gpu-1.sock"), bound("other.sock"):
        bound("node-agent-gpu-2.sock").close()
        bound("stranger.sock").close()
        bound(".node-agent-gpu-3.sock").close()
        remove_dead_sockets(tmp_path, SOCKET_PREFIX)
        left = sorted(path.name for path in tmp_path.iterdir())

    assert left == ["node-agent-gpu-1.sock", "other.sock", "stranger.sock"]


async def test_waiting_for_devices_that_do_not_come_says_what_is_there(kubelet: EmbeddedKubelet) -> None:
    async with kubelet.running():
        with pytest.raises(KubeletError, match=r"0 allocatable after 0\.1 s instead of 8"):
            await kubelet.until(RESOURCE, allocatable=8, timeout=0.1)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)
