"""What a wanted set of partitions comes to on one GPU: which pieces, and where. Pure.

What lies there already is kept as far as it can be, what is in use before all else; among the ways that are equal in
this, the one with the best outlook for what is left. The search is exact, and small: a GPU takes seven instances.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache

from msgspec import Struct

from node_agent.errors import LayoutRefused
from node_agent.model.partition import Piece
from node_agent.partition.choose import outlook
from node_agent.partition.layout import Room, Rules
from node_agent.partition.names import profile_name

# Where a compute instance of a size may start in its GPU instance: multiples of these.
_STRIDES = {1: 1, 2: 2, 3: 4, 4: 4}

Worth = tuple[int, int, int]
"""How many pieces in use are kept, how many at all, and the outlook for what is left."""


class Shape(Struct, frozen=True, kw_only=True):
    """A GPU instance without its place: the profile, and the sizes of its compute instances as in ``Piece``."""

    profile: str
    computes: tuple[int, ...] | None = None


def layout_for(
    rules: Rules, counts: Mapping[str, int], lying: Collection[Piece] = (), in_use: Collection[Piece] = ()
) -> tuple[Piece, ...]:
    """The pieces that make so many of each profile, in the order of their placements.

    Profiles may be parts of instances, such as ``1c.3g.71gb``: as many as fit share one. Raises LayoutRefused where the
    GPU does not have a profile, or has no room for all.
    """
    shapes = tuple(sorted(shapes_of(rules, counts), key=lambda shape: (-_length(rules, shape), str(shape))))
    worth = {piece: (int(piece in in_use), 1, 0) for piece in lying}

    @cache
    def best(number: int, room: Room, after: int) -> tuple[Worth, tuple[Piece, ...]] | None:
        if number == len(shapes):
            return (0, 0, outlook(rules, room)), ()
        found = None
        for position, place in enumerate(rules.of(shapes[number].profile)):
            left = rules.beside(room, place) if position >= after else None
            if left is None:
                continue
            # Equal shapes take their places in order: the same set is looked at once.
            same = number + 1 < len(shapes) and shapes[number + 1] == shapes[number]
            rest = best(number + 1, left, position + 1 if same else 0)
            piece = Piece(profile=place.profile, placement=place.placement, computes=shapes[number].computes)
            if rest and (found is None or _sum(rest[0], worth.get(piece)) > found[0]):
                found = _sum(rest[0], worth.get(piece)), (piece, *rest[1])
        return found

    placed = best(0, rules.whole, 0)
    if placed is None:
        raise LayoutRefused(_why_refused(rules, counts, shapes))
    return tuple(sorted(placed[1], key=lambda piece: piece.placement))


def shapes_of(rules: Rules, counts: Mapping[str, int]) -> Iterator[Shape]:
    """The GPU instances that hold so many of each profile. Raises LayoutRefused where one is none of the GPU's."""
    parts: dict[str, list[int]] = {}
    for name, count in counts.items():
        part = _known(rules, name)
        if part is None:
            yield from [Shape(profile=name)] * count
        else:
            parts.setdefault(profile_name(name).whole, []).extend([part] * count)
    for profile, sizes in parts.items():
        slices = rules.by_name[profile].slices
        for computes in _shared(slices, sizes):
            yield Shape(profile=profile, computes=None if computes == (slices,) else computes)


def _known(rules: Rules, name: str) -> int | None:
    """The compute slices of a profile that is a part of an instance, None for a whole one."""
    if name in rules.by_name:
        return None
    try:
        parsed = profile_name(name)
    except ValueError as error:
        raise LayoutRefused(str(error)) from error
    if parsed.whole not in rules.by_name:
        raise LayoutRefused(f"the GPU has no profile {parsed.whole}; it has {', '.join(rules.by_name) or 'none'}")
    whole = rules.by_name[parsed.whole].slices
    size = whole if parsed.computes is None else parsed.computes
    if size != whole and (size not in _STRIDES or size > whole):
        raise LayoutRefused(f"no compute instance has {size} of the {whole} slices of a {parsed.whole}")
    return size


def _shared(slices: int, sizes: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """Compute instances of these sizes in as few instances of so many slices as it takes, largest first."""
    taken: list[tuple[set[int], list[int]]] = []
    for size in sorted(sizes, reverse=True):
        starts = range(0, slices - size + 1, _STRIDES.get(size, slices))
        for used, held in [*taken, new := (set[int](), list[int]())]:
            free = [start for start in starts if used.isdisjoint(range(start, start + size))]
            if free:
                used.update(range(free[0], free[0] + size))
                held.append(size)
                break
        if new[1]:
            taken.append(new)
    return (tuple(held) for _, held in taken)


def _length(rules: Rules, shape: Shape) -> int:
    return rules.by_name[shape.profile].placements[0].length


def _sum(one: Worth, other: Worth | None) -> Worth:
    return one if other is None else (one[0] + other[0], one[1] + other[1], one[2] + other[2])


def _why_refused(rules: Rules, counts: Mapping[str, int], shapes: Iterable[Shape]) -> str:
    wanted = ", ".join(f"{count} × {name}" for name, count in counts.items())
    slices = sum(rules.by_name[shape.profile].slices for shape in shapes)
    for name, count in counts.items():
        profile = rules.by_name.get(name)
        if profile and count > profile.limit:
            return f"{count} × {name}: a GPU takes {profile.limit} at most"
    if slices > rules.slices:
        return f"{wanted} take {slices} compute slices, and the GPU has {rules.slices}"
    return f"{wanted} do not fit together, wherever they are placed"
