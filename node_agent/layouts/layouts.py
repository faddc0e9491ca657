"""Keeps the node's GPUs cut as the layout says that is asked for.

Each look plans anew from what lies there, so that a crash, a reset, a pod that ends and another wish are one mechanism:
what is missing is made, what was begun and is not wanted any more is undone. ``changes`` carries out one GPU's plan.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import repeat

from msgspec import Struct
from msgspec.structs import replace

from node_agent.allocation.ledger import Ledger
from node_agent.errors import ConfigError, DeviceHeld, LayoutRefused, NodeAgentError
from node_agent.kit.backoff import pauses
from node_agent.kit.latest import SETTLE_SECONDS, Latest, changes
from node_agent.kit.logs import Log, Steady
from node_agent.layouts.changes import Changer
from node_agent.layouts.orders import Order
from node_agent.layouts.reserved import Before
from node_agent.layouts.state import GpuChange, LayoutState, Phase, node_phase
from node_agent.layouts.usage import Usage, Who, cut_gpu, usage
from node_agent.model.gpu import Gpu, GpuUuid, PartitionMode
from node_agent.model.inventory import Inventory
from node_agent.model.naming import named
from node_agent.partition.configs import named as layout_named
from node_agent.partition.configs import usual, wanted
from node_agent.partition.layout import rules_of
from node_agent.partition.plan import Action, Goal, Plan, plan

# How soon it is looked again for processes that have ended, of which nobody tells; and for who else cuts the GPUs.
AGAIN_SECONDS = 15.0
# What failed is tried again at growing pauses, since each try keeps the GPU from others for a moment; a GPU that waits
# for a reset or for processes that nobody was given it for is kept from them anyway.
FIRST_SECONDS, LONGEST_SECONDS = 60.0, 3600.0

Owner = Callable[[], str]
"""Who else cuts this node's GPUs, in words; empty where nobody does."""

log = Log(__name__)


class _Failure(Struct, frozen=True, kw_only=True):
    """What a GPU has failed at or waits for a reset for, and when it may be tried again.

    At once where its ``mode`` is another one by then.
    """

    order: Order
    change: GpuChange
    mode: PartitionMode | None
    tries: Iterator[float]
    not_before: float


class _Way(Struct, frozen=True, kw_only=True):
    """One GPU's plan, who has what of it, and what was there when it was made."""

    gpu: Gpu
    plan: Plan
    used: Usage
    before: Before


