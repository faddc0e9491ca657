"""Placements say exactly which memory slices a partition takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.model.device import DeviceKind, PublishedDevice
from node_agent.model.gpu import GpuUuid, device_name
from node_agent.model.partition import Instance, Part, Partition, PartitionUuid, Piece, Place, Placement

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


HALF = Placement(start=0, length=4)
PARTS = st.one_of(
    st.builds(Part, profile=st.sampled_from(("3g.71gb", "4g.71gb")), placement=PLACEMENTS),
    st.builds(
        Part,
        profile=st.sampled_from(("1c.3g.71gb", "2c.3g.71gb", "1c.4g.71gb")),
        placement=st.sampled_from((HALF, Placement(start=4, length=4))),
        computes=st.tuples(st.integers(0, 2), st.integers(1, 2)),
    ),
)


@given(PARTS, PARTS)
def test_two_parts_overlap_unless_they_have_other_slices_or_divide_one_instance(one: Part, other: Part) -> None:
    instances = [(part.profile.removeprefix("1c.").removeprefix("2c."), part.placement) for part in (one, other)]
    apart = not one.placement.overlaps(other.placement)
    if one.computes and other.computes and instances[0] == instances[1]:
        apart = apart or not spans(one.computes) & spans(other.computes)
    assert one.overlaps(other) == (not apart)
    assert one.overlaps(other) == other.overlaps(one)


def spans(computes: tuple[int, int]) -> set[int]:
    start, count = computes
    return set(range(start, start + count))


def test_a_place_overlaps_its_gpu_as_a_whole_and_nothing_of_another() -> None:
    one, other = GpuUuid("GPU-1"), GpuUuid("GPU-2")
    part = Part(profile="3g.71gb", placement=HALF)
    assert Place(gpu=one, part=part).overlaps(Place(gpu=one))
    assert Place(gpu=one).overlaps(Place(gpu=one, part=part))
    assert not Place(gpu=one, part=part).overlaps(Place(gpu=other, part=part))
    assert not Place(gpu=one, part=part).overlaps(Place(gpu=one, part=Part(profile="1g.18gb", placement=LAST)))
    assert str(Place(gpu=one, part=part)) == "3g.71gb at 0 of GPU-1"


LAST = Placement(start=6, length=1)


@pytest.mark.parametrize(("size", "computes"), [(3, None), (2, (1, 2))])
def test_a_partition_is_the_part_that_it_takes(size: int, computes: tuple[int, int] | None) -> None:
    profile = "3g.71gb" if computes is None else "2c.3g.71gb"
    partition = Partition(
        uuid=PartitionUuid("MIG-1"),
        parent=GpuUuid("GPU-1"),
        profile=profile,
        placement=HALF,
        instance=1,
        compute_instance=0,
        slices=3,
        compute_slices=size,
        compute_start=0 if computes is None else 1,
    )
    assert partition.part == Part(profile=profile, placement=HALF, computes=computes)
    assert partition.place == Place(gpu=GpuUuid("GPU-1"), part=partition.part)


def test_a_mig_device_is_a_part_of_one_gpu_and_no_other_device_is_a_part() -> None:
    name, part = device_name("gpu-1-mig-3g-71gb-0"), Part(profile="3g.71gb", placement=HALF)
    one, two = (GpuUuid("GPU-1"),), (GpuUuid("GPU-1"), GpuUuid("GPU-2"))
    assert PublishedDevice(name=name, kind=DeviceKind.MIG, gpus=one, part=part).part == part
    for kind, gpus, wrong in ((DeviceKind.MIG, one, None), (DeviceKind.GPU, one, part), (DeviceKind.MIG, two, part)):
        with pytest.raises(ValueError, match="a MIG device is a part of one GPU"):
            PublishedDevice(name=name, kind=kind, gpus=gpus, part=wrong)
