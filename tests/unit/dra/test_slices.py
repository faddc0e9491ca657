"""What a node publishes: which devices, in which order, in which slices."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from node_agent.dra.slices import Layout, Pool, PoolSettings, laid_out, pool_of, remembered
from node_agent.dra.taints import Effect, Taint
from node_agent.hardware.simulated import profile_names
from node_agent.model.device import DeviceKind
from node_agent.model.gpu import GpuUuid, PartitionMode
from node_agent.model.inventory import DriverInfo, Inventory, MissingGpu
from node_agent.topology.groups import topology_order
from tests.fakes.builders import (
    bridged_node,
    gpu,
    h200_node,
    inventory,
    lopsided_node,
    nvlink,
    pcie_node,
    switched_node,
    taints_by_gpu,
    uuid,
    without,
)
from tests.fakes.nodes import inventory_of
from tests.unit.dra import scheduler

GROUPS = PoolSettings(groups=True)
HELD = Taint(key="gpu.nvidia.com/held", effect=Effect.NO_SCHEDULE)


def pool(
    node: Inventory, settings: PoolSettings | None = None, taints: Mapping[GpuUuid, Iterable[Taint]] | None = None
) -> Pool:
    return pool_of(laid_out(node, settings or PoolSettings()), taints_by_gpu(taints or {}))


def devices(pool: Pool) -> list[dict[str, Any]]:
    return [device for one in pool.slices for device in one.content.get("devices", ())]


def names(pool: Pool) -> list[str]:
    return [device["name"] for device in devices(pool)]


@st.composite
def nodes(draw: st.DrawFn, most: int = 20) -> Inventory:
    """Nodes of any size and wiring, also such as nobody would build."""
    count = draw(st.integers(0, most))
    gpus = [
        gpu(i, numa=draw(st.sampled_from([0, 1, None])), bus=f"{i:04x}:01:00", product=draw(st.sampled_from("AAAAB")))
        for i in range(count)
    ]
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda both: both[0] < both[1])
    ends = draw(st.lists(pairs, max_size=2 * count, unique=True)) if count > 1 else []
    return inventory(gpus, {both: nvlink(draw(st.integers(1, 4))) for both in ends})


# Which devices


def test_a_whole_gpu_goes_by_its_own_name_and_stands_for_itself() -> None:
    found = pool(h200_node())
    for each in h200_node().gpus:
        published = found.devices[each.name]
        assert (published.name, published.kind, published.gpus) == (each.name, DeviceKind.GPU, (each.uuid,))


def test_gpus_come_in_topology_order_so_that_the_first_that_fit_belong_together() -> None:
    for node in (h200_node(), lopsided_node(), bridged_node(), pcie_node()):
        assert names(pool(node)) == [each.name for each in topology_order(node)]


def test_the_first_fit_of_claims_for_four_two_and_two_is_aligned() -> None:
    node = lopsided_node()
    order = [device["attributes"]["uuid"]["string"] for device in devices(pool(node))]
    groups = {frozenset(order[:4]), frozenset(order[4:6]), frozenset(order[6:8])}
    published = {frozenset(device.gpus) for device in pool(node, GROUPS).devices.values()}
    assert groups <= published


def test_a_gpu_in_mig_mode_is_no_device() -> None:
    node = h200_node()
    mig = replace(node.gpus[2], partition_mode=PartitionMode.ENABLED)
    waiting = replace(node.gpus[3], partition_mode=PartitionMode.ENABLE_PENDING)
    changed = replace(node, gpus=(*node.gpus[:2], mig, waiting, *node.gpus[4:]))
    assert {"gpu-2"} == set(names(pool(node))) - set(names(pool(changed)))


def test_a_gpu_that_is_not_offered_is_in_no_device() -> None:
    settings = PoolSettings(groups=True, offered=lambda node: node.by_uuid.keys() - {uuid(1), uuid(4)})
    found = pool(h200_node(), settings)
    assert not {uuid(1), uuid(4)} & {gpu for device in found.devices.values() for gpu in device.gpus}
    assert len([name for name in found.devices if name.startswith("gpu-")]) == 6


def test_a_gpu_that_several_claims_may_share_says_so() -> None:
    node = inventory_of("h200-8")
    found = pool(node, PoolSettings(shares=lambda each: each.index == 0))
    by_name = {device["name"]: device for device in devices(found)}
    shared = by_name.pop("gpu-2")
    assert shared["allowMultipleAllocations"] is True
    assert all("requestPolicy" in capacity for capacity in shared["capacity"].values())
    for device in by_name.values():
        assert "allowMultipleAllocations" not in device
        assert all(capacity.keys() == {"value"} for capacity in device["capacity"].values())


def test_a_node_without_devices_publishes_one_empty_slice() -> None:
    for node in (Inventory(generation=1), Inventory(generation=1, problem="no driver")):
        (one,) = pool(node, GROUPS).slices
        assert (one.name, dict(one.content)) == ("devices-000", {})


# Groups


def test_groups_are_off_by_default_and_then_nothing_is_counted() -> None:
    found = pool(h200_node())
    assert names(found) == [f"gpu-{i}" for i in range(8)]
    assert len(found.slices) == 1
    assert all("consumesCounters" not in device for device in devices(found))


def test_eight_gpus_make_four_pairs_two_quads_and_the_whole_after_the_gpus_themselves() -> None:
    assert names(pool(h200_node(), GROUPS)) == [
        *(f"gpu-{i}" for i in range(8)),
        "group-0-1",
        "group-2-3",
        "group-4-5",
        "group-6-7",
        "group-0-1-2-3",
        "group-4-5-6-7",
        "group-0-1-2-3-4-5-6-7",
    ]


def test_a_group_says_how_many_gpus_it_has() -> None:
    found = devices(pool(h200_node(), GROUPS))
    groups = [device for device in found if device["attributes"]["type"] == {"string": "group"}]
    assert [group["attributes"]["gpuCount"]["int"] for group in groups] == [2, 2, 2, 2, 4, 4, 8]
    assert [len(pool(h200_node(), GROUPS).devices[group["name"]].gpus) for group in groups] == [2, 2, 2, 2, 4, 4, 8]


def test_a_group_is_called_by_the_numbers_of_its_gpus_in_their_order() -> None:
    """Not by their places on the bus, and 10 comes after 9."""
    node = inventory([replace(gpu(0), name=gpu(10).name), replace(gpu(1), name=gpu(9).name)], {(0, 1): nvlink(4)})
    assert names(pool(node, GROUPS)) == ["gpu-10", "gpu-9", "group-9-10"]


def test_unlike_gpus_are_no_group() -> None:
    node = inventory([gpu(0, product="A"), gpu(1, product="B")], {(0, 1): nvlink(4)})
    found = pool(node, GROUPS)
    assert names(found) == ["gpu-0", "gpu-1"]


def test_where_there_is_no_group_nothing_is_counted() -> None:
    found = pool(inventory([gpu(0)]), GROUPS)
    assert [one.name for one in found.slices] == ["devices-000"]
    assert "consumesCounters" not in devices(found)[0]


def test_each_device_takes_all_of_each_of_its_gpus() -> None:
    found = pool(h200_node(), GROUPS)
    (counters,) = found.slices[0].content["sharedCounters"]
    assert counters == {"name": "gpus-0", "counters": {f"gpu-{i}": {"value": "1"} for i in range(8)}}
    by_name = {device["name"]: device["consumesCounters"] for device in devices(found)}
    assert by_name["gpu-3"] == [{"counterSet": "gpus-0", "counters": {"gpu-3": {"value": "1"}}}]
    quad = {f"gpu-{i}": {"value": "1"} for i in range(4, 8)}
    assert by_name["group-4-5-6-7"] == [{"counterSet": "gpus-0", "counters": quad}]


def test_counters_are_in_a_slice_of_their_own_that_comes_first() -> None:
    found = pool(h200_node(), GROUPS)
    assert [one.name for one in found.slices] == ["counters-000", "devices-000"]
    assert [list(one.content) for one in found.slices] == [["sharedCounters"], ["devices"]]


# Limits


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 64, 65, 100])
def test_the_limits_of_the_api_hold_on_a_node_of_any_size(count: int, groups: bool) -> None:
    node = switched_node([i % 2 for i in range(count)], buses=[f"{i:04x}:01:00" for i in range(count)])
    every = {each.uuid: [HELD] for each in node.gpus}
    found = pool(node, PoolSettings(groups=groups), every)
    for one in found.slices:
        scheduler.check_limits(one.content)
    assert len([name for name in names(found) if name.startswith("gpu-")]) == count
    assert sorted(one.name for one in found.slices) == [one.name for one in found.slices]


def test_more_than_256_gpus_have_their_counters_in_several_slices() -> None:
    """No such node is known; the layout does not depend on that."""
    layout = Layout(counter_sets=tuple({"name": f"gpus-{i}", "counters": {"a": {"value": "1"}}} for i in range(9)))
    assert [one.name for one in pool_of(layout, lambda gpu: ()).slices] == ["counters-000", "counters-001"]


def test_a_taint_moves_no_device_to_another_slice() -> None:
    node = switched_node([0] * 100, buses=[f"{i:04x}:01:00" for i in range(100)])
    before, after = pool(node), pool(node, taints={node.gpus[70].uuid: [HELD]})
    assert [len(one.content["devices"]) for one in before.slices] == [64, 36]
    assert [one.name for one in before.slices] == [one.name for one in after.slices]
    changed = [one for one, other in zip(before.slices, after.slices, strict=True) if one != other]
    assert len(changed) == 1


@given(nodes(), st.booleans())
def test_the_api_takes_what_any_node_publishes(node: Inventory, groups: bool) -> None:
    found = pool(node, PoolSettings(groups=groups))
    scheduler.of(found.slices)
    for one in found.slices:
        scheduler.check_limits(one.content)
    assert set(names(found)) == found.devices.keys()


@given(nodes(most=40))
def test_no_device_draws_on_more_than_one_counter_set_so_that_one_is_left_for_mig(node: Inventory) -> None:
    found = pool(node, GROUPS)
    counted = len(found.slices) > 1
    assert all(len(device.get("consumesCounters", ())) == counted for device in devices(found))


# Stability


@given(nodes(), st.randoms())
def test_the_order_in_which_links_are_listed_changes_nothing(node: Inventory, random: Any) -> None:
    shuffled = list(node.links.links.items())
    random.shuffle(shuffled)
    other = replace(node, links=replace(node.links, links=dict(shuffled)))
    assert pool(node, GROUPS) == pool(other, GROUPS)


@pytest.mark.parametrize("profile", profile_names())
def test_the_same_node_publishes_the_same(profile: str) -> None:
    assert pool(inventory_of(profile), GROUPS) == pool(inventory_of(profile), GROUPS)


def test_a_health_change_touches_only_the_devices_that_stand_on_the_gpu() -> None:
    before = {device["name"]: device for device in devices(pool(h200_node(), GROUPS))}
    after = {device["name"]: device for device in devices(pool(h200_node(), GROUPS, {uuid(3): [HELD]}))}
    tainted = {"gpu-3", "group-2-3", "group-0-1-2-3", "group-0-1-2-3-4-5-6-7"}
    assert {name for name in before if before[name] != after[name]} == tainted
    for name in tainted:
        assert after[name] == {**before[name], "taints": [HELD.content]}


# GPUs that drop out


def lost(node: Inventory, *indices: int, reason: str = "gone") -> Inventory:
    """The node when some of its GPUs cannot be read any more."""
    missing = tuple(MissingGpu(index=i, uuid=node.gpus[i].uuid, reason=reason) for i in indices)
    return replace(without(node, *indices), missing=missing)


def test_a_lost_gpu_keeps_its_device_its_place_and_its_groups() -> None:
    node = h200_node()
    known = remembered(node, lost(node, 2, 5))
    assert pool(known, GROUPS) == pool(node, GROUPS)
    assert known.generation == node.generation + 1


def test_without_memory_all_groups_would_be_others() -> None:
    """What the memory is for: a claim may hold a group, and the scheduler counts only what is published."""
    assert "group-0-1-2-3" not in pool(lost(h200_node(), 2), GROUPS).devices


def test_a_gpu_that_is_not_even_counted_any_more_but_missed_stays() -> None:
    node = h200_node()
    assert names(pool(remembered(node, lost(node, 0)))) == names(pool(node))


def test_a_gpu_that_nobody_misses_leaves() -> None:
    node = h200_node()
    assert "gpu-2" not in names(pool(remembered(node, without(node, 2))))


def test_while_the_driver_is_away_all_devices_stay_with_the_versions_that_it_had() -> None:
    node = replace(h200_node(), driver=DriverInfo(version="580.95.05", cuda="13.0"))
    missing = tuple(MissingGpu(index=i, uuid=each.uuid, reason="away") for i, each in enumerate(node.gpus))
    away = Inventory(generation=2, problem="the driver is reloaded", missing=missing)
    assert pool(remembered(node, away), GROUPS) == pool(node, GROUPS)


def test_a_gpu_that_comes_back_is_itself_again() -> None:
    node = h200_node()
    changed = replace(node, gpus=(replace(node.gpus[0], memory=1 << 30), *node.gpus[1:]), generation=9)
    back = remembered(remembered(node, lost(node, 0)), changed)
    assert back == changed


def test_a_gpu_whose_place_on_the_bus_is_taken_is_gone_for_good() -> None:
    node = h200_node()
    new = replace(gpu(9), pci=node.gpus[0].pci)
    swapped = lost(node, 0)
    swapped = replace(swapped, gpus=(new, *swapped.gpus))
    found = names(pool(remembered(node, swapped)))
    assert "gpu-9" in found and "gpu-0" not in found


def test_a_gpu_that_moved_to_another_place_is_there_once() -> None:
    node = h200_node()
    moved = replace(node.gpus[0], pci=gpu(9).pci)
    after = replace(node, gpus=(*node.gpus[1:], moved), generation=2)
    assert sorted(names(pool(remembered(node, after)))) == sorted(names(pool(node)))


@given(nodes(most=8), st.data())
def test_whatever_drops_out_and_comes_back_a_name_stands_for_the_same_gpus(
    node: Inventory, data: st.DataObject
) -> None:
    meant: dict[str, frozenset[GpuUuid]] = {}
    known, gpus = Inventory(), st.integers(0, len(node.gpus) - 1)
    for generation in range(1, 5):
        away = data.draw(st.sets(gpus) if node.gpus else st.just(set()))
        before = Inventory() if data.draw(st.booleans(), "started anew") else known
        known = remembered(before, replace(lost(node, *away), generation=generation))
        for name, device in pool(known, GROUPS).devices.items():
            assert meant.setdefault(name, frozenset(device.gpus)) == frozenset(device.gpus)


def test_slices_are_named_in_the_order_in_which_the_scheduler_goes() -> None:
    node = switched_node([0] * 100, buses=[f"{i:04x}:01:00" for i in range(100)])
    for one, other in pairwise(pool(node, GROUPS).slices):
        assert one.name < other.name
