"""As few writes as the pool's protocol allows, on a pool that is consistent whenever the scheduler may use it."""

import copy
import json
import re
from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.dra.slices import SliceSpec
from node_agent.dra.writes import (
    Attempt,
    Objects,
    Writes,
    generation_of,
    object_name,
    plan,
    same,
    times_of,
    wanted_objects,
    with_times,
)
from tests.fakes.names import DRIVER

Object = dict[str, Any]
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def wanted(*contents: str, node: str = "n0", uid: str = "u-1") -> Objects:
    """A pool whose slices each have one device of this name."""
    slices = [
        SliceSpec(name=f"devices-{number:03}", content={"devices": [{"name": content}]} if content else {})
        for number, content in enumerate(contents)
    ]
    return wanted_objects(slices, node, uid, DRIVER)


class Server:
    """Carries out writes as an API server does, and may stop in the middle."""

    def __init__(self) -> None:
        self.stored: dict[str, Object] = {}
        self.last = Attempt()
        self.writes: list[str] = []
        self._versions = count(1)

    def plan(self, wanted: Objects) -> Writes:
        equal = {name: same(item, wanted[name]) for name, item in self.stored.items() if name in wanted}
        return plan(wanted, self.stored, self.last, equal, {})

    def publish(self, wanted: Objects, most: int = 100) -> list[str]:
        """Carry out the planned writes, or the first of them; answers what was done."""
        planned = self.plan(wanted)
        self.last = planned.attempt
        deletions = [("delete", item) for item in planned.obsolete]
        changes = [("update" if item["metadata"].get("uid") else "create", item) for item in planned.changed]
        done = []
        for verb, item in (deletions + changes)[:most]:
            name = item["metadata"]["name"]
            if verb == "delete":
                del self.stored[name]
            else:
                self.store(item)
            done.append(f"{verb} {name.removeprefix('n0-gpu.nvidia.com-devices-')}")
        return done

    def store(self, item: Object) -> None:
        metadata = {"uid": f"uid-{item['metadata']['name']}", **item["metadata"]}
        metadata["resourceVersion"] = str(next(self._versions))
        self.stored[item["metadata"]["name"]] = json.loads(json.dumps({**item, "metadata": metadata}))

    @property
    def generations(self) -> list[int]:
        return [generation_of(item) for item in self.stored.values()]

    @property
    def usable(self) -> list[str] | None:
        """The devices that a scheduler sees, or None while it leaves the pool alone."""
        highest = max(self.generations, default=0)
        current = [item for _, item in sorted(self.stored.items()) if generation_of(item) == highest]
        if {item["spec"]["pool"]["resourceSliceCount"] for item in current} != {len(current)}:
            return None
        return [device["name"] for item in current for device in item["spec"].get("devices", ())]


@pytest.fixture
def server() -> Server:
    return Server()


def test_an_object_says_driver_node_pool_and_owner() -> None:
    (item,) = wanted("gpu-0").values()
    assert item == {
        "metadata": {
            "name": "n0-gpu.nvidia.com-devices-000",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n0", "uid": "u-1", "controller": True}],
        },
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "n0",
            "pool": {"name": "n0"},
            "devices": [{"name": "gpu-0"}],
        },
    }


@given(st.from_regex(NAME, fullmatch=True).filter(lambda name: len(name) <= 253))
def test_an_object_has_a_name_that_the_api_takes_whatever_the_node_is_called(node: str) -> None:
    name = object_name(node, "devices-000", DRIVER)
    assert len(name) <= 253 and NAME.fullmatch(name)
    assert object_name(node, "devices-000", DRIVER) == name < object_name(node, "devices-001", DRIVER)


def test_two_nodes_with_long_names_never_share_an_object() -> None:
    one, other = "n" * 250 + "a", "n" * 250 + "b"
    assert object_name(one, "devices-000", DRIVER) != object_name(other, "devices-000", DRIVER)


def test_a_pool_is_published_whole_with_its_first_generation(server: Server) -> None:
    assert server.publish(wanted("a", "b", "c")) == ["create 000", "create 001", "create 002"]
    assert server.generations == [1, 1, 1]
    assert server.usable == ["a", "b", "c"]


