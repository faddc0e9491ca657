"""A partition goes where most of what is asked for later still fits: proved by trying everything, and counted.

``python -m tests.unit.partition.test_choose`` prints the figures.
"""

import random
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.model.partition import Piece
from node_agent.partition.choose import capacity, choose, loss, order, outlook
from node_agent.partition.layout import Room, Rules
from tests.unit.partition.boards import GRAPHICS, NODES, piece, pieces, rules

BOARDS = pytest.mark.parametrize("board", [*map(rules, NODES), GRAPHICS], ids=[*NODES, "graphics"])

Choice = Callable[[Rules, Room, str], Piece | None]
Served = tuple[float, float]


def options(board: Rules, room: Room, profile: str) -> list[Piece]:
    return [one for one in board.of(profile) if board.beside(room, one) is not None]


def first_fit(board: Rules, room: Room, profile: str) -> Piece | None:
    """The lowest free placement: what one takes who knows no better."""
    return min(options(board, room, profile), key=lambda one: one.placement.start, default=None)


def published(board: Rules, room: Room, profile: str) -> Piece | None:
    """The first that fits in the order in which devices are published: what Kubernetes' scheduler takes."""
    fitting = options(board, room, profile)
    return next((one for one in ordered(board) if one in fitting), None)


ordered = cache(order)


def least_loss(board: Rules, room: Room, profile: str) -> Piece | None:
    return min(
        options(board, room, profile), key=lambda one: (loss(board, room, one), -one.placement.start), default=None
    )


def served(board: Rules, pick: Choice) -> Served:
    """How many requests a GPU serves before it must refuse one, and how many compute slices those have.

    Each asks for any profile alike. Worked out exactly, over all sequences of requests that there are.
    """

    @cache
    def ahead(room: Room) -> Served:
        requests = slices = 0.0
        for profile in board.profiles:
            one = pick(board, room, profile.name)
            if one is not None and (left := board.beside(room, one)) is not None:
                more = ahead(left)
                requests, slices = requests + 1 + more[0], slices + profile.slices + more[1]
        return requests / len(board.profiles), slices / len(board.profiles)

    return ahead(board.whole)


def best(board: Rules) -> float:
    """The most requests that any way to choose can serve: every option is tried."""

    @cache
    def ahead(room: Room) -> float:
        total = 0.0
        for profile in board.by_name:
            lefts = (board.beside(room, one) for one in board.of(profile))
            total += max((1 + ahead(left) for left in lefts if left is not None), default=0.0)
        return total / len(board.profiles)

    return ahead(board.whole)


def coming_and_going(board: Rules, pick: Choice, load: float, rounds: int = 20_000) -> float:
    """The share of all compute slices asked for that is served, while each round brings a request and partitions end.

    ``load`` is how many rounds a partition lives on average; one that does not fit goes elsewhere.
    """
    source, lying = random.Random(1), list[Piece]()
    asked = given = 0
    for _ in range(rounds):
        lying = [one for one in lying if source.random() > 1 / load]
        profile = source.choice(board.profiles)
        asked += profile.slices
        if (one := pick(board, board.room(lying), profile.name)) is not None:
            lying.append(one)
            given += profile.slices
    return given / asked


def test_more_is_served_too_where_partitions_come_and_go() -> None:
    board = rules("h200-8")
    least, lowest = (coming_and_going(board, pick, load=3, rounds=4000) for pick in (published, first_fit))
    assert least > 1.04 * lowest


@BOARDS
def test_the_choice_serves_as_many_as_the_best_that_there_is(board: Rules) -> None:
    assert served(board, least_loss)[0] >= 0.99 * best(board)


@BOARDS
def test_so_does_the_scheduler_by_the_order_in_which_devices_are_published(board: Rules) -> None:
    assert served(board, published)[0] >= 0.99 * best(board)


