"""The last look at each GPU: what the board judges by, and what metrics, page and ``top`` show.

A look takes in more, the figures, as long as somebody wants to see them: the idle agent asks a GPU for no more than its
health needs.
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

from msgspec import Struct

from node_agent.hardware.figures import Figures
from node_agent.hardware.provider import GpuReadings
from node_agent.kit.latest import Latest
from node_agent.model.gpu import GpuUuid

# Who wants figures says so with each question; a scrape a minute keeps them coming.
WANTED_SECONDS = 90.0

# While they are wanted they are no older, however seldom GPUs are probed for their health.
OLDEST_SECONDS = 10.0

# How long the first who wants figures waits for them: no longer than half of the shortest usual scrape timeout.
FIRST_SECONDS = 2.0


class Look(Struct, frozen=True, kw_only=True):
    """What a GPU told ``at`` that wall-clock time in seconds.

    ``nvlink_throughput`` is in bytes a second, of both directions of all links, between the last two looks with
    figures; None before there are two.
    """

    at: float
    readings: GpuReadings
    nvlink_throughput: float | None = None


Looks = Mapping[GpuUuid, Look]


class LastLooks:
    """``last`` are the looks; a GPU that could not be read has none, and neither has one that is gone."""

    def __init__(self) -> None:
        self.last: Latest[Looks] = Latest({})
        self.wishes = Latest(0)
        """Grows when somebody wants figures after a time without."""
        self._moved: dict[GpuUuid, tuple[float, int]] = {}
        self._wanted_until = self._patience_until = 0.0

    @property
    def wanted(self) -> bool:
        """Whether somebody has wanted figures lately."""
        return time.monotonic() < self._wanted_until

    def pause(self, probe_seconds: float) -> float:
        """How long to wait until the next look."""
        return min(probe_seconds, OLDEST_SECONDS) if self.wanted else probe_seconds

    async def with_figures(self) -> Looks:
        """The last looks. The first who asks after a while waits a moment, so that there are figures in them."""
        now, asleep = time.monotonic(), not self.wanted
        self._wanted_until = now + WANTED_SECONDS
        if asleep:
            self._patience_until = now + FIRST_SECONDS
            self.wishes.set(self.wishes.value + 1)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._patience_until - now)):
                async for looks in self.last.watch():
                    if all(look.readings.figures is not None for look in looks.values()):
                        break
        return self.last.value

    def keep(self, gpu: GpuUuid, readings: GpuReadings | None) -> None:
        """Take in a look; None where the GPU could not be read."""
        looks = dict(self.last.value)
        looks.pop(gpu, None)
        throughput = self._throughput(gpu, readings.figures if readings else None)
        if readings is not None:
            looks[gpu] = Look(at=time.time(), readings=readings, nvlink_throughput=throughput)
        self.last.set(looks)

    def present(self, gpus: Collection[GpuUuid]) -> None:
        """Drop the looks at GPUs that are not there any more."""
        self.last.set({gpu: look for gpu, look in self.last.value.items() if gpu in gpus})

    def _throughput(self, gpu: GpuUuid, figures: Figures | None) -> float | None:
        """Bytes a second over the links since the last look with figures; None where a counter began anew."""
        before = self._moved.pop(gpu, None)
        if figures is None or figures.nvlink_sent is None or figures.nvlink_received is None:
            return None
        when, moved = self._moved[gpu] = time.monotonic(), 1024 * (figures.nvlink_sent + figures.nvlink_received)
        if before is None or when <= before[0] or moved < before[1]:
            return None
        return (moved - before[1]) / (when - before[0])
