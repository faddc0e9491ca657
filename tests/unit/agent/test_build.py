"""What the settings make of the agent: its folders, its resources, its way to the kubelet and to the containers."""

import asyncio
import json
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent.agent.build import built, inventory_once
from node_agent.agent.hardware import driver_roots
from node_agent.config.settings import Paths, Rename, Settings
from node_agent.errors import ConfigError
from node_agent.kit.http_client import get
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from tests.unit.agent.conftest import Place

RESOURCE = "nvidia.com/gpu"


# Folders


async def test_the_agents_own_folders_are_made_and_closed_to_others(place: Place) -> None:
    async with built(place.settings()):
        for name in ("state", "run"):
            assert stat.S_IMODE((place.folder / name).stat().st_mode) == 0o750


async def test_what_is_built_does_nothing_until_it_runs(place: Place) -> None:
    async with built(place.settings(), place.simulated.stat) as agent:
        await asyncio.sleep(0.05)
        assert agent.status().generation == 0
        assert not (place.folder / "cdi").exists()
        assert not list((place.folder / "run").glob("*.sock"))


@pytest.mark.parametrize(("folder", "key"), [("state_dir", "agent.paths.stateDir"), ("run_dir", "agent.paths.runDir")])
async def test_a_folder_that_cannot_be_made_is_named_with_its_key(place: Place, folder: str, key: str) -> None:
    (place.folder / "file").write_text("")
    settings = place.settings()
    settings = replace(settings, paths=replace(settings.paths, **{folder: place.folder / "file" / "below"}))
    with pytest.raises(ConfigError, match=rf"{key}: cannot make {place.folder}/file/below: Not a directory"):
        async with built(settings):
            raise AssertionError("it was built on a file")


# The way to the kubelet


@pytest.mark.parametrize("registration", ["socket", "watcher", "auto"])
async def test_all_gpus_reach_the_kubelet_by_every_route(place: Place, registration: str) -> None:
    async with place.kubelet.running(), place.agent(place.settings(agent_registration=registration)):
        view = await place.kubelet.until(RESOURCE, allocatable=8)
    by_watcher = Path(view.endpoint).parent == place.folder / "kubelet" / "plugins" / "gpu-node-agent"
    assert by_watcher == (registration == "watcher")


@pytest.mark.parametrize("place", ["mixed-5"], indirect=True)
async def test_each_product_may_have_a_resource_name_of_its_own(place: Place) -> None:
    rules = (
        Rename(pattern="*A100*", resource="nvidia.com/a100"),
        Rename(pattern="*H200*", resource="nvidia.com/h200"),
    )
    async with place.kubelet.running(), place.agent(replace(place.settings(), resources=rules)) as agent:
        await place.kubelet.until("nvidia.com/a100", allocatable=4)
        found = {resource.name: resource.devices for resource in agent.status().resources}
        assert agent.status().ready
    assert found == {"nvidia.com/a100": 4, "nvidia.com/h200": 0, RESOURCE: 0}
    assert place.kubelet.resources.value.keys() == {"nvidia.com/a100"}


async def test_an_excluded_gpu_is_offered_under_no_name(place: Place) -> None:
    async with place.kubelet.running(), place.agent(replace(place.settings(), exclude=("0", "7"))):
        view = await place.kubelet.until(RESOURCE, allocatable=6)
    lost = {place.simulated.node.faults.gpu(index).uuid for index in (0, 7)}
    assert not lost & view.devices.keys()


# The way to the container


async def allocated(place: Place, **flags: object) -> tuple[str, wire.ContainerAllocateResponse]:
    """What a pod with one GPU is given: the GPU's id, and what the runtime is told."""
    async with place.kubelet.running(), place.agent(place.settings(**flags)):
        await place.kubelet.until(RESOURCE, allocatable=8)
        (device,), response = await place.kubelet.admit("pod", RESOURCE, 1)
        return device, response


async def test_by_default_the_runtime_gets_a_cdi_name_that_is_in_the_spec_and_nothing_else(place: Place) -> None:
    device, response = await allocated(place)
    (spec_file,) = (place.folder / "cdi").iterdir()
    spec = json.loads(spec_file.read_text())
    assert [one.name for one in response.cdi_devices] == [f"{spec['kind']}={device}"]
    assert device in [one["name"] for one in spec["devices"]]
    assert not (response.envs or response.mounts or response.devices or response.annotations)


