"""A wanted set of partitions gets the places that disturb least, or is refused with the reason."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.errors import LayoutRefused
from node_agent.model.partition import Piece
from node_agent.partition.choose import outlook
from node_agent.partition.layout import Rules
from node_agent.partition.static import Shape, layout_for, shapes_of
from tests.unit.partition.boards import GRAPHICS, NODES, piece, pieces, rules

H200 = rules("h200-8")


def divided(one: Piece, *computes: int) -> Piece:
    return Piece(profile=one.profile, placement=one.placement, computes=computes)


def layouts_of(board: Rules, counts: Counter[str]) -> Iterator[tuple[Piece, ...]]:
    """Every legal layout with so many of each profile, by trying all sets of pieces."""
    candidates = [one for one in board.pieces if counts[one.profile]]
    for chosen in combinations(candidates, counts.total()):
        if Counter(one.profile for one in chosen) == counts and board.legal(chosen):
            yield chosen


@st.composite
def lying_pieces(draw: st.DrawFn, board: Rules, most: int = 4) -> tuple[Piece, ...]:
    lying: list[Piece] = []
    for one in draw(st.lists(st.sampled_from(board.pieces), max_size=2 * most)):
        if len(lying) < most and board.legal([*lying, one]):
            lying.append(one)
    return tuple(lying)


@pytest.mark.parametrize("board", [rules("h200-8"), rules("a30-2"), GRAPHICS], ids=["h200", "a30", "graphics"])
@settings(max_examples=80)
@given(data=st.data())
def test_the_layout_is_the_best_of_all_there_are(board: Rules, data: st.DataObject) -> None:
    """Nothing else keeps more of what is in use, then more of what lies there, then a better outlook."""
    lying = data.draw(lying_pieces(board))
    in_use = frozenset(data.draw(st.lists(st.sampled_from(lying)) if lying else st.just([])))
    counts = Counter(data.draw(st.lists(st.sampled_from(sorted(board.by_name)), max_size=4)))

    def worth(layout: tuple[Piece, ...]) -> tuple[int, int, int]:
        kept = set(layout) & set(lying)
        return len(kept & in_use), len(kept), outlook(board, board.room(layout))

    every = list(layouts_of(board, counts))
    try:
        found = layout_for(board, counts, lying, in_use)
    except LayoutRefused:
        assert not every
    else:
        assert set(found) in map(set, every)
        assert worth(found) == max(map(worth, every))


@pytest.mark.parametrize("node", NODES)
def test_as_many_of_a_profile_as_fit_are_placed_and_one_more_is_refused(node: str) -> None:
    board = rules(node)
    for profile in board.profiles:
        layout = layout_for(board, {profile.name: profile.limit})
        assert board.legal(layout)
        assert len(layout) == profile.limit
        with pytest.raises(LayoutRefused, match=f"a GPU takes {profile.limit} at most"):
            layout_for(board, {profile.name: profile.limit + 1})


@pytest.mark.parametrize(
    ("counts", "layout"),
    [
        ({"3g.71gb": 1, "1g.18gb": 4}, "1g.18gb@0 1g.18gb@1 1g.18gb@2 1g.18gb@3 3g.71gb@4"),
        ({"1g.18gb": 2, "2g.35gb": 1, "3g.71gb": 1}, "2g.35gb@0 1g.18gb@2 1g.18gb@3 3g.71gb@4"),
        ({"4g.71gb": 1, "3g.71gb": 1}, "4g.71gb@0 3g.71gb@4"),
        ({"3g.71gb": 1, "1g.35gb": 2}, "3g.71gb@0 1g.35gb@4 1g.35gb@6"),
        ({}, ""),
    ],
)
def test_pieces_are_placed_whatever_the_order_of_the_counts(counts: dict[str, int], layout: str) -> None:
    assert layout_for(H200, counts) == pieces(H200, *layout.split())
    assert layout_for(H200, dict(reversed(counts.items()))) == pieces(H200, *layout.split())


def test_what_lies_there_stays_where_it_is() -> None:
    lying = pieces(H200, "1g.18gb@1", "3g.71gb@4")
    layout = layout_for(H200, {"3g.71gb": 1, "1g.18gb": 1, "2g.35gb": 1}, lying)
    assert set(lying) < set(layout)


def test_one_that_is_in_use_stays_before_two_that_are_not() -> None:
    lying = pieces(H200, "1g.18gb@0", "1g.18gb@1", "2g.35gb@2")
    used = frozenset(pieces(H200, "2g.35gb@2"))
    layout = layout_for(H200, {"2g.35gb": 1, "3g.71gb": 1}, lying, used)
    assert used < set(layout)


# Parts of instances


@pytest.mark.parametrize(
    ("counts", "shapes"),
    [
        ({"1c.3g.71gb": 3}, [("3g.71gb", (1, 1, 1))]),
        ({"1c.3g.71gb": 4}, [("3g.71gb", (1, 1, 1)), ("3g.71gb", (1,))]),
        ({"2c.3g.71gb": 1, "1c.3g.71gb": 1}, [("3g.71gb", (2, 1))]),
        ({"2c.3g.71gb": 2}, [("3g.71gb", (2,)), ("3g.71gb", (2,))]),
        ({"2c.4g.71gb": 2}, [("4g.71gb", (2, 2))]),
        ({"4c.7g.141gb": 1, "3c.7g.141gb": 1}, [("7g.141gb", (4, 3))]),
        ({"3c.7g.141gb": 2, "1c.7g.141gb": 1}, [("7g.141gb", (3, 3, 1))]),
        ({"2c.7g.141gb": 3, "1c.7g.141gb": 1}, [("7g.141gb", (2, 2, 2, 1))]),
        ({"3c.3g.71gb": 1}, [("3g.71gb", None)]),
        ({"3g.71gb": 1, "1c.3g.71gb": 1}, [("3g.71gb", (1,)), ("3g.71gb", None)]),
        ({"7c.7g.141gb": 1}, [("7g.141gb", None)]),
    ],
)
def test_parts_share_as_few_instances_as_they_can(
    counts: dict[str, int], shapes: list[tuple[str, tuple[int, ...] | None]]
) -> None:
    found = sorted(shapes_of(H200, counts), key=str)
    assert found == sorted((Shape(profile=name, computes=computes) for name, computes in shapes), key=str)


def test_an_instance_that_is_divided_as_wanted_stays_and_another_does_not() -> None:
    half = piece(H200, "3g.71gb@0")
    lying = (divided(half, 1, 1, 1), piece(H200, "3g.71gb@4"))
    assert layout_for(H200, {"1c.3g.71gb": 3}, lying) == lying[:1]
    assert layout_for(H200, {"2c.3g.71gb": 1, "3g.71gb": 1}, lying) == (divided(half, 2), lying[1])


# Refusals


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ({"1g.10gb": 1}, r"the GPU has no profile 1g\.10gb; it has 1g\.18gb, "),
        ({"1c.3g.40gb": 1}, r"the GPU has no profile 3g\.40gb; it has "),
        ({"big": 1}, "'big' is no MIG profile"),
        ({"5c.7g.141gb": 1}, r"no compute instance has 5 of the 7 slices of a 7g\.141gb"),
        ({"4c.3g.71gb": 1}, r"no compute instance has 4 of the 3 slices of a 3g\.71gb"),
        ({"1g.18gb": 8}, r"8 × 1g\.18gb: a GPU takes 7 at most"),
        ({"4g.71gb": 1, "2g.35gb": 2}, r"1 × 4g\.71gb, 2 × 2g\.35gb take 8 compute slices, and the GPU has 7"),
        ({"3g.71gb": 2, "1g.18gb": 1}, "do not fit together, wherever they are placed"),
        ({"1g.18gb+me": 1, "7g.141gb": 1}, "take 8 compute slices"),
        ({"1c.4g.71gb": 5}, "take 8 compute slices"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(counts: dict[str, int], reason: str) -> None:
    with pytest.raises(LayoutRefused, match=reason):
        layout_for(H200, counts)
