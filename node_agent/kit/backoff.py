"""Growing pauses between tries, and pauses that differ between nodes."""

from collections.abc import Iterator
from random import uniform


def pauses(first: float = 0.5, factor: float = 2.0, longest: float = 30.0) -> Iterator[float]:
    """Endless pauses in seconds: ``first``, each ``factor`` times the one before, never more than ``longest``."""
    pause = min(first, longest)
    while True:
        yield pause
        pause = min(pause * factor, longest)


def spread(seconds: float) -> float:
    """Between half of a pause and all of it: what ends for all nodes at once brings them back one by one."""
    return uniform(seconds / 2, seconds)
