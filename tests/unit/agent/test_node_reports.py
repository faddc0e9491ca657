"""Whether Kubernetes is told of the GPUs' health, by the settings and by what there is to tell it to."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from node_agent.agent.build import built
from node_agent.agent.node_reports import ConfigNews
from node_agent.agent.reload import ConfigState, Configuration
from node_agent.config import watch
from node_agent.config.resolve import Sources
from node_agent.config.settings import Settings
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kube.resources import EVENTS, NODES
from tests.fakes.api_server import ApiServer
from tests.unit.agent.conftest import Place


def kubeconfig(place: Place, server: ApiServer) -> Path:
    """A file that leads to the server."""
    file = place.folder / "kubeconfig"
    document = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": server.url}}],
        "users": [{"name": "it", "user": {"token": "t"}}],
    }
    file.write_text(yaml.safe_dump(document))
    return file


def settings_for(place: Place, server: ApiServer, **flags: object) -> Settings:
    server.put(NODES, {"metadata": {"name": "node-a"}})
    reached = {
        "agent_kubeconfig": str(kubeconfig(place, server)),
        "agent_frontDoors_dra": False,
        "agent_labels_writer": "none",
    }
    return place.settings(**{**reached, **flags})


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


def status(server: ApiServer) -> str | None:
    (node,) = server.objects(NODES)
    conditions = node.get("status", {}).get("conditions") or [{}]
    return conditions[0].get("status")  # type: ignore[no-any-return]


async def test_the_node_tells_of_a_sick_gpu_also_without_claims_and_of_its_return(place: Place) -> None:
    async with ApiServer() as server, place.agent(settings_for(place, server)):
        await until(lambda: status(server) == "True")
        place.simulated.node.faults.xid("gpu-3", 79)
        await until(lambda: status(server) == "False")
        await until(lambda: server.objects(EVENTS))
        assert server.objects(EVENTS)[0]["note"].startswith("gpu-3 (")
        place.simulated.node.faults.restore("gpu-3")
        await until(lambda: status(server) == "True")
        await until(lambda: len(server.objects(EVENTS)) >= 2)


async def test_of_two_agents_one_tells_and_the_other_goes_on_where_it_ended(place: Place) -> None:
    async with ApiServer() as server:
        settings = settings_for(place, server)
        async with place.agent(settings) as second:
            await until(lambda: status(server) == "True")
            asked = len(server.requests)
            async with place.agent(settings):
                await asyncio.sleep(1)
                assert [one.verb for one in server.requests[asked:] if one.verb not in ("list", "watch")] == []
            assert second.status().services


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({}, ["node reports"]),
        ({"agent_nodeReports_condition": False}, ["node reports"]),
        ({"agent_nodeReports_condition": False, "agent_nodeReports_events": False}, []),
        ({"agent_kubeconfig": "/none"}, []),
        ({"agent_nodeName": ""}, []),
    ],
)
async def test_nothing_runs_where_there_is_nothing_to_tell_or_nobody_to_be_told(
    place: Place, flags: dict[str, object], names: list[str]
) -> None:
    async with ApiServer() as server, built(settings_for(place, server, **flags)) as agent:
        assert [one for one in agent.supervisor.states.value if one == "node reports"] == names


# The configuration


def test_each_refusal_is_told_once_and_so_is_its_end() -> None:
    state = Latest(ConfigState(source="/configs/a"))
    news = ConfigNews(state)
    assert list(news.notices()) == []
    state.set(replace(state.value, trouble="version: expected v1", refused=1))
    (refused,) = news.notices()
    assert (refused.type, refused.reason) == ("Warning", "GPUConfigurationRefused")
    assert refused.note == "version: expected v1; /configs/a stays in force"
    assert list(news.notices()) == []
    state.set(replace(state.value, trouble="version: is missing", refused=2))
    assert [notice.note.partition(";")[0] for notice in news.notices()] == ["version: is missing"]
    state.set(replace(state.value, trouble=None, source="/configs/b"))
    (again,) = news.notices()
    assert (again.type, again.reason, again.note) == ("Normal", "GPUConfigurationInForce", "/configs/b")
    assert list(news.notices()) == []


def test_a_long_list_of_mistakes_fits_into_an_event() -> None:
    news = ConfigNews(Latest(ConfigState(source="/configs/a", trouble="x" * 5000, refused=1)))
    assert [len(notice.note) for notice in news.notices()] == [1024]


async def test_a_refused_configuration_is_an_event_of_the_node(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(watch, "STAND_SECONDS", 0.02)
    file = place.folder / "config.yaml"
    file.write_text("version: v1")
    async with ApiServer() as server:
        settings = settings_for(place, server)
        found = Configuration(sources=Sources(file=file), label=Latest(None), first=Sources(file=file).resolve())
        async with built(settings, place.simulated.stat, found) as agent, running(agent.run()):
            await until(lambda: status(server) == "True")
            file.write_text("version: v2")
            await until(lambda: server.objects(EVENTS))
            (event,) = server.objects(EVENTS)
    assert event["reason"] == "GPUConfigurationRefused"
    assert event["regarding"]["name"] == "node-a"
    assert event["note"] == f'version: expected v1; got "v2" ({file}); {file} stays in force'
