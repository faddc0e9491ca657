"""The benchmark of a whole cluster: its arithmetic, its reading of the audit log, and the layouts that it compares."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.scale.layouts import GROUPS, LEAN, MIG, MIG_LEAN, SELECTED, SHARED, SPLIT, WHOLE, Layout, of_its_own
from benchmarks.scale.model import Cost, Line, extrapolated, load, through, window
from benchmarks.scale.requests import Request, by_name, peak, requests, watches, writes
from benchmarks.scale.scheduling import CASES
from node_agent.kube.mirror import FIRST_PAUSE, LONGEST_PAUSE
from tests.fakes.nodes import inventory_of
from tests.unit.dra.scheduler import check_limits

LAYOUTS = (WHOLE, LEAN, SPLIT, GROUPS, SHARED, MIG, MIG_LEAN)


# The model


@given(base=st.floats(0, 1e6), each=st.floats(0, 1e6), nodes=st.sets(st.integers(1, 10_000), min_size=2, max_size=5))
def test_a_line_goes_through_the_totals_that_lie_on_one(base: float, each: float, nodes: set[int]) -> None:
    found = through({count: base + each * count for count in nodes})
    for count in nodes:
        assert found.at(count) == pytest.approx(base + each * count, rel=1e-3, abs=1)


@pytest.mark.parametrize("points", [{}, {100: 1.0}])
def test_no_line_goes_through_less_than_two_points(points: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="two points"):
        through(points)


def test_the_error_of_a_line_is_what_it_says_too_much() -> None:
    line = Line(base=10.0, each=2.0)
    assert line.error(100, 200.0) == pytest.approx(0.05)
    assert line.error(100, 210.0) == 0.0
    assert line.error(100, 420.0) == pytest.approx(-0.5)


def test_a_row_holds_the_line_of_the_small_clusters_to_the_large_one() -> None:
    (row,) = extrapolated({"MiB": {100: 110.0, 300: 310.0, 1000: 2020.0}}, [10_000])
    assert "| -50% |" in row
    assert row.startswith("| MiB |")


def test_what_lies_on_a_line_goes_on_on_it() -> None:
    (row,) = extrapolated({"writes": {100: 400, 300: 1200, 1000: 4000}}, [10_000, 100_000])
    assert row.endswith("| +0% | 40,000 | 400,000 |")


def test_the_load_is_what_each_thing_costs_as_often_as_it_happens_on_all_nodes() -> None:
    costs = {"fault": Cost(requests=6, writes=4, sent=20_000), "claim": Cost(requests=2, writes=1, sent=4_000)}
    found = load(10_000, {"fault": 2, "claim": 500}, costs)
    assert found.writes == pytest.approx(10_000 * 508 / 86_400)
    assert found.requests == pytest.approx(10_000 * 1012 / 86_400)
    assert found.sent == pytest.approx(10_000 * 2_040_000 / 86_400)
    assert load(20_000, {"claim": 250}, costs).writes == pytest.approx(load(10_000, {"claim": 500}, costs).writes)


def test_agents_come_back_the_more_spread_the_longer_the_server_was_away() -> None:
    windows = [window(away, first=FIRST_PAUSE, longest=LONGEST_PAUSE) for away in (0.0, 1.0, 10.0, 60.0, 600.0)]
    assert windows == sorted(windows)
    assert (windows[0], windows[-1]) == (FIRST_PAUSE / 2, LONGEST_PAUSE / 2)


# The audit log


def entry(verb: str, at: str, *, stage: str = "ResponseComplete", resource: str = "nodes", code: int = 200) -> str:
    event: dict[str, Any] = {
        "verb": verb,
        "stage": stage,
        "requestReceivedTimestamp": at,
        "stageTimestamp": at,
        "objectRef": {"resource": resource},
        "responseStatus": {"code": code},
    }
    return json.dumps(event)


def log(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "audit.log"
    file.write_text("\n".join(lines))
    return file


def test_each_request_counts_once_and_a_half_written_line_not_at_all(tmp_path: Path) -> None:
    file = log(
        tmp_path,
        entry("get", "2026-11-30T10:00:00.5Z"),
        entry("watch", "2026-11-30T10:00:01Z", stage="ResponseStarted", resource="resourceslices"),
        entry("watch", "2026-11-30T10:00:01Z", stage="ResponseComplete", resource="resourceslices"),
        entry("create", "2026-11-30T10:00:02Z", code=201),
        '{"verb": "upda',
    )
    found = requests(file)
    assert by_name(found) == {"get nodes": 1, "watch resourceslices": 1, "create nodes": 1}
    assert [one.code for one in writes(found)] == [201]
    assert watches(found) == 1
    assert found[1].at - found[0].at == pytest.approx(0.5)
    assert len(requests(file, since=found[2].at)) == 1


def at(*times: float) -> list[Request]:
    return [Request(at=time, verb="get", resource="nodes", code=200) for time in times]


@pytest.mark.parametrize(
    ("times", "most"), [((), 0), ((5.0,), 1), ((0.0, 0.9, 1.8), 2), ((3.0, 0.0, 0.1, 0.2, 2.5), 3)]
)
def test_the_peak_is_the_most_that_comes_within_a_second(times: Sequence[float], most: int) -> None:
    assert peak(at(*times)) == most


# What is published


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
