"""Placements say exactly which memory slices a partition takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.model.gpu import GpuUuid
from node_agent.model.partition import Instance, Partition, PartitionUuid, Piece, Placement

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


def test_a_piece_says_where_it_lies_and_how_it_is_divided() -> None:
    place = Placement(start=4, length=4)
    assert str(Piece(profile="3g.71gb", placement=place)) == "3g.71gb at 4"
    assert str(Piece(profile="3g.71gb", placement=place, computes=(2, 1))) == "3g.71gb at 4 (2c + 1c)"
    assert str(Piece(profile="3g.71gb", placement=place, computes=())) == "3g.71gb at 4 (half made)"
    assert str(place) == "4:4"


def test_the_parts_of_a_piece_are_listed_largest_first_so_that_equal_pieces_are_equal() -> None:
    with pytest.raises(ValueError, match="largest first"):
        Piece(profile="3g.71gb", placement=Placement(start=4, length=4), computes=(1, 2))


@pytest.mark.parametrize(
    ("sizes", "computes"), [((3,), None), ((), ()), ((1, 2), (2, 1)), ((1, 1, 1), (1, 1, 1)), ((2,), (2,))]
)
def test_an_instance_is_the_piece_that_its_partitions_make_it(
    sizes: tuple[int, ...], computes: tuple[int, ...] | None
) -> None:
    place, gpu = Placement(start=4, length=4), GpuUuid("GPU-1")
    partitions = tuple(
        Partition(
            uuid=PartitionUuid(f"MIG-{number}"),
            parent=gpu,
            profile="3g.71gb",
            placement=place,
            instance=1,
            compute_instance=number,
            slices=3,
            compute_slices=size,
        )
        for number, size in enumerate(sizes)
    )
    instance = Instance(gpu=gpu, id=1, profile="3g.71gb", placement=place, slices=3, partitions=partitions)
    assert instance.piece == Piece(profile="3g.71gb", placement=place, computes=computes)
