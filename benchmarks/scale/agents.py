"""``python -m benchmarks.scale.agents``: what many nodes' agents have to do with the API server, in one process.

Each node has the agent's own publisher, reporters and writer of claims' status, over an inventory of its own and
connections of its own. What the GPUs have is the same on all nodes but for their UUIDs. Commands come as lines of JSON
on standard input; each is answered with a line that tells how all of the nodes stand.
"""

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from benchmarks.process import PROFILE
from benchmarks.scale.layouts import of_its_own
from node_agent.agent.node_reports import PATIENCE
from node_agent.allocation.claims import grant_for
from node_agent.allocation.grants import Grant, State
from node_agent.dra.claim_source import NodeClaims
from node_agent.dra.operations import ClaimRef
from node_agent.dra.pool import PoolKeeper
from node_agent.dra.publisher import PublisherState, SlicePublisher
from node_agent.dra.slices import PoolSettings
from node_agent.dra.status_writer import StatusWriter
from node_agent.kit import logs
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kube.access import Access
from node_agent.kube.client import KubeClient
from node_agent.kube.find import find_access
from node_agent.model.claim import ClaimUid
from node_agent.model.device import PublishedDevice
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Reason, Severity
from node_agent.model.inventory import Inventory
from node_agent.model.vendor import NVIDIA
from node_agent.reporting.health_view import HealthView
from node_agent.reporting.label_places import NodeLabels
from node_agent.reporting.label_writer import LabelWriter
from node_agent.reporting.labels import labels
from node_agent.reporting.node_condition import HEALTHY, node_condition
from node_agent.reporting.node_reporter import ConditionWriter, EventWriter, NodeReporter


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    """Which nodes a process has the agents of: each by its name with its token."""

    kubeconfig: str
    tokens: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How many nodes a process has, and how many of them have published what they have."""

    nodes: int
    published: int


class NodeAgent:
    """One node's: ``health`` and ``grants`` are what changes, the rest follows."""

    def __init__(self, node: str, access: Access, inventory: Inventory) -> None:
        self.node = node
        self.inventory = Latest(inventory)
        self.health = Latest(HealthReport())
        self.grants: Latest[Mapping[str, Grant]] = Latest({})
        self.published: Latest[PublisherState] = Latest(PublisherState())
        self._access = access
        self._opened = AsyncExitStack()

    async def start(self) -> None:
        opened = self._opened
        client = await opened.enter_async_context(KubeClient(self._access))
        reports = await opened.enter_async_context(KubeClient(self._access, patience=PATIENCE))
        self._pool = PoolKeeper(
            inventory=self.inventory,
            health=self.health,
            withheld=Latest(frozenset()),
            settings=Latest(PoolSettings()),
        )
        publisher = SlicePublisher(client=client, node=self.node, pool=self._pool.pool, driver=NVIDIA.driver)
        self.published = publisher.state
        self._claims = NodeClaims(client, driver=NVIDIA.driver, pool=self.node, grants=self.grants)
        services = (self._pool, publisher, self._status_writer(client), self._reporter(reports))
        for service in services:
            await opened.enter_async_context(running(service.run()))

    async def end(self) -> None:
        await self._opened.aclose()

    def withdraw(self, gpu: int) -> None:
        uuid = self.inventory.value.gpus[gpu].uuid
        cause = Cause(reason=Reason.XID, severity=Severity.WITHDRAWN, message="Xid 79", since=time.time(), code=79)
        self.health.set(HealthReport(devices={uuid: DeviceHealth(causes=(cause,))}))

    async def prepare(self, uid: str) -> None:
        """Look at the claim that is named as the node, and hold what is allocated to it, as if it were prepared."""
        claim = await self._claims.claim(ClaimRef(uid=ClaimUid(uid), namespace="default", name=self.node))
        grant = replace(grant_for(claim, NVIDIA.driver, self._devices()), state=State.PREPARED)
        self.grants.set({uid: grant})

    @property
    def has_published(self) -> bool:
        state = self.published.value
        return state.slices > 0 and state.trouble is None

    def _devices(self) -> Mapping[str, PublishedDevice]:
        pool = self._pool.pool.value
        return {str(name): device for name, device in pool.devices.items()} if pool is not None else {}

    def _status_writer(self, client: KubeClient) -> StatusWriter:
        return StatusWriter(
            client=client,
            driver=NVIDIA.driver,
            claims=self._claims,
            grants=self.grants,
            inventory=self.inventory,
            health=self.health,
            published=self._devices,
        )

    def _reporter(self, client: KubeClient) -> NodeReporter:
        view = HealthView(node=self.node, inventory=self.inventory, report=self.health, names=dict, counts=dict)
        return NodeReporter(
            view,
            [
                ConditionWriter(client, self.node, HEALTHY, node_condition),
                EventWriter(client, self.node, time.time()),
                LabelWriter(
                    NodeLabels(client, self.node), lambda: labels(self.inventory.value, health=self.health.value)
                ),
            ],
        )


class Crowd:
    """All nodes of this process, and what they are told to do."""

    def __init__(self, chosen: Nodes, inventory: Inventory) -> None:
        access = find_access(Path(chosen.kubeconfig))
        self.agents = [
            NodeAgent(node, replace(access, token=token), of_its_own(inventory, node))
            for node, token in chosen.tokens.items()
        ]

    async def start(self) -> None:
        """All of them at once."""
        for agent in self.agents:
            await agent.start()

    async def end(self) -> None:
        for agent in self.agents:
            await agent.end()

    async def restart(self, parts: int = 1) -> None:
        """All of them, or one of so many parts after the other."""
        for part in (self.agents[number::parts] for number in range(parts)):
            await self._started_over(part)

    async def withdraw(self) -> None:
        """A GPU of each falls ill."""
        for number, agent in enumerate(self.agents):
            agent.withdraw(number % 8)

    async def prepare(self, claims: Mapping[str, str]) -> None:
        """Each prepares its claim; ``claims`` are the uids by the nodes' names."""
        await asyncio.gather(*(agent.prepare(claims[agent.node]) for agent in self.agents))

    async def nothing(self) -> None:
        pass

    @property
    def standing(self) -> Standing:
        return Standing(nodes=len(self.agents), published=sum(agent.has_published for agent in self.agents))

    async def _started_over(self, agents: Sequence[NodeAgent]) -> None:
        for agent in agents:
            await agent.end()
        for agent in agents:
            await agent.start()
        while not all(agent.has_published for agent in agents):
            await asyncio.sleep(0.05)


async def serve(chosen: Nodes, inventory: Inventory) -> None:
    """Do what the lines of standard input say until they end."""
    crowd = Crowd(chosen, inventory)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        await getattr(crowd, command.pop("do"))(**command)
        print(json.dumps(asdict(crowd.standing)), flush=True)
    await crowd.end()


def main() -> None:
    from tests.fakes.nodes import inventory_of  # noqa: PLC0415  # only this process needs it

    chosen = msgspec.json.decode(sys.stdin.readline(), type=Nodes)
    with open("/dev/null", "w") as nowhere:
        logs.configure(stream=nowhere)
        asyncio.run(serve(chosen, inventory_of(PROFILE)))


if __name__ == "__main__":
    main()
