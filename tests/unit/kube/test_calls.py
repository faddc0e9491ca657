"""What does no harm is tried again, within a budget; what may have been done is not; every failure says which call."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from node_agent.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    KubeAccessError,
    KubeApiError,
    TooManyRequests,
    Unavailable,
)
from node_agent.kube import calls as calls_module
from node_agent.kube.access import Access
from node_agent.kube.calls import Call, Calls, Patience
from node_agent.kube.client import KubeClient, Patch
from node_agent.kube.credentials import Credentials
from node_agent.kube.resources import NODES, RESOURCE_SLICES, Object
from node_agent.telemetry.catalogue import API_REQUESTS
from tests.fakes import certificates
from tests.fakes.api_server import ApiServer

HASTY = Patience(attempt=2.0, budget=10.0, pause=0.005)
NODE: Object = {"metadata": {"name": "n0"}}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        server.put(NODES, NODE)
        yield server


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(server.access, patience=HASTY) as client:
        yield client


def a_slice() -> Object:
    return {"metadata": {"name": "a"}, "spec": {"driver": "gpu.test", "devices": []}}


def verbs(server: ApiServer) -> list[str]:
    return [asked.verb for asked in server.requests]


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
async def test_what_does_no_harm_is_tried_until_it_succeeds(server: ApiServer, client: KubeClient, code: int) -> None:
    server.fail(3, code=code)
    assert (await client.get(NODES, "n0"))["metadata"]["name"] == "n0"
    assert verbs(server) == ["get"] * 4


async def test_each_call_is_timed_once_with_its_outcome_however_often_it_was_tried(
    server: ApiServer, client: KubeClient
) -> None:
    def timed() -> tuple[int, int]:
        ok, failed = (API_REQUESTS.values[("get", "nodes", result)] for result in ("ok", "failed"))
        return ok.count, failed.count

    before = timed()
    server.fail(3, code=503)
    await client.get(NODES, "n0")
    server.fail(code=403)
    with pytest.raises(KubeApiError):
        await client.get(NODES, "n0")
    assert timed() == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("code", [400, 401, 403, 404, 405, 409, 410, 422])
async def test_what_the_server_has_decided_is_not_asked_again(server: ApiServer, client: KubeClient, code: int) -> None:
    server.fail(code=code)
    with pytest.raises(KubeApiError) as refused:
        await client.get(NODES, "n0")
    assert refused.value.code == code
    assert verbs(server) == ["get"]


async def test_a_broken_connection_is_no_answer_and_tried_again(server: ApiServer, client: KubeClient) -> None:
    server.drop(2)
    await client.get(NODES, "n0")
    assert verbs(server) == ["get"] * 3


async def test_an_answer_that_does_not_come_in_time_is_tried_again(server: ApiServer) -> None:
    server.hang(2)
    async with KubeClient(server.access, patience=Patience(attempt=0.1, budget=10.0, pause=0.005)) as client:
        await client.get(NODES, "n0")
    assert len(server.requests) >= 3


async def test_every_verb_but_create_is_repeated(server: ApiServer, client: KubeClient) -> None:
    for change in (
        lambda: client.update(NODES, NODE),
        lambda: client.patch(NODES, "n0", {"metadata": {"labels": {"a": "b"}}}),
        lambda: client.patch(NODES, "n0", {"metadata": {"labels": {"a": "b"}}}, how=Patch.APPLY),
        lambda: client.list(NODES),
        lambda: client.delete(NODES, "n0"),
    ):
        server.requests.clear()
        server.drop()
        await change()
        assert len(server.requests) == 2


async def test_a_create_whose_answer_is_lost_is_told_and_not_repeated(server: ApiServer, client: KubeClient) -> None:
    server.drop(verb="create", applied=True)
    with pytest.raises(Unavailable, match="did not answer create /apis/resource"):
        await client.create(RESOURCE_SLICES, a_slice())
    assert verbs(server) == ["create"]
    assert len(server.objects(RESOURCE_SLICES)) == 1
    with pytest.raises(AlreadyExists):
        await client.create(RESOURCE_SLICES, a_slice())


@pytest.mark.parametrize("code", [500, 503, 504])
async def test_a_create_that_failed_in_the_server_is_not_repeated(
    server: ApiServer, client: KubeClient, code: int
) -> None:
    server.fail(verb="create", code=code)
    with pytest.raises(Unavailable):
        await client.create(RESOURCE_SLICES, a_slice())
    assert verbs(server) == ["create"]


async def test_a_create_that_the_server_has_put_off_is_repeated(server: ApiServer, client: KubeClient) -> None:
    server.fail(2, verb="create", code=429)
    await client.create(RESOURCE_SLICES, a_slice())
    assert verbs(server) == ["create"] * 3


async def test_a_create_that_reached_nobody_is_repeated(server: ApiServer, client: KubeClient) -> None:
    await server.stop()

    async def come_back() -> None:
        await asyncio.sleep(0.1)
        await server.start()

    coming = asyncio.create_task(come_back())
    await client.create(RESOURCE_SLICES, a_slice())
    await coming
    assert verbs(server) == ["create"]


async def test_a_json_patch_is_not_repeated_since_its_steps_would_add_up(server: ApiServer, client: KubeClient) -> None:
    server.drop(verb="patch", applied=True)
    with pytest.raises(Unavailable):
        await client.patch(NODES, "n0", [{"op": "add", "path": "/metadata/x", "value": 1}], how=Patch.JSON)
    assert verbs(server) == ["patch"]


async def test_an_update_whose_answer_was_lost_is_a_conflict_for_who_named_the_version(
    server: ApiServer, client: KubeClient
) -> None:
    node = await client.get(NODES, "n0")
    server.drop(verb="update", applied=True)
    with pytest.raises(Conflict):
        await client.update(NODES, node | {"spec": {"x": 1}})
    assert server.objects(NODES)[0]["spec"] == {"x": 1}


async def test_a_deletion_whose_answer_was_lost_ends_as_gone(server: ApiServer, client: KubeClient) -> None:
    server.drop(verb="delete", applied=True)
    assert not await client.delete(NODES, "n0")
    assert server.objects(NODES) == []


async def test_the_server_is_left_alone_for_as_long_as_it_wants(server: ApiServer, client: KubeClient) -> None:
    server.fail(code=429, retry_after=0.3)
    began = time.monotonic()
    await client.get(NODES, "n0")
    assert 0.3 <= time.monotonic() - began < 20


async def test_a_server_that_wants_more_time_than_there_is_is_not_waited_for(
    server: ApiServer, client: KubeClient
) -> None:
    server.fail(code=429, retry_after=60)
    began = time.monotonic()
    with pytest.raises(TooManyRequests) as refused:
        await client.get(NODES, "n0")
    assert time.monotonic() - began < 20
    assert refused.value.retry_after == 60


@pytest.mark.parametrize("ending", ["fail", "drop", "hang"])
async def test_the_budget_ends_the_tries_and_the_last_failure_is_told(server: ApiServer, ending: str) -> None:
    getattr(server, ending)(1000)
    async with KubeClient(server.access, patience=Patience(attempt=0.1, budget=0.5, pause=0.05)) as client:
        began = time.monotonic()
        with pytest.raises(Unavailable, match="get /api/v1/nodes/n0"):
            await client.get(NODES, "n0")
        assert time.monotonic() - began < 20
    assert 2 <= len(server.requests) <= 15


async def test_pauses_grow_and_differ_between_nodes(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    server.fail(8, verb="get", code=500)
    async with KubeClient(server.access, patience=Patience(attempt=1, budget=1000, pause=0.2)) as client:
        await client.get(NODES, "n0")
    waits = [seconds for seconds in slept if seconds > 0]
    for wait, pause in zip(waits, [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0], strict=True):
        assert pause / 2 <= wait <= pause
    assert len({round(wait, 6) for wait in waits[-3:]}) == 3


async def test_all_nodes_that_are_told_to_come_back_later_do_not_come_at_the_same_moment(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    for _ in range(10):
        server.fail(1, verb="get", code=429, retry_after=1)
        async with KubeClient(server.access, patience=Patience(attempt=1, budget=1000, pause=0.2)) as client:
            await client.get(NODES, "n0")
    waits = [seconds for seconds in slept if seconds > 0]
    assert len(waits) == 10 and all(1.1 <= wait <= 1.2 for wait in waits)
    assert len({round(wait, 6) for wait in waits}) > 1


async def test_an_unreached_server_is_named_with_the_reason(server: ApiServer) -> None:
    await server.stop()
    async with KubeClient(server.access, patience=Patience(budget=0.1)) as client:
        with pytest.raises(
            Unavailable, match=rf"{server.url} did not answer list /api/v1/nodes: .*Connect call"
        ) as lost:
            await client.list(NODES)
    assert (lost.value.code, lost.value.verb, lost.value.path) == (0, "list", "/api/v1/nodes")


async def test_silence_is_said_in_words(server: ApiServer) -> None:
    server.hang()
    async with KubeClient(server.access, patience=Patience(attempt=0.1, budget=0.1)) as client:
        with pytest.raises(Unavailable, match="did not answer get /api/v1/nodes/n0: nothing came for too long"):
            await client.get(NODES, "n0")


async def test_a_caller_can_be_in_a_greater_hurry(server: ApiServer, client: KubeClient) -> None:
    server.hang(10)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.get(NODES, "n0")
    assert time.monotonic() - began < 5


async def test_a_request_says_who_asks_and_what_is_wanted(server: ApiServer) -> None:
    server.answers.token = "right"
    async with KubeClient(server.access, agent="agent/1") as client:
        await client.patch(NODES, "n0", {"metadata": {"labels": {"a": "b"}}})
        await client.get(NODES, "n0")
    changed, read = server.requests
    assert changed.agent == read.agent == "agent/1"
    assert changed.headers["authorization"] == "Bearer right"
    assert changed.headers["content-type"] == "application/merge-patch+json"
    assert changed.query == {"fieldManager": "agent/1"}
    assert read.headers["accept"] == "application/json"
    assert "content-type" not in read.headers


async def test_a_renewed_token_is_used_from_the_next_request_on(server: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    server.answers.token = "old"
    async with KubeClient(replace(server.access, token=file)) as client:
        await client.get(NODES, "n0")
        server.answers.token = "new"
        file.write_text("new\n")
        await client.get(NODES, "n0")
    assert [asked.code for asked in server.requests] == [200, 200]


async def test_a_missing_tokens_file_is_told_and_nothing_is_sent(server: ApiServer, tmp_path: Path) -> None:
    async with KubeClient(replace(server.access, token=tmp_path / "token"), patience=HASTY) as client:
        with pytest.raises(KubeAccessError, match="token cannot be read"):
            await client.get(NODES, "n0")
    assert server.requests == []


async def test_a_server_behind_a_path_is_asked_below_it(server: ApiServer) -> None:
    access = replace(server.access, server=f"{server.url}/k8s/clusters/c-1/")
    async with KubeClient(access, patience=HASTY) as client:
        with pytest.raises(KubeApiError):
            await client.get(NODES, "n0")
    assert server.requests[0].path == "/k8s/clusters/c-1/api/v1/nodes/n0"


@pytest.mark.parametrize("inline", [False, True])
async def test_a_client_certificate_proves_who_we_are(inline: bool) -> None:
    certificate, key = certificates.CLIENT, certificates.CLIENT_KEY
    async with ApiServer(
        tls=certificates.serving(clients=True), authority=certificates.AUTHORITY.read_bytes()
    ) as server:
        server.put(NODES, NODE)
        shown = replace(server.access, certificate=certificate, key=key)
        if inline:
            shown = replace(server.access, certificate=certificate.read_bytes(), key=key.read_bytes())
        async with KubeClient(shown) as client:
            assert await client.get(NODES, "n0")
        async with KubeClient(server.access, patience=Patience(budget=0.1)) as client:
            with pytest.raises(Unavailable):
                await client.get(NODES, "n0")


async def test_distrust_is_told_at_once_with_what_to_look_at() -> None:
    async with ApiServer(tls=certificates.serving(), authority=certificates.AUTHORITY.read_bytes()) as server:
        for access, said in (
            (replace(server.access, authority=certificates.STRANGER), "is the certificate authority of the test that"),
            (replace(server.access, authority=None), "the test names no certificate authority, and the system's own"),
            (replace(server.access, server_name="a.b"), "a name that is not in its certificate: set tls-server-name"),
        ):
            async with KubeClient(access) as client:
                with pytest.raises(KubeAccessError, match=f"{server.url} cannot be trusted: .*{said}"):
                    await client.get(NODES, "n0")
        assert server.requests == []


async def test_a_right_that_is_given_later_is_used(server: ApiServer, client: KubeClient) -> None:
    server.forbid("get", "nodes")
    with pytest.raises(Forbidden):
        await client.get(NODES, "n0")
    server.permit()
    await client.get(NODES, "n0")


async def test_lines_are_tried_once(server: ApiServer) -> None:
    server.fail(code=500)
    async with Calls(server.access, agent="test", patience=HASTY) as calls:
        with pytest.raises(Unavailable):
            async with calls.lines(Call(verb="watch", path="/api/v1/nodes", query={"watch": "true"})):
                pass
    assert len(server.requests) == 1


async def test_the_callers_own_failure_among_the_lines_stays_its_own(server: ApiServer) -> None:
    async with Calls(server.access, agent="test", patience=HASTY) as calls:
        with pytest.raises(FileNotFoundError):
            async with calls.lines(Call(verb="watch", path="/api/v1/nodes", query={"watch": "true"})):
                raise FileNotFoundError


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://10.96.0.1", "10.96.0.1", 443),
        ("http://10.96.0.1", "10.96.0.1", 80),
        ("https://[fd00::1]:6443/path", "fd00::1", 6443),
    ],
)
def test_an_access_without_a_port_means_its_schemes_own(url: str, host: str, port: int) -> None:
    access = Access(server=url, source="the test")
    endpoint = calls_module._endpoint(access, Credentials(access))
    assert (endpoint.host, endpoint.port) == (host, port)


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("certificate has expired", "renew it there, or set the clock right here"),
        ("Hostname mismatch, certificate is not valid for 'a.b'.", "set tls-server-name there"),
        ("IP address mismatch, certificate is not valid for '10.0.0.1'.", "set tls-server-name there"),
        ("self-signed certificate in certificate chain", "is the certificate authority of the test that server's?"),
    ],
)
def test_each_reason_for_distrust_has_its_advice(said: str, advice: str) -> None:
    access = Access(server="https://127.0.0.1", source="the test", authority=certificates.AUTHORITY)
    error = ssl.SSLCertVerificationError()
    error.verify_message = said
    distrust = Calls(access, agent="test", patience=HASTY)._distrust(error)
    assert isinstance(distrust, KubeAccessError)
    assert str(distrust).startswith(f"https://127.0.0.1 cannot be trusted: {said}; ")
    assert str(distrust).endswith(advice)
