"""The fake API server does what its docstring says; that it answers as a real one is shown by the contract suite."""

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.errors import Forbidden, Invalid, KubeApiError, NotFound, TooManyRequests, Unavailable
from node_agent.kube.calls import Patience
from node_agent.kube.client import EventType, KubeClient, Patch
from node_agent.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Object, Resource
from tests.fakes.api_patches import apply, json_patch, merge
from tests.fakes.api_server import ApiServer
from tests.fakes.api_store import strip_at

TAINTS = "spec.devices[*].taints"
ONCE = Patience(attempt=0.3, budget=0.3, pause=10)
"""One try and no more."""


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(server.access, agent="tester", patience=ONCE) as client:
        yield client


def a_slice(name: str = "a", *devices: Object) -> Object:
    return {"metadata": {"name": name}, "spec": {"driver": "d", "nodeName": "n0", "devices": list(devices)}}


async def test_what_a_test_puts_there_is_there_with_its_status(server: ApiServer, client: KubeClient) -> None:
    server.put(RESOURCE_CLAIMS, {"metadata": {"name": "c"}, "spec": {"x": 1}, "status": {"y": 2}})
    claim = await client.get(RESOURCE_CLAIMS, "c", "default")
    assert (claim["spec"], claim["status"]) == ({"x": 1}, {"y": 2})
    server.put(RESOURCE_CLAIMS, {"metadata": {"name": "c"}, "spec": {"x": 1}, "status": {"y": 3}})
    changed = await client.get(RESOURCE_CLAIMS, "c", "default")
    assert changed["status"] == {"y": 3}
    assert changed["metadata"]["uid"] == claim["metadata"]["uid"]
    server.remove(RESOURCE_CLAIMS, "c")
    assert server.objects(RESOURCE_CLAIMS) == []


async def test_what_a_test_holds_and_what_is_stored_are_two_things(server: ApiServer) -> None:
    mine = a_slice()
    server.put(RESOURCE_SLICES, mine)
    server.objects(RESOURCE_SLICES)[0]["spec"]["driver"] = "changed"
    mine["spec"]["driver"] = "changed"
    assert server.objects(RESOURCE_SLICES)[0]["spec"]["driver"] == "d"


async def test_a_kind_that_it_does_not_know_is_learned(client: KubeClient) -> None:
    robots = Resource(plural="robots", kind="Robot", group="test.test", version="v3")
    await client.create(robots, {"kind": "Robot", "metadata": {"name": "r", "namespace": "n"}})
    assert (await client.list(robots)).items[0]["kind"] == "Robot"
    assert (await client.get(robots, "r", "n"))["apiVersion"] == "test.test/v3"


async def test_requests_are_noted_with_who_asked_and_what_for(server: ApiServer, client: KubeClient) -> None:
    await client.create(RESOURCE_SLICES, a_slice())
    await client.create(RESOURCE_SLICES, a_slice("b"), dry_run=True)
    await client.list(RESOURCE_SLICES)
    await client.delete(RESOURCE_SLICES, "a")
    assert [(asked.verb, asked.name, asked.code) for asked in server.requests] == [
        ("create", "", 201),
        ("create", "", 201),
        ("list", "", 200),
        ("delete", "a", 200),
    ]
    assert [asked.verb for asked in server.writes("resourceslices")] == ["create", "delete"]
    assert server.writes("/nodes") == []
    assert server.requests[0].agent == "tester"
    assert server.requests[0].body == a_slice()


async def test_waiting_returns_what_was_waited_for_and_does_not_wait_for_ever(
    server: ApiServer, client: KubeClient
) -> None:
    async def make() -> None:
        await asyncio.sleep(0.02)
        await client.create(RESOURCE_SLICES, a_slice())

    making = asyncio.create_task(make())
    found = await server.until(lambda: server.objects(RESOURCE_SLICES, fields="spec.nodeName=n0"))
    assert found[0]["metadata"]["name"] == "a"
    await making
    with pytest.raises(TimeoutError):
        await server.until(lambda: False, seconds=0.05)


async def test_a_fault_strikes_as_often_as_was_said_and_only_where_it_fits(
    server: ApiServer, client: KubeClient
) -> None:
    server.put(NODES, {"metadata": {"name": "n0"}})
    server.fail(2, verb="create", path="resourceslices", code=500)
    await client.get(NODES, "n0")
    await client.list(RESOURCE_SLICES)
    for _ in range(2):
        with pytest.raises(Unavailable, match="made to fail"):
            await client.create(RESOURCE_SLICES, a_slice())
    await client.create(RESOURCE_SLICES, a_slice())


async def test_faults_strike_in_the_order_in_which_they_were_made(server: ApiServer, client: KubeClient) -> None:
    server.fail(code=404, message="first")
    server.fail(code=409, message="second")
    for code in (404, 409):
        with pytest.raises(KubeApiError) as refused:
            await client.list(NODES)
        assert refused.value.code == code
    await client.list(NODES)


async def test_faults_can_be_called_off(server: ApiServer, client: KubeClient) -> None:
    server.fail(100)
    server.heal()
    await client.list(NODES)