@pytest.mark.parametrize("node", [node for node in NODES if node != "a30-2"])
def test_first_fit_serves_a_tenth_fewer(node: str) -> None:
    board = rules(node)
    assert served(board, first_fit)[0] < 0.92 * served(board, least_loss)[0]


@BOARDS
@given(wishes=st.lists(st.integers(0, 9), max_size=8), asked=st.integers(0, 9))
def test_a_piece_is_chosen_exactly_where_one_fits(board: Rules, wishes: list[int], asked: int) -> None:
    names, lying = list(board.by_name), list[Piece]()
    for wish in wishes:
        if one := choose(board, lying, names[wish % len(names)]):
            assert one.profile == names[wish % len(names)]
            lying.append(one)
    assert board.legal(lying)
    room, profile = board.room(lying), names[asked % len(names)]
    chosen = choose(board, lying, profile)
    assert chosen == least_loss(board, room, profile)


def test_a_profile_that_the_gpu_does_not_have_is_placed_nowhere() -> None:
    assert choose(rules(), (), "1g.10gb") is None


def test_what_does_not_fit_has_no_loss() -> None:
    board = rules()
    with pytest.raises(ValueError, match=r"3g\.71gb at 0 does not fit"):
        loss(board, board.room(pieces(board, "4g.71gb@0")), piece(board, "3g.71gb@0"))


def test_small_ones_keep_together_at_the_end_and_leave_the_largest_room() -> None:
    board, lying = rules(), list[Piece]()
    for _ in range(3):
        one = choose(board, lying, "1g.18gb")
        assert one is not None
        lying.append(one)
    assert sorted(one.placement.start for one in lying) == [4, 5, 6]
    assert choose(board, lying, "4g.71gb") == piece(board, "4g.71gb@0")


@BOARDS
@given(data=st.data())
def test_the_capacity_is_how_many_more_can_be_made_whichever_comes_first(board: Rules, data: st.DataObject) -> None:
    lying = list[Piece]()
    for wish in data.draw(st.lists(st.sampled_from(board.pieces), max_size=5)):
        if board.legal([*lying, wish]):
            lying.append(wish)
    profile = data.draw(st.sampled_from(sorted(board.by_name)))
    left = capacity(board, board.room(lying), profile)
    made = 0
    for one in data.draw(st.permutations(board.of(profile))):
        if board.legal([*lying, one]):
            lying, made = [*lying, one], made + 1
    assert made == left


def test_a_full_gpu_has_no_outlook() -> None:
    board = rules()
    assert outlook(board, board.room(pieces(board, "7g.141gb@0"))) == 0
    assert 0 < outlook(board, board.room(pieces(board, "4g.71gb@0"))) < outlook(board, board.whole)


@BOARDS
def test_the_order_has_every_piece_once_and_fills_the_gpu_with_each_profile(board: Rules) -> None:
    pieces = order(board)
    assert sorted(pieces, key=str) == sorted(board.pieces, key=str)
    assert [one.profile for one in pieces] == [one.profile for one in board.pieces]
    for profile in board.profiles:
        mine = [one for one in pieces if one.profile == profile.name]
        assert board.legal(mine[: profile.limit])


def main() -> None:
    print("                 requests before the first refusal                 compute slices given out")
    print("                 best  least loss  as published  first fit         least loss  as published  first fit")
    for node in NODES:
        board = rules(node)
        (a, x), (b, y), (c, z) = (served(board, pick) for pick in (least_loss, published, first_fit))
        most = best(board)
        print(f"{node:14} {most:6.3f} {a:11.3f} {b:13.3f} {c:10.3f} {x:18.3f} {y:13.3f} {z:10.3f}")
    for node, load in (("h200-8", 2), ("h200-8", 3), ("h200-8", 6), ("a30-2", 3)):
        shares = [coming_and_going(rules(node), pick, load) for pick in (least_loss, published, first_fit)]
        print(f"{node}, slices served of those asked for, living {load} rounds:", *(f"{share:.3f}" for share in shares))


if __name__ == "__main__":
    main()