async def test_the_agents_own_names_serve_as_environment_variable(place: Place) -> None:
    device, response = await allocated(place, **{"flags.plugin.deviceListStrategy": "envvar"})
    assert dict(response.envs) == {"NVIDIA_VISIBLE_DEVICES": device}
    assert not response.cdi_devices


async def test_devices_may_be_named_by_index(place: Place) -> None:
    flags = {"flags.plugin.deviceListStrategy": "envvar", "flags.plugin.deviceIDStrategy": "index"}
    device, response = await allocated(place, **flags)
    assert place.simulated.node.faults.gpu(response.envs["NVIDIA_VISIBLE_DEVICES"]).uuid == device


async def test_cdi_names_may_go_into_an_annotation_under_the_prefix_of_choice(place: Place) -> None:
    flags = {"flags.plugin.deviceListStrategy": "cdi-annotations", "flags.plugin.cdiAnnotationPrefix": "example.org/"}
    device, response = await allocated(place, **flags)
    ((key, value),) = response.annotations.items()
    assert key.startswith("example.org/node-agent_gpu")
    assert value == f"node-agent.gpu.nvidia.com/gpu={device}"


async def test_who_gives_gpus_without_cdi_does_not_wait_for_a_spec(place: Place) -> None:
    (place.folder / "cdi").write_text("in the way")
    async with place.kubelet.running():
        async with place.agent() as agent:
            while not agent.publisher.published.value.trouble:
                await asyncio.sleep(0.02)
            assert place.kubelet.view(RESOURCE).capacity == 0
        async with place.agent(place.settings(**{"flags.plugin.deviceListStrategy": "envvar"})):
            await place.kubelet.until(RESOURCE, allocatable=8)


# Around it


async def test_the_status_is_served_in_the_run_folder(place: Place) -> None:
    socket = place.folder / "run" / "agent.sock"
    async with place.agent():
        while not socket.exists():
            await asyncio.sleep(0.01)
        assert (await asyncio.to_thread(get, socket, "/healthz"))[0] == 200
    assert not socket.exists()


async def test_names_of_gpus_outlive_the_agent(place: Place) -> None:
    async with place.kubelet.running(), place.agent():
        await place.kubelet.until(RESOURCE, allocatable=8)
    kept = json.loads((place.folder / "state" / "names.json").read_text())["names"]
    assert sorted(kept.values()) == [f"gpu-{number}" for number in range(8)]


async def test_one_look_needs_no_agent_and_writes_nothing(place: Place) -> None:
    inventory = await inventory_once(place.settings())
    assert len(inventory.gpus) == 8
    assert not (place.folder / "state").exists()


async def test_one_look_uses_the_names_that_the_agent_has_given(place: Place) -> None:
    first = place.simulated.node.faults.gpu(0).uuid
    (place.folder / "state").mkdir()
    content = json.dumps({"version": 1, "names": {first: "gpu-77"}})
    (place.folder / "state" / "names.json").write_text(content)
    inventory = await inventory_once(place.settings())
    assert inventory.gpus[0].name == "gpu-77"
    assert (place.folder / "state" / "names.json").read_text() == content


async def test_a_look_that_breaks_says_so_instead_of_keeping_the_one_who_asked(place: Place) -> None:
    (place.folder / "state").mkdir()
    (place.folder / "state" / "names.json").write_text("[" * 1_000_000)
    async with asyncio.timeout(30) as patience:
        with pytest.raises(RecursionError):
            await inventory_once(place.settings())
    assert not patience.expired()


def test_the_drivers_files_are_where_the_settings_say() -> None:
    settings = Settings(
        driver_root=Path("/run/nvidia/driver"),
        dev_root=Path("/host-dev"),
        container_driver_root=Path("/driver-root"),
        container_dev_root=Path("/dev-root"),
        paths=Paths(sysfs_root=Path("/host-sys")),
    )
    roots = driver_roots(settings)
    assert (roots.driver, roots.host_driver) == (Path("/driver-root"), Path("/run/nvidia/driver"))
    assert (roots.dev, roots.host_dev, roots.sysfs) == (Path("/dev-root"), Path("/host-dev"), Path("/host-sys"))
