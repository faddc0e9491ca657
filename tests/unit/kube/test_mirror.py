"""A mirror has what the server has, soon and after every kind of trouble, and never asks in a hot loop."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from node_agent.kit.tasks import running
from node_agent.kube import mirror as mirror_module
from node_agent.kube.calls import Patience
from node_agent.kube.client import KubeClient
from node_agent.kube.mirror import Mirror
from node_agent.kube.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Object
from node_agent.telemetry.catalogue import WATCH_RESTARTS
from tests.fakes.api_server import ApiServer

PATIENT, HASTY = Patience(attempt=5.0, budget=5.0, pause=0.01), Patience(attempt=0.1, budget=0.1, pause=0.01)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(mirror_module, "LONGEST_PAUSE", 0.2)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(server.access, patience=PATIENT) as client:
        yield client


def a_slice(name: str, node: str = "n0", **metadata: Any) -> Object:
    return {"metadata": {"name": name, **metadata}, "spec": {"driver": "gpu.test", "nodeName": node, "devices": []}}


@asynccontextmanager
async def mirroring(mirror: Mirror) -> AsyncIterator[Mirror]:
    """Run a mirror, from when it has its first copy."""
    async with running(mirror.run()):
        async with asyncio.timeout(30):
            async for synced in mirror.synced.watch():
                if synced:
                    break
        yield mirror


async def until(mirror: Mirror, *names: str) -> None:
    """Wait until a mirror has these objects and no others."""
    async with asyncio.timeout(30):
        async for objects in mirror.objects.watch():
            if set(objects) == set(names):
                return


def count(server: ApiServer, verb: str) -> int:
    return sum(asked.verb == verb for asked in server.requests)


async def test_a_mirror_says_nothing_before_it_has_looked(client: KubeClient) -> None:
    mirror = Mirror(client, RESOURCE_SLICES)
    assert not mirror.synced.value
    assert mirror.objects.value == {}
    assert mirror.staleness == math.inf


async def test_nothing_there_is_an_answer_too(server: ApiServer, client: KubeClient) -> None:
    async with mirroring(Mirror(client, RESOURCE_SLICES)) as mirror:
        assert mirror.objects.value == {}
        await server.until(lambda: server.watches)
        assert mirror.staleness < 5


def watching(server: ApiServer, number: int) -> bool:
    """Whether so many watches were asked for, and one is open."""
    return count(server, "watch") == number and bool(server.watches)


async def test_what_is_there_and_what_comes_changes_and_goes_is_mirrored(server: ApiServer, client: KubeClient) -> None:
    server.put(RESOURCE_SLICES, a_slice("a"))
    async with mirroring(Mirror(client, RESOURCE_SLICES)) as mirror:
        assert set(mirror.objects.value) == {"a"}
        server.put(RESOURCE_SLICES, a_slice("b"))
        await until(mirror, "a", "b")
        changed = a_slice("b", labels={"color": "red"})
        server.put(RESOURCE_SLICES, changed)
        await server.until(lambda: mirror.objects.value["b"]["metadata"].get("labels") == {"color": "red"})
        server.remove(RESOURCE_SLICES, "a")
        await until(mirror, "b")
        assert mirror.restarts == 0
    assert count(server, "list") == count(server, "watch") == 1


async def test_a_mirrored_object_is_what_a_get_returns(server: ApiServer, client: KubeClient) -> None:
    server.put(RESOURCE_SLICES, a_slice("listed"))
    async with mirroring(Mirror(client, RESOURCE_SLICES)) as mirror:
        server.put(RESOURCE_SLICES, a_slice("watched"))
        await until(mirror, "listed", "watched")
        for name, item in mirror.objects.value.items():
            assert item == await client.get(RESOURCE_SLICES, name)


async def test_namesakes_in_two_namespaces_are_two(server: ApiServer, client: KubeClient) -> None:
    for namespace in ("one", "two"):
        server.put(RESOURCE_CLAIMS, {"metadata": {"name": "a", "namespace": namespace}, "spec": {}})
    async with mirroring(Mirror(client, RESOURCE_CLAIMS)) as mirror:
        assert set(mirror.objects.value) == {"one/a", "two/a"}
    async with mirroring(Mirror(client, RESOURCE_CLAIMS, namespace="two")) as mirror:
        assert set(mirror.objects.value) == {"two/a"}


async def test_selectors_hold_for_the_list_and_the_watch(server: ApiServer, client: KubeClient) -> None:
    server.put(RESOURCE_SLICES, a_slice("ours"))
    server.put(RESOURCE_SLICES, a_slice("theirs", "n1"))
    async with mirroring(Mirror(client, RESOURCE_SLICES, fields="spec.nodeName=n0")) as mirror:
        server.put(
            RESOURCE_SLICES, a_slice("theirs too", "n1") | {"metadata": {"name": "more"}, "spec": {"nodeName": "n1"}}
        )
        server.put(RESOURCE_SLICES, a_slice("last"))
        await until(mirror, "ours", "last")


async def test_what_leaves_the_selection_is_gone(server: ApiServer, client: KubeClient) -> None:
    pod = {"metadata": {"name": "p", "namespace": "d", "labels": {"gpu": "yes"}}, "spec": {}}
    server.put(PODS, pod)
    async with mirroring(Mirror(client, PODS, labels="gpu=yes")) as mirror:
        assert set(mirror.objects.value) == {"d/p"}
        server.put(PODS, pod | {"metadata": {"name": "p", "namespace": "d", "labels": {}}})
        await until(mirror)


async def test_what_no_selector_can_say_is_kept_or_not(server: ApiServer, client: KubeClient) -> None:
    def has_label(item: Object) -> bool:
        return "labels" in item["metadata"]

    server.put(RESOURCE_SLICES, a_slice("plain"))
    server.put(RESOURCE_SLICES, a_slice("kept", labels={"a": "b"}))
    async with mirroring(Mirror(client, RESOURCE_SLICES, keep=has_label)) as mirror:
        assert set(mirror.objects.value) == {"kept"}
        server.put(RESOURCE_SLICES, a_slice("plain", labels={"a": "b"}))
        await until(mirror, "kept", "plain")
        server.put(RESOURCE_SLICES, a_slice("kept"))
        await until(mirror, "plain")
        server.put(RESOURCE_SLICES, a_slice("other"))
        server.remove(RESOURCE_SLICES, "plain")
        await until(mirror)


async def test_who_set_which_field_is_not_kept(server: ApiServer, client: KubeClient) -> None:
    server.put(RESOURCE_SLICES, a_slice("listed", managedFields=[{"manager": "x"}]))
    async with mirroring(Mirror(client, RESOURCE_SLICES)) as mirror:
        server.put(RESOURCE_SLICES, a_slice("watched", managedFields=[{"manager": "x"}]))
        await until(mirror, "listed", "watched")
        assert not any("managedFields" in item["metadata"] for item in mirror.objects.value.values())


async def test_who_looks_at_a_snapshot_sees_it_unchanged(server: ApiServer, client: KubeClient) -> None:
    server.put(RESOURCE_SLICES, a_slice("a"))
    async with mirroring(Mirror(client, RESOURCE_SLICES)) as mirror:
        before = mirror.objects.value
        server.remove(RESOURCE_SLICES, "a")
        await until(mirror)
        assert set(before) == {"a"}


@pytest.mark.parametrize("clean", [True, False])
async def test_a_watch_that_ends_goes_on_where_it_was(server: ApiServer, client: KubeClient, clean: bool) -> None:
    told = WATCH_RESTARTS.values[("resourceslices",)]
    async with mirroring(Mirror(client, RESOURCE_SLICES)) as mirror:
        await server.until(lambda: server.watches)
        server.put(RESOURCE_SLICES, a_slice("a"))
        await until(mirror, "a")
        server.end_watches(clean=clean)
        await server.until(lambda: not server.watches)
        server.put(RESOURCE_SLICES, a_slice("b"))
        server.remove(RESOURCE_SLICES, "a")
        await until(mirror, "b")
        assert mirror.restarts == 1
        assert WATCH_RESTARTS.values[("resourceslices",)] == told + 1
    assert count(server, "list") == 1
    assert server.requests[-1].query["resourceVersion"] == "1001"


async def test_a_bookmark_moves_the_place_on(server: ApiServer, client: KubeClient) -> None:
    async with mirroring(Mirror(client, RESOURCE_SLICES)) as mirror:
        await server.until(lambda: server.watches)
        server.put(PODS, {"metadata": {"name": "another kind", "namespace": "d"} | {"name": "p"}})
        server.compact()
        server.bookmark()
        server.end_watches()
        await server.until(lambda: count(server, "watch") == 2 and server.watches)
        server.put(RESOURCE_SLICES, a_slice("a"))
        await until(mirror, "a")
    assert count(server, "list") == 1


@pytest.mark.parametrize("told", ["event", "status"])
async def test_a_place_that_is_forgotten_makes_all_be_listed_anew(
    server: ApiServer, client: KubeClient, told: str
) -> None:
    server.put(RESOURCE_SLICES, a_slice("a"))
    async with mirroring(Mirror(client, RESOURCE_SLICES)) as mirror:
        await server.until(lambda: server.watches)
        server.end_watches(clean=False)
        await server.until(lambda: not server.watches)
        server.remove(RESOURCE_SLICES, "a")
        server.put(RESOURCE_SLICES, a_slice("b"))
        server.compact()
        if told == "status":
            server.fail(verb="watch", code=410)
        await until(mirror, "b")
    assert count(server, "list") == 2


@pytest.mark.parametrize("code", [410, 500, 504])
async def test_an_error_in_a_watch_makes_all_be_listed_anew(server: ApiServer, client: KubeClient, code: int) -> None:
    async with mirroring(Mirror(client, RESOURCE_SLICES)) as mirror:
        await server.until(lambda: server.watches)
        server.watch_error(code)
        await server.until(lambda: count(server, "list") == 2)
        server.put(RESOURCE_SLICES, a_slice("a"))
        await until(mirror, "a")


@pytest.mark.parametrize("code", [401, 403, 429, 503])
async def test_a_server_that_starts_or_has_too_much_to_do_is_asked_for_no_list_on_top(
    server: ApiServer, client: KubeClient, code: int
) -> None:
    """One that has just started refuses everybody for a moment: its roles are not read yet."""
    async with mirroring(Mirror(client, RESOURCE_SLICES)) as mirror:
        await server.until(lambda: server.watches)
        server.fail(3, verb="watch", code=code)
        server.end_watches()
        await server.until(lambda: mirror.restarts >= 4 and server.watches)
        server.put(RESOURCE_SLICES, a_slice("a"))
        await until(mirror, "a")
    assert count(server, "list") == 1


async def test_a_server_whose_past_is_another_one_is_listed_anew(server: ApiServer, client: KubeClient) -> None:
    """A restored backup is behind: the server answers that the version is too large, for ever."""
    async with mirroring(Mirror(client, RESOURCE_SLICES)) as mirror:
        await server.until(lambda: server.watches)
        server.fail(1, verb="watch", code=504, reason="Timeout", message="Too large resource version: 1000, current: 7")
        server.end_watches()
        await server.until(lambda: count(server, "list") == 2)
        server.put(RESOURCE_SLICES, a_slice("a"))
        await until(mirror, "a")


@pytest.mark.parametrize("fault", ["fail", "drop", "hang"])
async def test_a_server_in_trouble_is_waited_for(server: ApiServer, fault: str) -> None:
    server.put(RESOURCE_SLICES, a_slice("a"))
    getattr(server, fault)(10)
    async with (
        KubeClient(server.access, patience=HASTY) as client,
        mirroring(Mirror(client, RESOURCE_SLICES)) as mirror,
    ):
        await until(mirror, "a")
    assert mirror.restarts > 0


async def test_a_server_that_is_away_keeps_what_was_seen_and_is_caught_up_with(server: ApiServer) -> None:
    server.put(RESOURCE_SLICES, a_slice("a"))
    async with (
        KubeClient(server.access, patience=HASTY) as client,
        mirroring(Mirror(client, RESOURCE_SLICES)) as mirror,
    ):
        await server.until(lambda: server.watches)
        await server.stop()
        await server.until(lambda: mirror.restarts >= 2)
        assert set(mirror.objects.value) == {"a"}
        assert mirror.synced.value
        server.remove(RESOURCE_SLICES, "a")
        await server.start()
        await until(mirror)


async def test_a_right_that_is_missing_is_waited_for(server: ApiServer, client: KubeClient) -> None:
    server.forbid("watch", "resourceslices")
    mirror = Mirror(client, RESOURCE_SLICES)
    async with running(mirror.run()):
        await server.until(lambda: mirror.restarts >= 2)
        server.permit()
        server.put(RESOURCE_SLICES, a_slice("a"))
        await until(mirror, "a")


async def test_a_token_that_is_refused_is_waited_for(server: ApiServer, client: KubeClient) -> None:
    server.answers.token = "right"
    async with KubeClient(replace(server.access, token="wrong"), patience=HASTY) as wrong:
        mirror = Mirror(wrong, RESOURCE_SLICES)
        async with running(mirror.run()):
            await server.until(lambda: mirror.restarts >= 2)
            server.answers.token = "wrong"
            async with asyncio.timeout(30):
                async for synced in mirror.synced.watch():
                    if synced:
                        break


@pytest.mark.parametrize(
    "trouble",
    [
        lambda server: server.fail(100_000, verb="watch", code=410),
        lambda server: server.fail(100_000, verb="watch", code=403),
        lambda server: server.drop(100_000, verb="watch"),
        lambda server: server.forbid("list", "resourceslices"),
    ],
)
async def test_lasting_trouble_is_no_hot_loop(
    server: ApiServer, client: KubeClient, trouble: Callable[[ApiServer], None]
) -> None:
    trouble(server)
    async with running(Mirror(client, RESOURCE_SLICES).run()):
        await asyncio.sleep(0.8)
    # 0.02, 0.04, 0.08, 0.16, 0.2, 0.2 … seconds, at least half of each.
    assert 2 <= len(server.requests) <= 26


async def test_a_watch_that_ends_at_once_again_and_again_is_no_hot_loop(server: ApiServer, client: KubeClient) -> None:
    async def end_all() -> None:
        while True:
            await server.until(lambda: server.watches)
            server.end_watches()
            await server.until(lambda: not server.watches)

    async with running(end_all()), running(Mirror(client, RESOURCE_SLICES).run()):
        await asyncio.sleep(0.8)
    assert count(server, "list") == 1
    assert 2 <= count(server, "watch") <= 13


async def test_after_a_steady_watch_the_first_pause_is_the_shortest_again(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "STEADY_SECONDS", 0.05)
    monkeypatch.setattr(mirror_module, "LONGEST_PAUSE", 30.0)
    async with mirroring(Mirror(client, RESOURCE_SLICES)):
        for number in range(1, 9):
            await server.until(partial(watching, server, number))
            await asyncio.sleep(0.06)
            server.end_watches()
            await server.until(lambda: not server.watches)


async def test_trouble_is_logged_once_and_again_only_when_it_is_another_one(
    server: ApiServer, client: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    async with mirroring(Mirror(client, RESOURCE_SLICES)) as mirror:
        server.forbid("watch", "resourceslices")
        server.end_watches()
        await server.until(lambda: mirror.restarts >= 5)
        assert said() == ["not up to date"]
        server.permit()
        await server.until(lambda: server.watches)
        server.forbid("watch", "resourceslices")
        server.end_watches()
        await server.until(lambda: len(said()) == 2)


async def test_staleness_counts_from_the_last_word(server: ApiServer, client: KubeClient) -> None:
    async with mirroring(Mirror(client, RESOURCE_SLICES)) as mirror:
        await server.until(lambda: server.watches)
        for say in (server.bookmark, lambda: server.put(RESOURCE_SLICES, a_slice("a")), server.end_watches):
            await server.until(lambda: mirror.staleness > 0.1)
            say()
            await server.until(lambda: mirror.staleness < 0.1)


async def test_the_end_of_a_mirror_closes_its_watch(server: ApiServer, client: KubeClient) -> None:
    async with mirroring(Mirror(client, RESOURCE_SLICES)):
        await server.until(lambda: server.watches)
    await server.until(lambda: not server.watches)


async def test_a_failing_subscriber_of_ours_is_not_taken_for_the_servers_trouble(
    server: ApiServer, client: KubeClient
) -> None:
    """A mistake in ``keep`` is ours: the supervisor shall see it, not the log's line about the server."""

    def wrong(_: Object) -> bool:
        raise ZeroDivisionError

    server.put(RESOURCE_SLICES, a_slice("a"))
    with pytest.raises(ZeroDivisionError):
        await Mirror(client, RESOURCE_SLICES, keep=wrong).run()
