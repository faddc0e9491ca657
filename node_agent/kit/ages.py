"""How old something is of which only the time of day is known, though the clock may be set meanwhile."""

import time
from collections.abc import Collection


class Ages:
    """Ages in seconds by a clock that nobody sets.

    What is met for the first time is as old as the wall clock says, if that is anything; from then on it ages evenly.
    """

    def __init__(self) -> None:
        self._met: dict[str, tuple[float, float]] = {}

    def of(self, name: str, stamp: float) -> float:
        """The age of what began at ``stamp``, in wall-clock seconds; another stamp under the same name begins anew."""
        now, known = time.monotonic(), self._met.get(name)
        if known is None or known[0] != stamp:
            known = self._met[name] = stamp, now - max(0.0, time.time() - stamp)
        return now - known[1]

    def keep(self, names: Collection[str]) -> None:
        """Forget all others."""
        self._met = {name: known for name, known in self._met.items() if name in names}
