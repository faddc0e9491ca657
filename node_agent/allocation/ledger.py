"""The one ledger of grants, for both front doors: what it answers is on disk.

Changes are pure (``changes``) and wait in a queue. Whoever comes first writes for all that wait: one write of the file
(``record``) for as many changes as have come in while the last write went on. If it fails, all of them that need it
fail and have changed nothing. So the books in memory are those on disk, but for what was explicitly not worth a write;
and while a second agent shares the file, everything is.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from node_agent.allocation import conflicts
from node_agent.allocation.changes import Change, all_reserved, reconciled, recorded, released, reserved, unchanged
from node_agent.allocation.checkpoint import Checkpoint
from node_agent.allocation.custody import Custody
from node_agent.allocation.grants import FRONT_DOORS, Books, Door, Grant, Hold, Holder, State
from node_agent.allocation.record import Record, View
from node_agent.errors import NodeAgentError, StateError
from node_agent.kit.hints import Hints
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log
from node_agent.kit.tasks import Whole
from node_agent.model.gpu import GpuUuid

# How often the agent looks at what another one has written, and whether it is gone.
LOOK_SECONDS = 0.5

# How often it tries to get in where another one is alone.
ENTER_SECONDS = 0.05

# How long the last write may take when the ledger is closed.
GRACE_SECONDS = 5.0

log = Log(__name__)


class _Waiting(Struct, frozen=True, kw_only=True, eq=False):
    """A change in the queue, and who waits for the books that it has made."""

    change: Change
    durable: bool
    answer: "asyncio.Future[Books]"

    def settle(self, outcome: Books | Exception) -> None:
        if self.answer.done():
            return
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class Ledger:
    """Who holds what. Use it as a context manager; while it is open ``run`` has to run, so that another agent of the
    node can come in, and this one hears of what that has changed.

    Every method that changes something raises StateError where the file cannot be written; nothing is changed then.
    ``boot_id`` tells this boot from others, ``clock`` gives wall-clock seconds. ``doors`` are those that are open:
    where nobody serves claims, none is waited for.
    """

    def __init__(
        self,
        *,
        checkpoint: Checkpoint,
        lane: Lane,
        boot_id: str,
        doors: frozenset[Door] = FRONT_DOORS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = checkpoint.path
        self._custody = Custody(checkpoint.path.with_name(f"{checkpoint.path.name}.lock"))
        self._record = Record(checkpoint=checkpoint, custody=self._custody, boot_id=boot_id, doors=doors)
        self._lane = lane
        self._boot_id = boot_id
        self._clock = clock
        self._queue: list[_Waiting] = []
        self._whole, self._turn = Whole(expected=NodeAgentError), asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None
        self._view = self._record.first_view
        self._failure: str | None = None
        self.grants: Latest[Mapping[str, Grant]] = Latest({})
        self.company = Latest(False)
        """Whether another agent of this node is at work."""
        self.unreconciled: Latest[frozenset[Door]] = Latest(frozenset())
        """The doors of whose holders ``reconcile`` must tell before anybody new gets a device."""

    async def __aenter__(self) -> "Ledger":
        try:
            await self._enter()
        except BaseException:
            self._custody.leave()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        # A disk that hangs must not keep the agent from ending.
        await self._whole.end(GRACE_SECONDS)
        self._custody.leave()

    async def run(self) -> None:
        """Keep company with another agent of this node, whenever there is one, until cancelled."""
        with Hints(self._custody.path) as hints:
            async for _ in changes(hints.changed, every=lambda: hints.pause() if self._view.alone else LOOK_SECONDS):
                if self._has_company():
                    await self._whole.done(self._keep_company(), name="ledger company")

    def _has_company(self) -> bool:
        """Whether there is another agent, as far as this one can tell: one that asks, or that would not find it."""
        return not self._view.alone or self._custody.adrift or self._custody.asked

    async def look(self) -> None:
        """Take in what another agent has written by now; where none is there that is nothing."""
        if self._record.has_news(self._view):
            await self._change(unchanged, durable=False)

    @property
    def is_alone(self) -> bool:
        """Whether no other agent of this node is at work."""
        return self._view.alone

    @property
    def is_new(self) -> bool:
        """Whether there was no record at all when it was looked for, not even a damaged one."""
        return self._view.is_new

    @property
    def trouble(self) -> str | None:
        """What keeps the ledger from its work, for people to read."""
        if self._failure is None and self.unreconciled.value:
            doors = " and every ".join(sorted(self.unreconciled.value))
            return (
                f"the ledger {self._path} {self._view.loss}: "
                f"nobody new gets a device before every {doors} of this node is known"
            )
        return self._failure

    async def reserve(self, grant: Grant, *, durable: bool = True) -> Grant:
        """Hold the devices of a grant; the grant that there is where the holder has the same ones already.

        What is not ``durable`` is held at once, and written with the next change that is or when another agent comes:
        for what leaves no trace if the process dies.

        Raises:
            DeviceHeld: another holder has a GPU of it.
            ModesDisagree: another holder shares a GPU of it, and has it set in another way.
            AllocationError: the holder has other devices, which must be released first.
            HoldersUnknown: it is not known yet who holds what.
            StateError: the file cannot be written.
        """
        new = self._begun(grant)
        return await self._changed(new, partial(reserved, grant=new), durable)

    async def reserve_all(self, grants: Iterable[Grant], *, durable: bool = True) -> None:
        """Hold the devices of several holders, or of none where one of them cannot have its own; as ``reserve``."""
        await self._change(partial(all_reserved, grants=[self._begun(grant) for grant in grants]), durable)

    async def record(self, grant: Grant, *, durable: bool = True) -> Grant:
        """Keep a grant as it is now: its state and its steps. Raises StateError where its holder has no such grant."""
        new = replace(grant, boot_id=self._boot_id)
        return await self._changed(new, partial(recorded, grant=new), durable)

    async def commit(self, grant: Grant, holds: Iterable[Hold]) -> Grant:
        """The grant is usable now, by the CDI ids of ``holds``; raises StateError as ``record``."""
        return await self.record(replace(grant, holds=tuple(holds), state=State.PREPARED))

    async def store(self) -> None:
        """Write all that is held, if anything of it is not on disk; raises StateError."""
        await self._change(unchanged, durable=True)

    async def release(self, holder_id: str, *, since: float | None = None, durable: bool = True) -> None:
        """The holder has nothing any more; one that is unknown is fine.

        With ``since`` that is so only where the holder has not got its devices anew after that.
        """
        await self._change(partial(released, holder_id=holder_id, since=since), durable)

    async def reconcile(self, door: Door, live: Iterable[Grant]) -> None:
        """Tell all live holders of a door: what a lost record lacks is added, to be prepared again.

        Until both doors have been told after a loss, and on a node that has no record yet, ``reserve`` refuses whoever
        holds nothing. Told again this is nothing, not even a write: a disk that is full takes no more of them.
        """
        if door not in self._view.books.unreconciled:
            return
        now = [self._begun(grant) for grant in live]
        await self._change(partial(reconciled, door=door, live=now), durable=True)

    def grant_of(self, holder_id: str) -> Grant | None:
        return self._view.books.grants.get(holder_id)

    def grants_of(self, door: Door) -> tuple[Grant, ...]:
        return tuple(grant for grant in self._view.books.grants.values() if grant.holder.door is door)

    def holders_of(self, gpu: GpuUuid) -> tuple[Holder, ...]:
        """Everybody who has a GPU or a part of it, those with admin access as well."""
        return conflicts.holders_of(gpu, self._view.books.grants.values())

    def held_gpus(self, door: Door) -> frozenset[GpuUuid]:
        """The GPUs that a door has given out, so that the other door cannot."""
        return conflicts.held_gpus(door, self._view.books.grants.values())

    def _begun(self, grant: Grant) -> Grant:
        return replace(grant, boot_id=self._boot_id, since=self._clock())

    async def _enter(self) -> None:
        """Get in, and learn what is in the file."""
        said = False
        while not self._custody.enter():
            if not said:
                log.info("waiting for another agent of this node to share the ledger", file=self._path)
                said = True
            await asyncio.sleep(ENTER_SECONDS)
        self._know(await self._lane.run("open the ledger", partial(self._record.opened, self._view)))

    async def _keep_company(self) -> None:
        async with self._turn:
            if self._custody.adrift:
                log.warning("the lock of the ledger was removed", file=self._path)
                self._custody.leave()
                self._know(replace(self._view, alone=False))
                await self._enter()
            elif not self._view.alone:
                self._know(await self._lane.run("read the ledger", partial(self._record.caught_up, self._view)))
            elif self._custody.asked:
                self._know(await self._lane.run("share the ledger", partial(self._record.shared, self._view)))
                log.info("the ledger is shared with another agent of this node", file=self._path)

    def _know(self, view: View) -> None:
        self._view = view
        self.company.set(not view.alone)
        self.grants.set(view.books.grants)
        self.unreconciled.set(view.books.unreconciled)

    async def _changed(self, grant: Grant, change: Change, durable: bool) -> Grant:
        return (await self._change(change, durable)).grants[grant.holder.id]

    async def _change(self, change: Change, durable: bool) -> Books:
        """Wait until the change is made, and its place in the file written; the books right after it."""
        if self._view.alone and not self._queue and not self._turn.locked():
            # Nobody writes and nobody waits, so there is nothing to come after; a pod is admitted by such a change.
            books = change(self._view.books)
            if not durable or books == self._view.stored:
                self._know(replace(self._view, books=books))
                return books
        waiting = _Waiting(change=change, durable=durable, answer=asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if self._writer is None or self._writer.done():
            # A task of its own: a caller that is cancelled must not take the changes of the others with it.
            self._writer = self._whole.start(self._work_off(), name="ledger")
        return await waiting.answer

    async def _work_off(self) -> None:
        batch: list[_Waiting] = []
        try:
            while self._queue:
                batch, self._queue = self._queue, []
                await self._make([waiting for waiting in batch if not waiting.answer.done()])
        finally:
            for waiting in (*batch, *self._queue):
                waiting.settle(StateError("the ledger was closed before this was written; it may have been, or not"))

    async def _make(self, batch: Sequence[_Waiting]) -> None:
        """Make the changes of a batch in their order, and write once."""
        changes, durable = [waiting.change for waiting in batch], [waiting.durable for waiting in batch]
        try:
            async with self._turn:
                change = partial(self._record.changed, self._view, changes, durable)
                outcome = await self._lane.run("change the ledger", change)
                self._know(outcome.view)
        except Exception as error:  # each of those who wait gets it
            self._failure = str(error)
            for waiting in batch:
                waiting.settle(error)
            return
        self._failure = None if outcome.failure is None else str(outcome.failure)
        for waiting, answer in zip(batch, outcome.answers, strict=True):
            waiting.settle(answer)
