"""What fits on a GPU: the driver's rules of one model, from what NVML tells of its profiles. Pure.

All rules are one: a GPU has so much of each resource, every piece draws on them, and pieces lie together as long as
nothing runs out. The resources are each memory slice, the compute slices, and the media engines. So the same figures
are the shared counters of a slice (``counters``).
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import NewType

from msgspec import Struct

from node_agent.model.partition import PartitionProfile, Piece, Placement

Room = NewType("Room", int)
"""What is left of a GPU, packed: equal rooms take the same pieces, whatever has been made so far."""

Amounts = Mapping[str, int]

COMPUTE_SLICES = "compute-slices"

# Copy engines are left out: the driver shares them where they run short.
_ENGINES = {
    "decoders": "decoders",
    "encoders": "encoders",
    "jpeg-engines": "jpeg_engines",
    "ofa-engines": "optical_flow_engines",
}


class Rules(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """The rules of one GPU model; ``profiles`` as the driver lists them. ``rules_of`` makes one for all its GPUs."""

    profiles: tuple[PartitionProfile, ...]

    @cached_property
    def by_name(self) -> dict[str, PartitionProfile]:
        return {profile.name: profile for profile in self.profiles}

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Every profile at every placement."""
        return tuple(Piece(profile=one.name, placement=place) for one in self.profiles for place in one.placements)

    def of(self, profile: str) -> tuple[Piece, ...]:
        """A profile at every placement."""
        return self._by_profile.get(profile, ())

    @cached_property
    def _by_profile(self) -> dict[str, tuple[Piece, ...]]:
        return {name: tuple(piece for piece in self.pieces if piece.profile == name) for name in self.by_name}

    @cached_property
    def memory_slices(self) -> int:
        return max((place.start + place.length for one in self.profiles for place in one.placements), default=0)

    @cached_property
    def slices(self) -> int:
        """Compute slices."""
        return max((profile.slices for profile in self.profiles), default=0)

    @cached_property
    def totals(self) -> dict[str, int]:
        """What an empty GPU has."""
        return self._hardware | {_most(profile): profile.limit for profile in self._limited}

    def draws(self, piece: Piece) -> dict[str, int]:
        """What a piece takes; of a profile that the driver does not list any more, its slices."""
        profile = self.by_name.get(piece.profile)
        if profile is None:
            return _slices(piece.placement) | {COMPUTE_SLICES: piece.placement.length}
        limit = {_most(profile): 1} if profile in self._limited else {}
        return self._hardware_draws(profile, piece.placement) | limit

    @cached_property
    def whole(self) -> Room:
        """The room on an empty GPU."""
        return self.room(())

    def room(self, pieces: Iterable[Piece]) -> Room:
        """The room that pieces leave. Pieces that should not fit together leave nothing of what they overdraw."""
        left = dict(self.totals)
        for piece in pieces:
            for name, amount in self.draws(piece).items():
                left[name] = max(0, left.get(name, 0) - amount)
        # A bit above each field shows whether the field was enough for what is subtracted.
        return Room(self._guards | sum(left[name] << shift for name, shift in self._shifts.items()))

    def beside(self, room: Room, piece: Piece) -> Room | None:
        """The room that is left when the piece is made as well; None where it does not fit. Only for ``pieces``."""
        left = room - self._packed[piece]
        return Room(left) if left & self._guards == self._guards else None

    def fitting(self, room: Room) -> tuple[Piece, ...]:
        """All pieces that can be made next."""
        return tuple(piece for piece in self.pieces if self.beside(room, piece) is not None)

    def legal(self, pieces: Iterable[Piece]) -> bool:
        """Whether the driver allows all of them at once."""
        room: Room | None = self.whole
        for piece in pieces:
            whole = Piece(profile=piece.profile, placement=piece.placement)
            room = self.beside(room, whole) if room is not None and whole in self._packed else None
        return room is not None

    def why_not(self, lying: Iterable[Piece], piece: Piece) -> str | None:
        """What keeps a piece from being made beside others, in words; None where nothing does."""
        lying = list(lying)
        profile = self.by_name.get(piece.profile)
        if profile is None:
            return f"the GPU has no profile {piece.profile}; it has {', '.join(self.by_name)}"
        if piece.placement not in profile.placements:
            return f"a {piece.profile} lies at {', '.join(str(place.start) for place in profile.placements)} only"
        if over := [other for other in lying if other.placement.overlaps(piece.placement)]:
            return f"there is {', '.join(map(str, over))}"
        left = dict(self.totals)
        for other in lying:
            for name, amount in self.draws(other).items():
                left[name] = left.get(name, 0) - amount
        short = [name for name, amount in self.draws(piece).items() if left[name] < amount]
        words = (f"{max(0, left[name])} of {self.totals[name]} {name.replace('-', ' ')} left" for name in short)
        return f"{', '.join(words)}; a {piece.profile} takes {self.draws(piece)[short[0]]}" if short else None

    def maximal(self, lying: Iterable[Piece] = ()) -> Iterator[tuple[Piece, ...]]:
        """Every set of pieces that can be made beside what lies there and leaves no room for another."""
        yield from self._extended(self.room(lying), (), 0)

    def _extended(self, room: Room, made: tuple[Piece, ...], after: int) -> Iterator[tuple[Piece, ...]]:
        fitting = set(self.fitting(room))
        if not fitting:
            yield made
        for position, piece in enumerate(self.pieces[after:], start=after):
            if piece in fitting and (left := self.beside(room, piece)) is not None:
                yield from self._extended(left, (*made, piece), position + 1)

    def _hardware_draws(self, profile: PartitionProfile, placement: Placement) -> dict[str, int]:
        taken = {name: getattr(profile, field) for name, field in _ENGINES.items() if name in self._hardware}
        return _slices(placement) | {COMPUTE_SLICES: profile.slices} | {name: n for name, n in taken.items() if n}

    @cached_property
    def _hardware(self) -> dict[str, int]:
        slices = _slices(Placement(start=0, length=self.memory_slices)) if self.profiles else {}
        return slices | {COMPUTE_SLICES: self.slices} | dict(self._scarce_engines())

    def _scarce_engines(self) -> Iterator[tuple[str, int]]:
        """The engines that run out.

        Where as many of a profile as fit would have more engines than the whole GPU, the driver shares them among
        instances (some count a decoder for each of the seven small ones of an A100, which has five).
        """
        for name, field in _ENGINES.items():
            total = max((getattr(profile, field) for profile in self.profiles), default=0)
            if total and all(profile.limit * getattr(profile, field) <= total for profile in self.profiles):
                yield name, total

    @cached_property
    def _limited(self) -> tuple[PartitionProfile, ...]:
        """The profiles of which the driver allows fewer than there would be room for."""
        return tuple(profile for profile in self.profiles if profile.limit < self._capacity(profile))

    def _capacity(self, profile: PartitionProfile) -> int:
        left, count = dict(self._hardware), 0
        for placement in profile.placements:
            draws = self._hardware_draws(profile, placement)
            if all(left[name] >= amount for name, amount in draws.items()):
                left.update({name: left[name] - amount for name, amount in draws.items()})
                count += 1
        return count

    @cached_property
    def _shifts(self) -> dict[str, int]:
        """Where in a room the field of each resource begins."""
        shifts, end = {}, 0
        for name, total in self.totals.items():
            shifts[name] = end
            end += total.bit_length() + 1
        return shifts

    @cached_property
    def _guards(self) -> int:
        return sum(1 << shift + self.totals[name].bit_length() for name, shift in self._shifts.items())

    @cached_property
    def _packed(self) -> dict[Piece, int]:
        shifts = self._shifts
        return {piece: sum(n << shifts[name] for name, n in self.draws(piece).items()) for piece in self.pieces}


@cache
def rules_of(profiles: tuple[PartitionProfile, ...]) -> Rules:
    """The rules that go with these profiles; the same each time, so that what is worked out from them is kept."""
    return Rules(profiles=profiles)


def memory_slice(number: int) -> str:
    return f"memory-slice-{number}"


def _slices(placement: Placement) -> dict[str, int]:
    return {memory_slice(i): 1 for i in range(placement.start, placement.start + placement.length)}


def _most(profile: PartitionProfile) -> str:
    """The resource that counts how many more of a profile are allowed."""
    return "most-" + "".join(letter if letter.isalnum() else "-" for letter in profile.name)
