"""Placements say exactly which memory slices a partition takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.model.partition import Placement

PLACEMENTS = st.builds(Placement, start=st.integers(0, 8), length=st.integers(1, 8))


@given(PLACEMENTS, PLACEMENTS)
def test_two_placements_overlap_where_they_share_a_slice(one: Placement, other: Placement) -> None:
    slices = [set(range(place.start, place.start + place.length)) for place in (one, other)]
    assert one.overlaps(other) == bool(slices[0] & slices[1])
    assert one.overlaps(other) == other.overlaps(one)


@given(PLACEMENTS)
def test_a_placement_overlaps_itself_and_not_what_begins_where_it_ends(place: Placement) -> None:
    assert place.overlaps(place)
    assert not place.overlaps(Placement(start=place.start + place.length, length=1))


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, 0), (0, -1)])
def test_a_placement_of_nothing_or_before_the_first_slice_is_an_error(start: int, length: int) -> None:
    with pytest.raises(ValueError, match="no placement starts at"):
        Placement(start=start, length=length)


def test_placements_are_ordered_by_where_they_start() -> None:
    assert sorted([Placement(start=4, length=1), Placement(start=0, length=4)])[0].start == 0
