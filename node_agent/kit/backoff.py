"""Growing pauses between tries."""

from collections.abc import Iterator


def pauses(first: float = 0.5, factor: float = 2.0, longest: float = 30.0) -> Iterator[float]:
    """Endless pauses in seconds: ``first``, each ``factor`` times the one before, never more than ``longest``."""
    pause = min(first, longest)
    while True:
        yield pause
        pause = min(pause * factor, longest)
