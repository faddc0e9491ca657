"""The rules of MIG: what fits where, in which order, under which ids, and what can be removed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.hardware.simulated import load_profile
from node_agent.hardware.simulated.mig import ComputeInstance, GpuInstance, Mig
from node_agent.hardware.simulated.profile import MigTable
from node_agent.hardware.simulated.returns import NvmlReturn


def table(board: str) -> MigTable:
    profile = {"h200-sxm": "h200-8", "a100-sxm4-40gb": "a100-40gb-8", "a30": "a30-2"}[board]
    found = load_profile(profile).boards[board].mig
    assert found is not None
    return found


H200, A100, A30 = table("h200-sxm"), table("a100-sxm4-40gb"), table("a30")

# Ids of the profiles on boards with seven slices, and on the A30.
ONE, ONE_ME, ONE_WIDE, TWO, THREE, FOUR, SEVEN = 19, 20, 15, 14, 9, 5, 0
A30_ONE, A30_ONE_ME, A30_TWO, A30_TWO_ME, A30_FOUR = 14, 21, 5, 6, 0


def cut(board: MigTable = H200) -> Mig:
    return Mig(table=board, enabled=True, pending=True)


def make(mig: Mig, *profile_ids: int) -> list[GpuInstance]:
    return [mig.create(profile_id) for profile_id in profile_ids]


def refusal(action: object, *arguments: object) -> str:
    assert callable(action)
    with pytest.raises(NvmlReturn) as refused:
        action(*arguments)
    return refused.value.name


# What fits together


@pytest.mark.parametrize(
    "profile_ids",
    [
        (FOUR, THREE),
        (FOUR, TWO, ONE),
        (THREE, THREE),
        (TWO, TWO, TWO, ONE),
        (ONE,) * 7,
        (ONE_WIDE,) * 4,
        (THREE, ONE_WIDE, ONE_WIDE),
        (THREE, TWO, ONE, ONE),
        (THREE, ONE, ONE, ONE, ONE),
        (SEVEN,),
        (ONE_ME, *(ONE,) * 6),
        (FOUR, ONE_ME, TWO),
        (FOUR, ONE_WIDE, ONE, ONE),
    ],
)
def test_layouts_that_fit_can_be_made_largest_first(profile_ids: tuple[int, ...]) -> None:
    mig = cut()
    assert len(make(mig, *profile_ids)) == len(mig.instances) == len(profile_ids)


@pytest.mark.parametrize(
    ("made", "refused"),
    [
        ((FOUR,), FOUR),
        ((THREE, THREE), ONE),
        ((THREE, THREE), THREE),
        ((SEVEN,), ONE),
        ((ONE,), SEVEN),
        ((FOUR, THREE), ONE),
        ((TWO, TWO, TWO), TWO),
        ((ONE,) * 7, ONE),
        ((ONE_WIDE,) * 4, ONE),
        ((ONE_ME,), ONE_ME),
        ((FOUR, TWO, ONE), ONE),
    ],
)
def test_layouts_that_do_not_fit_are_refused(made: tuple[int, ...], refused: int) -> None:
    mig = cut()
    make(mig, *made)
    before = dict(mig.instances)
    assert refusal(mig.create, refused) == "INSUFFICIENT_RESOURCES"
    assert mig.instances == before


@pytest.mark.parametrize(
    ("made", "refused"),
    [
        ((A30_FOUR,), A30_ONE),
        ((A30_TWO, A30_TWO), A30_ONE),
        ((A30_ONE_ME,), A30_TWO_ME),
        ((A30_TWO_ME,), A30_ONE_ME),
        ((A30_ONE_ME,), A30_FOUR),
    ],
)
def test_an_a30_has_four_slices_and_one_set_of_media_engines(made: tuple[int, ...], refused: int) -> None:
    mig = cut(A30)
    make(mig, *made)
    assert refusal(mig.create, refused) == "INSUFFICIENT_RESOURCES"


@pytest.mark.parametrize(
    "profile_ids", [(A30_ONE,) * 4, (A30_TWO, A30_ONE, A30_ONE), (A30_TWO_ME, A30_TWO), (A30_FOUR,)]
)
def test_layouts_that_fit_on_an_a30(profile_ids: tuple[int, ...]) -> None:
    assert len(make(cut(A30), *profile_ids)) == len(profile_ids)


def test_small_ones_first_can_leave_no_room_for_a_large_one() -> None:
    mig = cut()
    make(mig, ONE, ONE, ONE, ONE)
    assert refusal(mig.create, THREE) == "INSUFFICIENT_RESOURCES"


def test_the_last_memory_slice_is_for_wide_instances_only() -> None:
    mig = cut()
    make(mig, *(ONE,) * 7)
    starts = sorted(instance.start for instance in mig.instances.values())
    assert starts == [0, 1, 2, 3, 4, 5, 6]
    assert cut().create(ONE_WIDE, 6).start == 6


# Where the driver puts them


@pytest.mark.parametrize(
    ("profile_ids", "placed"),
    [
        ((ONE,) * 7, [(13, 6), (11, 4), (12, 5), (7, 0), (8, 1), (9, 2), (10, 3)]),
        ((ONE, TWO, FOUR), [(13, 6), (5, 4), (1, 0)]),
        ((FOUR, THREE), [(1, 0), (2, 4)]),
        ((THREE, THREE), [(1, 4), (2, 0)]),
        ((THREE, TWO, ONE, ONE), [(1, 4), (3, 0), (9, 2), (10, 3)]),
        ((TWO, TWO, TWO), [(5, 4), (3, 0), (4, 2)]),
        ((SEVEN,), [(0, 0)]),
    ],
)
def test_the_driver_keeps_the_largest_room_free(profile_ids: tuple[int, ...], placed: list[tuple[int, int]]) -> None:
    assert [(instance.id, instance.start) for instance in make(cut(), *profile_ids)] == placed


@pytest.mark.parametrize(
    ("profile_id", "starts", "first_id"),
    [(ONE, range(7), 7), (TWO, (0, 2, 4), 3), (ONE_WIDE, (0, 2, 4, 6), 3)],
)
def test_ids_of_quarters_and_eighths_follow_the_start(profile_id: int, starts: range, first_id: int) -> None:
    size = cut().profile(profile_id).size
    assert [cut().create(profile_id, start).id for start in starts] == [first_id + start // size for start in starts]


def test_ids_of_halves_do_not_follow_the_start() -> None:
    mig = cut()
    assert (mig.create(THREE, 4).id, mig.create(THREE, 0).id) == (1, 2)


def test_ids_are_used_again() -> None:
    mig = cut()
    first, _ = make(mig, THREE, THREE)
    mig.destroy(first)
    assert mig.create(THREE).id == first.id


def test_ids_on_an_a30_are_halves_and_quarters() -> None:
    assert [instance.id for instance in make(cut(A30), A30_TWO, A30_TWO)] == [1, 2]
    assert sorted(instance.id for instance in make(cut(A30), *(A30_ONE,) * 4)) == [3, 4, 5, 6]
    assert cut(A30).create(A30_FOUR).id == 0


# Explicit placements


def test_a_placement_is_taken_as_given() -> None:
    mig = cut()
    assert [mig.create(ONE, start).start for start in (3, 0, 5)] == [3, 0, 5]


@pytest.mark.parametrize(("profile_id", "start"), [(ONE, 7), (TWO, 1), (TWO, 6), (THREE, 2), (FOUR, 4), (SEVEN, 1)])
def test_a_start_that_the_profile_does_not_have_is_invalid(profile_id: int, start: int) -> None:
    assert refusal(cut().create, profile_id, start) == "INVALID_ARGUMENT"


def test_a_taken_placement_is_refused() -> None:
    mig = cut()
    mig.create(TWO, 2)
    for profile_id, start in ((ONE, 2), (ONE, 3), (TWO, 2), (THREE, 0), (ONE_WIDE, 2)):
        assert refusal(mig.create, profile_id, start) == "INSUFFICIENT_RESOURCES"
    assert mig.create(ONE, 4).start == 4


@pytest.mark.parametrize("profile_id", [1, 99, -1])
def test_an_unknown_profile_id_is_invalid(profile_id: int) -> None:
    mig = cut()
    assert refusal(mig.create, profile_id) == "INVALID_ARGUMENT"
    assert refusal(mig.profile, profile_id) == "INVALID_ARGUMENT"


# How many more


@pytest.mark.parametrize(
    ("profile_id", "count"), [(ONE, 7), (ONE_ME, 1), (ONE_WIDE, 4), (TWO, 3), (THREE, 2), (FOUR, 1), (SEVEN, 1)]
)
def test_an_empty_gpu_takes_as_many_as_the_profile_says(profile_id: int, count: int) -> None:
    mig = cut()
    assert mig.capacity(mig.profile(profile_id)) == count == mig.profile(profile_id).count


@pytest.mark.parametrize(
    ("profile_id", "left"), [(ONE, 4), (ONE_ME, 1), (ONE_WIDE, 2), (TWO, 2), (THREE, 1), (FOUR, 1), (SEVEN, 0)]
)
def test_beside_a_half_there_is_room_for_the_other(profile_id: int, left: int) -> None:
    mig = cut()
    mig.create(THREE, 4)
    assert mig.capacity(mig.profile(profile_id)) == left


def test_room_comes_back_with_what_is_destroyed() -> None:
    mig = cut()
    instances = make(mig, FOUR, THREE)
    for instance in instances:
        mig.destroy(instance)
    assert mig.capacity(mig.profile(SEVEN)) == 1


# Compute instances


@pytest.mark.parametrize(
    ("profile_id", "shapes"),
    [
        (ONE, {"1g.18gb": (1, 16)}),
        (TWO, {"1c.2g.35gb": (2, 16), "2g.35gb": (1, 32)}),
        (THREE, {"1c.3g.71gb": (3, 20), "2c.3g.71gb": (1, 40), "3g.71gb": (1, 60)}),
        (FOUR, {"1c.4g.71gb": (4, 16), "2c.4g.71gb": (2, 32), "4g.71gb": (1, 64)}),
        (
            SEVEN,
            {
                "1c.7g.141gb": (7, 18),
                "2c.7g.141gb": (3, 37),
                "3c.7g.141gb": (2, 56),
                "4c.7g.141gb": (1, 75),
                "7g.141gb": (1, 132),
            },
        ),
    ],
)
def test_how_an_instance_can_be_divided(profile_id: int, shapes: dict[str, tuple[int, int]]) -> None:
    profiles = cut().create(profile_id).compute_profiles()
    assert {profile.name: (profile.count, profile.sms) for profile in profiles} == shapes


def test_compute_instances_count_from_zero_and_fill_the_slots_of_the_gpu() -> None:
    mig = cut()
    three, two = make(mig, THREE, TWO)
    made = [mig.create_compute(three, 0), mig.create_compute(three, 0), mig.create_compute(two, 1)]
    assert [(compute.id, compute.start, compute.slot) for compute in made] == [(0, 0, 0), (1, 1, 1), (0, 0, 2)]


def test_a_slot_that_became_free_is_used_again() -> None:
    mig = cut()
    instances = make(mig, ONE, ONE, ONE)
    computes = [mig.create_compute(instance, 0) for instance in instances]
    mig.destroy_compute(instances[1], computes[1])
    assert [compute.slot for _, compute in mig.devices()] == [0, 2]
    assert mig.create_compute(instances[1], 0).slot == 1


def test_compute_slices_of_an_instance_run_out() -> None:
    mig = cut()
    (three,) = make(mig, THREE)
    mig.create_compute(three, 1)
    assert refusal(mig.create_compute, three, 1) == "INSUFFICIENT_RESOURCES"
    assert mig.create_compute(three, 0).start == 2
    assert refusal(mig.create_compute, three, 0) == "INSUFFICIENT_RESOURCES"


def test_a_compute_instance_can_be_placed() -> None:
    mig = cut()
    (seven,) = make(mig, SEVEN)
    assert mig.create_compute(seven, 2, 4).start == 4
    assert refusal(mig.create_compute, seven, 2, 3) == "INVALID_ARGUMENT"
    assert refusal(mig.create_compute, seven, 2, 4) == "INSUFFICIENT_RESOURCES"


@pytest.mark.parametrize(("profile_id", "code"), [(4, "NOT_SUPPORTED"), (3, "NOT_SUPPORTED"), (42, "INVALID_ARGUMENT")])
def test_a_compute_profile_must_be_one_of_the_instances(profile_id: int, code: str) -> None:
    mig = cut()
    (three,) = make(mig, THREE)
    assert refusal(mig.create_compute, three, profile_id) == code


def test_an_instance_with_compute_instances_is_in_use() -> None:
    mig = cut()
    (one,) = make(mig, ONE)
    compute = mig.create_compute(one, 0)
    assert refusal(mig.destroy, one) == "IN_USE"
    mig.destroy_compute(one, compute)
    mig.destroy(one)
    assert mig.instances == {}


def test_switching_the_mode_removes_everything() -> None:
    mig = cut()
    make(mig, ONE, TWO)
    mig.set_mode(False)
    assert (mig.enabled, mig.pending, mig.instances) == (False, False, {})


# Whatever is done, the slices add up

BOARDS = st.sampled_from([H200, A100, A30])


@st.composite
def histories(draw: st.DrawFn) -> tuple[MigTable, list[tuple[int, int | None]]]:
    """A board, and requests for it: a profile, and a start or the driver's choice; a negative profile destroys one."""
    board = draw(BOARDS)
    ids = st.sampled_from([profile.id for profile in board.profiles] + [-1])
    starts = st.one_of(st.none(), st.integers(0, board.memory_slices))
    return board, draw(st.lists(st.tuples(ids, starts), max_size=24))


