"""Makes the devices of a claim usable, and takes that back: reserve, act, undo.

To prepare is: hold the devices in the ledger, take the steps that the claim needs, write its CDI spec, commit. The undo
is the same for a prepare that failed, for one that died with its process, and for unprepare: undo the steps that had
begun, then remove the spec, then release. Why in this order:

- The spec goes after the steps: while anything of the claim is left on a GPU, the disk has two records of it.
- The release comes last: nobody else gets the GPUs before everything is undone.

Without steps a prepare that dies leaves nothing but a spec, and ``upkeep`` finds that by itself. So its hold is not
worth a write of its own: the commit is the first one.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from node_agent.allocation.calls import Calls
from node_agent.allocation.claims import Devices, check_still_the_same, grant_for, in_modes_of
from node_agent.allocation.grants import Grant, State
from node_agent.allocation.ledger import Ledger
from node_agent.allocation.specs import ClaimSpecs
from node_agent.allocation.steps import Steps
from node_agent.errors import AllocationError, NodeAgentError, PartitionGone
from node_agent.kit.logs import Log
from node_agent.model.claim import Claim, ClaimUid

# Less than the kubelet waits for an answer (45 s), and enough for what has to be started for a claim.
LIMIT_SECONDS = 40.0

log = Log(__name__)


class Preparer:
    """Prepares and unprepares the claims of ``driver``. No act and no undo takes longer than ``limit`` seconds.

    Use it as a context manager: what is under way at its end gets a moment to end as well.
    """

    def __init__(
        self, *, driver: str, ledger: Ledger, specs: ClaimSpecs, steps: Steps, limit: float = LIMIT_SECONDS
    ) -> None:
        self.driver = driver
        self._ledger = ledger
        self._specs = specs
        self._steps = steps
        self._limit = limit
        self._calls = Calls()

    async def __aenter__(self) -> "Preparer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._calls.end()

    async def prepare(self, claim: Claim, devices: Devices, *, asked: float | None = None) -> Grant:
        """Make what was allocated to the claim usable. Once that is done, further calls give the same answer.

        ``asked`` is when the kubelet called (``time.monotonic()``), where something had to be looked up since.

        Raises:
            AllocationError: nothing is allocated to the claim, or a step took too long.
            Overtaken: the claim was unprepared after this was asked.
            UnknownDevice: a device is not published, or stands for other GPUs than when the claim was prepared.
            DeviceHeld: another holder has a GPU of it.
            CdiError: the claim's spec cannot be written.
            HoldersUnknown: it is not known yet who holds what.
            StateError: the ledger cannot be written.
        """
        self._calls.note(claim.uid)
        return await self._calls.whole(self._prepare(claim, devices, time.monotonic() if asked is None else asked))

    async def unprepare(self, uid: ClaimUid) -> None:
        """Undo whatever was done for a claim, from what this node knows of it; for an unknown one that is nothing.

        Raises what a step raises, AllocationError where one took too long, CdiError and StateError: the claim then
        holds its devices still, and the next call goes on from there.
        """
        self._calls.note(uid, unprepare=True)
        await self._calls.whole(self._unprepare(uid))

    async def renew(self, uid: ClaimUid) -> None:
        """Write the spec of a prepared claim anew, unless it is as it should be; raises CdiError."""
        async with self._known(uid):
            grant = self._ledger.grant_of(uid)
            if grant is not None and grant.state is State.PREPARED:
                await self._write_spec(grant)

    async def sweep(self, uid: ClaimUid) -> None:
        """Remove the spec of a claim that holds nothing; raises CdiError."""
        async with self._known(uid):
            if self._ledger.grant_of(uid) is None:
                await self._specs.remove(uid)
                log.info("spec of an unknown claim removed", uid=uid)

    def called_since(self, uid: ClaimUid, when: float) -> bool:
        """Whether a claim was to be prepared or unprepared at ``when`` (``time.monotonic()``) or later."""
        return self._calls.called_since(uid, when)

    @asynccontextmanager
    async def _known(self, uid: ClaimUid) -> AsyncIterator[None]:
        """A turn of the claim, that begins with what another agent has done with it."""
        async with self._calls.turn(uid):
            await self._ledger.look()
            yield

    async def _prepare(self, claim: Claim, devices: Devices, asked: float) -> Grant:
        async with self._known(claim.uid):
            self._calls.refuse_late(claim.uid, asked)
            wanted = grant_for(claim, self.driver, devices)
            known = self._ledger.grant_of(claim.uid)
            if known is None:
                return await self._prepare_first(claim, wanted)
            check_still_the_same(known, wanted)
            wanted = in_modes_of(known, wanted)
            # Freed and allocated anew while nobody asked for an unprepare: what it had is to be given back.
            if not known.same_hardware(wanted):
                await self._undo(known)
                return await self._prepare_first(claim, wanted)
            if known.state is State.PREPARED and await self._is_there(known):
                return known
            return await self._prepare_again(claim, known)

    async def _is_there(self, known: Grant) -> bool:
        """Whether what was prepared still is: the ledger alone is not enough for a yes, the runtime has to find it."""
        try:
            await self._write_spec(known)
        except PartitionGone as error:
            log.warning("claim is prepared again", claim=known.holder.name, reason=error)
            return False
        return True

    async def _prepare_first(self, claim: Claim, wanted: Grant) -> Grant:
        grant = await self._ledger.reserve(wanted, durable=False)
        try:
            return await self._act(claim, grant)
        # Not for a cancellation: only the end of the agent cancels, and the next one finds in the ledger what to undo.
        except Exception:
            async with self._said_if_failing(grant):
                # Nothing was answered, so a restart may find it again and undo it again: not worth a write.
                await self._undo(self._present(grant), durable=False)
            raise

    async def _prepare_again(self, claim: Claim, known: Grant) -> Grant:
        """Prepare what is held already: half done by a process that died, or before the node or the ledger was lost.

        If it fails the claim keeps its devices and its spec. Its containers may be running.
        """
        await self._undo_steps(known)
        try:
            return await self._act(claim, self._present(known))
        except Exception:
            async with self._said_if_failing(known):
                await self._undo_steps(self._present(known))
            raise

    def _present(self, grant: Grant) -> Grant:
        return self._ledger.grant_of(grant.holder.id) or grant

    async def _act(self, claim: Claim, grant: Grant) -> Grant:
        async with self._limited(f"preparing {grant.holder}"):
            grant = await self._steps.take(claim, grant)
            await self._write_spec(grant)
            usable = [replace(hold, cdi_ids=self._specs.cdi_ids(claim.uid, hold)) for hold in grant.holds]
            grant = await self._ledger.commit(grant, usable)
        log.info("claim prepared", claim=claim.full_name, uid=claim.uid, devices=[hold.device for hold in grant.holds])
        return grant

    @asynccontextmanager
    async def _said_if_failing(self, grant: Grant) -> AsyncIterator[None]:
        """What cannot be undone now stays in the ledger, for the next call or the next search for gone claims."""
        try:
            yield
        except NodeAgentError as error:
            log.error("failed prepare cannot be undone yet, its devices stay held", holder=grant.holder, reason=error)

    async def _unprepare(self, uid: ClaimUid) -> None:
        async with self._known(uid):
            grant = self._ledger.grant_of(uid)
            if grant is None:
                await self._specs.remove(uid)
            else:
                await self._undo(grant)
                log.info("claim unprepared", claim=grant.holder.name, uid=uid)

    async def _undo(self, grant: Grant, *, durable: bool = True) -> None:
        await self._undo_steps(grant)
        await self._specs.remove(ClaimUid(grant.holder.id))
        await self._ledger.release(grant.holder.id, durable=durable)

    async def _undo_steps(self, grant: Grant) -> None:
        async with self._limited(f"undoing what was prepared for {grant.holder}"):
            await self._steps.undo(grant)

    async def _write_spec(self, grant: Grant) -> None:
        if (
            await self._specs.write(ClaimUid(grant.holder.id), self._steps.edits(grant))
            and grant.state is State.PREPARED
        ):
            log.warning("spec of a prepared claim written anew", claim=grant.holder.name)

    @asynccontextmanager
    async def _limited(self, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._limit):
                yield
        except TimeoutError as error:
            raise AllocationError(f"{what} was not done within {self._limit:g} s") from error
