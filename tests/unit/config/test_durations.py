"""Durations are read as Go reads them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.config.durations import PATTERN, seconds


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("30s", 30),
        ("1m30s", 90),
        ("1h", 3600),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("0s", 0),
        ("2h3m4s5ms", 7384.005),
        ("1us", 1e-6),
        ("1µs", 1e-6),
        ("1ns", 1e-9),
        (30, 30),
        (0.25, 0.25),
    ],
)
def test_a_duration_has_its_length_in_seconds(text: str | float, length: float) -> None:
    assert seconds(text) == pytest.approx(length)


@pytest.mark.parametrize("text", ["", "30", "s", "30 s", "-1s", "1d", "1s30", "1.s", ".5s", "30S", "1e3s", "infinite"])
def test_what_is_no_duration_does_not_match(text: str) -> None:
    assert re.search(PATTERN, text) is None


@given(hours=st.integers(0, 99), minutes=st.integers(0, 59), rest=st.integers(0, 59))
def test_parts_add_up(hours: int, minutes: int, rest: int) -> None:
    text = f"{hours}h{minutes}m{rest}s"
    assert re.search(PATTERN, text)
    assert seconds(text) == hours * 3600 + minutes * 60 + rest


@given(st.from_regex(PATTERN))
def test_whatever_matches_has_a_length(text: str) -> None:
    assert seconds(text) >= 0
