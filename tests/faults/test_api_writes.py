"""What a node costs the API server: the writes of a day, whose events are compressed into seconds.

A day has two restarts of the kubelet, which wipes the node's slices, one of the agent, ten Xids after each of which the
GPU is well again, and five hundred claims. Claims are all alike, so forty of them are enough to tell.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from node_agent.config.settings import Settings
from node_agent.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from node_agent.wire import dra_v1_pb2 as v1
from tests.fakes.api_server import ApiServer
from tests.faults.claims import Cluster
from tests.faults.conftest import Simulate, until

CLAIMS = 40
# Conditions and labels that the first agent writes, and the second perhaps.
STARTS = 6
RESOURCES = "/apis/resource.k8s.io/"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


class Watched(Cluster):
    """One whose sick GPUs stay out for long enough to be seen, on a slow machine too."""

    @property
    def settings(self) -> Settings:
        usual = super().settings
        return replace(usual, health=replace(usual.health, probe_interval=1.0))


class Day:
    """A node's day, and what it has cost so far."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.written: dict[str, int] = {}

    def count(self, what: str) -> None:
        """Put down what was written of slices and claims since the last count."""
        self.written[what] = len(self.cluster.server.writes(RESOURCES)) - sum(self.written.values())

    async def wipe(self) -> None:
        for item in self.cluster.slices:
            self.cluster.server.remove(RESOURCE_SLICES, item["metadata"]["name"])
        await until(lambda: len(self.cluster.devices) == 8)

    async def xid(self, gpu: int) -> None:
        device = self.cluster.device_of(gpu)
        self.cluster.place.node.faults.xid(gpu, 79)
        await until(lambda: "taints" in self.cluster.devices[device])
        await until(lambda: "taints" not in self.cluster.devices[device])

    async def claims(self, number: int) -> None:
        """Eight claims at once: prepared, their status written, their pods ended."""
        devices = sorted(self.cluster.devices)
        claims = [self.cluster.allocate(f"claim-{number}-{device}", device) for device in devices]
        answers = await asyncio.gather(*(self.cluster.prepare(claim) for claim in claims))
        assert all(not one.error for answer in answers for one in answer.values())
        await until(lambda: all(self.told(claim) for claim in claims))
        await asyncio.gather(*(self.cluster.unprepare(claim) for claim in claims))
        for claim in claims:
            self.cluster.forget(claim)

    def told(self, claim: v1.Claim) -> bool:
        """Whether the claim's status tells of its devices."""
        found = next(one for one in self.cluster.server.objects(RESOURCE_CLAIMS) if one["metadata"]["uid"] == claim.uid)
        return bool(found["status"].get("devices"))


async def test_a_day_costs_one_write_for_each_thing_that_there_is_to_tell(
    simulate: Simulate, server: ApiServer
) -> None:
    day = Day(Watched(simulate("h200-8"), server))
    async with day.cluster.serving(8):
        day.count("start")
    async with day.cluster.serving(8):
        day.count("restart of the agent")
        for _ in range(2):
            await day.wipe()
        day.count("two restarts of the kubelet")
        for number in range(10):
            await day.xid(number % 8)
        day.count("ten xids")
        for number in range(CLAIMS // 8):
            await day.claims(number)
        await asyncio.sleep(0.5)
        day.count("forty claims")
    assert day.written == {
        "start": 1,
        "restart of the agent": 0,
        "two restarts of the kubelet": 2,
        "ten xids": 20,
        "forty claims": CLAIMS,
    }
    others = [asked for asked in server.writes() if RESOURCES not in asked.path]
    # On a slow machine each GPU is out long enough to be told of: by condition, Event and labels, there and back.
    assert len(others) <= 6 * 10 + STARTS, [f"{asked.verb} {asked.path}" for asked in others]


async def test_claims_of_other_nodes_cost_a_node_nothing(simulate: Simulate, server: ApiServer) -> None:
    """Each agent watched every claim of the cluster: with the nodes, both the events and who gets them grow."""
    day = Day(Cluster(simulate("h200-8"), server))
    async with day.cluster.serving(8):
        claim = day.cluster.allocate("mine", "gpu-0")
        await day.cluster.prepared(claim)
        await until(lambda: day.told(claim))
    async with day.cluster.serving(8):
        await asyncio.sleep(0.5)
    asked = [one for one in server.requests if "resourceclaims" in one.path]
    assert {one.verb for one in asked} == {"get", "patch"}
    assert all("/mine" in one.path for one in asked)


async def test_a_restarted_agent_writes_no_status_again(simulate: Simulate, server: ApiServer) -> None:
    day = Day(Cluster(simulate("h200-8"), server))
    async with day.cluster.serving(8):
        claims = [day.cluster.allocate(f"claim-{device}", device) for device in sorted(day.cluster.devices)]
        for claim in claims:
            await day.cluster.prepared(claim)
        await until(lambda: all(day.told(claim) for claim in claims))
        await asyncio.sleep(0.2)
        before = len(server.writes(RESOURCES))
    async with day.cluster.serving(8):
        await asyncio.sleep(0.5)
    assert len(server.writes(RESOURCES)) == before
