"""What is written to the API server of claims' status: what it does not say already, and nothing else."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from node_agent.allocation.grants import Door, Grant, Hold, Holder, State
from node_agent.dra.claim_source import NodeClaims
from node_agent.dra.operations import ClaimRef
from node_agent.dra.status_writer import StatusWriter
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kube.client import KubeClient
from node_agent.kube.resources import RESOURCE_CLAIMS, Object
from node_agent.model.claim import ClaimUid
from node_agent.model.device import DeviceKind, PublishedDevice
from node_agent.model.health import HealthReport
from tests.fakes.api_server import ApiServer
from tests.fakes.builders import h200_node

DRIVER, NODE = "gpu.nvidia.com", "n0"
GPU = h200_node().gpus[0]


@dataclass
class Node:
    server: ApiServer
    claims: NodeClaims
    grants: Latest[Mapping[str, Grant]] = field(default_factory=lambda: Latest({}))

    def claim(self, *status: Object) -> Object:
        """An allocated claim, and what its status says of its devices."""
        results = [{"request": "gpus", "driver": DRIVER, "pool": NODE, "device": GPU.name}]
        allocation = {"devices": {"results": results}}
        body = {
            "metadata": {"name": "a", "namespace": "default"},
            "status": {"allocation": allocation, "devices": list(status)},
        }
        known = self.server.objects(RESOURCE_CLAIMS)
        if known:
            body["metadata"] = known[0]["metadata"]
        return self.server.put(RESOURCE_CLAIMS, body)

    async def prepared(self, item: Object) -> None:
        """Take a claim in, given back just before if it was there already."""
        uid = item["metadata"]["uid"]
        await self.claims.claim(ClaimRef(uid=ClaimUid(uid), namespace="default", name="a"))
        hold = Hold(device=GPU.name, gpus=(GPU.uuid,), request="gpus")
        holder = Holder(door=Door.CLAIM, id=uid, name="default/a")
        self.grants.set({})
        self.grants.set({uid: Grant(holder=holder, holds=(hold,), state=State.PREPARED)})

    @property
    def reasons(self) -> list[str]:
        """Of the conditions of the claim's devices."""
        (claim,) = self.server.objects(RESOURCE_CLAIMS)
        found = claim["status"].get("devices") or ()
        return [condition["reason"] for entry in found for condition in entry.get("conditions") or ()]


@asynccontextmanager
async def writing(server: ApiServer) -> AsyncIterator[Node]:
    published: dict[str, PublishedDevice] = {
        GPU.name: PublishedDevice(name=GPU.name, kind=DeviceKind.GPU, gpus=(GPU.uuid,))
    }
    async with KubeClient(server.access) as client:
        node = Node(server, NodeClaims(client, driver=DRIVER, pool=NODE, grants=Latest({})))
        writer = StatusWriter(
            driver=DRIVER,
            client=client,
            claims=node.claims,
            grants=node.grants,
            inventory=Latest(h200_node()),
            health=Latest(HealthReport()),
            published=lambda: published,
        )
        async with running(writer.run()):
            yield node


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with ApiServer() as server, writing(server) as node:
        yield node


async def test_a_prepared_claim_is_told_that_its_devices_are_ready(node: Node) -> None:
    await node.prepared(node.claim())
    await node.server.until(lambda: node.reasons == ["Prepared"])


async def test_a_claim_that_was_given_back_and_prepared_anew_in_a_moment_is_told_again(node: Node) -> None:
    """Kubernetes takes the status away with the allocation."""
    await node.prepared(node.claim())
    await node.server.until(lambda: node.reasons == ["Prepared"])
    await node.prepared(node.claim())
    await node.server.until(lambda: node.reasons == ["Prepared"])


async def test_what_another_has_said_of_a_device_without_a_condition_is_no_trouble(node: Node) -> None:
    await node.prepared(node.claim({"driver": DRIVER, "pool": NODE, "device": GPU.name, "data": {"by": "another"}}))
    await node.server.until(lambda: node.reasons == ["Prepared"])


async def test_what_the_status_says_already_is_not_written_again(node: Node) -> None:
    await node.prepared(node.claim())
    await node.server.until(lambda: node.reasons == ["Prepared"])
    (claim,) = node.server.objects(RESOURCE_CLAIMS)
    async with writing(node.server) as later:
        await later.prepared(claim)
        # Of two claims the writer comes to the second after the first.
        item = later.server.put(RESOURCE_CLAIMS, claim | {"metadata": {"name": "b", "namespace": "default"}})
        uid = item["metadata"]["uid"]
        hold = Hold(device=GPU.name, gpus=(GPU.uuid,), request="gpus")
        other = Grant(holder=Holder(door=Door.CLAIM, id=uid, name="default/b"), holds=(hold,), state=State.PREPARED)
        later.grants.set({**later.grants.value, uid: other})
        await later.server.until(lambda: any(one.path.endswith("/b") for one in later.server.requests))
    assert [one.path for one in node.server.requests if one.verb == "patch"].count(
        "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/a/status"
    ) == 1