async def test_an_answer_says_when_to_come_again(server: ApiServer, client: KubeClient) -> None:
    server.fail(code=429, retry_after=7)
    with pytest.raises(TooManyRequests) as refused:
        await client.list(NODES)
    assert refused.value.retry_after == 7


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("fault", ["drop", "hang"])
async def test_a_request_without_an_answer_was_carried_out_or_not(
    server: ApiServer, client: KubeClient, fault: str, applied: bool
) -> None:
    getattr(server, fault)(verb="create", applied=applied)
    with pytest.raises(Unavailable):
        await client.create(RESOURCE_SLICES, a_slice())
    assert bool(server.objects(RESOURCE_SLICES)) is applied
    assert server.requests[0].code == 0


async def test_a_slow_answer_is_late_and_right(server: ApiServer, client: KubeClient) -> None:
    server.slow(0.1)
    began = time.monotonic()
    assert (await client.list(NODES)).items == ()
    assert time.monotonic() - began >= 0.1


async def test_a_right_is_missing_until_it_is_given_back(server: ApiServer, client: KubeClient) -> None:
    server.put(RESOURCE_CLAIMS, {"metadata": {"name": "c"}, "spec": {}})
    server.forbid("patch", "resourceclaims/status")
    await client.patch(RESOURCE_CLAIMS, "c", {"metadata": {"labels": {}}}, "default")
    with pytest.raises(Forbidden, match='cannot patch resource "resourceclaims/status"'):
        await client.patch(RESOURCE_CLAIMS, "c", {"status": {}}, "default", subresource="status")
    server.permit()
    await client.patch(RESOURCE_CLAIMS, "c", {"status": {}}, "default", subresource="status")


async def test_a_field_can_be_dropped_as_by_a_gate_that_is_off(server: ApiServer, client: KubeClient) -> None:
    server.strip(TAINTS)
    wanted = a_slice("a", {"name": "gpu-0", "taints": [{"key": "x"}]}, {"name": "gpu-1"})
    made = await client.create(RESOURCE_SLICES, wanted)
    assert made["spec"]["devices"] == [{"name": "gpu-0"}, {"name": "gpu-1"}]
    assert await client.update(RESOURCE_SLICES, wanted) == made
    server.strip(lambda item: item["spec"].update(driver="other"))
    assert (await client.create(RESOURCE_SLICES, a_slice("b")))["spec"]["driver"] == "other"


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("a", {"b": {"c": 1}, "l": [{"x": 1, "y": 2}, {"y": 3}]}),
        ("b.c", {"a": 1, "b": {}, "l": [{"x": 1, "y": 2}, {"y": 3}]}),
        ("l[*].y", {"a": 1, "b": {"c": 1}, "l": [{"x": 1}, {}]}),
        ("l", {"a": 1, "b": {"c": 1}}),
        ("none.c", {"a": 1, "b": {"c": 1}, "l": [{"x": 1, "y": 2}, {"y": 3}]}),
    ],
)
def test_a_path_names_what_is_dropped(path: str, left: Object) -> None:
    item: Object = {"a": 1, "b": {"c": 1}, "l": [{"x": 1, "y": 2}, {"y": 3}]}
    strip_at(item, path)
    assert item == left


async def test_a_check_refuses_with_the_field(server: ApiServer, client: KubeClient) -> None:
    def few(_: Object | None, new: Object) -> str | None:
        return "spec.devices: Too many: 2: must have at most 1 item" if len(new["spec"]["devices"]) > 1 else None

    server.check("resourceslices", few)
    await client.create(RESOURCE_SLICES, a_slice("a", {"name": "x"}))
    with pytest.raises(Invalid, match=r"spec\.devices: Too many") as refused:
        await client.create(RESOURCE_SLICES, a_slice("b", {"name": "x"}, {"name": "y"}))
    assert refused.value.causes == (("spec.devices", "Too many: 2: must have at most 1 item"),)


async def test_a_group_is_served_in_some_versions_only(server: ApiServer, client: KubeClient) -> None:
    server.put(RESOURCE_SLICES, a_slice())
    server.serve("resource.k8s.io", "v1beta1")
    with pytest.raises(NotFound):
        await client.get(RESOURCE_SLICES, "a")
    older = await client.get(RESOURCE_SLICES.at("v1beta1"), "a")
    assert older["apiVersion"] == "resource.k8s.io/v1beta1"


async def test_all_of_a_nodes_slices_are_wiped_in_one_request(server: ApiServer, client: KubeClient) -> None:
    for name in ("a", "b"):
        server.put(RESOURCE_SLICES, a_slice(name))
    server.put(RESOURCE_SLICES, a_slice("c") | {"spec": {"nodeName": "n1"}})
    async with client.watch(RESOURCE_SLICES, str(server.store.revision.value)) as events:
        await delete_collection(server, "fieldSelector=spec.nodeName%3Dn0")
        assert [(await anext(events)).type for _ in range(2)] == [EventType.DELETED] * 2
    assert [item["metadata"]["name"] for item in server.objects(RESOURCE_SLICES)] == ["c"]
    assert server.writes()[-1].verb == "deletecollection"


