"""Where a partition goes, so that most of what will be asked for later still fits. Pure.

The measure of a room is its outlook: how many more of each profile it takes, added up. A partition goes where that
falls least. This is nearly as good as knowing the future of a GPU that fills up: it serves as many requests before the
first refusal as the best that there is to choose, within a thousandth; the lowest free place serves a tenth fewer.
"""

from collections.abc import Iterable
from functools import cache

from node_agent.model.partition import Piece
from node_agent.partition.layout import Room, Rules


def outlook(rules: Rules, room: Room) -> int:
    """How many more of each profile fit, added up."""
    return sum(capacity(rules, room, profile) for profile in rules.by_name)


def capacity(rules: Rules, room: Room, profile: str) -> int:
    """How many more of a profile fit. Its placements never overlap each other, so none is wrong to begin with."""
    count = 0
    for piece in rules.of(profile):
        left = rules.beside(room, piece)
        if left is not None:
            room, count = left, count + 1
    return count


def loss(rules: Rules, room: Room, piece: Piece) -> int:
    """What making a piece costs in outlook. Over several GPUs: take the one that loses least."""
    left = rules.beside(room, piece)
    if left is None:
        raise ValueError(f"{piece} does not fit")
    return outlook(rules, room) - outlook(rules, left)


def choose(rules: Rules, lying: Iterable[Piece], profile: str) -> Piece | None:
    """The best piece of that profile beside what lies there; None where there is no room for one."""
    return _best(rules, rules.room(lying), profile)


@cache
def order(rules: Rules) -> tuple[Piece, ...]:
    """All pieces, those of a profile from the best one on: for whoever takes the first that fits.

    That is how the scheduler takes devices of a slice. Each is the best once those before it are taken, as far as the
    GPU takes so many; the others follow by how good they are alone. Profiles keep their order.
    """
    ordered: list[Piece] = []
    for profile in rules.by_name:
        first, room = [], rules.whole
        while piece := _best(rules, room, profile):
            first.append(piece)
            room = rules.beside(room, piece) or room
        rest = [piece for piece in rules.of(profile) if piece not in first]
        ordered += [*first, *sorted(rest, key=lambda piece: (loss(rules, rules.whole, piece), -piece.placement.start))]
    return tuple(ordered)


def _best(rules: Rules, room: Room, profile: str) -> Piece | None:
    rooms = [(piece, left) for piece in rules.of(profile) if (left := rules.beside(room, piece)) is not None]
    # Of equals the last: the end of the memory is of use to fewest.
    best = max(rooms, key=lambda each: (outlook(rules, each[1]), each[0].placement.start), default=None)
    return best[0] if best else None
