"""Opaque handles: the made-up addresses by which a C caller names GPUs, MIG devices, instances and event sets.

As in the real library, a handle names a place rather than what was there when it was given out: a MIG device made
later in the same slot answers to the same handle.
"""

# Looks like a heap address and is far from any: a handle that is dereferenced by mistake fails at once.
_BASE = 0x5100_0000_0000
_STEP = 0x1000

Place = tuple[str | int, ...]


class Handles:
    """Gives every place one address, for ever."""

    def __init__(self) -> None:
        self._places: list[Place] = []
        self._addresses: dict[Place, int] = {}

    def address(self, *place: str | int) -> int:
        if place not in self._addresses:
            self._addresses[place] = _BASE + len(self._places) * _STEP
            self._places.append(place)
        return self._addresses[place]

    def place(self, address: int | None) -> Place:
        """The place behind an address; an empty one where the address was never given out."""
        # Addresses are given out at even steps, so that one is found again without a table of them.
        slot, rest = divmod((address or 0) - _BASE, _STEP)
        return self._places[slot] if rest == 0 and 0 <= slot < len(self._places) else ()