class Layouts:
    """A service: follows ``order``, and ``state`` says what came of it; None where nothing is asked for.

    ``who`` names holders for people, ``known`` are set once it is known what is wanted and what pods hold. Of two
    agents of a node only one may run it; ``turn`` is for who else changes what lies on GPUs.
    """

    def __init__(
        self,
        *,
        order: Latest[Order | None],
        inventory: Latest[Inventory],
        ledger: Ledger,
        changer: Changer,
        owner: Owner,
        who: Who,
        known: Sequence[asyncio.Event],
        turn: asyncio.Lock,
    ) -> None:
        self._order = order
        self._inventory = inventory
        self._ledger = ledger
        self._changer = changer
        self._reserved = changer.reserved
        self._owner = owner
        self._who = who
        self._known = known
        self._turn = turn
        self._failures: dict[GpuUuid, _Failure] = {}
        self._seen: tuple[object, ...] = ()
        self._trouble = Steady()
        self.state: Latest[LayoutState | None] = Latest(None)
        self.followed: frozenset[GpuUuid] = frozenset()
        """The GPUs that the layout is about."""
        self.looked = asyncio.Event()
        """Set once there was a look: until then no state is no word that nothing is asked for."""

    async def run(self) -> None:
        """Keep the layout until cancelled."""
        for event in self._known:
            await event.wait()
        sources = (self._order, self._inventory, self._ledger.grants, self._ledger.unreconciled)
        async for _ in changes(*sources, every=self._pause, settle=SETTLE_SECONDS):
            inventory, before = self._inventory.value, self._seen
            self._seen = (self._order.value, inventory.generation, inventory.problem)
            # Each pod that is given a device comes by here, and where all is as wanted nothing follows from it.
            if inventory.generation and not inventory.problem and (self._unsettled or self._seen != before):
                async with self._turn:
                    await self._look(self._order.value, inventory)

    @property
    def _unsettled(self) -> bool:
        state = self.state.value
        return bool(self._reserved.gpus) or (state is not None and state.phase is not Phase.SUCCESS)

    def _pause(self) -> float:
        return AGAIN_SECONDS if self._unsettled else math.inf

    async def _look(self, order: Order | None, inventory: Inventory) -> None:
        goals, state = self._goals(order, inventory), None
        await self._drop(self._reserved.gpus - (frozenset() if isinstance(goals, str) else goals.keys()), inventory)
        if order is not None:
            state = LayoutState(name=order.name, source=order.source)
            if isinstance(goals, str):
                state = replace(state, phase=Phase.FAILED, trouble=goals)
            else:
                state = await self._carried_out(state, order, goals, inventory)
        self._say(state)
        self.state.set(state)
        self.followed = frozenset() if isinstance(goals, str) else frozenset(goals)
        self.looked.set()

    def _goals(self, order: Order | None, inventory: Inventory) -> Mapping[GpuUuid, Goal] | str:
        """What each GPU is to be, or why that is not known; a GPU that is not named is left as it is."""
        if order is None:
            return {}
        if order.trouble:
            return order.trouble
        layouts = order.layouts
        if layouts is None:
            cuttable = (gpu for gpu in inventory.gpus if inventory.profiles.get(gpu.uuid))
            layouts = usual((gpu, rules_of(inventory.profiles[gpu.uuid])) for gpu in cuttable)
        try:
            entries = wanted(layout_named(layouts, order.name), inventory.gpus)
        except ConfigError as error:
            return str(error)
        return {
            gpu.uuid: Goal(enabled=entry.mig_enabled, counts=entry.counts)
            for gpu in inventory.gpus
            if (entry := entries.get(gpu.uuid)) is not None and not named(order.leaves, gpu)
        }

    async def _drop(self, gpus: Collection[GpuUuid], inventory: Inventory) -> None:
        """Undo what has begun on GPUs of which nothing of that is wanted any more, and give back what was kept."""
        for uuid in gpus:
            gpu, before = inventory.by_uuid.get(uuid), self._reserved.before(uuid)
            if gpu is not None and before is not None:
                change = await self._changer.go_back(gpu, before)
                log.info("layout change called off", gpu=gpu.name, undone=change.undone, trouble=change.trouble or None)
            else:
                await self._reserved.release(uuid)

    async def _carried_out(
        self, state: LayoutState, order: Order, goals: Mapping[GpuUuid, Goal], inventory: Inventory
    ) -> LayoutState:
        if order.yields and (owner := self._owner()):
            await self._drop(self._reserved.gpus, inventory)
            return replace(state, owner=owner, trouble=f"{owner}; set agent.mig.layouts to always, or end it")
        self._failures = {uuid: one for uuid, one in self._failures.items() if one.order == order and uuid in goals}
        done = {uuid: change for uuid in goals if (change := self._settled(uuid, goals[uuid], inventory)) is not None}
        # A GPU that waits for a reset stays free for it; one that cannot be what is wanted is what it was.
        await self._drop((done.keys() & self._reserved.gpus) - self._failures.keys(), inventory)
        ways: dict[GpuUuid, _Way] = {}
        for gpu in (inventory.by_uuid[uuid] for uuid in goals if uuid not in done):
            found = await self._way(gpu, goals[gpu.uuid], order)
            if isinstance(found, GpuChange):
                done[gpu.uuid] = found
            else:
                ways[gpu.uuid] = found
        held = {uuid: way.used.of(way.plan) for uuid, way in ways.items() if way.plan.waiting}
        for uuid, way in ways.items():
            # Said before the first step, and after each GPU.
            self.state.set(self._state(state, goals, done))
            if self._order.value == order:
                done[uuid] = await (self._refused(way, held) if order.refuse and held else self._change(way, order))
        return self._state(state, goals, done)

    def _state(
        self, state: LayoutState, goals: Mapping[GpuUuid, Goal], done: Mapping[GpuUuid, GpuChange]
    ) -> LayoutState:
        gpus = tuple(done[uuid] for uuid in goals if uuid in done)
        return replace(state, gpus=gpus, phase=Phase.PENDING if len(gpus) < len(goals) else node_phase(gpus))

    def _settled(self, uuid: GpuUuid, goal: Goal, inventory: Inventory) -> GpuChange | None:
        """What is to be said of a GPU on which there is nothing to do now; None where there may be."""
        failure, gpu = self._failures.get(uuid), inventory.by_uuid[uuid]
        if failure and failure.mode == gpu.partition_mode and time.monotonic() < failure.not_before:
            return failure.change
        if uuid in inventory.unlisted:
            trouble = f"what lies on it cannot be read: {inventory.unlisted[uuid]}"
            return GpuChange(gpu=gpu.name, phase=Phase.FAILED, trouble=trouble)
        cut = cut_gpu(gpu, inventory.profiles.get(uuid, ()), inventory.instances.get(uuid, ()))
        try:
            found = plan(cut.rules, cut.state, goal)
        except LayoutRefused as error:
            return GpuChange(gpu=gpu.name, phase=Phase.FAILED, trouble=str(error))
        if found.steps or uuid in self._reserved.gpus:
            return None
        return GpuChange(gpu=gpu.name, phase=Phase.SUCCESS)

    async def _way(self, gpu: Gpu, goal: Goal, order: Order) -> _Way | GpuChange:
        """The plan from what lies on a GPU at this moment, of which the inventory may not know yet."""
        try:
            profiles = await self._changer.partitioning.profiles(gpu.uuid)
            lying = await self._changer.partitioning.instances(gpu.uuid)
        except NodeAgentError as error:
            return self._fail(gpu, GpuChange(gpu=gpu.name, phase=Phase.FAILED, trouble=str(error)), order)
        used = usage(gpu.uuid, lying, self._ledger.grants.value.values(), self._who)
        cut = cut_gpu(gpu, profiles, lying, used)
        try:
            found = plan(cut.rules, cut.state, goal, resetless=cut.resetless)
        except LayoutRefused as error:
            return GpuChange(gpu=gpu.name, phase=Phase.FAILED, trouble=str(error))
        pieces = tuple(piece for piece in cut.state.lying if piece.computes != ())
        now = Before(enabled=cut.state.mode is not None and cut.state.mode.active, pieces=pieces)
        return _Way(gpu=gpu, plan=found, used=used, before=self._reserved.before(gpu.uuid) or now)

    async def _refused(self, way: _Way, held: Mapping[GpuUuid, str]) -> GpuChange:
        """Nothing is changed on any GPU where one is in use."""
        await self._reserved.release(way.gpu.uuid)
        trouble = held.get(way.gpu.uuid) or "nothing is changed while another GPU is in use"
        return GpuChange(gpu=way.gpu.name, phase=Phase.FAILED, trouble=trouble)

    async def _change(self, way: _Way, order: Order) -> GpuChange:
        gpu, found = way.gpu, way.plan
        if not found.steps:
            await self._reserved.release(gpu.uuid)
            return GpuChange(gpu=gpu.name, phase=Phase.SUCCESS)
        try:
            if found.waiting:
                await self._drain(way, order)
                return GpuChange(gpu=gpu.name, phase=Phase.PENDING, waits=way.used.of(found))
            await self._reserved.begin(gpu, found.steps, way.before, order.name)
        except DeviceHeld as error:
            return GpuChange(gpu=gpu.name, phase=Phase.PENDING, waits=str(error))
        except NodeAgentError as error:
            return GpuChange(gpu=gpu.name, phase=Phase.PENDING, trouble=str(error))
        change = await self._changer.carry_out(
            gpu, found.steps, way.before, lambda: self._order.value == order, wait=not order.refuse
        )
        return change if change.phase is Phase.SUCCESS else self._fail(gpu, change, order)

    async def _drain(self, way: _Way, order: Order) -> None:
        """Give nobody else what is to go and is free by now, or it would never be free all at once.

        Also what only processes are on: an MPS daemon of shares ends once nobody may be given them.
        """
        going = {step.piece for step in way.plan.steps if step.action is Action.DESTROY and step.piece is not None}
        await self._reserved.drain(way.gpu, going, order.name)

    def _fail(self, gpu: Gpu, change: GpuChange, order: Order) -> GpuChange:
        """Remember what failed, so that it is tried again later and not at once."""
        known = self._inventory.value.by_uuid.get(gpu.uuid)
        before = self._failures.get(gpu.uuid)
        growing = before.tries if before else pauses(FIRST_SECONDS, 2.0, LONGEST_SECONDS)
        tries = growing if change.phase is Phase.FAILED else repeat(FIRST_SECONDS)
        self._failures[gpu.uuid] = _Failure(
            order=order,
            change=change,
            mode=known.partition_mode if known else None,
            tries=tries,
            not_before=time.monotonic() + next(tries),
        )
        return change

    def _say(self, state: LayoutState | None) -> None:
        if state is None or state.phase is Phase.SUCCESS:
            if state is not None and state != self.state.value:
                log.info("layout in force", layout=state.name, source=state.source)
            self._trouble.clear()
            return
        reasons = "; ".join(state.reasons)
        if self._trouble.should_say(reasons):
            say = log.error if state.phase is Phase.FAILED else log.warning
            say("layout not in force", layout=state.name, source=state.source, phase=state.phase, reason=reasons)
