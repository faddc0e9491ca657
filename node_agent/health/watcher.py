"""Feeds the health board: listens to the driver's events and probes every GPU now and then.

Events come at once but not always; probes find what no event told, and clear what is over.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from node_agent.errors import HardwareError
from node_agent.hardware.provider import EventKind, Events, GpuReadings, HardwareEvent, Readings
from node_agent.health import verdicts
from node_agent.health.board import HealthBoard
from node_agent.kit.backoff import pauses
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log, Steady
from node_agent.kit.tasks import cancel
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Reason
from node_agent.model.inventory import Inventory

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
        self._probe_soon = asyncio.Event()

    async def run(self) -> None:
        """Listen and probe until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(group), name="health listener")
            group.create_task(self._probe_for_ever(), name="health probes")

    async def _listen(self, group: asyncio.TaskGroup) -> None:
        """Follow the events of the GPUs that are there, and subscribe anew whenever these are others."""
        followed: frozenset[GpuUuid] | None = None
        follower: asyncio.Task[None] | None = None
        try:
            async for inventory in self._inventory.watch():
                present = frozenset(inventory.by_uuid)
                if present == followed:
                    continue
                if follower is not None:
                    await cancel(follower)
                followed, follower = present, group.create_task(self._follow(present), name="health events")
        finally:
            if follower is not None:
                await cancel(follower)
            await self._events.close()

    async def _follow(self, gpus: Collection[GpuUuid]) -> None:
        """Take in events; subscribe again, with growing pauses, while GPUs are unwatched or the wait itself fails."""
        tries, trouble = pauses(), Steady()
        while True:
            try:
                all_watched = await self._subscribe(gpus)
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if all_watched else next(tries)):
                        await self._take_events()
            except HardwareError as error:
                if trouble.should_say(str(error)):
                    log.warning("events cannot be watched", reason=error)
                await asyncio.sleep(next(tries))

    async def _subscribe(self, gpus: Collection[GpuUuid]) -> bool:
        """Subscribe; answers whether every GPU that has events is watched."""
        unwatched = await self._events.subscribe(gpus)
        causes = {gpu: verdicts.of_subscription(error, time.time()) for gpu, error in unwatched.items()}
        for gpu in gpus:
            cause = causes.get(gpu)
            if cause is None:
                self._board.close(gpu, lambda open_cause: open_cause.reason is Reason.EVENTS_FAILED)
            else:
                self._board.open(gpu, cause)
        return not any(causes.values())

    async def _take_events(self) -> None:
        while True:
            self._judge(await self._events.next())

    def _judge(self, event: HardwareEvent) -> None:
        log.info("hardware event", kind=event.kind, gpu=event.gpu, code=event.code)
        cause = verdicts.of_event(event, self._policy, time.time())
        if cause is not None:
            for gpu in self._meant_by(event):
                self._board.open(gpu, cause)
        self._probe_soon.set()
        if event.kind is not EventKind.FAULT:
            self._on_change()

    def _meant_by(self, event: HardwareEvent) -> Collection[GpuUuid]:
        """An event that names no GPU may mean any of them."""
        return (event.gpu,) if event.gpu is not None else tuple(self._inventory.value.by_uuid)

    async def _probe_for_ever(self) -> None:
        while True:
            self._probe_soon.clear()
            for gpu in self._inventory.value.by_uuid:
                await self.probe(gpu)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._probe_seconds):
                    await self._probe_soon.wait()

    async def probe(self, gpu: GpuUuid) -> None:
        """Look at one GPU: open what is wrong, close what is over."""
        outcome: GpuReadings | HardwareError
        try:
            outcome = await self._readings.read(gpu)
        except HardwareError as error:
            outcome = error
        now = time.time()
        found = verdicts.of_probe(outcome, now)
        seen = {cause.key for cause in found}
        self._board.close(
            gpu,
            lambda cause: cause.key not in seen and verdicts.cleared_by(cause, outcome, now, self._settle_seconds),
        )
        for cause in found:
            self._board.open(gpu, cause)
