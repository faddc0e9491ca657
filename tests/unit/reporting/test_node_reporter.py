"""Condition and Events are written when something has changed, and otherwise nothing is asked of the API server."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kube.calls import Patience
from node_agent.kube.client import KubeClient
from node_agent.kube.resources import EVENTS, NODES, Object
from node_agent.model.inventory import Inventory
from node_agent.reporting import node_reporter
from node_agent.reporting.agent_condition import READY as AGENT_READY
from node_agent.reporting.agent_condition import agent_condition
from node_agent.reporting.node_condition import HEALTHY, node_condition
from node_agent.reporting.node_reporter import ConditionWriter, EventWriter, NodeReporter, Writer
from node_agent.reporting.parts import PartState, PartStatus
from node_agent.reporting.readiness import Phase, Readiness
from tests.fakes.api_server import ApiServer
from tests.fakes.health import NODE, Ward, remap, xid
from tests.fakes.patience import HASTY, PATIENT
from tests.fakes.wall_clock import WallClock

# Longer than anything that the reporter waits for in these tests.
QUIET = 0.3
RBAC = Path(__file__).resolve().parents[3] / "deploy" / "daemonset" / "base" / "rbac.yaml"
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}


@dataclass
class Place:
    """An API server with the ward's node."""

    server: ApiServer
    ward: Ward
    patience: Patience = PATIENT

    @asynccontextmanager
    async def told(self, *kinds: str, **times: float) -> AsyncIterator[None]:
        """An agent that tells; it may be entered again, as an agent is started again."""
        async with KubeClient(self.server.access, patience=self.patience) as client:
            writers: list[Writer] = []
            if "condition" in kinds:
                writers.append(_condition_writer(client, times))
            if "events" in kinds:
                writers.append(EventWriter(client, NODE, started=0.0))
            async with running(NodeReporter(self.ward.view, writers, settle_seconds=0.01).run()):
                yield

    @property
    def conditions(self) -> dict[str, Object]:
        (node,) = self.server.objects(NODES)
        return {one["type"]: one for one in node.get("status", {}).get("conditions") or ()}

    @property
    def condition(self) -> Object:
        return self.conditions.get("GPUHealthy", {})

    @property
    def events(self) -> list[Object]:
        return self.server.objects(EVENTS)

    def writes(self, path: str = "") -> list[str]:
        return [asked.verb for asked in self.server.writes(path)]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.01)

    async def until_status(self, status: str) -> None:
        await self.until(lambda: self.condition.get("status") == status)


def _condition_writer(client: KubeClient, times: Mapping[str, float]) -> ConditionWriter:
    return ConditionWriter(client, NODE, HEALTHY, node_condition, **{"unknown_seconds": 0.0, **times})


