"""How old something is although the clock is set."""

import time

import pytest

from node_agent.kit.ages import Ages
from tests.fakes.wall_clock import WallClock

HOUR = 3600.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    return WallClock(monkeypatch)


def test_what_is_met_for_the_first_time_is_as_old_as_its_time_says(clock: WallClock) -> None:
    assert Ages().of("a", clock() - 100) == pytest.approx(100, abs=10)


def test_what_began_in_the_future_begins_now(clock: WallClock) -> None:
    assert 0 <= Ages().of("a", clock() + HOUR) < 10


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_a_clock_that_is_set_makes_nothing_older_or_younger(clock: WallClock, ahead: float) -> None:
    ages, stamp = Ages(), clock() - 100
    ages.of("a", stamp)
    clock.ahead = ahead
    assert ages.of("a", stamp) == pytest.approx(100, abs=10)


def test_it_ages_evenly(monkeypatch: pytest.MonkeyPatch, clock: WallClock) -> None:
    ages, stamp = Ages(), clock()
    before, now = ages.of("a", stamp), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 50)
    assert ages.of("a", stamp) == pytest.approx(before + 50, abs=10)


def test_another_time_under_the_same_name_is_something_else(clock: WallClock) -> None:
    ages = Ages()
    ages.of("a", clock() - 100)
    assert ages.of("a", clock()) < 10


def test_what_is_not_kept_is_forgotten(clock: WallClock) -> None:
    ages, stamp = Ages(), clock()
    ages.of("a", stamp)
    ages.of("b", stamp)
    ages.keep({"b"})
    clock.ahead = HOUR
    assert ages.of("a", stamp) > HOUR / 2 > ages.of("b", stamp)
