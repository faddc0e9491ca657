"""A figure says what was measured, and its ratio stands up to a round that was disturbed."""

import asyncio

import pytest

from benchmarks.measure import Effort, Figure, Floor, Of, Target, Turn, Unit, figure, in_turns, percentile, single


def numbers(count: int) -> Figure:
    return Figure(name="numbers", samples=tuple(range(count, 0, -1)))


def turn(subject: float, floor: float) -> Turn:
    return Turn(subject=[subject], floor=[floor])


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert percentile(numbers(100).samples, 99) == 99
    assert percentile(numbers(1000).samples, 99) == 990
    assert percentile(numbers(1000).samples, 50) == 500


def test_a_percentile_of_too_few_samples_is_not_given() -> None:
    assert percentile(numbers(99).samples, 99) is None
    assert percentile(numbers(1).samples, 50) is None
    assert percentile(numbers(2).samples, 50) == 1


def test_nothing_measured_is_no_figure() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        numbers(0)


def test_a_ratio_is_the_median_of_the_rounds_so_noise_that_hits_both_does_not_show() -> None:
    taken = figure("call", [turn(2, 1), turn(20, 10), turn(200, 100)], "floor")
    assert (taken.ratio, taken.median, taken.floor) == (2, 20, Floor(name="floor", median=10))


def test_one_round_in_which_only_the_subject_was_disturbed_does_not_move_the_ratio() -> None:
    assert figure("call", [turn(2, 1), turn(90, 1), turn(2, 1)], "floor").ratio == 2


@pytest.mark.parametrize(
    ("limit", "of", "met"),
    [
        (3, Of.RATIO, True),
        (1.9, Of.RATIO, False),
        (3, Of.MEDIAN, False),
        (20, Of.MEDIAN, True),
        (2, Of.P99, True),
        (1.9, Of.P99, False),
    ],
)
def test_a_target_limits_the_ratio_or_the_median_or_the_longest_but_one_in_a_hundred(
    limit: float, of: Of, met: bool
) -> None:
    assert figure("call", [turn(20, 10)] * 100, "floor", Target(limit=limit, of=of)).met is met


def test_a_target_for_a_percentile_that_is_not_known_is_missed() -> None:
    assert figure("call", [turn(1, 1)] * 99, "floor", Target(limit=100, of=Of.P99)).met is False


def test_without_a_target_nothing_is_met_or_missed() -> None:
    assert single("memory", 3, Unit.BYTES).met is None


def test_what_is_measured_once_is_compared_with_its_floor_where_it_has_one() -> None:
    assert single("memory", 3, Unit.BYTES, Floor(name="bare", median=2)).ratio == 1.5
    assert single("memory", 3, Unit.BYTES).ratio is None


async def test_floor_and_subject_take_turns_and_the_first_round_does_not_count() -> None:
    said: list[str] = []

    async def say(word: str) -> None:
        said.append(word)

    turns = await in_turns(lambda: say("subject"), lambda: say("floor"), rounds=2, calls=2, between=lambda: say("tidy"))
    assert said == ["floor", "floor", "subject", "subject", "tidy"] * 3
    assert [(len(turn.subject), len(turn.floor)) for turn in turns] == [(2, 2), (2, 2)]


async def test_only_the_step_itself_is_timed() -> None:
    async def nothing() -> None:
        pass

    turns = await in_turns(lambda: asyncio.sleep(0.02), nothing, rounds=1, between=lambda: asyncio.sleep(0.2))
    assert turns[0].subject[0] >= 0.02
    assert turns[0].floor[0] < 0.1


def test_a_quick_run_does_less() -> None:
    assert (Effort().pick(full=9, quick=1), Effort(quick=True).pick(full=9, quick=1)) == (9, 1)
