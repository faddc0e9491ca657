"""The shipped alerts and dashboard ask for what an agent tells, in expressions that Prometheus understands."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from node_agent.reporting.metrics.dcgm import FIELDS
from node_agent.reporting.metrics.own import OWN
from node_agent.telemetry.catalogue import INSTRUMENTS
from tests.fakes.scraped import of_text, series
from tests.unit.agent.conftest import Place
from tests.unit.agent.test_metrics import RESOURCE, scrape, until

FOLDER = Path(__file__).parents[3] / "deploy" / "daemonset" / "components" / "metrics"

# What Prometheus adds to each series.
TARGET = {"instance", "job"}


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((FOLDER / "rules.yaml").read_text())
    return [rule for group in document["spec"]["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return found


def panels() -> Iterator[tuple[str, str]]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def selectors(expression: str) -> Iterator[Any]:
    """Every series that an expression names; raises ValueError where it is none."""
    pending: list[Any] = [promql_parser.parse(expression.replace("$__rate_interval", "5m"))]
    while pending:
        found = pending.pop()
        if isinstance(found, promql_parser.VectorSelector):
            yield found
        for part in ("lhs", "rhs", "expr", "param", "args", "vector_selector"):
            inner = getattr(found, part, None)
            pending += inner if isinstance(inner, list) else [inner] if inner is not None else []


EXPRESSIONS = [(rule["alert"], rule["expr"]) for rule in rules()] + list(panels())


async def labels_by_name(place: Place) -> dict[str, set[str]]:
    """What each series of an agent may have as labels, while a pod has all GPUs."""
    async with place.kubelet.running(), place.agent() as agent:
        await place.kubelet.until(RESOURCE, allocatable=8)
        await place.kubelet.admit("train", RESOURCE, 8)
        await agent.limits.held()
        await until(place, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", {"gpu": "7"})
        metrics = of_text(await scrape(place))
    found = {name: set().union(*(labels for labels, _ in rows)) for name, rows in series(metrics).items()}
    declared = [(one.name, one.labels) for one in OWN] + [(one.name, one.labels) for one in INSTRUMENTS]
    for name, labels in declared:
        for ending in ("", "_bucket", "_count", "_sum"):
            found.setdefault(f"{name}{ending}", set()).update(labels, ["le"] if ending == "_bucket" else [])
    return found


async def test_every_name_and_label_in_them_is_one_that_the_agent_tells(place: Place) -> None:
    known = await labels_by_name(place)
    # Of boards before Ampere, which retire pages and remap no rows; these are newer ones.
    known["DCGM_FI_DEV_RETIRED_PENDING"] = known["DCGM_FI_DEV_ROW_REMAP_PENDING"]
    known |= {field.current: known[field.name] for field in FIELDS if field.current}
    for title, expression in EXPRESSIONS:
        named = list(selectors(expression))
        assert named, title
        for selector in named:
            if selector.name == "up":
                continue
            assert selector.name in known, f"{title}: nothing is called {selector.name}"
            asked = {matcher.name for matcher in selector.matchers.matchers}
            assert asked <= known[selector.name] | TARGET, f"{title}: {selector.name} has no {asked}"


def test_the_alerts_hold_for_the_newer_names_as_well() -> None:
    newer = {field.name: field.current for field in FIELDS if field.current}
    for rule in rules():
        named = {selector.name for selector in selectors(rule["expr"])}
        assert {newer[name] for name in named & newer.keys()} <= named, rule["alert"]


@pytest.mark.parametrize("place", ["vgpu-1", "gb10-1", "t4-4"], indirect=True)
async def test_no_kind_of_gpu_tells_nothing_of_what_the_alert_on_missing_figures_looks_for(place: Place) -> None:
    (expression,) = [rule["expr"] for rule in rules() if rule["alert"] == "GpuFiguresMissing"]
    wanted = {selector.name for selector in selectors(expression)} - {"node_agent_gpus"}
    async with place.kubelet.running(), place.agent() as agent, asyncio.timeout(30):
        while not agent.keeper.inventory.value.generation:
            await asyncio.sleep(0.05)
        while not wanted & series(of_text(await scrape(place))).keys():
            await asyncio.sleep(0.1)


def test_an_alert_at_the_first_of_something_sees_the_series_that_it_makes() -> None:
    """What is counted from 1 on has not increased; an outage of Prometheus is no news either."""
    counted = {f"{one.name}_count" for one in INSTRUMENTS} | {"node_agent_xids_total"}
    at_the_first = [
        (rule["alert"], name)
        for rule in rules()
        for name in counted
        if re.search(rf"increase\({name}\b[^)]*\) > 0", rule["expr"])
    ]
    assert {alert for alert, _ in at_the_first} == {"GpuXid", "GpuAllocationsFail"}
    expressions = {rule["alert"]: rule["expr"] for rule in rules()}
    for alert, name in at_the_first:
        either: Any = promql_parser.parse(expressions[alert])
        assert str(either.op) == "or"
        new = either.rhs
        assert (str(new.op), new.rhs.name, new.rhs.offset) == ("and", "node_agent_ready", new.lhs.rhs.offset)
        assert (str(new.lhs.op), new.lhs.lhs.name, new.lhs.rhs.name) == ("unless", name, name)


def test_every_alert_says_what_is_so_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert {"summary", "description"} == rule["annotations"].keys()


def test_the_dashboards_panels_do_not_overlap_and_each_has_a_number_of_its_own() -> None:
    found = dashboard()["panels"]
    places = [
        (x, y)
        for panel in found
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(places)) == len(places)
    assert all(x < 24 for x, _ in places)
    assert len({panel["id"] for panel in found}) == len(found)


def test_the_monitor_scrapes_the_daemonsets_port_and_leaves_the_pods_labels_as_they_are() -> None:
    (endpoint,) = yaml.safe_load((FOLDER / "podmonitor.yaml").read_text())["spec"]["podMetricsEndpoints"]
    daemonset = yaml.safe_load((FOLDER.parent / "daemonset" / "daemonset.yaml").read_text())
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}
    assert endpoint["honorLabels"] is True
    # Prometheus Operator puts the agent's pod on each series that has none: idle GPUs would be held by it.
    (dropped,) = [one["regex"] for one in endpoint["relabelings"] if one.get("action") == "labeldrop"]
    assert set(dropped.split("|")) == {"pod", "namespace", "container"}
