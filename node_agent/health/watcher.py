"""Feeds the health board: listens to the driver's events and probes every GPU now and then.

Events come at once but not always; probes find what no event told, and clear what is over.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from node_agent.errors import HardwareError
from node_agent.hardware.provider import EventKind, Events, GpuReadings, HardwareEvent, Readings
from node_agent.health import verdicts
from node_agent.health.board import HealthBoard
from node_agent.health.findings import Finding
from node_agent.health.looks import LastLooks
from node_agent.kit.backoff import pauses
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log, Steady
from node_agent.kit.tasks import cancel
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Reason
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Instance

# Listening that is of no use fails at once; what has gone on for so long works.
USELESS_SECONDS = 1.0
# Events may come by the thousand: looks that they ask for are at least so far apart.
REST_SECONDS = 0.1
# While the driver hangs so long over one GPU, that one is out; and so long after that, all: nobody knows of them.
HANG_SECONDS, BLIND_SECONDS = 30.0, 270.0

log = Log(__name__)


class HealthWatcher:
    """Watches the GPUs of the inventory; ``on_change`` is called when the driver says that a GPU is not what it was.

    ``looks`` gets the last look at each. A watcher that fails takes every GPU out, since nobody would hear of their
    faults.
    """

    def __init__(
        self,
        *,
        inventory: Latest[Inventory],
        events: Events,
        readings: Readings,
        board: HealthBoard,
        on_change: Callable[[], None],
        looks: LastLooks,
    ) -> None:
        self._inventory = inventory
        self._events = events
        self._readings = readings
        self._board = board
        self._on_change = on_change
        self._looks = looks
        self._probe_at_once = Latest(0)

    async def run(self) -> None:
        """Listen and probe until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen(group), name="health listener")
                group.create_task(self._probe_for_ever(), name="health probes")
        except Exception as error:
            self._find(self._gpus, verdicts.unwatched(error))
            raise

    @property
    def _gpus(self) -> Collection[GpuUuid]:
        return self._inventory.value.by_uuid

    def _find(self, gpus: Collection[GpuUuid], finding: Finding) -> None:
        for gpu in gpus:
            self._board.open(gpu, finding)

    async def _listen(self, group: asyncio.TaskGroup) -> None:
        """Follow the events of the GPUs that are there, and subscribe anew whenever these are others."""
        followed: frozenset[GpuUuid] = frozenset()
        lying: dict[GpuUuid, tuple[Instance, ...]] = {}
        follower: asyncio.Task[None] | None = None
        try:
            async for inventory in self._inventory.watch():
                present = frozenset(inventory.by_uuid)
                if inventory.generation:
                    self._board.present(present)
                    self._forget_removed(lying, inventory)
                if present == followed:
                    continue
                if follower is not None:
                    await cancel(follower)
                followed, follower = present, group.create_task(self._follow(present), name="health events")
        finally:
            if follower is not None:
                await cancel(follower)
            await self._events.close()

    def _forget_removed(self, lying: dict[GpuUuid, tuple[Instance, ...]], inventory: Inventory) -> None:
        """Forget what was wrong with instances that are no more; ``lying`` is kept what was seen last of each GPU."""
        for gpu in inventory.by_uuid.keys() - inventory.unlisted.keys():
            now = inventory.instances.get(gpu, ())
            left = {(one.id, one.profile, one.placement) for one in now}
            for one in lying.get(gpu, ()):
                if (one.id, one.profile, one.placement) not in left:
                    self._board.removed(gpu, one.id)
            lying[gpu] = now

    async def _follow(self, gpus: Collection[GpuUuid]) -> None:
        """Take in events; subscribe again, with growing pauses, while GPUs are unwatched or the listening itself fails.

        A failure after a time of listening withdraws nothing, since the driver may just have been opened anew. One at
        once withdraws all GPUs: nobody would hear of their faults.
        """
        tries, trouble, heard = pauses(), Steady(), False
        while gpus:
            try:
                unheard = await self._subscribe(gpus)
                await self._take_events(USELESS_SECONDS)
                heard = True
                self._watched(gpus, unheard)
                unwatched = any(finding.reason is not Reason.NOT_MONITORED for finding in unheard.values())
                tries = tries if unwatched else pauses()
                await self._take_events(next(tries) if unwatched else None)
            except HardwareError as error:
                if trouble.should_say(str(error)):
                    log.warning("events cannot be watched", reason=error)
                self._find(() if heard else gpus, verdicts.unwatched(error))
                heard = False
                self._on_change()
                await asyncio.sleep(next(tries))

    async def _subscribe(self, gpus: Collection[GpuUuid]) -> Mapping[GpuUuid, Finding]:
        """Subscribe; answers the GPUs whose events will not come, and what that means for them."""
        refused = await self._events.subscribe(gpus)
        unheard = {gpu: verdicts.of_subscription(error) for gpu, error in refused.items()}
        for gpu, finding in unheard.items():
            self._board.open(gpu, finding)
        return unheard

    def _watched(self, gpus: Collection[GpuUuid], unheard: Mapping[GpuUuid, Finding]) -> None:
        """Close what a subscription that works has not found again."""
        for gpu in gpus:
            still = {unheard[gpu].reason} if gpu in unheard else set()
            self._board.close(gpu, *(verdicts.OF_EVENTS - still))

    async def _take_events(self, seconds: float | None) -> None:
        """Take in what the driver reports, for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    self._judge(await self._events.next())

    def _judge(self, event: HardwareEvent) -> None:
        log.info("hardware event", kind=event.kind, gpu=event.gpu, code=event.code)
        for gpu in self._meant_by(event):
            if event.code is not None:
                self._board.count(gpu, event.code)
            if finding := verdicts.of_event(event, self._inventory.value.links.neighbours(gpu)):
                self._board.open(gpu, finding)
        if not self._board.verdicts.is_idle(event):
            self._probe_at_once.set(self._probe_at_once.value + 1)
        if event.kind is not EventKind.FAULT:
            self._on_change()

    def _meant_by(self, event: HardwareEvent) -> Collection[GpuUuid]:
        """An event that names no GPU may mean any of them."""
        return (event.gpu,) if event.gpu is not None else tuple(self._gpus)

    async def _probe_for_ever(self) -> None:
        """Probe at each change of the inventory, after events that may mean something, when somebody wants to see
        figures, and now and then in between."""
        causes = self._inventory, self._probe_at_once, self._looks.wishes
        async for _ in changes(*causes, every=lambda: self._looks.pause(self._board.verdicts.probe_seconds)):
            self._looks.present(self._gpus)
            for gpu in self._gpus:
                await self.probe(gpu)
            if self._gpus:
                await asyncio.sleep(REST_SECONDS)

    async def probe(self, gpu: GpuUuid) -> None:
        """Look at one GPU. News are worth a look at all of the driver."""
        outcome: GpuReadings | HardwareError
        try:
            outcome = await self._read(gpu)
        except HardwareError as error:
            outcome = error
        self._looks.keep(gpu, outcome if isinstance(outcome, GpuReadings) else None)
        if self._board.probed(gpu, outcome):
            self._on_change()

    async def _read(self, gpu: GpuUuid) -> GpuReadings:
        """Read one GPU, however long it takes; while the driver hangs in it, work that is new would hang as well."""
        loop = asyncio.get_running_loop()
        alarms = [
            loop.call_later(HANG_SECONDS, self._hangs, gpu, (gpu,), HANG_SECONDS),
            loop.call_later(HANG_SECONDS + BLIND_SECONDS, self._hangs, gpu, self._gpus, HANG_SECONDS + BLIND_SECONDS),
        ]
        try:
            return await self._readings.read(gpu, figures=self._looks.wanted)
        finally:
            for alarm in alarms:
                alarm.cancel()

    def _hangs(self, asked: GpuUuid, hit: Collection[GpuUuid], seconds: float) -> None:
        message = f"the driver has not answered for {seconds:.0f} s; it was asked about {asked}"
        self._find(hit, Finding(reason=Reason.QUERY_FAILED, message=message))
