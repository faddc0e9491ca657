"""The publisher with servers that are away, say no, or lack something: it writes again until stored equals wanted."""

import asyncio
from collections.abc import Sequence

import pytest

from node_agent.dra.features import Feature
from node_agent.kube.resources import NODES, RESOURCE_SLICES, Object
from tests.fakes.patience import HASTY
from tests.unit.dra import scheduler
from tests.unit.dra.publishing import DEVICES, NODE, QUIET, Place, large_node, others_slice, pool, wipe

# Trouble with the server


async def test_whatever_the_server_answers_it_is_tried_until_stored_equals_wanted(place: Place) -> None:
    place.patience = HASTY
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
    place.patience = HASTY
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
    place.patience = HASTY
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
        await place.until(lambda: 'cannot create resource "resourceslices"' in str(publisher.state.value.trouble))
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
        await place.until(lambda: "already exists" in str(publisher.state.value.trouble))
        await asyncio.sleep(1.0)
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
