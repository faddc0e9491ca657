"""Counts and times what happens, by labels. Belongs to one event loop; knows nothing of how it is shown."""

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct, field

# Upper bounds in seconds; the kubelet gives a call 45.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

OK, FAILED = "ok", "failed"

Labels = tuple[str, ...]


class Times(Struct, kw_only=True):
    """How often something took so long: by bucket, the last of which has no bound, and in all."""

    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))

    @property
    def count(self) -> int:
        return sum(self.buckets)


class Instrument(Struct, frozen=True, kw_only=True):
    """What is told of; ``labels`` are the names of its labels."""

    name: str
    help: str
    labels: Labels = ()


class Count(Instrument, frozen=True, kw_only=True):
    """Something that happens."""

    values: dict[Labels, int] = field(default_factory=lambda: defaultdict(int))

    def happened(self, *labels: str) -> None:
        self.values[labels] += 1


class Timing(Instrument, frozen=True, kw_only=True):
    """Something that takes time; the last label is its result."""

    values: dict[Labels, Times] = field(default_factory=lambda: defaultdict(Times))

    def took(self, seconds: float, *labels: str) -> None:
        times = self.values[labels]
        times.seconds += seconds
        times.buckets[bisect_left(BUCKETS, seconds)] += 1

    @contextmanager
    def timed(self, *labels: str) -> Iterator[None]:
        """Time the block; its result is ``failed`` where it raises."""
        began, result = time.perf_counter(), FAILED
        try:
            yield
            result = OK
        finally:
            self.took(time.perf_counter() - began, *labels, result)
