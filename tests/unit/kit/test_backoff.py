"""Pauses between tries grow to a limit and never end."""

from itertools import islice, pairwise

from hypothesis import given
from hypothesis import strategies as st

from node_agent.kit.backoff import pauses, spread

SECONDS = st.floats(min_value=0.001, max_value=1e6)


def test_pauses_double_up_to_half_a_minute() -> None:
    assert list(islice(pauses(), 8)) == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_a_first_pause_above_the_longest_is_cut_too() -> None:
    assert list(islice(pauses(first=60.0, longest=10.0), 2)) == [10.0, 10.0]


@given(first=SECONDS, factor=st.floats(min_value=1.0, max_value=1e3), longest=SECONDS)
def test_pauses_never_shrink_nor_exceed_the_longest(first: float, factor: float, longest: float) -> None:
    some = list(islice(pauses(first, factor, longest), 50))
    assert all(earlier <= later for earlier, later in pairwise(some))
    assert max(some) <= longest


@given(SECONDS)
def test_what_is_spread_is_shorter_by_half_at_most(seconds: float) -> None:
    assert seconds / 2 <= spread(seconds) <= seconds


def test_pauses_of_many_nodes_are_spread_evenly() -> None:
    found = [spread(1.0) for _ in range(10_000)]
    most = max(sum(start <= pause < start + 0.05 for pause in found) for start in (0.5 + i * 0.05 for i in range(10)))
    assert most < 1_300, "a tenth of the nodes is to be expected in each tenth of the time"
