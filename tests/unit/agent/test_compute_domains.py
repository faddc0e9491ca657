"""An agent that serves ComputeDomains beside its GPUs: announced, published, and silent where there is none."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from node_agent.computedomain.names import CLIQUES, DOMAINS, DRIVER, LABEL
from node_agent.dra.server import CLAIM_SERVICES
from node_agent.errors import KubeAccessError
from node_agent.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from node_agent.wire import dra_v1_pb2 as v1
from tests.fakes.api_server import ApiServer
from tests.fakes.dra_kubelet import DRA, DraKubelet
from tests.unit.agent.conftest import Place
from tests.unit.agent.test_node_reports import settings_for
from tests.unit.computedomain.world import CLIQUE, config

TRAY = pytest.mark.parametrize("place", ["gb200-4"], indirect=True)
ON: dict[str, Any] = {"agent_frontDoors_computeDomains": True, "agent_rescanInterval": "1s"}
BOTH = {**ON, "agent_frontDoors_dra": True}


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


def published(server: ApiServer) -> list[str]:
    slices = [one for one in server.objects(RESOURCE_SLICES) if one["spec"]["driver"] == DRIVER]
    return [device["name"] for one in slices for device in one["spec"].get("devices", ())]


@TRAY
async def test_a_tray_announces_the_driver_publishes_its_devices_and_prepares_a_workload(place: Place) -> None:
    kubelet = DraKubelet(place.folder / "kubelet" / "plugins_registry")
    async with ApiServer() as server, kubelet.running(), place.agent(settings_for(place, server, **ON)) as agent:
        await until(lambda: published(server) == ["channel-0", "daemon-0"])
        await until(lambda: [one.name for one in kubelet.instances.value] == [DRIVER])
        assert kubelet.newest.services == CLAIM_SERVICES, "no health is told of channels"
        await until(lambda: agent.keeper.inventory.value.generation)
        domain = server.put(DOMAINS, {"metadata": {"name": "d", "namespace": "default"}})["metadata"]["uid"]
        daemons = [{"nodeName": "node-a", "status": "Ready"}]
        server.put(CLIQUES, {"metadata": {"name": f"{domain}.{CLIQUE}", "namespace": "sys"}, "daemons": daemons})
        uid = claim(server, domain)
        _, stub = kubelet.newest.stub({CLAIM_SERVICES[0]: DRA[CLAIM_SERVICES[0]]}, "DRAPlugin")
        made = [v1.Claim(uid=uid, namespace="default", name="made")]
        answer = (await stub.NodePrepareResources(v1.NodePrepareResourcesRequest(claims=made))).claims[uid]
        assert (answer.error, [device.device_name for device in answer.devices]) == ("", ["channel-0"])
        (node,) = server.objects(NODES)
        assert node["metadata"]["labels"][LABEL] == domain
        given_back = await stub.NodeUnprepareResources(v1.NodeUnprepareResourcesRequest(claims=made))
        assert given_back.claims[uid].error == ""
        assert LABEL not in server.objects(NODES)[0]["metadata"].get("labels", {})


@TRAY
async def test_the_configured_namespaces_are_those_from_which_a_daemons_claim_is_let_in(place: Place) -> None:
    kubelet = DraKubelet(place.folder / "kubelet" / "plugins_registry")
    settings = {**ON, "agent_frontDoors_computeDomainNamespaces": ["sys"]}
    async with ApiServer() as server, kubelet.running(), place.agent(settings_for(place, server, **settings)) as agent:
        await until(lambda: [one.name for one in kubelet.instances.value] == [DRIVER])
        await until(lambda: agent.keeper.inventory.value.generation)
        domain = server.put(DOMAINS, {"metadata": {"name": "d", "namespace": "default"}})["metadata"]["uid"]
        uid = claim(server, domain, "daemon")
        _, stub = kubelet.newest.stub({CLAIM_SERVICES[0]: DRA[CLAIM_SERVICES[0]]}, "DRAPlugin")
        made = [v1.Claim(uid=uid, namespace="default", name="made")]
        answer = (await stub.NodePrepareResources(v1.NodePrepareResourcesRequest(claims=made))).claims[uid]
        assert answer.error.endswith("which by agent.frontDoors.computeDomainNamespaces is sys")
        assert not answer.devices


def claim(server: ApiServer, domain: str, kind: str = "channel") -> str:
    """The UID of an allocated claim ``default/made``."""
    section = config(f"ComputeDomain{kind.capitalize()}Config", domain)
    parameters: dict[str, Any] = {"driver": DRIVER, "parameters": section}
    devices = {
        "results": [{"request": "r", "driver": DRIVER, "pool": "node-a", "device": f"{kind}-0"}],
        "config": [{"source": "FromClaim", "requests": [], "opaque": parameters}],
    }
    body = {"metadata": {"name": "made"}, "status": {"allocation": {"devices": devices}}}
    return str(server.put(RESOURCE_CLAIMS, body)["metadata"]["uid"])


async def test_a_node_whose_driver_has_no_channels_serves_its_gpus_and_says_nothing_of_domains(place: Place) -> None:
    devices = place.simulated.tree / "proc" / "devices"
    devices.write_text("".join(line for line in devices.read_text().splitlines(True) if "imex" not in line))
    registry = place.folder / "kubelet" / "plugins_registry"
    async with ApiServer() as server, place.kubelet.running(), place.agent(settings_for(place, server, **BOTH)):
        await place.kubelet.until("nvidia.com/gpu", allocatable=8)
        await until(lambda: server.objects(RESOURCE_SLICES))
        assert published(server) == []
        assert not [path for path in registry.iterdir() if path.name.startswith(DRIVER)]


@TRAY
async def test_nothing_of_it_is_there_unless_it_is_asked_for(place: Place) -> None:
    off = {**BOTH, "agent_frontDoors_computeDomains": False}
    async with ApiServer() as server, place.agent(settings_for(place, server, **off)) as agent:
        await until(lambda: server.objects(RESOURCE_SLICES))
        assert published(server) == []
        assert not [name for name in agent.supervisor.states.value if "compute domain" in name]


@TRAY
async def test_whoever_asks_for_it_without_an_api_server_is_told(place: Place) -> None:
    settings = place.settings(agent_frontDoors_computeDomains=True, agent_frontDoors_dra=False)
    with pytest.raises(KubeAccessError):
        async with place.agent(settings):
            raise AssertionError("it was built without a way")
