"""Keeps room for partitions of some profiles by merging idle ones, on GPUs that no layout and no claim cuts.

What waits for a partition only the scheduler knows; so the configuration says for which profiles one is to be idle and
ready. What is in use is never touched. ``partition/defragment`` decides, and ``changes`` carries it out.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from node_agent.allocation.ledger import Ledger
from node_agent.config.settings import Settings
from node_agent.errors import NodeAgentError
from node_agent.kit.backoff import pauses
from node_agent.kit.latest import SETTLE_SECONDS, Latest, changes
from node_agent.kit.logs import Log
from node_agent.layouts.changes import Changer
from node_agent.layouts.reserved import Before
from node_agent.layouts.state import Phase
from node_agent.layouts.usage import cut_gpu, usage
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.naming import named
from node_agent.partition.defragment import CutGpu, Mode, Outcome, Policy, Request, Verdict, defragment

NAME = "agent.mig.keepRoomFor"

# Processes end without a word, and a GPU that failed is left alone for a growing time.
AGAIN_SECONDS = 30.0
FIRST_SECONDS, LONGEST_SECONDS = 60.0, 3600.0

log = Log(__name__)


class Room:
    """A service: ``notes`` say for which profiles there is no room, and what would make some or why nothing does.

    ``followed`` are the GPUs that a layout has cut; ``turn`` keeps this and the layouts out of each other's way.
    """

    def __init__(
        self,
        *,
        settings: Latest[Settings],
        inventory: Latest[Inventory],
        ledger: Ledger,
        changer: Changer,
        followed: Callable[[], Collection[GpuUuid]],
        turn: asyncio.Lock,
        known: Sequence[asyncio.Event],
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._ledger = ledger
        self._changer = changer
        self._followed = followed
        self._turn = turn
        self._known = known
        self._tries = pauses(FIRST_SECONDS, 2.0, LONGEST_SECONDS)
        self._not_before = -math.inf
        self.notes: Latest[tuple[str, ...]] = Latest(())

    async def run(self) -> None:
        """Keep room until cancelled."""
        for event in self._known:
            await event.wait()
        sources = self._settings, self._inventory, self._ledger.grants
        async for _ in changes(*sources, every=self._pause, settle=SETTLE_SECONDS):
            if self._wants:
                async with self._turn:
                    await self._look()
            else:
                self.notes.set(())

    @property
    def _wants(self) -> tuple[str, ...]:
        settings = self._settings.value
        return () if settings.mig_defragment == "off" else settings.mig_keep_room_for

    def _pause(self) -> float:
        return AGAIN_SECONDS if self._wants else math.inf

    async def _look(self) -> None:
        inventory, mode = self._inventory.value, Mode(self._settings.value.mig_defragment)
        if not inventory.generation or inventory.problem or time.monotonic() < self._not_before:
            return
        gpus = {gpu.name: gpu for gpu in inventory.gpus if self._is_ours(gpu, inventory)}
        cuts = [self._cut(gpu, inventory) for gpu in gpus.values()]
        requests = [Request(wants=profile) for profile in self._wants]
        found = defragment(cuts, requests, Policy(mode=mode, change_mode=False))
        self.notes.set(tuple(note for outcome in found for note in _notes(outcome)))
        for outcome in found:
            if outcome.act and outcome.steps and outcome.gpu is not None:
                # One at a time: the next look sees what has become of it.
                await self._make(gpus[outcome.gpu], outcome)
                return

    def _is_ours(self, gpu: Gpu, inventory: Inventory) -> bool:
        """Whether the GPU is cut, and by nobody else."""
        return (
            gpu.uuid in inventory.instances
            and gpu.uuid not in self._followed()
            and not named((*self._settings.value.mig_on_demand, *self._settings.value.exclude), gpu)
        )

    def _cut(self, gpu: Gpu, inventory: Inventory) -> CutGpu:
        lying = inventory.instances[gpu.uuid]
        used = usage(gpu.uuid, lying, self._ledger.grants.value.values())
        return cut_gpu(gpu, inventory.profiles.get(gpu.uuid, ()), lying, used)

    async def _make(self, gpu: Gpu, outcome: Outcome) -> None:
        pieces = tuple(instance.piece for instance in self._inventory.value.instances[gpu.uuid])
        before = Before(enabled=True, pieces=tuple(piece for piece in pieces if piece.computes != ()))
        try:
            await self._changer.reserved.begin(gpu, outcome.steps, before, NAME)
        except NodeAgentError as error:
            log.info("no room is made yet", profile=outcome.request.wants, gpu=gpu.name, reason=error)
            return
        change = await self._changer.carry_out(gpu, outcome.steps, before, lambda: True, wait=False)
        if change.phase is Phase.SUCCESS:
            self._tries = pauses(FIRST_SECONDS, 2.0, LONGEST_SECONDS)
            log.info("room made", profile=outcome.request.wants, gpu=gpu.name, steps=change.done)
        else:
            self._not_before = time.monotonic() + next(self._tries)
            log.error("no room can be made", profile=outcome.request.wants, reason=str(change))


def _notes(outcome: Outcome) -> Iterator[str]:
    """What people should know of a profile that has no partition idle and ready."""
    wants = f"room for a {outcome.request.wants}"
    if outcome.verdict is Verdict.NONE:
        yield f"{wants}: there is none: {outcome.reason}"
    elif outcome.steps and not outcome.act:
        steps = ", ".join(map(str, outcome.steps))
        yield f"{wants}: {outcome.gpu}: {steps}; set agent.mig.defragment to act to have that done"