def test_nothing_is_written_when_nothing_has_changed(server: Server) -> None:
    server.publish(wanted("a", "b"))
    assert not server.plan(wanted("a", "b"))


def test_nor_after_a_restart(server: Server) -> None:
    server.publish(wanted("a", "b"))
    server.last = Attempt()
    assert not server.plan(wanted("a", "b"))


def test_a_change_of_one_slice_is_one_write_and_no_new_generation(server: Server) -> None:
    server.publish(wanted("a", "b", "c"))
    assert server.publish(wanted("a", "B", "c")) == ["update 001"]
    assert server.generations == [1, 1, 1]


def test_a_change_of_two_slices_is_a_new_generation_of_all(server: Server) -> None:
    server.publish(wanted("a", "b", "c"))
    assert server.publish(wanted("A", "B", "c")) == ["update 000", "update 001", "update 002"]
    assert server.generations == [2, 2, 2]


def test_one_slice_more_is_a_new_generation_since_the_count_is_another(server: Server) -> None:
    server.publish(wanted("a"))
    assert server.publish(wanted("a", "b")) == ["update 000", "create 001"]
    assert server.generations == [2, 2]


def test_one_slice_less_is_deleted_first(server: Server) -> None:
    server.publish(wanted("a", "b"))
    assert server.publish(wanted("a")) == ["delete 001", "update 000"]
    assert (server.generations, server.usable) == ([2], ["a"])


def test_a_wiped_pool_comes_back_as_it_was(server: Server) -> None:
    """So that a scheduler that has not seen the wipe finds no difference."""
    server.publish(wanted("a", "b"))
    server.publish(wanted("A", "B"))
    server.stored.clear()
    assert server.publish(wanted("A", "B")) == ["create 000", "create 001"]
    assert server.generations == [2, 2]


def test_one_deleted_slice_is_put_back_alone(server: Server) -> None:
    server.publish(wanted("a", "b", "c"))
    del server.stored["n0-gpu.nvidia.com-devices-001"]
    assert server.publish(wanted("a", "b", "c")) == ["create 001"]
    assert (server.generations, server.usable) == ([1, 1, 1], ["a", "b", "c"])


def test_after_a_restart_nobody_knows_what_was_deleted_so_it_is_a_new_generation(server: Server) -> None:
    server.publish(wanted("a", "b"))
    del server.stored["n0-gpu.nvidia.com-devices-001"]
    server.last = Attempt()
    assert server.publish(wanted("a", "b")) == ["update 000", "create 001"]
    assert server.generations == [2, 2]


def test_a_wiped_pool_that_changed_meanwhile_is_a_later_generation(server: Server) -> None:
    server.publish(wanted("a"))
    server.stored.clear()
    server.publish(wanted("A"))
    assert server.generations == [2]


def test_an_edited_slice_is_put_right_alone(server: Server) -> None:
    server.publish(wanted("a", "b"))
    server.stored["n0-gpu.nvidia.com-devices-000"]["spec"]["devices"] = [{"name": "mine"}]
    assert server.publish(wanted("a", "b")) == ["update 000"]
    assert (server.generations, server.usable) == ([1, 1], ["a", "b"])


@pytest.mark.parametrize("numbers", [{"generation": 7}, {"resourceSliceCount": 3}, {"generation": 0}])
def test_edited_pool_numbers_are_put_right(server: Server, numbers: Mapping[str, int]) -> None:
    server.publish(wanted("a", "b"))
    server.stored["n0-gpu.nvidia.com-devices-000"]["spec"]["pool"] |= numbers
    server.publish(wanted("a", "b"))
    assert server.usable == ["a", "b"]
    assert not server.plan(wanted("a", "b"))
    assert max(server.generations) >= numbers.get("generation", 1)


def test_slices_of_another_make_are_removed(server: Server) -> None:
    """Such as those of a driver that served this node before."""
    server.publish(wanted("a"))
    other = copy.deepcopy(next(iter(server.stored.values())))
    other["metadata"] |= {"name": "00000-gpu.nvidia.com-n0-x7k2p", "uid": "other"}
    server.stored["00000-gpu.nvidia.com-n0-x7k2p"] = other
    assert "delete 00000-gpu.nvidia.com-n0-x7k2p" in server.publish(wanted("a"))
    assert server.usable == ["a"]