async def delete_collection(server: ApiServer, query: str) -> None:
    """As the kubelet does it; the agent never deletes so."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(f"DELETE {RESOURCE_SLICES.path()}?{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert b" 200 " in await reader.readline()
    writer.close()
    await writer.wait_closed()


async def test_a_server_that_comes_back_has_its_port_and_its_objects(server: ApiServer, client: KubeClient) -> None:
    server.put(NODES, {"metadata": {"name": "n0"}})
    url = server.url
    await server.stop()
    with pytest.raises(Unavailable):
        await client.get(NODES, "n0")
    await server.start()
    assert server.url == url
    assert await client.get(NODES, "n0")


async def test_its_end_ends_watches_and_requests_that_hang(server: ApiServer, client: KubeClient) -> None:
    server.hang()
    hanging = asyncio.create_task(client.list(NODES))
    await server.until(lambda: server.requests)
    async with client.watch(NODES, "") as events:
        await server.until(lambda: server.watches)
        await server.stop()
        with pytest.raises(Unavailable):
            await anext(events)
    with pytest.raises(Unavailable):
        await hanging
    assert not server.watches


async def test_a_watch_asked_for_from_the_newest_begins_with_all(server: ApiServer, client: KubeClient) -> None:
    server.put(NODES, {"metadata": {"name": "n0"}})
    async with client.watch(NODES, "0") as events:
        assert (await anext(events)).object["metadata"]["name"] == "n0"


def test_merging_replaces_adds_and_removes() -> None:
    assert merge({"a": 1, "b": {"c": 1, "d": 2}}, {"a": None, "b": {"c": 9}, "e": [1]}) == {
        "b": {"c": 9, "d": 2},
        "e": [1],
    }
    assert merge({"a": 1}, ["whole"]) == ["whole"]
    assert merge("x", {"a": {"b": None}}) == {"a": {}}


keys = st.sampled_from(["a", "b", "c"])
documents = st.recursive(st.integers(0, 3), lambda inner: st.dictionaries(keys, inner, max_size=3), max_leaves=6)


@settings(max_examples=50)
@given(documents, documents)
def test_a_merge_is_the_same_when_it_is_done_twice(current: Any, change: Any) -> None:
    once = merge(current, change)
    assert merge(once, change) == once


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/none"},
        {"op": "replace", "path": "/list/7", "value": 1},
        {"op": "add", "path": "/a/b/c", "value": 1},
        {"op": "test", "path": "/a", "value": 2},
    ],
)
def test_a_step_that_cannot_be_done_fails(operation: Object) -> None:
    with pytest.raises(ValueError, match=r"cannot|tested"):
        json_patch({"a": 1, "list": [1]}, [operation])


def test_steps_reach_into_lists() -> None:
    steps: list[Object] = [
        {"op": "add", "path": "/l/-", "value": 3},
        {"op": "add", "path": "/l/0", "value": 0},
        {"op": "remove", "path": "/l/1"},
    ]
    assert json_patch({"l": [1, 2]}, steps) == {"l": [0, 2, 3]}


def test_an_owner_takes_away_only_what_it_applied() -> None:
    before = {"status": {"conditions": [{"type": "A", "x": 1}], "mine": 1, "both": {"a": 1}}}
    current = {
        "status": {
            "conditions": [{"type": "A", "x": 1}, {"type": "B"}],
            "mine": 1,
            "both": {"a": 1, "theirs": 2},
            "theirs": 3,
        }
    }
    wanted = {"status": {"conditions": [{"type": "C"}], "both": {"b": 1}}}
    assert apply(current, before, wanted) == {
        "status": {"conditions": [{"type": "B"}, {"type": "C"}], "both": {"theirs": 2, "b": 1}, "theirs": 3}
    }


def test_a_list_without_keys_is_applied_whole() -> None:
    assert apply({"spec": {"devices": [{"name": "a"}]}}, {}, {"spec": {"devices": []}}) == {"spec": {"devices": []}}


async def test_applying_needs_a_name(server: ApiServer) -> None:
    async with KubeClient(server.access, agent="", patience=ONCE) as nameless:
        with pytest.raises(KubeApiError, match="fieldManager is required"):
            await nameless.patch(NODES, "n0", {"metadata": {"name": "n0"}}, how=Patch.APPLY)


async def test_what_it_answers_is_json_that_any_client_reads(server: ApiServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"application/json" in head
    assert json.loads(body)
    writer.close()
    await writer.wait_closed()


async def test_a_watch_ends_when_its_client_is_gone_without_a_word(server: ApiServer) -> None:
    """As a client ends that is cancelled before it has read the beginning of the answer: its connection is reset."""
    reader, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
    writer.write(b"GET /api/v1/nodes?watch=true HTTP/1.1\r\nHost: any\r\n\r\n")
    await server.until(lambda: server.watches)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await server.until(lambda: not server.watches)
    assert reader.at_eof() or reader.exception() is not None
