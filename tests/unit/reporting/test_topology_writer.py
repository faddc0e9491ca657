"""The NodeResourceTopology is written when it differs, and never where another program writes it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from node_agent.errors import KubeletError
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kube.client import KubeClient
from node_agent.kube.resources import NODE_TOPOLOGIES, Object
from node_agent.reporting import node_reporter
from node_agent.reporting.node_reporter import NodeReporter, Reports
from node_agent.reporting.topology_writer import TopologyWriter
from tests.fakes.api_server import ApiServer
from tests.fakes.health import NODE, Ward
from tests.fakes.patience import PATIENT

QUIET = 0.2


def topology(available: str = "4") -> Object:
    resources = [{"name": "nvidia.com/gpu", "capacity": "4", "allocatable": "4", "available": available}]
    return {
        "apiVersion": NODE_TOPOLOGIES.api_version,
        "kind": NODE_TOPOLOGIES.kind,
        "metadata": {"name": NODE},
        "attributes": [{"name": "topologyManagerPolicy", "value": "none"}],
        "zones": [{"name": "node-0", "type": "Node", "costs": [], "resources": resources}],
    }


@dataclass
class Place:
    """An API server, what the object shall be, and ``sign``, which a test changes as the agent hears of changes.

    The kubelet tells of ``wanted`` from the look on that is numbered ``known_at``.
    """

    server: ApiServer
    ward: Ward = field(default_factory=Ward)
    wanted: Object = field(default_factory=topology)
    trouble: KubeletError | None = None
    sign: Latest[int] = field(default_factory=lambda: Latest(0))
    reports: Reports = field(default_factory=lambda: Latest({}))
    looks: int = 0
    known_at: int = 0

    async def make(self) -> Object:
        self.looks += 1
        if self.trouble is not None:
            raise self.trouble
        return self.wanted if self.looks >= self.known_at else topology()

    @asynccontextmanager
    async def kept(self, look_seconds: float = 60.0, again_seconds: float = 60.0) -> AsyncIterator[None]:
        async with KubeClient(self.server.access, patience=PATIENT) as client:
            writer = TopologyWriter(
                client,
                NODE,
                self.make,
                lambda: self.sign.value,
                look_seconds=look_seconds,
                again_seconds=again_seconds,
            )
            reporter = NodeReporter(
                self.ward.view, [writer], settle_seconds=0.01, more=[self.sign], reports=self.reports
            )
            async with running(reporter.run()):
                yield

    @property
    def stored(self) -> list[Object]:
        return [{part: one[part] for part in ("attributes", "zones")} for one in self.server.objects(NODE_TOPOLOGIES)]

    def standing(self) -> str:
        return "".join(one.standing + (one.trouble or "") for one in self.reports.value.values())

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.01)

    def is_stored(self) -> bool:
        return self.stored == [{part: self.wanted[part] for part in ("attributes", "zones")}]


@pytest.fixture
async def place(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(node_reporter, "FIRST_PAUSE", 0.05)
    async with ApiServer() as server:
        yield Place(server=server)


async def test_it_is_written_at_the_start_and_follows_what_the_agent_hears_of(place: Place) -> None:
    async with place.kept():
        await place.until(place.is_stored)
        place.wanted = topology("3")
        place.sign.set(1)
        await place.until(place.is_stored)
        await place.until(lambda: place.standing() == f"NodeResourceTopology {NODE}")


async def test_what_nobody_tells_of_is_found_in_time_and_what_stays_is_not_written(place: Place) -> None:
    async with place.kept(look_seconds=0.03):
        await place.until(lambda: place.looks > 3)
        assert len(place.server.writes()) == 1
        place.wanted = topology("3")
        await place.until(place.is_stored)
        assert len(place.server.writes()) == 2


async def test_what_a_slow_kubelet_lists_after_the_change_is_found_soon_and_then_nobody_is_asked(place: Place) -> None:
    async with place.kept(again_seconds=0.1):
        await place.until(lambda: place.looks == 2)
        place.wanted, place.known_at = topology("3"), 4
        place.sign.set(1)
        await place.until(place.is_stored)
        await asyncio.sleep(QUIET)
        assert place.looks == 4


async def test_an_idle_agent_asks_nobody(place: Place) -> None:
    async with place.kept():
        await place.until(place.is_stored)
        asked, looks = len(place.server.requests), place.looks
        place.ward.ail(0)
        await asyncio.sleep(QUIET)
    assert (len(place.server.requests), place.looks) == (asked, looks)


async def test_where_another_program_writes_it_that_ones_stands_and_the_kubelet_is_not_asked(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    fields: Object = {"f:zones": {}, "f:attributes": {}}
    theirs = topology("1")
    theirs["metadata"]["managedFields"] = [{"manager": "nfd-topology-updater", "fieldsV1": fields}]
    place.server.put(NODE_TOPOLOGIES, theirs)
    async with place.kept(look_seconds=0.03):
        await place.until(lambda: len(place.server.requests) > 3)
        assert place.standing() == "written by nfd-topology-updater and left alone"
        assert (place.looks, place.server.writes()) == (0, [])
        assert [one.__dict__["facts"]["owner"] for one in caplog.records] == ["nfd-topology-updater"]
        place.server.remove(NODE_TOPOLOGIES, NODE)
        await place.until(place.is_stored)


async def test_a_kubelet_that_does_not_tell_shows_as_trouble_and_the_object_stays(place: Place) -> None:
    async with place.kept(look_seconds=0.03):
        await place.until(place.is_stored)
        place.trouble = KubeletError("the kubelet does not tell")
        await place.until(lambda: "does not tell" in place.standing())
        assert place.is_stored()
        place.trouble = None
        await place.until(lambda: "does not tell" not in place.standing())


async def test_where_the_kernel_shows_no_numa_node_nothing_is_written(place: Place) -> None:
    place.wanted = topology() | {"zones": []}
    async with place.kept():
        await place.until(lambda: place.looks)
        await asyncio.sleep(QUIET)
    assert place.server.writes() == []
