"""A whole agent on a node with AMD's GPUs: both front doors, the CDI spec, labels and health, over real sockets.

Nothing above ``hardware`` knows whose GPUs they are but by the names that it is given.
"""

import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from grpc import aio

from node_agent.agent.agent import Agent
from node_agent.agent.build import built
from node_agent.cli.simulated import AmdSimulation, any_simulation
from node_agent.config.resolve import resolve
from node_agent.config.settings import Settings
from node_agent.kit.tasks import running
from node_agent.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from node_agent.kubelet.embedded import EmbeddedKubelet
from node_agent.model.health import Reason
from node_agent.wire import dra_v1_pb2 as v1
from node_agent.wire import dra_v1_pb2_grpc as rpc
from tests.fakes.api_server import ApiServer
from tests.fakes.dra_kubelet import DraKubelet
from tests.unit.agent.test_node_reports import until

RESOURCE, DRIVER, NODE = "amd.com/gpu", "gpu.amd.com", "node-a"
FIRST = "GPU-4cbc8b2b2e1ad900"


@dataclass
class Place:
    """Eight MI300X in files, a kubelet and a cluster's API server."""

    folder: Path
    simulated: AmdSimulation
    server: ApiServer

    def __post_init__(self) -> None:
        self.kubelet = EmbeddedKubelet(self.folder / "kubelet" / "device-plugins")
        self.claims = DraKubelet(self.folder / "kubelet" / "plugins_registry")

    @property
    def settings(self) -> Settings:
        kubeconfig = self.folder / "kubeconfig"
        document = {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": self.server.url}}],
            "users": [{"name": "it", "user": {"token": "t"}}],
        }
        kubeconfig.write_text(yaml.safe_dump(document))
        flags = {
            **self.simulated.flags,
            "agent.paths.kubeletDir": str(self.folder / "kubelet"),
            "agent.paths.cdiDir": str(self.folder / "cdi"),
            "agent.paths.stateDir": str(self.folder / "state"),
            "agent.paths.runDir": str(self.folder / "run"),
            "agent.nodeName": NODE,
            "agent.kubeconfig": str(kubeconfig),
            "agent.labels.writer": "node",
            "agent.health.probeInterval": "1s",
            "agent.rescanInterval": "1s",
        }
        return resolve(None, {}, flags).settings

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        """An agent at work, whom the kubelet knows by both front doors."""
        self.server.put(NODES, {"metadata": {"name": NODE}})
        async with (
            self.kubelet.running(),
            self.claims.running(),
            built(self.settings, self.simulated.stat) as agent,
            running(agent.run()),
        ):
            await self.kubelet.until(RESOURCE, allocatable=8)
            await self.claims.until(1)
            await until(lambda: len(self.published) == 8)
            yield agent

    @property
    def published(self) -> dict[str, Any]:
        slices = self.server.objects(RESOURCE_SLICES)
        return {device["name"]: device for one in slices for device in one["spec"].get("devices", ())}

    @property
    def labels(self) -> dict[str, str]:
        (node,) = self.server.objects(NODES)
        return dict(node["metadata"].get("labels") or {})

    def spec(self) -> Any:
        return json.loads((self.folder / "cdi" / "node-agent.gpu.amd.com-gpu.json").read_text())

    def nodes_of(self, spec: Any, device: str) -> list[str]:
        """The device nodes that a container gets with a device, as it sees them."""
        (found,) = [one for one in spec["devices"] if one["name"] == device]
        edits = spec["containerEdits"], found["containerEdits"]
        return sorted(node["path"] for each in edits for node in each["deviceNodes"])


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    with (
        tempfile.TemporaryDirectory(prefix="amd-", dir="/tmp") as name,
        any_simulation("mi300x-8", Path(name) / "n") as simulated,
    ):
        assert isinstance(simulated, AmdSimulation)
        async with ApiServer() as server:
            yield Place(folder=Path(name), simulated=simulated, server=server)


