"""The node's label is what the API server has, now and later; without one the agent starts all the same."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from node_agent.agent import label as label_module
from node_agent.agent.label import node_label
from node_agent.config.named import USUAL_LABEL
from node_agent.config.resolve import Sources, sources
from node_agent.kit.latest import Latest
from node_agent.kube.resources import NODES
from tests.fakes.api_server import ApiServer


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


def asking(server: ApiServer, tmp_path: Path, **environment: str) -> Sources:
    file = tmp_path / "kubeconfig"
    document = {
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "c", "user": {"token": "any"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "current-context": "c",
    }
    file.write_text(json.dumps(document))
    return sources(None, {"NODE_NAME": "node-a", "KUBECONFIG": str(file), **environment}, {}, tmp_path)


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


async def until(label: Latest[str | None], wanted: str | None) -> None:
    async with asyncio.timeout(30):
        async for value in label.watch():
            if value == wanted:
                return


async def test_the_label_of_our_own_node_is_known_at_once_and_followed(server: ApiServer, tmp_path: Path) -> None:
    server.put(NODES, node("node-a", **{USUAL_LABEL: "shared"}))
    server.put(NODES, node("node-b", **{USUAL_LABEL: "whole"}))
    async with node_label(asking(server, tmp_path)) as labelled:
        label = labelled.config
        assert label.value == "shared"
        server.put(NODES, node("node-a", **{USUAL_LABEL: "whole"}))
        await until(label, "whole")
        server.put(NODES, node("node-a"))
        await until(label, None)


async def test_another_label_may_be_the_one(server: ApiServer, tmp_path: Path) -> None:
    server.put(NODES, node("node-a", **{"example.com/gpus": "shared", USUAL_LABEL: "whole"}))
    async with node_label(asking(server, tmp_path, NODE_LABEL="example.com/gpus")) as labelled:
        label = labelled.config
        assert label.value == "shared"


async def test_a_server_that_does_not_answer_is_waited_for_only_so_long(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_module, "PATIENCE_SECONDS", 0.2)
    server.put(NODES, node("node-a", **{USUAL_LABEL: "shared"}))
    server.hang(100)
    async with node_label(asking(server, tmp_path)) as labelled:
        label = labelled.config
        assert label.value is None


async def test_without_a_way_to_the_server_there_is_no_label_and_a_word_about_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with node_label(sources(None, {"NODE_NAME": "node-a"}, {}, tmp_path)) as labelled:
            label = labelled.config
            assert label.value is None
    assert [record.getMessage() for record in caplog.records] == ["the node's label is not read"]


async def test_where_nothing_is_to_be_chosen_nobody_is_asked(server: ApiServer, tmp_path: Path) -> None:
    found = asking(server, tmp_path)
    async with node_label(Sources(environment=found.environment)) as labelled:
        label = labelled.config
        assert label.value is None
    assert server.requests == []
