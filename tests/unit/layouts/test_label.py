"""The node's label says how far its layout is; what is not the agent's own is left alone."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kube.client import KubeClient
from node_agent.kube.resources import NODES
from node_agent.layouts import label as label_module
from node_agent.layouts.label import OWNER, StateLabel
from node_agent.layouts.orders import LABEL, STATE_LABEL
from node_agent.layouts.state import LayoutState, Phase
from tests.fakes.api_server import ApiServer

STATE = LayoutState(name="all-balanced", source="label", phase=Phase.PENDING)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        server.put(NODES, {"metadata": {"name": "node-a", "labels": {LABEL: "all-balanced", "team": "x"}}})
        yield server


@asynccontextmanager
async def telling(
    server: ApiServer, state: Latest[LayoutState | None], labels: Latest[Mapping[str, str] | None] | None = None
) -> AsyncIterator[None]:
    known: Latest[Mapping[str, str] | None] = Latest({}) if labels is None else labels
    looked = asyncio.Event()
    looked.set()
    async with (
        KubeClient(server.access, agent=OWNER) as client,
        running(StateLabel(client, "node-a", state, known, looked).run()),
    ):
        yield


def labels_of(server: ApiServer) -> dict[str, str]:
    (node,) = server.objects(NODES)
    labels: dict[str, str] = node["metadata"].get("labels", {})
    return labels


async def until(server: ApiServer, phase: str | None) -> None:
    async with asyncio.timeout(30):
        while labels_of(server).get(STATE_LABEL) != phase:
            await asyncio.sleep(0.01)


async def test_the_label_follows_the_layout_and_goes_with_the_wish(server: ApiServer) -> None:
    state: Latest[LayoutState | None] = Latest(STATE)
    async with telling(server, state):
        await until(server, "pending")
        state.set(replace(STATE, phase=Phase.SUCCESS))
        await until(server, "success")
        state.set(replace(STATE, phase=Phase.FAILED))
        await until(server, "failed")
        assert labels_of(server) == {LABEL: "all-balanced", "team": "x", STATE_LABEL: "failed"}
        state.set(None)
        await until(server, None)
        assert labels_of(server) == {LABEL: "all-balanced", "team": "x"}


async def test_what_the_node_says_already_is_not_written_again(server: ApiServer) -> None:
    labels: Latest[Mapping[str, str] | None] = Latest({STATE_LABEL: "success"})
    async with telling(server, Latest(replace(STATE, phase=Phase.SUCCESS)), labels):
        await asyncio.sleep(0.1)
    assert server.requests == []


async def test_where_another_cuts_the_gpus_the_label_is_that_one_s(server: ApiServer) -> None:
    async with telling(server, Latest(replace(STATE, owner="NVIDIA's MIG manager"))):
        await asyncio.sleep(0.1)
    assert STATE_LABEL not in labels_of(server)


async def test_a_label_that_was_removed_is_written_again(server: ApiServer) -> None:
    labels: Latest[Mapping[str, str] | None] = Latest({})
    async with telling(server, Latest(replace(STATE, phase=Phase.SUCCESS)), labels):
        await until(server, "success")
        labels.set({STATE_LABEL: "success"})
        server.put(NODES, {"metadata": {"name": "node-a"}})
        labels.set({})
        await until(server, "success")


async def test_a_write_that_is_refused_is_tried_again(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(label_module, "FIRST_PAUSE", 0.05)
    server.forbid("patch", "nodes")
    async with telling(server, Latest(STATE)):
        async with asyncio.timeout(30):
            while not caplog.records:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        server.permit()
        await until(server, "pending")
    assert [one.getMessage() for one in caplog.records] == ["how far the layout is cannot be told"]


async def test_what_an_agent_before_has_written_goes_where_nothing_is_asked_for_any_more(server: ApiServer) -> None:
    async with telling(server, Latest(STATE)):
        await until(server, "pending")
    async with telling(server, Latest(None), Latest({STATE_LABEL: "pending"})):
        await until(server, None)


async def test_a_label_that_is_not_the_agents_outlives_it(server: ApiServer) -> None:
    """Such as that of a MIG manager that is not there any more."""
    server.put(NODES, {"metadata": {"name": "node-a", "labels": {STATE_LABEL: "success"}}})
    async with telling(server, Latest(None), Latest({STATE_LABEL: "success"})):
        await server.until(server.writes)
    assert labels_of(server) == {STATE_LABEL: "success"}
