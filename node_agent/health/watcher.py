"""Feeds the health board: listens to the driver's events and probes every GPU now and then.

Events come at once but not always; probes find what no event told, and clear what is over.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial

from node_agent.errors import HardwareError
from node_agent.hardware.provider import EventKind, Events, GpuReadings, HardwareEvent, Readings
from node_agent.health import verdicts
from node_agent.health.board import HealthBoard
from node_agent.kit.backoff import pauses
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log, Steady
from node_agent.kit.tasks import cancel
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Cause
from node_agent.model.inventory import Inventory

# Listening that is of no use fails at once; what has gone on for so long works.
USELESS_SECONDS = 1.0

log = Log(__name__)


class HealthWatcher:
    """Watches the GPUs of the inventory; ``on_change`` is called when the driver says that a GPU is not what it was."""

    def __init__(
        self,
        *,
        inventory: Latest[Inventory],
        events: Events,
        readings: Readings,
        board: HealthBoard,
        policy: verdicts.Policy,
        on_change: Callable[[], None],
        probe_seconds: float = 5.0,
        settle_seconds: float = 5.0,
    ) -> None:
        self._inventory = inventory
        self._events = events
        self._readings = readings
        self._board = board
        self._policy = policy
        self._on_change = on_change
        self._probe_seconds = probe_seconds
        self._settle_seconds = settle_seconds
        self._probe_at_once = Latest(0)

    async def run(self) -> None:
        """Listen and probe until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(group), name="health listener")
            group.create_task(self._probe_for_ever(), name="health probes")

    async def _listen(self, group: asyncio.TaskGroup) -> None:
        """Follow the events of the GPUs that are there, and subscribe anew whenever these are others."""
        followed: frozenset[GpuUuid] = frozenset()
        follower: asyncio.Task[None] | None = None
        try:
            async for inventory in self._inventory.watch():
                present = frozenset(inventory.by_uuid)
                if present == followed:
                    continue
                for gpu in followed - present:
                    self._board.open(gpu, verdicts.not_probed(time.time()))
                if follower is not None:
                    await cancel(follower)
                followed, follower = present, group.create_task(self._follow(present), name="health events")
        finally:
            if follower is not None:
                await cancel(follower)
            await self._events.close()

    async def _follow(self, gpus: Collection[GpuUuid]) -> None:
        """Take in events; subscribe again, with growing pauses, while GPUs are unwatched or the listening itself fails.

        A failure after a time of listening withdraws nothing, since the driver may just have been opened anew. One at
        once withdraws all GPUs: nobody would hear of their faults.
        """
        tries, trouble, heard = pauses(), Steady(), False
        while gpus:
            try:
                causes = await self._subscribe(gpus)
                await self._take_events(USELESS_SECONDS)
                heard = True
                self._watched(gpus, causes)
                unwatched = any(cause.severity for cause in causes.values())
                tries = tries if unwatched else pauses()
                await self._take_events(next(tries) if unwatched else None)
            except HardwareError as error:
                if trouble.should_say(str(error)):
                    log.warning("events cannot be watched", reason=error)
                for gpu in () if heard else gpus:
                    self._board.open(gpu, verdicts.unwatched(error, time.time()))
                heard = False
                self._on_change()
                await asyncio.sleep(next(tries))

    async def _subscribe(self, gpus: Collection[GpuUuid]) -> Mapping[GpuUuid, Cause]:
        """Subscribe; answers the GPUs whose events will not come, and what that means for them."""
        refused = await self._events.subscribe(gpus)
        causes = {gpu: verdicts.of_subscription(error, time.time()) for gpu, error in refused.items()}
        for gpu, cause in causes.items():
            self._board.open(gpu, cause)
        return causes

    def _watched(self, gpus: Collection[GpuUuid], causes: Mapping[GpuUuid, Cause]) -> None:
        """Close what a subscription that works has not found again."""
        for gpu in gpus:
            still = causes.get(gpu)
            self._board.close(gpu, partial(_is_of_other_events, still))

    async def _take_events(self, seconds: float | None) -> None:
        """Take in what the driver reports, for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    self._judge(await self._events.next())

    def _judge(self, event: HardwareEvent) -> None:
        log.info("hardware event", kind=event.kind, gpu=event.gpu, code=event.code)
        if event.code is not None:
            for gpu in self._meant_by(event):
                self._board.count(gpu, event.code)
        if verdicts.is_idle(event, self._policy):
            return
        cause = verdicts.of_event(event, self._policy, time.time())
        if cause is not None:
            for gpu in self._meant_by(event):
                self._board.open(gpu, cause)
        self._probe_at_once.set(self._probe_at_once.value + 1)
        if event.kind is not EventKind.FAULT:
            self._on_change()

    def _meant_by(self, event: HardwareEvent) -> Collection[GpuUuid]:
        """An event that names no GPU may mean any of them."""
        return (event.gpu,) if event.gpu is not None else tuple(self._inventory.value.by_uuid)

    async def _probe_for_ever(self) -> None:
        """Probe at each change of the inventory, after events that may mean something, and now and then in between."""
        async for _ in changes(self._inventory, self._probe_at_once, every=lambda: self._probe_seconds):
            for gpu in self._inventory.value.by_uuid:
                await self.probe(gpu)

    async def probe(self, gpu: GpuUuid) -> None:
        """Look at one GPU: open what is wrong, close what is over. News are worth a look at all of the driver."""
        outcome: GpuReadings | HardwareError
        try:
            outcome = await self._readings.read(gpu)
        except HardwareError as error:
            outcome = error
        now = time.time()
        found = {cause.key: cause for cause in verdicts.of_probe(outcome, now)}
        news = found.keys() - {cause.key for cause in self._board.report.value.known_of(gpu).causes}
        for cause in found.values():
            self._board.open(gpu, cause)
        self._board.close(
            gpu,
            lambda cause: cause.key not in found and verdicts.cleared_by(cause, outcome, now, self._settle_seconds),
        )
        if news:
            self._on_change()


def _is_of_other_events(still: Cause | None, cause: Cause) -> bool:
    return cause.reason in verdicts.OF_EVENTS and (still is None or cause.key != still.key)
