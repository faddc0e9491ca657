"""A node whose GPUs share an NVLink fabric with other nodes: its clique, in labels and slices, and its IMEX channel."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from node_agent.hardware.simulated.gpu import FabricState
from node_agent.kube.resources import NODES, RESOURCE_SLICES
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from tests.fakes.api_server import ApiServer
from tests.unit.agent.conftest import Place
from tests.unit.agent.test_node_reports import settings_for

RESOURCE, LABEL = "nvidia.com/gpu", "nvidia.com/gpu.clique"
CLIQUE = "b2daed23-0000-4000-8000-6a1f00c0ffee.1"
CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"

LABELLED: dict[str, Any] = {"agent_labels_writer": "node"}

TRAY = pytest.mark.parametrize("place", ["gb200-4"], indirect=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


def label(server: ApiServer) -> str | None:
    (node,) = server.objects(NODES)
    return (node["metadata"].get("labels") or {}).get(LABEL)


def attributes(server: ApiServer) -> list[str | None]:
    """The clique of each device that is published."""
    devices = [device for one in server.objects(RESOURCE_SLICES) for device in one["spec"].get("devices", ())]
    return [device["attributes"].get("clique", {}).get("string") for device in devices]


@TRAY
async def test_the_clique_is_a_label_and_an_attribute_once_the_last_gpu_has_joined_without_a_restart(
    place: Place,
) -> None:
    place.simulated.node.faults.fabric(3, state="in-progress")
    async with ApiServer() as server:
        server.serve("nfd.k8s-sigs.io")
        flags = {**LABELLED, "agent_frontDoors_dra": True, "agent_rescanInterval": "1s"}
        async with place.agent(settings_for(place, server, **flags)):
            await until(lambda: sorted(map(str, attributes(server))) == sorted([CLIQUE] * 3 + ["None"]))
            await until(lambda: "nvidia.com/gpu.count" in server.objects(NODES)[0]["metadata"].get("labels", {}))
            assert label(server) is None
            place.simulated.node.faults.fabric(3, state="completed")
            await until(lambda: label(server) == CLIQUE and attributes(server) == [CLIQUE] * 4)


@TRAY
@pytest.mark.parametrize("broken", [{"status": "INVALID_STATE"}, {"summary": "unhealthy"}, {"clique": 2}])
async def test_the_label_goes_when_the_fabric_of_a_gpu_breaks_or_differs(place: Place, broken: Any) -> None:
    async with ApiServer() as server:
        server.serve("nfd.k8s-sigs.io")
        async with place.agent(settings_for(place, server, **LABELLED, agent_rescanInterval="1s")):
            await until(lambda: label(server) == CLIQUE)
            place.simulated.node.faults.fabric(1, **broken)
            await until(lambda: label(server) is None)


async def test_gpus_of_one_node_alone_have_no_clique(place: Place) -> None:
    fabric = place.simulated.node.faults.gpu(0).fabric
    assert isinstance(fabric, FabricState)
    assert fabric.cluster.int == 0
    async with ApiServer() as server:
        server.serve("nfd.k8s-sigs.io")
        async with place.agent(settings_for(place, server, **LABELLED, agent_frontDoors_dra=True)):
            await until(lambda: len(attributes(server)) == 8)
            await until(lambda: "nvidia.com/gpu.count" in server.objects(NODES)[0]["metadata"].get("labels", {}))
            assert (label(server), set(attributes(server))) == (None, {None})


# IMEX channels for whoever has a GPU


async def allocated(place: Place, gpus: int, **flags: object) -> wire.ContainerAllocateResponse:
    async with place.kubelet.running(), place.agent(place.settings(**flags)):
        await place.kubelet.until(RESOURCE, allocatable=gpus)
        return (await place.kubelet.admit("pod", RESOURCE, 1))[1]


def nodes_for_all(place: Place) -> list[str]:
    """The device nodes that the spec gives to every container."""
    (file,) = (place.folder / "cdi").iterdir()
    return [node["path"] for node in json.loads(file.read_text())["containerEdits"]["deviceNodes"]]


@TRAY
@pytest.mark.parametrize("channels", [[], [0]])
async def test_channel_0_goes_with_every_gpu_where_it_is_configured(place: Place, channels: list[int]) -> None:
    response = await allocated(place, 4, **{"imex.channelIDs": channels})
    assert (CHANNEL in nodes_for_all(place)) == bool(channels)
    assert len(response.cdi_devices) == 1


@TRAY
@pytest.mark.parametrize(
    ("strategy", "variables", "mounts"),
    [
        ("envvar", {"NVIDIA_IMEX_CHANNELS": "0"}, 0),
        ("volume-mounts", {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}, 2),
    ],
)
async def test_the_container_toolkit_is_told_of_the_channel_in_its_own_words(
    place: Place, strategy: str, variables: dict[str, str], mounts: int
) -> None:
    flags = {"imex.channelIDs": [0], "flags.plugin.deviceListStrategy": [strategy, "cdi-cri"]}
    response = await allocated(place, 4, **flags)
    assert variables.items() <= dict(response.envs).items()
    assert len(response.mounts) == mounts
    if mounts:
        assert response.mounts[-1].container_path == "/var/run/nvidia-container-devices/imex/0"


async def test_a_channel_that_is_not_there_costs_nothing_unless_it_is_required(place: Place) -> None:
    flags = {"imex.channelIDs": [0], "flags.plugin.deviceListStrategy": ["envvar", "cdi-cri"]}
    response = await allocated(place, 8, **flags)
    assert "NVIDIA_IMEX_CHANNELS" not in response.envs
    assert CHANNEL not in nodes_for_all(place)


async def test_without_a_required_channel_no_gpu_is_given_out_and_the_trouble_says_why(place: Place) -> None:
    flags = {"imex.channelIDs": [0], "imex.required": True}
    async with place.kubelet.running(), place.agent(place.settings(**flags)) as agent:
        await until(lambda: CHANNEL in (agent.publisher.published.value.trouble or ""))
        assert place.kubelet.view(RESOURCE).capacity == 0
