"""What the kubelet asks of claims, one by one: prepare and unprepare, each answered for itself.

A transient trouble (the API server is away, another claim is just giving the hardware back) is tried
again here, within the call: the kubelet would come back only after 60 to 90 seconds.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from node_agent.allocation.grants import Grant
from node_agent.errors import (
    AllocationError,
    DeviceHeld,
    DomainNotReady,
    DriverFilesUnknown,
    HoldersUnknown,
    InUse,
    KubeError,
    NodeAgentError,
    PoolUnknown,
    UnknownDevice,
)
from node_agent.kit.backoff import pauses
from node_agent.kit.logs import Log
from node_agent.model.claim import Claim, ClaimUid
from node_agent.model.device import PublishedDevice
from node_agent.telemetry.catalogue import CLAIM_OPERATIONS
from node_agent.telemetry.instruments import FAILED, OK

# The kubelet gives a call 45 seconds.
PATIENCE_SECONDS = 40.0

log = Log(__name__)


class ClaimRef(Struct, frozen=True, kw_only=True):
    """A claim as the kubelet names it."""

    uid: ClaimUid
    namespace: str
    name: str

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


class PreparedDevice(Struct, frozen=True, kw_only=True):
    """What the kubelet is told of a device; the first of ``cdi_ids`` is the device's own."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


Prepared = tuple[PreparedDevice, ...]
Answer = Prepared | NodeAgentError
Work = Callable[[ClaimRef, float], Awaitable[Prepared]]
"""What is done for a claim, and when it was asked for: a retry is as old as the call that it belongs to."""


class ClaimSource(Protocol):
    """Where claims are known from."""

    async def claim(self, ref: ClaimRef) -> Claim:
        """The allocated claim with this uid. Raises ClaimUnreadable where there is none, KubeError to try again."""
        ...


class Preparer(Protocol):
    """Makes allocations usable; see ``allocation.prepare``."""

    async def prepare(
        self, claim: Claim, devices: Mapping[str, PublishedDevice], *, asked: float | None = None
    ) -> Grant: ...

    async def unprepare(self, uid: ClaimUid) -> None: ...


class Operations(ABC):
    """A driver's answers to the kubelet, each within ``patience`` seconds."""

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience

    @abstractmethod
    async def _prepare(self, ref: ClaimRef, asked: float) -> Prepared: ...

    @abstractmethod
    async def _unprepare(self, ref: ClaimRef, asked: float) -> Prepared: ...

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[ClaimUid, Answer]:
        """Prepare claims side by side: a slow one holds up no other."""
        answers = await asyncio.gather(*(self._timed("prepare", ref, self._prepare) for ref in refs))
        return {ref.uid: answer for ref, answer in zip(refs, answers, strict=True)}

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[ClaimUid, Answer]:
        """Unprepare claims side by side, from what is known on the node alone."""
        answers = await asyncio.gather(*(self._timed("unprepare", ref, self._unprepare) for ref in refs))
        return {ref.uid: answer for ref, answer in zip(refs, answers, strict=True)}

    async def _timed(self, what: str, ref: ClaimRef, work: Work) -> Answer:
        began = time.monotonic()
        answer = await self._answered(what, ref, work)
        result = FAILED if isinstance(answer, NodeAgentError) else OK
        CLAIM_OPERATIONS.took(time.monotonic() - began, what, result)
        return answer

    async def _answered(self, what: str, ref: ClaimRef, work: Work) -> Answer:
        """Do the work, again while its trouble may pass; what it raises in the end is the answer."""
        asked = time.monotonic()
        for pause in pauses(first=0.2, longest=5.0):
            try:
                return await self._in_time(what, ref, work(ref, asked), asked)
            except NodeAgentError as error:
                if not isinstance(error, TRANSIENT) or time.monotonic() + pause > asked + self._patience:
                    log.error("claim failed", step=what, claim=ref.full_name, uid=ref.uid, reason=error)
                    return error
                log.info("claim is tried again", step=what, claim=ref.full_name, uid=ref.uid, reason=error)
            await asyncio.sleep(pause)
        raise AssertionError("pauses never end")

    async def _in_time(self, what: str, ref: ClaimRef, work: Awaitable[Prepared], asked: float) -> Prepared:
        """Wait for the work almost as long as the kubelet does. What it began on the node is done to its end anyway."""
        try:
            async with asyncio.timeout(asked + self._patience - time.monotonic()):
                return await work
        except TimeoutError as error:
            raise AllocationError(
                f"claim {ref.full_name} is not done within {self._patience:g} s ({what}): the next call goes on there"
            ) from error


class ClaimOperations(Operations):
    """Prepares and unprepares claims of ``driver``.

    ``published`` tells the devices by name, as they are offered now; it raises PoolUnknown as long as it cannot.
    ``with_modes`` reads a claim's configuration, and says how its devices have to be set. ``holders_known`` awaits that
    the ledger has what pods hold by their limits; it raises HoldersUnknown where that cannot be known.
    """

    def __init__(
        self,
        *,
        driver: str,
        claims: ClaimSource,
        preparer: Preparer,
        published: Callable[[], Mapping[str, PublishedDevice]],
        with_modes: Callable[[Claim], Claim],
        holders_known: Callable[[], Awaitable[None]],
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__(patience)
        self._driver = driver
        self._claims = claims
        self._preparer = preparer
        self._published = published
        self._with_modes = with_modes
        self._holders_known = holders_known

    async def _prepare(self, ref: ClaimRef, asked: float) -> Prepared:
        claim = await self._claims.claim(ref)
        await self._holders_known()
        published = self._published()
        for result in claim.of_driver(self._driver):
            if result.device not in published:
                raise UnknownDevice(f"claim {claim.full_name}: this node offers no device {result.device}")
        grant = await self._preparer.prepare(self._with_modes(claim), published, asked=asked)
        log.debug("answered", claim=claim.full_name, uid=claim.uid, devices=[hold.device for hold in grant.holds])
        return tuple(
            PreparedDevice(
                requests=(hold.request.partition("/")[0],),
                pool=hold.pool,
                device=hold.device,
                cdi_ids=hold.cdi_ids,
                share_id=hold.share_id,
            )
            for hold in grant.holds
        )

    async def _unprepare(self, ref: ClaimRef, asked: float) -> Prepared:
        await self._preparer.unprepare(ref.uid)
        return ()


TRANSIENT = (KubeError, DeviceHeld, DomainNotReady, InUse, PoolUnknown, HoldersUnknown, DriverFilesUnknown)
"""What may pass within seconds: the API server, hardware that another claim is just giving back or that processes are
just leaving, a ComputeDomain that is coming up, and an agent that was just started: it has not yet learned which
devices there are, who holds what, or what a container needs."""