def test_an_object_of_our_name_in_another_pool_is_made_anew(server: Server) -> None:
    """The pool's name cannot be changed."""
    server.publish(wanted("a"))
    server.stored["n0-gpu.nvidia.com-devices-000"]["spec"]["pool"]["name"] = "n0/gpu-0"
    assert server.publish(wanted("a")) == ["delete 000", "create 000"]
    assert not server.plan(wanted("a"))


def test_an_owner_that_is_made_anew_is_a_change(server: Server) -> None:
    server.publish(wanted("a"))
    assert server.publish(wanted("a", uid="u-2")) == ["update 000"]


def test_an_update_keeps_what_others_have_put_on_the_object(server: Server) -> None:
    server.publish(wanted("a"))
    (item,) = server.stored.values()
    item["metadata"] |= {"labels": {"team": "x"}, "managedFields": [{"manager": "m"}]}
    (body,) = server.plan(wanted("A")).changed
    assert body["metadata"]["labels"] == {"team": "x"}
    assert body["metadata"]["resourceVersion"] == item["metadata"]["resourceVersion"]
    assert "managedFields" not in body["metadata"]


def test_what_the_server_leaves_out_is_no_difference() -> None:
    (empty,) = wanted("").values()
    full = {**empty, "spec": {**empty["spec"], "devices": [], "sharedCounters": None}}
    assert same(empty, full)


POOLS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4)


@given(st.lists(st.tuples(POOLS, st.integers(0, 6), st.booleans()), max_size=8), POOLS)
def test_whatever_is_interrupted_the_scheduler_sees_an_old_pool_or_the_new_one_and_never_a_mixture(
    history: list[tuple[list[str], int, bool]], final: list[str]
) -> None:
    """Writes stop anywhere, other pools are wanted meanwhile, and the agent is started anew."""
    server, highest = Server(), 0
    consistent: list[list[str]] = [[]]
    for names, most, restarted in history:
        consistent.append([f"{name}{number}" for number, name in enumerate(names)])
        for _ in range(most):
            server.publish(wanted(*consistent[-1]), most=1)
            assert server.usable is None or server.usable in consistent
            assert max(server.generations) >= highest
            highest = max(server.generations)
        if restarted:
            server.last = Attempt()
    goal = [f"{name}{number}" for number, name in enumerate(final)]
    server.publish(wanted(*goal))
    assert server.usable == goal
    assert len(set(server.generations)) == 1
    assert not server.plan(wanted(*goal))


# Taints


TAINT = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}


def tainted(*taints: Mapping[str, str]) -> Object:
    (item,) = wanted("gpu-0").values()
    return {**item, "spec": {**item["spec"], "devices": [{"name": "gpu-0", "taints": list(taints)}]}}


def test_a_taint_that_stays_keeps_its_time() -> None:
    stored = tainted({**TAINT, "timeAdded": "2026-01-31T12:00:00Z"})
    assert with_times(tainted(TAINT), times_of([stored])) == stored


@pytest.mark.parametrize("change", [{"key": "k/other"}, {"value": "48"}, {"effect": "NoExecute"}])
def test_another_taint_does_not_get_its_time(change: Mapping[str, str]) -> None:
    stored = tainted({**TAINT, "timeAdded": "2026-01-31T12:00:00Z"})
    new = tainted({**TAINT, **change})
    assert with_times(new, times_of([stored])) == new


def test_another_device_does_not_get_its_time() -> None:
    stored = tainted({**TAINT, "timeAdded": "2026-01-31T12:00:00Z"})
    stored["spec"]["devices"][0]["name"] = "gpu-1"
    assert with_times(tainted(TAINT), times_of([stored])) == tainted(TAINT)


def test_a_slice_without_devices_has_no_times() -> None:
    (counters,) = wanted_objects(
        [SliceSpec(name="counters-000", content={"sharedCounters": [{}]})], "n0", "u", DRIVER
    ).values()
    assert times_of([counters]) == {}
    assert with_times(counters, {}) is counters


def test_a_device_without_taints_gets_none() -> None:
    (item,) = wanted("gpu-0").values()
    assert with_times(item, {}) == item
