"""What fits on a GPU: the same as the driver allows, whatever has been made and removed before."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from node_agent.hardware.simulated.mig import GpuInstance, Mig
from node_agent.hardware.simulated.returns import NvmlReturn
from node_agent.model.partition import Piece, Placement
from node_agent.partition.layout import Rules, memory_slice, rules_of
from tests.unit.partition.boards import GRAPHICS, NODES, piece, pieces, rules, table

H200 = rules("h200-8")


def fit(board: Rules, *names: str) -> bool:
    """Whether some placement of these profiles is legal, by trying all of them."""
    rooms = {board.whole}
    for name in names:
        tried = (board.beside(room, one) for room in rooms for one in board.pieces if one.profile == name)
        rooms = {left for left in tried if left is not None}
    return bool(rooms)


@pytest.mark.parametrize(
    "names",
    [
        ["4g.71gb", "3g.71gb"],
        ["3g.71gb", "3g.71gb"],
        ["4g.71gb", "2g.35gb", "1g.18gb"],
        ["2g.35gb", "2g.35gb", "2g.35gb", "1g.18gb"],
        ["1g.18gb"] * 7,
        ["1g.35gb"] * 4,
        ["3g.71gb", "1g.35gb", "1g.35gb"],
        ["3g.71gb", "2g.35gb", "1g.18gb", "1g.18gb"],
        ["3g.71gb", *["1g.18gb"] * 4],
        ["1g.18gb+me", *["1g.18gb"] * 6],
        ["7g.141gb"],
    ],
)
def test_layouts_that_nvidia_documents_fit(names: list[str]) -> None:
    assert fit(H200, *names)


@pytest.mark.parametrize(
    "names",
    [
        ["4g.71gb", "4g.71gb"],
        ["3g.71gb", "3g.71gb", "1g.18gb"],
        ["7g.141gb", "1g.18gb"],
        ["1g.18gb+me", "1g.18gb+me"],
        ["1g.18gb+me", "7g.141gb"],
        ["2g.35gb"] * 4,
        ["1g.18gb"] * 8,
        ["4g.71gb", "3g.71gb", "1g.18gb"],
        ["1g.35gb"] * 5,
    ],
)
def test_layouts_that_do_not_fit_nowhere_do(names: list[str]) -> None:
    assert not fit(H200, *names)


def test_three_slices_beside_four_single_ones_must_lie_at_the_end() -> None:
    """No single one may start at the last memory slice."""
    ones = pieces(H200, "1g.18gb@0", "1g.18gb@1", "1g.18gb@2", "1g.18gb@3")
    assert H200.legal([piece(H200, "3g.71gb@4"), *ones])
    beside = [one for one in H200.pieces if one.profile == "1g.18gb" and H200.legal([piece(H200, "3g.71gb@0"), one])]
    assert [one.placement.start for one in beside] == [4, 5, 6]


@pytest.mark.parametrize("node", NODES)
def test_as_many_of_a_profile_fit_as_the_driver_says(node: str) -> None:
    board = rules(node)
    for profile in board.profiles:
        assert fit(board, *[profile.name] * profile.limit)
        assert not fit(board, *[profile.name] * (profile.limit + 1))


# Against the driver

Request = tuple[int, bool]


@pytest.mark.parametrize("node", NODES)
@given(requests=st.lists(st.tuples(st.integers(0, 63), st.booleans()), max_size=40))
def test_what_fits_is_what_the_driver_makes(node: str, requests: list[Request]) -> None:
    """Pieces are made and removed at random; at each step the driver and the rules must agree on everything else."""
    board, driver = rules(node), Mig(table=table(node), enabled=True, pending=True)
    lying: dict[Piece, int] = {}
    for number, remove in requests:
        one = board.pieces[number % len(board.pieces)]
        if remove and lying:
            gone = list(lying)[number % len(lying)]
            driver.destroy(driver.instances[lying.pop(gone)])
        elif made := attempt(driver, board, one):
            assert board.why_not(lying, one) is None
            lying[one] = made.id
        else:
            assert board.why_not(lying, one)
        check(board, driver, list(lying))


def attempt(driver: Mig, board: Rules, one: Piece) -> GpuInstance | None:
    try:
        return driver.create(board.by_name[one.profile].id, one.placement.start)
    except NvmlReturn as refused:
        assert refused.name == "INSUFFICIENT_RESOURCES"
        return None


def check(board: Rules, driver: Mig, lying: list[Piece]) -> None:
    room, fitting = board.room(lying), set(board.fitting(board.room(lying)))
    assert board.legal(lying)
    for one in board.pieces:
        free = one.placement.start in driver.free_starts(driver.profile(board.by_name[one.profile].id))
        allowed = free and driver.capacity(driver.profile(board.by_name[one.profile].id)) > 0
        assert (one in fitting) == allowed == (board.why_not(lying, one) is None) == board.legal([*lying, one])
        left = board.beside(room, one)
        assert left == (board.room([*lying, one]) if allowed else None)


def test_the_order_in_which_pieces_are_made_does_not_matter() -> None:
    made = pieces(H200, "3g.71gb@4", "2g.35gb@0", "1g.18gb@2", "1g.18gb+me@3")
    assert len({H200.room(order) for order in permutations(made)}) == 1
    assert all(H200.legal(order) for order in permutations(made))


# All layouts


@pytest.mark.parametrize("board", [*map(rules, NODES), GRAPHICS], ids=[*NODES, "graphics"])
def test_maximal_layouts_are_legal_and_take_nothing_more(board: Rules) -> None:
    found = list(board.maximal())
    assert len({frozenset(layout) for layout in found}) == len(found) > 0
    for layout in found:
        assert board.legal(layout)
        assert board.fitting(board.room(layout)) == ()


def test_of_the_first_five_profiles_there_are_the_nineteen_layouts_that_nvidia_counts() -> None:
    first = rules_of(tuple(one for one in rules("a100-40gb-8").profiles if one.id in (19, 14, 9, 5, 0)))
    assert len(list(first.maximal())) == 19


def test_every_legal_layout_is_part_of_a_maximal_one() -> None:
    board = rules("a30-2")
    found = [set(layout) for layout in board.maximal()]
    legal: list[tuple[Piece, ...]] = [()]
    for layout in legal:
        assert any(set(layout) <= whole for whole in found)
        legal += [(*layout, one) for one in board.pieces if one not in layout and board.legal((*layout, one))]


def test_maximal_layouts_go_around_what_lies_there() -> None:
    lying = pieces(H200, "3g.71gb@0", "1g.18gb@5")
    found = [{str(one) for one in layout} for layout in H200.maximal(lying)]
    assert {"1g.18gb at 4", "1g.35gb at 6"} in found
    assert all(H200.legal([*lying, *layout]) for layout in H200.maximal(lying))


# Strange boards


def test_an_instance_with_all_media_engines_leaves_only_those_without() -> None:
    everything = piece(GRAPHICS, "1g.24gb+me.all@0")
    assert {one.profile for one in GRAPHICS.fitting(GRAPHICS.room([everything]))} == {"1g.24gb-me"}
    assert not fit(GRAPHICS, "1g.24gb+me.all", "2g.48gb+me.all")
    assert fit(GRAPHICS, "2g.48gb", "1g.24gb+gfx", "1g.24gb-me")


def test_engines_that_do_not_add_up_are_shared_and_forbid_nothing() -> None:
    """Some drivers count a decoder for each small instance of an A100, which has five of them for seven."""
    small = [replace(one, decoders=1) if one.slices == 1 else one for one in rules("a100-40gb-8").profiles]
    board = rules_of(tuple(small))
    assert "decoders" not in board.totals
    assert fit(board, *["1g.5gb"] * 7)


def test_a_limit_below_what_there_would_be_room_for_is_kept() -> None:
    few = rules_of(tuple(replace(one, limit=2) if one.name == "1g.18gb" else one for one in H200.profiles))
    assert few.totals["most-1g-18gb"] == 2
    assert fit(few, "1g.18gb", "1g.18gb", "3g.71gb")
    assert not fit(few, *["1g.18gb"] * 3)
    assert "most 1g 18gb" in (few.why_not(pieces(few, "1g.18gb@0", "1g.18gb@1"), piece(few, "1g.18gb@6")) or "")


def test_a_live_piece_of_an_unknown_profile_keeps_its_slices() -> None:
    stranger = Piece(profile="profile 77", placement=Placement(start=2, length=2))
    assert H200.draws(stranger) == {memory_slice(2): 1, memory_slice(3): 1, "compute-slices": 2}
    fitting = H200.fitting(H200.room([stranger]))
    assert not any(one.placement.overlaps(stranger.placement) for one in fitting)
    assert piece(H200, "3g.71gb@4") in fitting
    assert not H200.legal([stranger])


def test_a_gpu_without_profiles_takes_nothing() -> None:
    nothing = rules_of(())
    assert nothing.pieces == nothing.fitting(nothing.whole) == ()
    assert (nothing.slices, nothing.memory_slices) == (0, 0)


# Why not


@pytest.mark.parametrize(
    ("lying", "wanted", "why"),
    [
        (["3g.71gb@0"], "1g.18gb@2", "there is 3g.71gb at 0"),
        (["3g.71gb@4", "1g.35gb@0", "3g.71gb@0"], "4g.71gb@0", "there is 1g.35gb at 0, 3g.71gb at 0"),
        (["4g.71gb@0", "2g.35gb@4", "1g.18gb@6"], "1g.18gb@5", "there is 2g.35gb at 4"),
        (["1g.18gb+me@0"], "1g.18gb+me@1", "0 of 1 ofa engines left; a 1g.18gb+me takes 1"),
        (["2g.35gb@0", "2g.35gb@2", "2g.35gb@4"], "1g.35gb@6", None),
        (["4g.71gb@0", "2g.35gb@4"], "1g.18gb@6", None),
    ],
)
def test_what_is_in_the_way_is_named(lying: list[str], wanted: str, why: str | None) -> None:
    assert H200.why_not(pieces(H200, *lying), piece(H200, wanted)) == why


def test_a_place_and_a_profile_that_the_gpu_does_not_have_are_named() -> None:
    nowhere = Piece(profile="3g.71gb", placement=Placement(start=2, length=4))
    assert H200.why_not((), nowhere) == "a 3g.71gb lies at 0, 4 only"
    stranger = Piece(profile="1g.10gb", placement=Placement(start=0, length=1))
    assert str(H200.why_not((), stranger)).startswith("the GPU has no profile 1g.10gb; it has 1g.18gb, ")


def test_compute_slices_run_out_while_memory_is_left() -> None:
    lying = pieces(H200, "4g.71gb@0", "1g.18gb@4", "1g.18gb@5", "1g.18gb@6")
    assert H200.fitting(H200.room(lying)) == ()
    board = rules_of(
        tuple(
            replace(one, placements=(*one.placements, Placement(start=7, length=1))) if one.name == "1g.18gb" else one
            for one in H200.profiles
        )
    )
    last = Piece(profile="1g.18gb", placement=Placement(start=7, length=1))
    assert (
        board.why_not(lying, last)
        == "0 of 7 compute slices left, 0 of 7 decoders left, 0 of 7 jpeg engines left; a 1g.18gb takes 1"
    )