def strings(value: Any) -> Iterator[str]:
    """Every text in a document, its keys included."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield key
            yield from strings(below)
    elif isinstance(value, list):
        for below in value:
            yield from strings(below)
    else:
        yield str(value)


async def test_a_pod_gets_a_gpu_by_its_limit_as_a_name_that_the_spec_has(place: Place) -> None:
    async with place.agent():
        (device,), response = await place.kubelet.admit("pod", RESOURCE, 1)
        assert [one.name for one in response.cdi_devices] == [f"node-agent.gpu.amd.com/gpu={device}"]
        assert not (response.envs or response.mounts or response.devices or response.annotations)
        number = place.simulated.node.uuids.index(device)
        assert place.nodes_of(place.spec(), device) == [
            f"/dev/dri/card{number + 1}",
            f"/dev/dri/renderD{number + 128}",
            "/dev/kfd",
        ]


async def test_gpus_that_xgmi_joins_are_preferred_on_one_numa_node(place: Place) -> None:
    async with place.agent() as agent:
        ids, _ = await place.kubelet.admit("pod", RESOURCE, 4)
        inventory = agent.keeper.inventory.value
        assert len({gpu.numa_node for gpu in inventory.gpus if gpu.uuid in ids}) == 1
        assert len(inventory.links.island(inventory.gpus[0].uuid)) == 8


async def test_the_slices_speak_amds_words(place: Place) -> None:
    async with place.agent():
        assert {one["spec"]["driver"] for one in place.server.objects(RESOURCE_SLICES)} == {DRIVER}
        device = place.published["gpu-0"]
        assert device["attributes"] == {
            "type": {"string": "amdgpu"},
            "uuid": {"string": FIRST},
            "resource.kubernetes.io/pciBusID": {"string": "0000:05:00.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:05"},
            "resource.kubernetes.io/numaNode": {"int": 0},
            "numaNode": {"int": 0},
            "productName": {"string": "AMD Instinct MI300X OAM"},
            "architecture": {"string": "gfx942"},
            "driverVersion": {"version": "6.10.5"},
            "xgmiDomain": {"string": FIRST},
            "xgmiBandwidthMBps": {"int": 7 * 64000},
            "powerLimitWatts": {"int": 750},
            "deviceID": {"string": "0x74a1"},
            "vbios": {"string": "113-M3000100-103"},
        }
        assert device["capacity"] == {"memory": {"value": "196288Mi"}, "computeUnits": {"value": "304"}}


async def test_a_claim_is_prepared_with_a_spec_of_its_own_and_given_back(place: Place) -> None:
    async with place.agent():
        result = {"request": "gpus", "driver": DRIVER, "pool": NODE, "device": "gpu-3"}
        stored = place.server.put(
            RESOURCE_CLAIMS,
            {
                "metadata": {"name": "job", "namespace": "default"},
                "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": DRIVER}}]}},
                "status": {"allocation": {"devices": {"results": [result], "config": []}}},
            },
        )
        uid = stored["metadata"]["uid"]
        claim = v1.Claim(uid=uid, namespace="default", name="job")
        async with aio.insecure_channel(f"unix:{place.claims.newest.endpoint}") as channel:
            stub = rpc.DRAPluginStub(channel)
            prepared = await stub.NodePrepareResources(v1.NodePrepareResourcesRequest(claims=[claim]))
            answer = prepared.claims[uid]
            assert not answer.error
            name = f"{uid}-gpu-3"
            assert [list(one.cdi_device_ids) for one in answer.devices] == [[f"node-agent.gpu.amd.com/claim={name}"]]
            file = place.folder / "cdi" / f"node-agent.gpu.amd.com-claim_{uid}.json"
            nodes = place.nodes_of(json.loads(file.read_text()), name)
            assert nodes == ["/dev/dri/card4", "/dev/dri/renderD131", "/dev/kfd"]
            await place.kubelet.until(RESOURCE, allocatable=7)
            undone = await stub.NodeUnprepareResources(v1.NodeUnprepareResourcesRequest(claims=[claim]))
            assert not undone.claims[uid].error
        assert not file.exists()
        await place.kubelet.until(RESOURCE, allocatable=8)


async def test_the_node_is_labelled_in_amds_domain_and_as_amds_labeller_does_it(place: Place) -> None:
    async with place.agent():
        await until(lambda: place.labels.get("node-agent.gpu.amd.com/health") == "healthy")
        assert place.labels == {
            "amd.com/gpu.count": "8",
            "amd.com/gpu.cu-count": "304",
            "amd.com/gpu.device-id": "74a1",
            "amd.com/gpu.driver-version": "6.10.5",
            "amd.com/gpu.memory": "196288",
            "amd.com/gpu.present": "true",
            "amd.com/gpu.product": "AMD-Instinct-MI300X-OAM",
            "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
            "amd.com/gpu.replicas": "1",
            "amd.com/gpu.sharing-strategy": "none",
            "amd.com/gpu.vram": "192G",
            "node-agent.gpu.amd.com/gpus-in-service": "8",
            "node-agent.gpu.amd.com/health": "healthy",
            "node-agent.gpu.amd.com/xgmi.island-size": "8",
        }


async def test_a_gpu_that_leaves_the_bus_is_withdrawn_and_comes_back_by_itself(place: Place) -> None:
    async with place.agent():
        place.simulated.lose(place.simulated.node.uuids[0])
        view = await place.kubelet.until(RESOURCE, allocatable=7)
        assert view.devices[FIRST].health == "Unhealthy"
        await until(lambda: place.published["gpu-0"].get("taints"))
        assert {taint["key"].partition("/")[0] for taint in place.published["gpu-0"]["taints"]} == {DRIVER}
        place.simulated.restore(place.simulated.node.uuids[0])
        await place.kubelet.until(RESOURCE, allocatable=8)


async def test_errors_of_memory_that_could_not_be_corrected_withdraw_their_gpu(place: Place) -> None:
    async with place.agent() as agent:
        first = place.simulated.node.uuids[0]
        place.simulated.node.change(first, uncorrected=1)
        view = await place.kubelet.until(RESOURCE, allocatable=7)
        assert view.devices[first].health == "Unhealthy"
        assert Reason.ECC in {cause.reason for cause in agent.board.report.value.of(first).causes}


async def test_nothing_that_the_agent_writes_or_tells_speaks_of_nvidia(place: Place) -> None:
    async with place.agent() as agent:
        await until(lambda: place.labels.get("node-agent.gpu.amd.com/health") == "healthy")
        await until(lambda: agent.status().ready)
        (node,) = place.server.objects(NODES)
        told = [node, place.spec(), *place.server.objects(RESOURCE_SLICES)]
        told.append(msgspec.to_builtins(agent.status()))
        found = {text for text in strings(told) if "nvidia" in text.lower()}
        assert found == set()
        assert sorted(place.kubelet.resources.value) == [RESOURCE]
