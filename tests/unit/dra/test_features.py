"""What a server does not keep is noticed, and what is published there instead is still safe."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.dra.features import Feature, alike, lacking, not_kept, without
from node_agent.dra.slices import PoolSettings, SliceSpec, laid_out, pool_of
from node_agent.dra.taints import Effect, Taint
from tests.fakes.builders import h200_node, taints_by_gpu, uuid
from tests.unit.dra import scheduler

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)


def published(*, shares: bool = False) -> tuple[SliceSpec, ...]:
    """Eight GPUs with groups, of which gpu-1 is out of service and gpu-6 only degraded."""
    taints = {
        uuid(1): [Taint(key="k/xid", effect=Effect.NO_SCHEDULE, value="79")],
        uuid(6): [Taint(key="k/reset-needed", effect=Effect.NONE)],
    }
    layout = laid_out(h200_node(), PoolSettings(groups=True, shares=lambda gpu: shares))
    return pool_of(layout, taints_by_gpu(taints)).slices


def names(slices: tuple[SliceSpec, ...]) -> set[str]:
    return {device["name"] for one in slices for device in one.content.get("devices", ())}


# Noticing


def test_what_says_nothing_makes_no_difference() -> None:
    full: dict[str, Any] = {"a": None, "b": {}, "c": [], "d": {"e": []}, "f": [{"g": None}], "h": False, "i": 0}
    assert alike(full, {"f": [{}], "h": False, "i": 0}) and alike({"f": [{}], "h": False, "i": 0}, full)
    assert not alike(full, {"f": [], "h": False, "i": 0})


def test_a_flag_that_is_off_says_something() -> None:
    assert not alike({"bool": False}, {}) and not alike({}, {"bool": False})


def test_all_is_kept_where_the_server_only_leaves_out_what_says_nothing_and_adds_its_own() -> None:
    sent = {"devices": [{"name": "a", "taints": [{"key": "k"}], "capacity": {}}], "sharedCounters": []}
    stored = {"devices": [{"name": "a", "taints": [{"key": "k", "timeAdded": "now"}]}], "more": 1}
    assert list(not_kept(sent, stored)) == []


def test_a_field_that_is_gone_is_named_by_its_path() -> None:
    sent = {"devices": [{"name": "a", "taints": [1]}, {"name": "b", "taints": [2]}]}
    assert set(not_kept(sent, {"devices": [{"name": "a"}, {"name": "b"}]})) == {"devices.taints"}


def test_a_value_that_was_changed_is_named_too() -> None:
    sent = {"devices": [{"capacity": {"memory": {"value": "1024Mi"}}}]}
    stored = {"devices": [{"capacity": {"memory": {"value": "1Gi"}}}]}
    assert list(not_kept(sent, stored)) == ["devices.capacity.memory.value"]


def test_a_list_of_another_length_was_not_kept() -> None:
    assert list(not_kept({"devices": [1, 2]}, {"devices": [1]})) == ["devices"]


OBJECTS = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=3)


@given(OBJECTS, OBJECTS)
def test_nothing_is_missed_and_nothing_is_made_up(sent: Any, stored: Any) -> None:
    """Where nothing is reported, adding the server's own fields to what was sent gives what is stored."""
    kept = not list(not_kept(sent, stored))
    assert not list(not_kept(sent, sent))
    assert kept == _within(canonical(sent), canonical(stored))


@given(OBJECTS, OBJECTS)
def test_two_are_alike_where_they_say_the_same(one: Any, other: Any) -> None:
    assert alike(one, other) is (canonical(one) == canonical(other))
    assert alike(one, canonical(one)) and alike(canonical(one), one)


def canonical(value: Any) -> Any:
    """The same without what says nothing."""
    if isinstance(value, dict):
        kept = {key: canonical(each) for key, each in value.items()}
        return {key: each for key, each in kept.items() if each is not None and each not in ({}, [])}
    return [canonical(each) for each in value] if isinstance(value, list) else value


def _within(sent: Any, stored: Any) -> bool:
    if isinstance(sent, dict) and isinstance(stored, dict):
        return all(_within(value, stored.get(key)) for key, value in sent.items())
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        return all(map(_within, sent, stored))
    return bool(sent == stored)


@pytest.mark.parametrize(
    ("path", "feature"),
    [
        ("devices.taints", Feature.TAINTS),
        ("devices.consumesCounters", Feature.COUNTERS),
        ("sharedCounters", Feature.COUNTERS),
        ("devices.allowMultipleAllocations", Feature.SHARING),
        ("devices.capacity.memory.requestPolicy", Feature.SHARING),
        ("devices.capacity.memory.requestPolicy.validRange.step", Feature.SHARING),
    ],
)
def test_a_dropped_field_tells_which_feature_is_off(path: str, feature: Feature) -> None:
    assert lacking([path, "devices.attributes.someday"]) == {feature}


def test_a_field_of_no_known_feature_tells_nothing() -> None:
    assert lacking(["devices.attributes.productName"]) == frozenset()


# Instead


def test_a_server_that_has_it_all_gets_it_all() -> None:
    assert without(published(), frozenset()) == published()


def test_without_taints_unhealthy_devices_leave_and_degraded_ones_stay() -> None:
    found = without(published(), frozenset({Feature.TAINTS}))
    assert names(published()) - names(found) == {
        "gpu-1",
        "group-0-1",
        "group-0-1-2-3",
        "group-0-1-2-3-4-5-6-7",
    }
    assert not any("taints" in device for one in found for device in one.content.get("devices", ()))
    assert [one.name for one in found] == ["counters-000", "devices-000"]


def test_without_counters_there_are_no_groups_and_no_slice_of_counters() -> None:
    found = without(published(), frozenset({Feature.COUNTERS}))
    assert names(found) == {f"gpu-{i}" for i in range(8)}
    assert [one.name for one in found] == ["devices-000"]
    assert not any("consumesCounters" in device for one in found for device in one.content["devices"])
    for allocated in scheduler.of(found).allocations():
        assert len(set(allocated)) == len(allocated)


def test_without_sharing_every_gpu_goes_to_one_claim_at_a_time() -> None:
    found = without(published(shares=True), frozenset({Feature.SHARING}))
    assert found == published()


def test_without_anything_what_is_left_is_plain_gpus_that_are_healthy() -> None:
    (one,) = without(published(shares=True), frozenset(Feature))
    assert names((one,)) == {f"gpu-{i}" for i in (0, 2, 3, 4, 5, 6, 7)}
    assert {key for device in one.content["devices"] for key in device} == {"name", "attributes"}


def test_an_empty_slice_stays_one() -> None:
    empty = (SliceSpec(name="devices-000", content={}),)
    assert without(empty, frozenset(Feature)) == empty
