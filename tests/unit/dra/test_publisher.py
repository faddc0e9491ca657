"""The slices in the API are what the pool holds, whatever happens to them, and nothing is written without need."""

import asyncio

import pytest

from node_agent.dra import publisher as publisher_module
from node_agent.dra.publisher import PublisherState
from node_agent.dra.taints import HELD, Effect, Taint
from node_agent.kit.latest import Latest
from node_agent.kube.resources import NODES, RESOURCE_SLICES
from node_agent.model.inventory import Inventory
from tests.unit.dra import scheduler
from tests.unit.dra.publishing import (
    COUNTERS,
    DEVICES,
    DRIVER,
    NODE,
    QUIET,
    Place,
    large_node,
    others_slice,
    pool,
    wipe,
)

TAKEN = Taint(key=f"{DRIVER}/{HELD}", effect=Effect.NO_SCHEDULE)


# What is published


async def test_all_devices_are_published_with_driver_node_and_owner(place: Place) -> None:
    async with place.published() as publisher:
        state = await place.settled(publisher)
        (node,) = place.server.objects(NODES)
        (one,) = place.slices.values()
        assert one["metadata"]["name"] == DEVICES
        assert one["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"], "controller": True}
        ]
        assert one["spec"]["driver"] == DRIVER and one["spec"]["nodeName"] == NODE
        assert one["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        assert list(place.devices) == [f"gpu-{i}" for i in range(8)]
        assert state == PublisherState(generation=1, slices=1, devices=8, writes=1)


async def test_groups_come_with_their_counters_in_one_generation(place: Place) -> None:
    place.pool.set(pool(groups=True))
    async with place.published() as publisher:
        await place.settled(publisher)
        pools = {name: item["spec"]["pool"] for name, item in place.slices.items()}
        assert pools == {name: {"name": NODE, "generation": 1, "resourceSliceCount": 2} for name in (COUNTERS, DEVICES)}
        assert place.writes() == ["create 201"] * 2
        scheduler.Scheduler(item["spec"] for item in place.slices.values())


async def test_nothing_is_done_before_the_pool_is_known(place: Place) -> None:
    place.pool.set(None)
    async with place.published() as publisher:
        await asyncio.sleep(QUIET)
        assert place.writes() == []
        await place.show(publisher, pool())
        assert len(place.devices) == 8


async def test_a_node_without_gpus_publishes_an_empty_slice(place: Place) -> None:
    place.pool.set(pool(node=Inventory(generation=1)))
    async with place.published() as publisher:
        state = await place.settled(publisher)
        assert (state.slices, state.devices) == (1, 0)
        assert place.slices[DEVICES]["spec"]["pool"]["resourceSliceCount"] == 1
        await asyncio.sleep(QUIET)
        assert place.writes() == ["create 201"]


async def test_slices_of_other_drivers_and_nodes_are_nobodys_business(place: Place) -> None:
    for driver, node in ((DRIVER, "n1"), ("other.example", NODE)):
        spec = {"driver": driver, "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}
        place.server.put(RESOURCE_SLICES, {"metadata": {"name": f"{node}-{driver}"}, "spec": spec})
    async with place.published() as publisher:
        await place.settled(publisher)
        assert len(place.slices) == 3


async def test_at_the_end_the_slices_stay(place: Place) -> None:
    async with place.published() as publisher:
        await place.settled(publisher)
    assert len(place.devices) == 8
    assert place.writes() == ["create 201"]


# No writes without need


async def test_an_idle_publisher_asks_and_writes_nothing(place: Place) -> None:
    async with place.published() as publisher:
        await place.settled(publisher)
        await asyncio.sleep(0.1)
        before = len(place.server.requests)
        await asyncio.sleep(QUIET)
        assert len(place.server.requests) == before


@pytest.mark.parametrize("groups", [False, True])
async def test_a_restart_that_finds_nothing_changed_writes_nothing(place: Place, groups: bool) -> None:
    """Taints and their times included."""
    place.pool.set(pool(1, 6, groups=groups))
    async with place.published() as publisher:
        await place.settled(publisher)
    stored, writes = place.slices, place.writes()
    assert len(place.taints()) == (7 if groups else 2)
    place.pool.set(None)
    async with place.published() as publisher:
        await place.show(publisher, pool(1, 6, groups=groups))
        await asyncio.sleep(QUIET)
    assert place.writes() == writes
    assert place.slices == stored


async def test_an_xid_is_one_write_and_so_is_its_end(place: Place) -> None:
    async with place.published() as publisher:
        await place.settled(publisher)
        await place.show(publisher, pool(3))
        assert [taint["value"] for taint in place.taints()["gpu-3"]] == ["79"]
        await place.show(publisher, pool())
        assert place.taints() == {}
        await asyncio.sleep(QUIET)
    assert place.writes() == ["create 201", "update 200", "update 200"]


async def test_a_change_is_one_request_while_the_slices_are_as_they_were_left(place: Place) -> None:
    async with place.published() as publisher, asyncio.timeout(30):
        await place.settled(publisher)
        asked: list[str] = []
        while asked != ["update"]:
            # Until the watch has brought what was written last, a list is asked for as well.
            await asyncio.sleep(0.05)
            before = len(place.server.requests)
            await place.show(publisher, pool(3) if not place.taints() else pool())
            asked = [one.verb for one in place.server.requests[before:]]


@pytest.mark.parametrize("wiped", [False, True])
async def test_who_changes_the_slices_at_the_same_moment_is_noticed_by_the_write(
    place: Place, monkeypatch: pytest.MonkeyPatch, wiped: bool
) -> None:
    monkeypatch.setattr(publisher_module, "SETTLE_SECONDS", 0.0)
    async with place.published() as publisher:
        await place.settled(publisher)
        await asyncio.sleep(QUIET)
        if wiped:
            wipe(place)
        else:
            edited = place.slices[DEVICES]
            place.server.put(RESOURCE_SLICES, edited | {"spec": {**edited["spec"], "devices": []}})
        await place.show(publisher, pool(3))
        await asyncio.sleep(QUIET)
        assert len(place.devices) == 8 and list(place.taints()) == ["gpu-3"]
    refused, remedy = ("update 404", "create 201") if wiped else ("update 409", "update 200")
    assert refused in place.writes() and place.writes()[-1] == remedy


async def test_on_a_node_of_two_slices_only_the_one_that_changed_is_written(place: Place) -> None:
    async with place.published() as publisher:
        await place.show(publisher, pool(node=large_node()))
        before = place.writes()
        await place.show(publisher, pool(65, node=large_node()))
        await asyncio.sleep(QUIET)
        assert place.writes()[len(before) :] == ["update 200"]
        assert [item["spec"]["pool"]["generation"] for item in place.slices.values()] == [1, 1]


async def test_changes_at_once_are_one_write(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "SETTLE_SECONDS", 0.5)
    steps = [pool(*range(index + 1)) for index in range(8)]
    async with place.published() as publisher:
        await place.settled(publisher)
        for step in steps:
            place.pool.set(step)
            await asyncio.sleep(0)
        await place.settled(publisher)
    assert place.writes() == ["create 201", "update 200"]
    assert len(place.taints()) == 8


async def test_the_writes_of_a_nodes_life_are_few(place: Place) -> None:
    """Start, restart, an Xid, its end, a wipe: with groups, which are two slices."""
    counted: dict[str, list[str]] = {}

    def mark(what: str) -> None:
        counted[what] = place.writes()[sum(map(len, counted.values())) :]

    place.pool.set(pool(groups=True))
    async with place.published() as publisher:
        await place.settled(publisher)
        mark("start")
    async with place.published() as publisher:
        await place.settled(publisher)
        mark("restart")
        await place.show(publisher, pool(3, groups=True))
        mark("an Xid")
        await place.show(publisher, pool(groups=True))
        mark("its end")
        wipe(place)
        await place.until(lambda: len(place.slices) == 2)
        await asyncio.sleep(QUIET)
        mark("a wipe")
    assert counted == {
        "start": ["create 201", "create 201"],
        "restart": [],
        "an Xid": ["update 200"],
        "its end": ["update 200"],
        "a wipe": ["create 201", "create 201"],
    }


# Times of taints


async def test_a_taint_keeps_its_time_while_others_come_and_go(place: Place) -> None:
    async with place.published() as publisher:
        await place.show(publisher, pool(3))
        (first,) = place.taints()["gpu-3"]
        await place.show(publisher, pool(3, 5))
        assert place.taints()["gpu-3"] == [first]
        assert place.taints()["gpu-5"][0]["timeAdded"] > first["timeAdded"]
        await place.show(publisher, pool(3))
        assert place.taints() == {"gpu-3": [first]}


async def test_a_taint_that_comes_again_has_a_new_time(place: Place) -> None:
    async with place.published() as publisher:
        await place.show(publisher, pool(3))
        (first,) = place.taints()["gpu-3"]
        await place.show(publisher, pool())
        await place.show(publisher, pool(3))
        (second,) = place.taints()["gpu-3"]
        assert second["timeAdded"] > first["timeAdded"]


async def test_a_taint_keeps_its_time_over_a_restart_and_a_wipe(place: Place) -> None:
    async with place.published() as publisher:
        await place.show(publisher, pool(3))
    before = place.taints()
    async with place.published() as publisher:
        await place.show(publisher, pool(3, 4))
        wipe(place)
        await place.until(place.taints)
        assert place.taints()["gpu-3"] == before["gpu-3"]


# Repair


@pytest.mark.parametrize("groups", [False, True])
async def test_slices_that_a_kubelet_wipes_are_back_at_once(place: Place, groups: bool) -> None:
    place.pool.set(pool(2, groups=groups))
    async with place.published() as publisher:
        await place.settled(publisher)
        before = {name: item["spec"] for name, item in place.slices.items()}
        wipe(place)
        async with asyncio.timeout(30):
            await place.until(lambda: {name: item["spec"] for name, item in place.slices.items()} == before)
        await asyncio.sleep(QUIET)
        assert place.writes() == ["create 201"] * 2 * len(before)
        assert publisher.state.value.repairs == 1


async def test_slices_that_are_wiped_while_the_agent_is_away_are_made_when_it_starts(place: Place) -> None:
    async with place.published() as publisher:
        await place.settled(publisher)
    wipe(place)
    async with place.published() as publisher:
        await place.settled(publisher)
        assert len(place.devices) == 8


async def test_an_edited_slice_is_put_right_at_once(place: Place) -> None:
    async with place.published() as publisher:
        await place.settled(publisher)
        edited = place.slices[DEVICES]
        edited["spec"]["devices"] = edited["spec"]["devices"][:3]
        place.server.put(RESOURCE_SLICES, edited)
        assert len(place.devices) == 3
        async with asyncio.timeout(30):
            await place.until(lambda: len(place.devices) == 8)


async def test_slices_of_another_make_are_removed(place: Place) -> None:
    """Such as those that another driver of this name has left behind."""
    async with place.published() as publisher:
        await place.settled(publisher)
        place.server.put(RESOURCE_SLICES, others_slice())
        await place.until(lambda: list(place.slices) == [DEVICES])
        await asyncio.sleep(QUIET)
        assert place.writes() == ["create 201", "delete 200"]


async def test_one_who_changes_slices_time_and_again_is_met_with_growing_pauses(place: Place) -> None:
    """Two drivers of one name on a node are an operator's mistake; the API server must not suffer from it."""
    async with place.published() as publisher:
        await place.settled(publisher)
        for number in range(40):
            place.server.put(RESOURCE_SLICES, others_slice(f"other-{number}"))
            await asyncio.sleep(0.025)
        assert 2 <= publisher.state.value.repairs <= 8
        await place.until(lambda: list(place.slices) == [DEVICES])


async def test_after_a_calm_time_a_repair_is_made_at_once_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "REPAIR_PAUSE", 30.0)
    monkeypatch.setattr(publisher_module, "LONGEST_PAUSE", 30.0)
    monkeypatch.setattr(publisher_module, "CALM_SECONDS", 0.05)
    async with place.published() as publisher:
        await place.settled(publisher)
        for _ in range(3):
            await asyncio.sleep(0.1)
            wipe(place)
            await place.until(lambda: len(place.devices) == 8)


async def test_a_deletion_is_noticed_after_the_watch_broke_and_the_history_is_gone(place: Place) -> None:
    async with place.published() as publisher:
        await place.settled(publisher)
        place.server.end_watches(clean=False)
        place.server.compact()
        wipe(place)
        place.server.compact()
        await place.until(lambda: len(place.devices) == 8)


async def test_a_node_that_is_registered_anew_owns_the_new_slices(place: Place) -> None:
    async with place.published() as publisher:
        await place.settled(publisher)
        place.server.remove(NODES, NODE)
        node = place.server.put(NODES, {"metadata": {"name": NODE}})
        wipe(place)  # as the garbage collector does
        await place.until(lambda: len(place.devices) == 8)
        (owner,) = place.slices[DEVICES]["metadata"]["ownerReferences"]
        assert owner["uid"] == node["metadata"]["uid"]


async def test_a_restart_adopts_slices_whose_owner_is_gone(place: Place) -> None:
    async with place.published() as publisher:
        await place.settled(publisher)
    place.server.remove(NODES, NODE)
    node = place.server.put(NODES, {"metadata": {"name": NODE}})
    async with place.published() as publisher:
        await place.settled(publisher)
        (owner,) = place.slices[DEVICES]["metadata"]["ownerReferences"]
        assert owner["uid"] == node["metadata"]["uid"]


async def test_labels_that_others_put_on_a_slice_stay(place: Place) -> None:
    async with place.published() as publisher:
        await place.settled(publisher)
        labelled = place.slices[DEVICES]
        labelled["metadata"]["labels"] = {"team": "x"}
        place.server.put(RESOURCE_SLICES, labelled)
        await asyncio.sleep(QUIET)
        assert place.writes() == ["create 201"]
        await place.show(publisher, pool(1))
        assert place.slices[DEVICES]["metadata"]["labels"] == {"team": "x"}


# Two agents


async def test_two_agents_during_an_upgrade_do_not_fight(place: Place) -> None:
    async with place.published() as one, place.published() as other:
        await place.settled(one)
        await place.settled(other)
        await place.show(one, pool(3))
        await place.settled(other)
        await asyncio.sleep(QUIET)
        wipe(place)
        await place.until(lambda: len(place.devices) == 8)
        await asyncio.sleep(QUIET)
        assert [write for write in place.writes() if write.endswith(("200", "201"))].count("update 200") <= 2
        assert list(place.slices) == [DEVICES]
        assert place.slices[DEVICES]["spec"]["pool"]["generation"] <= 2


async def test_two_agents_of_different_minds_write_less_and_less(place: Place) -> None:
    """An upgrade may change what is published; the old agent goes some seconds later."""
    newer = Place(server=place.server, pool=Latest(pool(0, taint=TAKEN)))
    async with newer.published() as survivor:
        async with place.published() as old:
            await asyncio.sleep(1.5)
            assert old.state.value.repairs + survivor.state.value.repairs <= 16
        await place.until(lambda: [taint["key"] for taint in place.taints().get("gpu-0", ())] == [TAKEN.key])
