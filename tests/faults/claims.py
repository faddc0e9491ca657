"""An agent with both front doors open: a cluster's API server, the claims in it, and the kubelet's calls for them."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from grpc import aio

from node_agent.agent.agent import Agent
from node_agent.cdi.names import file_name
from node_agent.config.settings import Settings
from node_agent.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Object
from node_agent.wire import dra_v1_pb2 as v1
from node_agent.wire import dra_v1_pb2_grpc as rpc
from tests.fakes.api_server import ApiServer
from tests.fakes.names import CLAIM_KIND as KIND
from tests.faults.conftest import Place, until

DRIVER, NODE = "gpu.nvidia.com", "node"

Answers = Mapping[str, v1.NodePrepareResourceResponse]


class Cluster:
    """A place whose node belongs to a cluster."""

    def __init__(self, place: Place, server: ApiServer) -> None:
        self.place, self.server = place, server
        server.put(NODES, {"metadata": {"name": NODE}})
        # The kubelet's own, as the folder of its device plugins is.
        (place.settings.paths.kubelet_dir / "plugins_registry").mkdir(parents=True)

    @property
    def settings(self) -> Settings:
        file = self.place.folder / "kubeconfig"
        document = {
            "clusters": [{"name": "c", "cluster": {"server": self.server.url}}],
            "users": [{"name": "c", "user": {"token": "any"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            "current-context": "c",
        }
        file.write_text(json.dumps(document))
        return self.place.with_settings(dra=True, kubeconfig=file, node_name=NODE)

    @asynccontextmanager
    async def serving(self, devices: int) -> AsyncIterator[Agent]:
        """The agent at work: so many devices are published, and it knows who holds what."""
        async with self.place.kubelet.running(), self.place.agent(self.settings) as agent:
            await until(lambda: len(self.devices) == devices and self.sockets)
            await until(lambda: agent.ledger.trouble is None)
            yield agent

    # What is published

    @property
    def slices(self) -> list[Object]:
        return self.server.objects(RESOURCE_SLICES)

    @property
    def devices(self) -> dict[str, Any]:
        """The published devices by name."""
        return {device["name"]: device for item in self.slices for device in item["spec"].get("devices", ())}

    def device_of(self, gpu: int) -> str:
        """The name of a GPU, by its place in the profile."""
        uuid = self.place.uuid(gpu)
        return next(name for name, one in self.devices.items() if one["attributes"]["uuid"]["string"] == uuid)

    # Claims

    def allocate(
        self,
        name: str,
        *devices: str,
        uid: str | None = None,
        share: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> v1.Claim:
        """A claim to which the scheduler has allocated these devices, as the kubelet names it.

        ``share`` is the id of its share of each device, ``parameters`` its opaque configuration.
        """
        shared = {"shareID": share} if share else {}
        results = [
            {"request": "gpus", "driver": DRIVER, "pool": NODE, "device": device, **shared} for device in devices
        ]
        opaque = {"driver": DRIVER, "parameters": parameters}
        config = [{"source": "FromClaim", "opaque": opaque}] if parameters is not None else []
        stored = self.server.put(
            RESOURCE_CLAIMS,
            {
                "metadata": {"name": name, "namespace": "default", **({"uid": uid} if uid else {})},
                "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": DRIVER}}]}},
                "status": {"allocation": {"devices": {"results": results, "config": config}}},
            },
        )
        return v1.Claim(uid=stored["metadata"]["uid"], namespace="default", name=name)

    def forget(self, claim: v1.Claim) -> None:
        self.server.remove(RESOURCE_CLAIMS, claim.name)

    @property
    def sockets(self) -> list[Path]:
        return sorted((self.place.settings.paths.kubelet_dir / "plugins" / DRIVER).glob("dra-*.sock"))

    async def prepare(self, *claims: v1.Claim) -> Answers:
        """What the driver answers to the kubelet, by the claims' names."""
        async with aio.insecure_channel(f"unix:{self.sockets[-1]}") as channel:
            answer = await rpc.DRAPluginStub(channel).NodePrepareResources(
                v1.NodePrepareResourcesRequest(claims=claims)
            )
        return {claim.name: answer.claims[claim.uid] for claim in claims}

    async def unprepare(self, *claims: v1.Claim) -> Mapping[str, str]:
        """The errors that the driver answers, by the claims' names; empty where there is none."""
        async with aio.insecure_channel(f"unix:{self.sockets[-1]}") as channel:
            answer = await rpc.DRAPluginStub(channel).NodeUnprepareResources(
                v1.NodeUnprepareResourcesRequest(claims=claims)
            )
        return {claim.name: answer.claims[claim.uid].error for claim in claims}

    async def prepared(self, claim: v1.Claim) -> list[str]:
        """Prepare a claim and return the names of its devices."""
        answer = (await self.prepare(claim))[claim.name]
        assert not answer.error, answer.error
        return [device.device_name for device in answer.devices]

    def spec_of(self, claim: v1.Claim) -> Path:
        return self.place.settings.paths.cdi_dir / file_name(KIND, claim.uid)

    @property
    def books(self) -> Path:
        """The ledger's file."""
        return self.place.settings.paths.state_dir / "ledger.json"