@pytest.fixture
async def place(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(node_reporter, "FIRST_PAUSE", 0.05)
    async with ApiServer() as server:
        server.put(NODES, {"metadata": {"name": NODE}, "status": {"conditions": [READY]}})
        yield Place(server=server, ward=Ward())


# The condition


async def test_the_condition_stands_beside_those_of_others(place: Place) -> None:
    async with place.told("condition"):
        await place.until_status("True")
    assert place.conditions["Ready"] == READY
    assert place.condition["message"] == "2 GPUs are in service"


async def test_the_condition_follows_the_health_and_keeps_its_time_while_the_status_stays(place: Place) -> None:
    async with place.told("condition"):
        await place.until_status("True")
        place.ward.ail(0, xid())
        await place.until_status("False")
        began = place.condition["lastTransitionTime"]
        place.ward.ail(1, remap())
        place.ward.ail(0)
        await place.until(lambda: place.condition["reason"] == "GPUsDegraded")
    assert place.condition["status"] == "True"
    assert began <= place.condition["lastTransitionTime"]


async def test_an_idle_agent_asks_nothing(place: Place) -> None:
    async with place.told("condition", "events"):
        await place.until_status("True")
        asked = len(place.server.requests)
        await asyncio.sleep(QUIET)
        assert len(place.server.requests) == asked


async def test_an_agent_that_is_started_again_writes_nothing_that_is_there(place: Place) -> None:
    place.ward.ail(0, xid())
    async with place.told("condition"):
        await place.until_status("False")
    written = len(place.writes())
    async with place.told("condition"):
        await asyncio.sleep(QUIET)
    assert len(place.writes()) == written


async def test_a_condition_that_was_removed_is_restated(place: Place) -> None:
    async with place.told("condition", look_seconds=0.05):
        await place.until_status("True")
        place.server.put(NODES, {"metadata": {"name": NODE}, "status": {"conditions": [READY]}})
        await place.until_status("True")


async def test_a_message_that_alone_changes_is_written_seldom(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_reporter, "REWORD_SECONDS", 3.0)
    async with place.told("condition"):
        place.ward.ail(0, xid(1))
        await place.until_status("False")
        for code in range(2, 12):
            place.ward.ail(0, xid(code))
            await asyncio.sleep(0.02)
        assert place.writes("nodes") == ["patch"]
        await place.until(lambda: "Xid 11" in place.condition["message"])
    assert place.writes("nodes") == ["patch", "patch"]


async def test_that_nobody_knows_is_told_only_when_it_lasts(place: Place) -> None:
    there = place.ward.inventory.value
    async with place.told("condition", unknown_seconds=0.2):
        await place.until_status("True")
        place.ward.inventory.set(Inventory(generation=7, problem="the driver is not loaded"))
        await asyncio.sleep(0.05)
        place.ward.inventory.set(there)
        await asyncio.sleep(QUIET)
        assert place.writes("nodes") == ["patch"]
        place.ward.inventory.set(Inventory(generation=8, problem="the driver is not loaded"))
        await place.until_status("Unknown")


async def test_a_condition_that_is_somebody_elses_is_left_alone_and_that_is_said_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = {"type": "GPUHealthy", "status": "False", "reason": "Theirs"}
    fields: Object = {"f:status": {"f:conditions": {'k:{"type":"GPUHealthy"}': {".": {}}}}}
    owned = [{"manager": "node-problem-detector", "fieldsV1": fields}]
    place.server.put(
        NODES, {"metadata": {"name": NODE, "managedFields": owned}, "status": {"conditions": [READY, theirs]}}
    )
    async with place.told("condition", look_seconds=0.02):
        await place.until(lambda: len(place.server.requests) > 3)
    assert place.writes() == []
    assert [one.__dict__["facts"]["owner"] for one in caplog.records] == ["node-problem-detector"]


async def test_the_agents_own_condition_stands_beside_that_of_the_gpus_and_neither_takes_the_other_away(
    place: Place,
) -> None:
    ready = Latest(Readiness(phase=Phase.READY))
    async with KubeClient(place.server.access) as client:
        writers = [
            _condition_writer(client, {}),
            ConditionWriter(client, NODE, AGENT_READY, lambda document: agent_condition(ready.value)),
        ]
        async with running(NodeReporter(place.ward.view, writers, settle_seconds=0.01, more=[ready]).run()):
            await place.until(lambda: place.conditions.get("GPUAgentReady", {}).get("status") == "True")
            part = PartStatus(name="cdi", state=PartState.FAILED, reason="NoSpec", messages=("disk full",))
            ready.set(Readiness(phase=Phase.NOT_READY, parts=(part,)))
            await place.until(lambda: place.conditions["GPUAgentReady"]["status"] == "False")
            place.ward.ail(0, xid())
            await place.until_status("False")
    assert place.conditions["GPUAgentReady"]["message"] == "disk full"
    assert place.conditions["Ready"] == READY
    assert len(place.writes("nodes")) == 4


# Events


async def test_a_withdrawal_and_a_return_are_two_events_about_the_node(place: Place) -> None:
    async with place.told("events"):
        await asyncio.sleep(0.05)
        place.ward.ail(0, xid())
        await place.until(lambda: place.events)
        place.ward.ail(0)
        await place.until(lambda: len(place.events) == 2)
    (node,) = place.server.objects(NODES)
    assert {one["reason"] for one in place.events} == {"GPUWithdrawn", "GPURestored"}
    assert {one["regarding"]["uid"] for one in place.events} == {node["metadata"]["uid"]}


async def test_an_event_is_about_the_node_as_it_is_now_and_not_about_one_that_had_its_name(place: Place) -> None:
    async with place.told("events"):
        await asyncio.sleep(0.05)
        place.ward.ail(0, xid())
        await place.until(lambda: place.events)
        place.server.remove(NODES, NODE)
        place.server.put(NODES, {"metadata": {"name": NODE}})
        place.ward.ail(1, xid())
        await place.until(lambda: len(place.events) == 2)
    (node,) = place.server.objects(NODES)
    assert [one["regarding"]["uid"] == node["metadata"]["uid"] for one in sorted(place.events, key=_time)] == [
        False,
        True,
    ]


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
async def test_a_clock_that_is_set_holds_no_event_back_and_is_what_the_next_one_says(
    place: Place, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    clock = WallClock(monkeypatch)
    async with place.told("events"):
        await asyncio.sleep(0.05)
        place.ward.ail(0, xid())
        await place.until(lambda: place.events)
        clock.ahead = ahead
        place.ward.ail(1, xid())
        await place.until(lambda: len(place.events) == 2)
    one, other = sorted(datetime.fromisoformat(_time(event)).timestamp() for event in place.events)
    assert other - one == pytest.approx(3600, abs=60)


def _time(event: Object) -> str:
    return str(event["eventTime"])


async def test_what_happens_again_raises_the_count_of_its_event(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node_agent.reporting.node_events.AGAIN_SECONDS", 0.01)
    async with place.told("events"):
        await asyncio.sleep(0.05)
        for told in range(3):
            place.ward.ail(0, xid())
            await place.until(partial(has_told, place, 2 * told + 1))
            place.ward.ail(0)
            await place.until(partial(has_told, place, 2 * told + 2))
        assert counts(place.events) == [3, 3]
    assert place.writes("events").count("create") == 2


def has_told(place: Place, times: int) -> bool:
    return sum(counts(place.events)) == times


def counts(events: Sequence[Any]) -> list[int]:
    return [one.get("series", {}).get("count", 1) for one in events]


async def test_an_event_that_the_server_has_forgotten_is_made_anew_with_its_count(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node_agent.reporting.node_events.AGAIN_SECONDS", 0.01)
    async with place.told("events"):
        await asyncio.sleep(0.05)
        place.ward.ail(0, xid())
        await place.until(lambda: place.events)
        place.server.remove(EVENTS, place.events[0]["metadata"]["name"])
        place.ward.ail(0)
        await place.until(lambda: place.events)
        place.ward.ail(0, xid())
        await place.until(lambda: sorted(counts(place.events)) == [1, 2])


async def test_an_event_whose_answer_was_lost_is_made_once(place: Place) -> None:
    async with place.told("events"):
        await asyncio.sleep(0.05)
        place.server.drop(verb="create", applied=True)
        place.ward.ail(0, xid())
        await place.until(lambda: place.writes("events").count("create") == 2)
        await asyncio.sleep(QUIET)
    assert len(place.events) == 1


async def test_all_that_is_asked_is_granted_by_the_shipped_role(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node_agent.reporting.node_events.AGAIN_SECONDS", 0.01)
    role = next(one for one in yaml.safe_load_all(RBAC.read_text()) if one["kind"] == "ClusterRole")
    granted = {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    async with place.told("condition", "events"):
        await place.until_status("True")
        for _ in range(2):
            place.ward.ail(0, xid())
            await place.until_status("False")
            place.ward.ail(0)
            await place.until_status("True")
        await place.until(lambda: counts(place.events) == [2, 2])
    asked = {
        (one.verb, one.place.group, "/".join(filter(None, (one.place.plural, one.subresource))))
        for one in place.server.requests
        if one.place is not None
    }
    assert {("patch", "", "nodes/status"), ("create", "events.k8s.io", "events")} < asked
    assert asked <= granted


# An API server that is away or says no


async def test_what_could_not_be_told_is_told_when_the_server_is_back(place: Place) -> None:
    place.patience = HASTY
    async with place.told("condition", "events"):
        await place.until_status("True")
        await place.server.stop()
        place.ward.ail(0, xid())
        await asyncio.sleep(QUIET)
        await place.server.start()
        await place.until_status("False")
        await place.until(lambda: place.events)
    assert len(place.events) == 1


async def test_a_fault_that_came_and_went_while_the_server_was_away_is_no_event(place: Place) -> None:
    place.patience = HASTY
    async with place.told("condition", "events"):
        await place.until_status("True")
        await place.server.stop()
        place.ward.ail(1, xid())
        await asyncio.sleep(QUIET)
        # In one step, as the reporter sees it that waits: had it looked in between, it would have to tell.
        place.ward.ail(0, remap())
        place.ward.ail(0)
        await place.server.start()
        await place.until(lambda: place.events)
        await asyncio.sleep(QUIET)
    assert [one["note"].split(" ")[0] for one in place.events] == ["gpu-1"]


async def test_changes_do_not_shorten_the_pause_after_a_failure(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_reporter, "FIRST_PAUSE", 60.0)
    place.server.fail(1, verb="get", code=403)
    async with place.told("condition"):
        for code in range(20):
            place.ward.ail(0, xid(code))
            await asyncio.sleep(0.02)
    assert len(place.server.requests) == 1


async def test_a_right_that_is_missing_is_said_once_and_costs_only_what_needs_it(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_reporter, "LONGEST_PAUSE", 0.05)
    place.server.forbid("patch", "nodes/status")
    async with place.told("condition", "events"):
        await asyncio.sleep(0.05)
        place.ward.ail(0, xid())
        await place.until(lambda: place.events)
        await place.until(lambda: place.writes("nodes").count("patch") > 2)
        said = [one for one in caplog.records if one.getMessage() == "a report on the node cannot be written"]
        assert len(said) == 1
        assert 'cannot patch resource "nodes/status"' in str(said[0].__dict__["facts"]["reason"])
        place.server.answers.forbidden.clear()
        await place.until_status("False")


async def test_a_node_that_is_not_there_yet_is_told_when_it_is(place: Place) -> None:
    place.server.remove(NODES, NODE)
    async with place.told("condition"):
        await asyncio.sleep(0.1)
        place.server.put(NODES, {"metadata": {"name": NODE}})
        await place.until_status("True")


async def test_a_storm_of_changes_is_a_handful_of_writes(place: Place) -> None:
    async with place.told("condition", "events"):
        await place.until_status("True")
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            place.ward.ail(0, xid())
            await asyncio.sleep(0.001)
            place.ward.ail(0)
            await asyncio.sleep(0.001)
        assert len(place.writes("events")) <= 2