@given(histories())
def test_instances_never_overlap_nor_exceed_the_gpu(history: tuple[MigTable, list[tuple[int, int | None]]]) -> None:
    board, requests = history
    mig = cut(board)
    for profile_id, start in requests:
        try:
            if profile_id >= 0:
                mig.create(profile_id, start)
            elif mig.instances:
                mig.destroy(next(iter(mig.instances.values())))
        except NvmlReturn:
            pass
        check(mig)


def check(mig: Mig) -> None:
    instances = list(mig.instances.values())
    taken = [s for instance in instances for s in range(instance.start, instance.start + instance.profile.size)]
    assert len(taken) == len(set(taken))
    assert all(0 <= s < mig.table.memory_slices for s in taken)
    assert sum(instance.profile.slices for instance in instances) <= mig.table.slices
    assert sum("+me" in instance.profile.name for instance in instances) <= 1
    assert all(number == instance.id for number, instance in mig.instances.items())
    for profile in mig.table.profiles:
        assert (mig.capacity(profile) > 0) == can_be_made(mig, profile.id)


def can_be_made(mig: Mig, profile_id: int) -> bool:
    copy = Mig(table=mig.table, enabled=True, instances=dict(mig.instances))
    try:
        copy.create(profile_id)
    except NvmlReturn:
        return False
    return True


@given(st.lists(st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(0, 6))), max_size=12))
def test_compute_instances_never_overlap(requests: list[tuple[int, int | None]]) -> None:
    mig = cut()
    seven = mig.create(SEVEN)
    made: list[ComputeInstance] = []
    for profile_id, start in requests:
        try:
            made.append(mig.create_compute(seven, profile_id, start))
        except NvmlReturn:
            continue
    taken = [s for compute in made for s in range(compute.start, compute.start + compute.profile.slices)]
    assert len(taken) == len(set(taken)) <= 7
    assert len({compute.slot for compute in made}) == len({compute.id for compute in made}) == len(made)
