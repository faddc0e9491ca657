"""The layouts that are compared by what they cost the scheduler."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.scale.layouts import GROUPS, LEAN, MIG, MIG_LEAN, SELECTED, SHARED, SPLIT, WHOLE, Layout, of_its_own
from benchmarks.scale.scheduling import CASES
from tests.fakes.nodes import inventory_of
from tests.unit.dra.scheduler import check_limits

LAYOUTS = (WHOLE, LEAN, SPLIT, GROUPS, SHARED, MIG, MIG_LEAN)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_the_api_server_takes_every_layout_and_all_have_the_same_devices_where_they_should(layout: Layout) -> None:
    inventory = inventory_of("h200-8")
    objects = layout.objects(inventory, "n0", "uid")
    for item in objects:
        assert item["spec"]["pool"]["resourceSliceCount"] == len(objects)
    whole = {name for item in objects for name in devices(item) if name.startswith("gpu-") and "mig" not in name}
    assert {gpu.name for gpu in inventory.gpus} <= whole
    for item in objects:
        check_limits(item["spec"])


def devices(item: dict[str, Any]) -> list[str]:
    return [device["name"] for device in item["spec"].get("devices", ())]


def test_what_is_lean_has_only_what_people_select_on() -> None:
    (item,) = LEAN.objects(inventory_of("h200-8"), "n0", "uid")
    assert all(device["attributes"].keys() <= SELECTED for device in item["spec"]["devices"])
    assert len(SPLIT.objects(inventory_of("h200-8"), "n0", "uid")) == 8


def test_no_two_nodes_have_a_gpu_of_one_uuid() -> None:
    inventory = inventory_of("h200-8")
    one, other = (of_its_own(inventory, node) for node in ("node-1", "node-2"))
    assert not one.by_uuid.keys() & other.by_uuid.keys()
    assert len(one.links.links) == len(inventory.links.links)
    assert replace(one.gpus[3], uuid=inventory.gpus[3].uuid) == inventory.gpus[3]


def test_cases_of_one_layout_follow_each_other_so_that_it_is_published_once() -> None:
    names = [case.layout.name for case in CASES]
    assert len([name for before, name in zip(["", *names], names, strict=False) if before != name]) == len(set(names))
