"""The tables themselves: each key has one fate, is met by the walk, and leads to a key that there is."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.config.check import known_paths
from node_agent.config.sources import nested
from node_agent.migrate.documents import walk
from node_agent.migrate.keys import Chart, Finding, Key
from node_agent.migrate.tables import CHARTS

KEYS = [(chart, key) for chart in CHARTS.values() for key in chart.keys.values()]

each_chart = pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)


@each_chart
def test_no_key_lies_below_another_so_that_each_has_exactly_one_fate(chart: Chart) -> None:
    assert not chart.sections & chart.keys.keys()


@each_chart
def test_every_key_of_ours_that_is_named_exists(chart: Chart) -> None:
    words = {word for key in chart.keys.values() for word in re.findall(r"\b(?:flags|agent)\.[\w.]*\w", key.what)}
    assert words <= {*known_paths(), *(path for path in words if any(f"{path}." in known for known in known_paths()))}
    assert words


@given(chosen=st.sampled_from(KEYS), value=st.sampled_from(["text", 7, True]))
def test_a_key_without_a_reader_is_told_with_its_fate_whatever_its_value(
    chosen: tuple[Chart, Key], value: object
) -> None:
    chart, key = chosen
    if key.read is None:
        assert list(walk(chart, nested({key.path: value}))) == [Finding(path=key.path, fate=key.fate, why=key.what)]


@given(chosen=st.sampled_from(KEYS), value=st.sampled_from([None, "", [], {}, {"a": {"b": None}}]))
def test_a_key_without_a_value_says_nothing(chosen: tuple[Chart, Key], value: object) -> None:
    chart, key = chosen
    assert list(walk(chart, nested({key.path: value}))) == []


@given(chosen=st.sampled_from(KEYS), more=st.text("abcXYZ", min_size=1, max_size=6))
def test_a_key_that_nobody_knows_is_told_wherever_it_stands(chosen: tuple[Chart, Key], more: str) -> None:
    chart, key = chosen
    section = key.path.rpartition(".")[0]
    path = f"{section}.{more}-strange" if section else f"{more}-strange"
    (found,) = walk(chart, nested({path: None}))
    assert isinstance(found, Finding)
    assert (found.path, found.fate) == (path, "unknown")
