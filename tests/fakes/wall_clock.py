"""The system's clock, which somebody sets while the rest of the node goes on evenly."""

import time

import pytest


class WallClock:
    """Stands in for ``time.time`` until the test ends; ``ahead`` is by how many seconds it was set forward, or back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        self._real = time.time
        monkeypatch.setattr(time, "time", self)

    def __call__(self) -> float:
        return self._real() + self.ahead
