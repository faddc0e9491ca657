from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.topology import search as search_module
from node_agent.topology.pairs import Matrix, positions
from node_agent.topology.search import Problem, Weights, scaled, search, weights


def matrix(size: int, values: Sequence[int]) -> Matrix:
    """A symmetric matrix with the values above its diagonal, row by row."""
    pairs = dict(zip(combinations(range(size), 2), values, strict=True))
    return tuple(tuple(pairs.get((min(i, j), max(i, j)), 0) for j in range(size)) for i in range(size))


def alike(size: int) -> Weights:
    return weights(matrix(size, [1] * (size * (size - 1) // 2)))


def problem(
    given_weights: Weights,
    size: int,
    *,
    available: int | None = None,
    must: int = 0,
    single: Sequence[int] = (),
    tolls: Sequence[tuple[int, int]] = (),
) -> Problem:
    gpus = len(given_weights.pair)
    return Problem(
        weights=given_weights,
        single=[scaled(value, gpus) for value in single or [0] * gpus],
        tolls=[(mask, scaled(cost, gpus)) for mask, cost in tolls],
        available=(1 << gpus) - 1 if available is None else available,
        must=must,
        size=size,
    )


def worth(asked: Problem, mask: int) -> int:
    """What a set is worth, as ``Problem`` states it."""
    chosen = list(positions(mask))
    return (
        sum(asked.weights.pair[i][j] for i, j in combinations(chosen, 2))
        + sum(asked.single[i] for i in chosen)
        - sum(cost for toll, cost in asked.tolls if toll & mask)
    )


def best_by_trying_all(asked: Problem) -> tuple[int, ...]:
    """The positions of the best set."""
    sets = [
        chosen
        for chosen in combinations(positions(asked.available), asked.size)
        if asked.must == _within(asked, chosen)
    ]
    return min(sets, key=lambda chosen: (-worth(asked, _mask(chosen)), chosen))


def _within(asked: Problem, chosen: Sequence[int]) -> int:
    return _mask(chosen) & asked.must


def _mask(chosen: Sequence[int]) -> int:
    return sum(1 << i for i in chosen)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    size = draw(st.integers(1, 8))
    pairs = size * (size - 1) // 2
    values = draw(st.lists(st.integers(0, draw(st.sampled_from((1, 3, 1000)))), min_size=pairs, max_size=pairs))
    everything = (1 << size) - 1
    available = draw(st.integers(1, everything))
    must = draw(st.integers(0, everything)) & available
    tolls = draw(st.lists(st.tuples(st.integers(1, everything), st.integers(0, 20)), max_size=4))
    reachable = [toll for toll in tolls if toll[0] & available]
    wanted = draw(st.integers(must.bit_count(), available.bit_count()))
    return problem(weights(matrix(size, values)), wanted, available=available, must=must, tolls=reachable)


@given(problems())
def test_the_search_finds_what_trying_all_sets_finds(asked: Problem) -> None:
    found = search(asked)
    assert found.exact
    assert tuple(positions(found.masks[0])) == best_by_trying_all(asked)


@given(problems(), st.integers(1, 6))
def test_several_answers_come_best_first_and_none_better_is_left_out(asked: Problem, keep: int) -> None:
    masks = search(asked, keep=keep).masks
    found = [worth(asked, mask) for mask in masks]
    assert found == sorted(found, reverse=True)
    assert len(set(masks)) == len(masks) <= keep
    every = {
        worth(asked, _mask(chosen))
        for chosen in combinations(positions(asked.available), asked.size)
        if _within(asked, chosen) == asked.must
    }
    assert all(value in found for value in every if value > found[-1])


@given(problems())
def test_an_answer_has_the_size_asked_for_and_what_must_be_in_it_and_nothing_unavailable(asked: Problem) -> None:
    for mask in search(asked, keep=3).masks:
        assert mask.bit_count() == asked.size
        assert mask & asked.must == asked.must
        assert not mask & ~asked.available


def test_of_sets_worth_the_same_the_lowest_positions_win() -> None:
    assert positions(search(problem(alike(6), 3)).masks[0]) == [0, 1, 2]


def test_the_lowest_positions_are_those_that_differ_first_and_not_the_lowest_sum() -> None:
    only = matrix(6, [0, 0, 0, 0, 9, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0])
    assert only[0][5] == only[2][3] == 9
    assert positions(search(problem(weights(only), 2)).masks[0]) == [0, 5]


def test_gpus_that_differ_only_in_position_are_one_answer_and_not_many() -> None:
    assert search(problem(alike(6), 3), keep=10).masks == (0b000111,)


def test_a_toll_is_paid_once_however_many_gpus_of_its_mask_are_taken() -> None:
    asked = problem(alike(4), 2, tolls=[(0b0011, 5), (0b1100, 4)])
    assert positions(search(asked).masks[0]) == [2, 3]


def test_a_toll_that_what_must_be_there_pays_anyhow_keeps_nothing_away() -> None:
    asked = problem(alike(4), 2, must=0b0001, tolls=[(0b0011, 5), (0b1100, 4)])
    assert positions(search(asked).masks[0]) == [0, 1]


def test_pairs_with_what_must_be_there_count() -> None:
    strong = weights(matrix(4, [0, 0, 7, 0, 0, 0]))
    assert positions(search(problem(strong, 2, must=0b0001)).masks[0]) == [0, 3]


def test_what_single_gpus_are_worth_counts() -> None:
    split = Weights(pair=alike(3).pair, twin=(0, 1, 2))
    assert positions(search(problem(split, 1, single=[1, 5, 3])).masks[0]) == [1]


def test_nothing_to_decide_is_answered_with_what_must_be_there() -> None:
    assert search(problem(alike(4), 2, must=0b1010)).masks == (0b1010,)
    assert search(problem(alike(4), 0)).masks == (0,)


def test_all_that_is_available_is_the_only_answer_when_all_is_asked_for() -> None:
    assert search(problem(alike(5), 3, available=0b10101), keep=5).masks == (0b10101,)


def test_twins_are_gpus_that_can_be_swapped_unseen() -> None:
    # 0 and 1 are joined as 2 and 3 are, and all else is alike: two pairs of twins, but not four of a kind.
    assert weights(matrix(4, [9, 1, 1, 1, 1, 9])).twin == (0, 0, 2, 2)


def test_gpus_that_see_the_same_weights_in_another_order_are_no_twins() -> None:
    ring = matrix(4, [2, 1, 2, 2, 1, 2])
    assert weights(ring).twin == (0, 1, 0, 1)


@pytest.mark.parametrize("size", [1, 4, 8, 15])
def test_sixteen_different_gpus_are_searched_to_the_end(size: int) -> None:
    values = [(i * i * 7919 + i * 104_729) % 1009 for i in range(120)]
    assert search(problem(weights(matrix(16, values)), size)).exact


def test_a_search_that_gives_up_says_so_and_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "STEPS", 3)
    values = [(i * i * 7919 + i * 104_729) % 1009 for i in range(66)]
    found = search(problem(weights(matrix(12, values)), 6))
    assert not found.exact
    assert found.masks[0].bit_count() == 6


def test_more_than_sixteen_gpus_get_fewer_steps_so_that_the_time_stays_bounded() -> None:
    values = [(i * i * 7919 + i * 104_729) % 1009 for i in range(32 * 31 // 2)]
    found = search(problem(weights(matrix(32, values)), 16))
    assert not found.exact
    assert found.masks[0].bit_count() == 16


def test_many_gpus_that_are_alike_are_searched_to_the_end() -> None:
    found = search(problem(alike(64), 56))
    assert found.exact
    assert found.masks == ((1 << 56) - 1,)
