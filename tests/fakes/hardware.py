"""Events and readings that a test scripts; they keep the Protocols of ``node_agent.hardware.provider``."""

import asyncio
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from node_agent.errors import HardwareError
from node_agent.hardware.figures import Figures
from node_agent.hardware.provider import GpuReadings, HardwareEvent, RecoveryAction
from node_agent.model.gpu import GpuUuid

FIT = GpuReadings(recovery_action=RecoveryAction.NONE)


class FakeEvents:
    """``happen`` delivers an event; ``refuse`` makes GPUs unwatchable; ``fail`` makes the wait itself fail."""

    def __init__(self) -> None:
        self.subscriptions: list[frozenset[GpuUuid]] = []
        self.refusals: dict[GpuUuid, Exception] = {}
        self.failure: HardwareError | None = None
        self.closed = 0
        self._queue: asyncio.Queue[HardwareEvent | Exception] = asyncio.Queue()

    def happen(self, *events: HardwareEvent | Exception) -> None:
        for event in events:
            self._queue.put_nowait(event)

    async def subscribe(self, gpus: Collection[GpuUuid]) -> Mapping[GpuUuid, Exception]:
        self.subscriptions.append(frozenset(gpus))
        if self.failure is not None:
            raise self.failure
        return {gpu: error for gpu, error in self.refusals.items() if gpu in gpus}

    async def next(self) -> HardwareEvent:
        event = await self._queue.get()
        if isinstance(event, Exception):
            raise event
        return event

    async def close(self) -> None:
        self.closed += 1


class FakeReadings:
    """Answers what ``set`` says of a GPU, all others are fit; not while it is ``hanging``.

    ``looks`` counts, ``with_figures`` those of them that asked for figures.
    """

    def __init__(self) -> None:
        self.looks = self.with_figures = 0
        self.hanging: GpuUuid | None = None
        self._answers: dict[GpuUuid, GpuReadings | HardwareError] = {}

    def set(self, gpu: GpuUuid, answer: GpuReadings | HardwareError) -> None:
        self._answers[gpu] = answer

    async def read(self, gpu: GpuUuid, *, figures: bool = False) -> GpuReadings:
        self.looks += 1
        self.with_figures += figures
        while gpu == self.hanging:
            await asyncio.sleep(0.01)
        answer = self._answers.get(gpu, FIT)
        if isinstance(answer, HardwareError):
            raise answer
        return replace(answer, figures=answer.figures or Figures()) if figures else answer
