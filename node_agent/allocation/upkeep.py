"""Keeps the disk true to who really holds what: specs that went missing, specs of nobody, claims that are gone."""

import time
from collections.abc import Awaitable, Callable, Collection

from node_agent.allocation.claims import Devices, grant_for
from node_agent.allocation.grants import Door, Grant
from node_agent.allocation.ledger import Ledger
from node_agent.allocation.prepare import Preparer
from node_agent.allocation.specs import ClaimSpecs
from node_agent.errors import NodeAgentError
from node_agent.kit.latest import changes
from node_agent.kit.logs import Log
from node_agent.model.claim import Claim, ClaimUid

PERIOD_SECONDS = 3600.0

# How far a list of claims may lag: those that were called for since are let be.
LAG_SECONDS = 60.0

log = Log(__name__)


class Upkeep:
    """Looks after the claims of a preparer. What goes wrong with one claim is logged and leaves the others alone."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        specs: ClaimSpecs,
        preparer: Preparer,
        period: float = PERIOD_SECONDS,
        lag: float = LAG_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = ledger
        self._specs = specs
        self._preparer = preparer
        self._period = period
        self._lag = lag
        self._clock = clock

    async def run(self) -> None:
        """Restore and sweep until cancelled: now, when the edits of the node change, and every ``period`` seconds."""
        async for _ in changes(self._specs.edits, every=lambda: self._period):
            await self.restore()
            await self.sweep()

    async def restore(self) -> None:
        """See that every prepared claim has its spec, made of the node's present edits, as soon as these are known."""
        if self._specs.edits.value is None:
            return
        for grant in self._ledger.grants_of(Door.CLAIM):
            await self._try("spec of a prepared claim is out of date", self._preparer.renew(ClaimUid(grant.holder.id)))

    async def sweep(self) -> None:
        """Remove the specs of claims that hold nothing; none as long as it is not known who holds what."""
        # First the files, then the grants: a claim that is prepared in between is known by then.
        written = await self._specs.written()
        await self._ledger.look()
        if Door.CLAIM in self._ledger.unreconciled.value:
            return
        for uid in written - {grant.holder.id for grant in self._ledger.grants_of(Door.CLAIM)}:
            await self._try("spec of an unknown claim stays", self._preparer.sweep(uid))

    async def begin(self) -> None:
        """Tell the ledger that no claim holds anything, on a node that has neither a record nor a spec of one.

        No claim was prepared there in this boot, so nobody has to wait for the API server to say which there are.
        """
        if self._ledger.is_new and not await self._specs.written():
            await self._ledger.reconcile(Door.CLAIM, [])

    async def reconcile(self, live: Collection[Claim], devices: Devices, as_of: float) -> None:
        """Clean up after claims that are not there any more; after a loss of the ledger learn who holds what.

        ``live`` is every claim that is allocated on this node, as the API server had them at ``as_of``
        (``time.monotonic()``), give or take ``lag`` seconds: whoever is not among them, and was not called for since,
        loses its GPUs. ``devices`` should name GPUs that are absent as well. Raises UnknownDevice where the ledger was
        lost and a live claim has a device that is not named: as long as that is so, nobody new gets a device.
        """
        mine = {claim.uid: claim for claim in live if claim.of_driver(self._preparer.driver)}
        if Door.CLAIM in self._ledger.unreconciled.value:
            await self._recover(mine.values(), devices)
        # The kubelet forgets to unprepare where it lost its own state, or where the claim went while it was away.
        for grant in self._ledger.grants_of(Door.CLAIM):
            uid = ClaimUid(grant.holder.id)
            if uid not in mine and not self._is_younger(grant, as_of - self._lag):
                log.warning("claim is gone and was never unprepared", claim=grant.holder.name, uid=uid)
                await self._try("claim that is gone still holds its devices", self._preparer.unprepare(uid))
        await self.sweep()

    def _is_younger(self, grant: Grant, when: float) -> bool:
        """Whether a claim was called for after ``when`` (``time.monotonic()``), here or by another agent's account."""
        held_for, passed = self._clock() - grant.since, time.monotonic() - when
        return 0 <= held_for < passed or self._preparer.called_since(ClaimUid(grant.holder.id), when)

    async def _recover(self, live: Collection[Claim], devices: Devices) -> None:
        grants = [grant_for(claim, self._preparer.driver, devices) for claim in live]
        await self._ledger.reconcile(Door.CLAIM, grants)
        log.info("claims of this node are known again", claims=len(grants))
        # A spec shows that its claim was prepared: containers may be running with it, and more may start.
        written = await self._specs.written()
        for claim in live:
            if claim.uid in written:
                await self._try("claim has to be prepared anew", self._preparer.prepare(claim, devices))

    @staticmethod
    async def _try(trouble: str, work: Awaitable[object]) -> None:
        try:
            await work
        except NodeAgentError as error:
            log.error(trouble, reason=error)
