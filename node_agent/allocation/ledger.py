"""The one ledger of grants, for both front doors: what it answers is on disk.

Changes are pure (``changes``) and wait in a queue. Whoever comes first writes for all that wait: one write of the file
(``checkpoint``) for as many changes as have come in while the last write went on. If it fails, all of them fail and
nothing has changed. So the books in memory are those on disk, but for what was explicitly not worth a write.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from node_agent.allocation import conflicts
from node_agent.allocation.changes import after_boot, reconciled, recorded, released, reserved
from node_agent.allocation.checkpoint import Checkpoint
from node_agent.allocation.grants import Books, Door, Grant, Hold, Holder, State
from node_agent.errors import CheckpointDamaged, StateError
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log
from node_agent.kit.tasks import cancel
from node_agent.model.gpu import GpuUuid

# How often the lock is looked at while another agent has it: the time without an agent at a rolling update.
LOCK_SECONDS = 0.05

# How long the last write may take when the ledger is closed.
GRACE_SECONDS = 5.0

log = Log(__name__)

Change = Callable[[Books], Books]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Waiting:
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
    """Who holds what. Use it as a context manager: it waits until no other process keeps the same file.

    Every method that changes something raises StateError where the file cannot be written; nothing is changed then.
    ``boot_id`` tells this boot from others, ``clock`` gives wall-clock seconds.
    """

    def __init__(
        self, *, checkpoint: Checkpoint, lane: Lane, boot_id: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._checkpoint = checkpoint
        self._lane = lane
        self._boot_id = boot_id
        self._clock = clock
        self._queue: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None
        self._books = Books()
        self._stored: Books | None = None
        self._failure: str | None = None
        self._loss = f"the ledger {checkpoint.path} is new"
        self.grants: Latest[Mapping[str, Grant]] = Latest({})

    async def __aenter__(self) -> "Ledger":
        await self._wait_for_the_lock()
        self._stored = await self._lane.run("read the ledger", self._load)
        # No file and one that is damaged are one case: neither tells whether somebody holds GPUs already.
        self._books = after_boot(self._stored or Books(unreconciled=frozenset(Door)), self._boot_id)
        self.grants.set(self._books.grants)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writer is not None:
            # A disk that hangs must not keep the agent from ending.
            await asyncio.wait([self._writer], timeout=GRACE_SECONDS)
            await cancel(self._writer)
        self._checkpoint.unlock()

    @property
    def unreconciled(self) -> frozenset[Door]:
        """The doors of whose holders ``reconcile`` must tell before anybody new gets a device."""
        return self._books.unreconciled

    @property
    def trouble(self) -> str | None:
        """What keeps the ledger from its work, for people to read."""
        if self._failure is None and self.unreconciled:
            doors = " and every ".join(sorted(self.unreconciled))
            return f"{self._loss}: nobody new gets a device before every {doors} of this node is known"
        return self._failure

    async def reserve(self, grant: Grant, *, durable: bool = True) -> Grant:
        """Hold the devices of a grant; the grant that there is where the holder has the same ones already.

        What is not ``durable`` is held at once and written with the next change that is: for what leaves no trace
        if the process dies.

        Raises:
            DeviceHeld: another holder has a GPU of it.
            AllocationError: the holder has other devices, which must be released first.
            HoldersUnknown: it is not known yet who holds what.
            StateError: the file cannot be written.
        """
        new = replace(grant, boot_id=self._boot_id, since=self._clock())
        return await self._changed(new, partial(reserved, grant=new), durable)

    async def record(self, grant: Grant, *, durable: bool = True) -> Grant:
        """Keep a grant as it is now: its state and its steps. Raises StateError where its holder has no such grant."""
        new = replace(grant, boot_id=self._boot_id)
        return await self._changed(new, partial(recorded, grant=new), durable)

    async def commit(self, grant: Grant, holds: Iterable[Hold]) -> Grant:
        """The grant is usable now, by the CDI ids of ``holds``; raises StateError as ``record``."""
        return await self.record(replace(grant, holds=tuple(holds), state=State.PREPARED))

    async def release(self, holder_id: str, *, durable: bool = True) -> None:
        """The holder has nothing any more; one that is unknown is fine."""
        await self._change(partial(released, holder_id=holder_id), durable)

    async def reconcile(self, door: Door, live: Iterable[Grant]) -> None:
        """Tell all live holders of a door: what a lost record lacks is added, to be prepared again.

        Until both doors have been told after a loss, and on a node that has no record yet, ``reserve`` refuses whoever
        holds nothing.
        """
        now = [replace(grant, boot_id=self._boot_id, since=self._clock()) for grant in live]
        await self._change(partial(reconciled, door=door, live=now), durable=True)

    def grant_of(self, holder_id: str) -> Grant | None:
        return self._books.grants.get(holder_id)

    def grants_of(self, door: Door) -> tuple[Grant, ...]:
        return tuple(grant for grant in self._books.grants.values() if grant.holder.door is door)

    def holders_of(self, gpu: GpuUuid) -> tuple[Holder, ...]:
        """Everybody who has a GPU or a part of it, those with admin access as well."""
        return conflicts.holders_of(gpu, self._books.grants.values())

    def held_gpus(self, door: Door) -> frozenset[GpuUuid]:
        """The GPUs that a door has given out, so that the other door cannot."""
        return conflicts.held_gpus(door, self._books.grants.values())

    async def _wait_for_the_lock(self) -> None:
        said = False
        while not self._checkpoint.lock():
            if not said:
                log.info("waiting for another agent of this node to end", file=self._checkpoint.path)
                said = True
            await asyncio.sleep(LOCK_SECONDS)

    def _load(self) -> Books | None:
        try:
            return self._checkpoint.load()
        except CheckpointDamaged as error:
            self._loss = f"the ledger {self._checkpoint.path} is damaged ({error}; {self._set_aside()})"
            log.error("the record of who holds which gpu is lost", reason=self._loss)
        return None

    def _set_aside(self) -> str:
        try:
            return f"kept as {self._checkpoint.set_aside()}"
        except StateError as error:
            return str(error)

    async def _changed(self, grant: Grant, change: Change, durable: bool) -> Grant:
        return (await self._change(change, durable)).grants[grant.holder.id]

    async def _change(self, change: Change, durable: bool) -> Books:
        """Wait until the change is made, and its place in the file written; the books right after it."""
        if not durable and (self._writer is None or self._writer.done()):
            # Nobody writes and nobody waits, so there is nothing to come after; a pod is admitted by such a change.
            self._keep(change(self._books))
            return self._books
        waiting = _Waiting(change=change, durable=durable, answer=asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if self._writer is None or self._writer.done():
            # A task of its own: a caller that is cancelled must not take the changes of the others with it.
            self._writer = asyncio.create_task(self._work_off(), name="ledger")
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

    async def _make(self, batch: list[_Waiting]) -> None:
        """Make the changes of a batch in their order, each on what those before it have made, and write once."""
        after = self._books
        made: list[tuple[_Waiting, Books]] = []
        for waiting in batch:
            try:
                after = waiting.change(after)
            except Exception as error:  # whatever it is, it belongs to the one who waits
                waiting.settle(error)
            else:
                made.append((waiting, after))
        failure = await self._written(after) if any(waiting.durable for waiting, _ in made) else None
        if failure is None:
            self._keep(after)
        for waiting, books in made:
            waiting.settle(failure or books)

    def _keep(self, books: Books) -> None:
        self._books = books
        self.grants.set(books.grants)

    async def _written(self, books: Books) -> Exception | None:
        """Write the books, if they differ from those in the file; what went wrong, if anything did."""
        try:
            if books != self._stored:
                await self._lane.run("write the ledger", lambda: self._checkpoint.save(books))
                self._stored = books
        except Exception as error:  # each of those who wait gets it
            # The file may have been replaced all the same: the next change is written whatever it is.
            self._failure, self._stored = str(error), None
            return error
        self._failure = None
        return None
