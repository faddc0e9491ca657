"""The slices in the API are what the pool holds, whatever happens to them, and nothing is written without need."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import pytest

from node_agent.dra import publisher as publisher_module
from node_agent.dra.features import Feature
from node_agent.dra.publisher import PublisherState, SlicePublisher
from node_agent.dra.slices import Pool, PoolSettings, laid_out, pool_of
from node_agent.dra.taints import HELD, Effect, Taint
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kube import mirror
from node_agent.kube.calls import Patience
from node_agent.kube.client import KubeClient
from node_agent.kube.resources import NODES, RESOURCE_SLICES, Object
from node_agent.model.inventory import Inventory
from tests.fakes.api_server import ApiServer
from tests.fakes.builders import h200_node, switched_node, uuid
from tests.unit.dra import scheduler

NODE, DRIVER = "n0", "gpu.nvidia.com"
DEVICES, COUNTERS = f"{NODE}-{DRIVER}-devices-000", f"{NODE}-{DRIVER}-counters-000"
XID = Taint(key=f"{DRIVER}/xid", effect=Effect.NO_SCHEDULE, value="79")
TAKEN = Taint(key=f"{DRIVER}/{HELD}", effect=Effect.NO_SCHEDULE)
# Longer than anything that the publisher waits for in these tests.
QUIET = 0.3


def pool(*tainted: int, node: Inventory | None = None, groups: bool = False, taint: Taint = XID) -> Pool:
    """What eight GPUs publish while some of them have a taint."""
    taints = {uuid(index): [taint] for index in tainted}
    return pool_of(laid_out(node or h200_node(), PoolSettings(groups=groups)), lambda gpu: taints.get(gpu, ()))


@cache
def large_node() -> Inventory:
    """So many GPUs that they need two slices."""
    return switched_node([0] * 66, buses=[f"{i:04x}:01:00" for i in range(66)])


class Times:
    """Gives each new taint a time of its own, as the server does."""

    def __init__(self) -> None:
        self._numbers = count()

    def __call__(self, item: Object) -> None:
        for device in item.get("spec", {}).get("devices", ()):
            for taint in device.get("taints", ()):
                if "timeAdded" not in taint:
                    taint["timeAdded"] = f"2026-01-01T00:00:{next(self._numbers):02}Z"


def limits(old: Object | None, new: Object) -> str | None:
    scheduler.check_limits(new["spec"])
    return None


@dataclass
class Place:
    """An API server with a node, and what is to be published there."""

    server: ApiServer
    pool: Latest[Pool | None]

    @asynccontextmanager
    async def published(self) -> AsyncIterator[SlicePublisher]:
        """An agent at work; it may be entered again, as an agent is started again."""
        patience = Patience(attempt=0.3, budget=0.5, pause=0.01)
        async with KubeClient(self.server.access, patience=patience) as client:
            publisher = SlicePublisher(client=client, node=NODE, pool=self.pool)
            async with running(publisher.run()):
                yield publisher

    def drops(self, *fields: str) -> None:
        """Have the server drop fields, as one does whose feature gate is off."""
        for field in fields:
            self.server.strip(field)

    @property
    def slices(self) -> dict[str, Object]:
        return {item["metadata"]["name"]: item for item in self.server.objects(RESOURCE_SLICES)}

    @property
    def devices(self) -> dict[str, Any]:
        found = self.slices.values()
        return {device["name"]: device for item in found for device in item["spec"].get("devices", ())}

    def taints(self) -> dict[str, list[dict[str, str]]]:
        return {name: device["taints"] for name, device in self.devices.items() if "taints" in device}

    def writes(self) -> list[str]:
        """All writes so far, with what they were answered."""
        return [f"{asked.verb} {asked.code}" for asked in self.server.writes("resourceslices")]

    async def settled(self, publisher: SlicePublisher) -> PublisherState:
        """Wait until what is wanted now is stored, and nothing is left to be done."""
        async with asyncio.timeout(8):
            while publisher._settled is not self.pool.value or publisher.state.value.trouble:
                await asyncio.sleep(0.01)
        return publisher.state.value

    async def show(self, publisher: SlicePublisher, wanted: Pool) -> PublisherState:
        self.pool.set(wanted)
        return await self.settled(publisher)

    async def until(self, condition: Callable[[], Any]) -> None:
        await self.server.until(condition)


@pytest.fixture
async def place(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(publisher_module, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(publisher_module, "LONGEST_PAUSE", 0.4)
    monkeypatch.setattr(publisher_module, "REPAIR_PAUSE", 0.05)
    monkeypatch.setattr(mirror, "FIRST_PAUSE", 0.02)
    async with ApiServer() as server:
        server.put(NODES, {"metadata": {"name": NODE}})
        server.strip(Times())
        server.check("resourceslices", limits)
        yield Place(server=server, pool=Latest(pool()))


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


async def test_on_a_node_of_two_slices_only_the_one_that_changed_is_written(place: Place) -> None:
    async with place.published() as publisher:
        await place.show(publisher, pool(node=large_node()))
        before = place.writes()
        await place.show(publisher, pool(65, node=large_node()))
        await asyncio.sleep(QUIET)
        assert place.writes()[len(before) :] == ["update 200"]
        assert [item["spec"]["pool"]["generation"] for item in place.slices.values()] == [1, 1]


async def test_changes_at_once_are_one_write(place: Place) -> None:
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


def wipe(place: Place) -> None:
    """What a kubelet does when it starts."""
    for name in place.slices:
        place.server.remove(RESOURCE_SLICES, name)


@pytest.mark.parametrize("groups", [False, True])
async def test_slices_that_a_kubelet_wipes_are_back_at_once(place: Place, groups: bool) -> None:
    place.pool.set(pool(2, groups=groups))
    async with place.published() as publisher:
        await place.settled(publisher)
        before = {name: item["spec"] for name, item in place.slices.items()}
        wipe(place)
        async with asyncio.timeout(1):
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
        async with asyncio.timeout(1):
            await place.until(lambda: len(place.devices) == 8)


async def test_slices_of_another_make_are_removed(place: Place) -> None:
    """Such as those that another driver of this name has left behind."""
    async with place.published() as publisher:
        await place.settled(publisher)
        place.server.put(RESOURCE_SLICES, others_slice())
        await place.until(lambda: list(place.slices) == [DEVICES])
        await asyncio.sleep(QUIET)
        assert place.writes() == ["create 201", "delete 200"]


def others_slice(name: str = "00000-gpu.nvidia.com-n0-x7k2p") -> Object:
    numbers = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "nodeName": NODE, "pool": numbers}}


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


# Trouble with the server


async def test_whatever_the_server_answers_it_is_tried_until_stored_equals_wanted(place: Place) -> None:
    async with place.published() as publisher:
        await place.settled(publisher)
        place.server.fail(2, verb="update", code=500)
        place.server.fail(1, verb="update", code=409)
        place.server.hang(1, verb="update")
        place.server.drop(1, verb="update", applied=True)
        await place.show(publisher, pool(2))
        assert list(place.taints()) == ["gpu-2"]
        assert list(place.slices) == [DEVICES]
        assert place.slices[DEVICES]["spec"]["pool"]["generation"] == 1


async def test_a_creation_whose_answer_is_lost_makes_no_second_slice(place: Place) -> None:
    place.pool.set(pool(groups=True))
    place.server.drop(verb="create", applied=True)
    async with place.published() as publisher:
        state = await place.settled(publisher)
        assert (state.slices, len(place.slices)) == (2, 2)
        scheduler.Scheduler(item["spec"] for item in place.slices.values())


async def test_a_publication_that_is_interrupted_is_completed_in_its_own_generation(place: Place) -> None:
    async with place.published() as publisher:
        await place.settled(publisher)
        place.server.fail(3, verb="create", code=403)
        state = await place.show(publisher, pool(groups=True))
        assert {item["spec"]["pool"]["generation"] for item in place.slices.values()} == {2}
        assert (state.slices, state.repairs) == (2, 0)


async def test_while_the_server_is_away_only_the_last_of_many_changes_waits(place: Place) -> None:
    async with place.published() as publisher:
        await place.settled(publisher)
        await place.server.stop()
        for index in range(8):
            place.pool.set(pool(index))
            await asyncio.sleep(0.02)
        await place.server.start()
        await place.settled(publisher)
        assert list(place.taints()) == ["gpu-7"]
        assert [write for write in place.writes() if write == "update 200"] == ["update 200"]


async def test_a_server_that_is_away_at_the_start_is_awaited_with_one_line_a_minute(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await place.server.stop()
    async with place.published() as publisher:
        await asyncio.sleep(1.5)
        assert publisher.state.value.trouble is not None
        said = [record for record in caplog.records if record.levelname == "WARNING"]
        assert [record.getMessage() for record in said] == ["slices cannot be published"]
        await place.server.start()
        assert (await place.settled(publisher)).trouble is None
        assert len(place.devices) == 8


async def test_a_missing_right_is_named_and_all_is_well_once_it_is_granted(place: Place) -> None:
    place.server.forbid("create", "resourceslices")
    async with place.published() as publisher:
        await place.until(lambda: publisher.state.value.trouble is not None)
        assert 'cannot create resource "resourceslices"' in str(publisher.state.value.trouble)
        await asyncio.sleep(1.0)
        assert len(place.writes()) <= 8
        place.server.permit()
        await place.settled(publisher)
        assert len(place.devices) == 8


async def test_a_node_that_is_not_registered_yet_is_awaited(place: Place) -> None:
    place.server.remove(NODES, NODE)
    async with place.published() as publisher:
        await place.until(lambda: publisher.state.value.trouble is not None)
        assert NODE in str(publisher.state.value.trouble)
        place.server.put(NODES, {"metadata": {"name": NODE}})
        await place.settled(publisher)
        assert len(place.devices) == 8


async def test_a_name_that_something_else_has_is_no_reason_for_a_race(place: Place) -> None:
    taken = others_slice(DEVICES)
    taken["spec"]["driver"] = "other.example"
    place.server.put(RESOURCE_SLICES, taken)
    async with place.published() as publisher:
        await asyncio.sleep(1.0)
        assert "already exists" in str(publisher.state.value.trouble)
        assert len(place.writes()) <= 8


async def test_a_server_that_never_stores_what_it_answers_is_not_written_to_for_ever(place: Place) -> None:
    place.server.strip(lambda item: item.get("spec", {}).get("pool", {}).update({"generation": 1}))
    async with place.published() as publisher:
        await place.settled(publisher)
        place.pool.set(pool(node=large_node()))
        await place.until(lambda: publisher.state.value.trouble is not None)
        assert "the server stores others" in str(publisher.state.value.trouble)
        before = len(place.writes())
        await asyncio.sleep(0.3)
        assert len(place.writes()) - before <= 30


# Servers that lack something


async def test_where_taints_are_dropped_unhealthy_devices_leave_the_slice(place: Place) -> None:
    place.drops("spec.devices[*].taints")
    async with place.published() as publisher:
        await place.settled(publisher)
        state = await place.show(publisher, pool(2))
        assert "gpu-2" not in place.devices and len(place.devices) == 7
        assert (state.missing, state.not_kept) == (frozenset({Feature.TAINTS}), frozenset({"devices.taints"}))
        await place.show(publisher, pool())
        assert len(place.devices) == 8
        before = place.writes()
        await asyncio.sleep(QUIET)
        assert place.writes() == before


async def test_dropped_fields_are_told_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.drops("spec.devices[*].taints")
    async with place.published() as publisher:
        for tainted in ((1,), (1, 2), (), (3,)):
            await place.show(publisher, pool(*tainted))
    said = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [record.getMessage() for record in said] == ["the API server does not keep all that is published"]


SHARED, CONSUMED = "spec.sharedCounters", "spec.devices[*].consumesCounters"


@pytest.mark.parametrize("dropped", [(SHARED, CONSUMED), (CONSUMED,)])
async def test_where_counters_are_dropped_there_are_no_groups(place: Place, dropped: Sequence[str]) -> None:
    place.drops(*dropped)
    place.pool.set(pool(groups=True))
    async with place.published() as publisher:
        state = await place.settled(publisher)
        assert list(place.devices) == [f"gpu-{i}" for i in range(8)]
        assert list(place.slices) == [DEVICES]
        assert state.missing == {Feature.COUNTERS}


async def test_no_group_is_ever_stored_without_its_counters(place: Place) -> None:
    """Not even for a moment: the scheduler would give out its GPUs twice."""

    def refuse(old: Object | None, new: Object) -> str | None:
        kinds = [device["attributes"]["type"]["string"] for device in new["spec"].get("devices", ())]
        return "spec.devices: a group without counters" if "group" in kinds else None

    place.drops(SHARED, CONSUMED)
    place.server.check("resourceslices", refuse)
    place.pool.set(pool(groups=True))
    async with place.published() as publisher:
        await place.settled(publisher)
    assert "create 422" not in place.writes()


async def test_an_unknown_field_that_is_dropped_is_told_and_adopted(place: Place) -> None:
    place.drops("spec.devices[*].attributes.uuid")
    async with place.published() as publisher:
        state = await place.settled(publisher)
        assert (state.missing, state.not_kept) == (frozenset(), frozenset({"devices.attributes.uuid"}))
        await asyncio.sleep(QUIET)
        assert place.writes() == ["create 201"]
        await place.show(publisher, pool(1))
        assert place.writes() == ["create 201", "update 200"]


async def test_a_server_that_has_learned_something_gets_it_after_the_next_wipe(place: Place) -> None:
    """A kubelet is restarted when a cluster is upgraded."""
    place.drops("spec.devices[*].taints")
    async with place.published() as publisher:
        await place.show(publisher, pool(2))
        place.server.store.mutations.pop()
        wipe(place)
        await place.until(lambda: "gpu-2" in place.taints())
        assert publisher.state.value.missing == frozenset()


@pytest.mark.parametrize("versions", [("v1",), ("v1beta2",), ("v1", "v1beta2", "v1beta1"), ("v1beta2", "v1beta1")])
async def test_the_newest_version_that_the_server_has_is_spoken(place: Place, versions: Sequence[str]) -> None:
    place.server.serve("resource.k8s.io", *versions)
    async with place.published() as publisher:
        await place.settled(publisher)
        await place.show(publisher, pool(2))
    written = place.server.writes("resourceslices")
    assert {asked.version for asked in written} == {versions[0]}
    assert {asked.body["apiVersion"] for asked in written} == {f"resource.k8s.io/{versions[0]}"}
    assert len(place.devices) == 8


async def test_in_the_oldest_version_devices_have_another_form(place: Place) -> None:
    place.server.store.checks.clear()
    place.server.serve("resource.k8s.io", "v1beta1")
    async with place.published() as publisher:
        await place.settled(publisher)
    async with place.published() as publisher:
        await place.settled(publisher)
        assert place.writes() == ["create 201"]
        await place.show(publisher, pool(2))
    device = place.devices["gpu-2"]
    assert device.keys() == {"name", "basic"}
    assert {"attributes", "taints"} <= device["basic"].keys()


async def test_a_server_without_the_api_is_said_and_awaited(place: Place) -> None:
    place.server.serve("resource.k8s.io")
    async with place.published() as publisher:
        await place.until(lambda: publisher.state.value.trouble is not None)
        assert "resource.k8s.io" in str(publisher.state.value.trouble)
        place.server.serve("resource.k8s.io", "v1")
        await place.settled(publisher)


async def test_a_version_that_vanishes_is_left_for_the_next(place: Place) -> None:
    """The control plane is upgraded under the agent."""
    place.server.serve("resource.k8s.io", "v1beta2")
    async with place.published() as publisher:
        await place.settled(publisher)
        place.server.serve("resource.k8s.io", "v1")
        await place.show(publisher, pool(2))
        assert list(place.taints()) == ["gpu-2"]


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
