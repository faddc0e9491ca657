"""Tells Kubernetes of the node: by a condition (``node_condition``), Events (``node_events``) and labels.

It writes when something has changed and never otherwise; ``label_writer`` has the labels. What cannot be written is
tried again with growing pauses, which no change makes shorter, and keeps nobody from work.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from node_agent.errors import AlreadyExists, NodeAgentError, NotFound
from node_agent.kit.backoff import pauses, spread
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log, Steady
from node_agent.kube.client import KubeClient, Patch
from node_agent.kube.resources import EVENTS, NODES, Object
from node_agent.reporting.health import HealthDocument
from node_agent.reporting.health_view import HealthView
from node_agent.reporting.node_condition import (
    ConditionKind,
    NodeCondition,
    Truth,
    application,
    condition_of,
    other_owner,
    says,
)
from node_agent.reporting.node_events import NAMESPACE, Entry, Notice, Outbox, Told, event, series
from node_agent.reporting.status import ReportStatus

# A change is told after this time, with all that follows it meanwhile: a GPU that is just being looked at is no news.
SETTLE_SECONDS = 0.5
# A condition that somebody has removed is back after at most so long.
LOOK_SECONDS = 300.0
# An agent that has just started, or a driver that is being loaded, soon knows: until then the last word stands.
UNKNOWN_SECONDS = 15.0
# A message that alone has changed, such as a counter in it, is written at most so often.
REWORD_SECONDS = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0

log = Log(__name__)


Reports = Latest[Mapping[str, ReportStatus]]
"""How each writer fares, by what it writes."""


class Writer(Protocol):
    """Something that is written of the node. ``what`` it is; ``standing``: where that stands now, in words, if so."""

    @property
    def what(self) -> str: ...

    @property
    def standing(self) -> str: ...

    async def write(self, document: HealthDocument) -> None:
        """Write what has changed. Raises NodeAgentError where that cannot be done now."""

    def pause(self) -> float:
        """Seconds until there may be something to do, even if nothing changes."""


class NodeReporter:
    """A service: has the ``writers`` write what ``view`` shows, and what they have to tell of ``more``.

    ``reports`` shows how they fare.
    """

    def __init__(
        self,
        view: HealthView,
        writers: Sequence[Writer],
        settle_seconds: float = SETTLE_SECONDS,
        more: Sequence[Latest[Any]] = (),
        reports: Reports | None = None,
    ) -> None:
        self._view = view
        self._more = more
        self._reports = Latest[Mapping[str, ReportStatus]]({}) if reports is None else reports
        self._patient = [Patient(writer) for writer in writers]
        self._settle_seconds = settle_seconds

    async def run(self) -> None:
        """Write until cancelled."""
        async for _ in changes(
            *self._view.sources, *self._more, every=lambda: min(one.pause() for one in self._patient)
        ):
            await asyncio.sleep(self._settle_seconds)
            for one in self._patient:
                await one.write(self._view.document)
            self._reports.set({one.status.name: one.status for one in self._patient})


class Patient:
    """A writer that is left alone for a growing time after it has failed, whatever happens meanwhile."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._tries = pauses(FIRST_PAUSE, 2.0, LONGEST_PAUSE)
        self._not_before: float | None = None
        # A lasting trouble is said once: it is no trouble of the GPUs, and the agent can do nothing about it.
        self._trouble = Steady(period=math.inf)
        self._reason: str | None = None

    @property
    def status(self) -> ReportStatus:
        return ReportStatus(name=self._writer.what, standing=self._writer.standing, trouble=self._reason)

    def pause(self) -> float:
        """Seconds until it is to be asked again."""
        return self._writer.pause() if self._not_before is None else max(self._not_before - time.monotonic(), 0.0)

    async def write(self, document: HealthDocument) -> None:
        if self._not_before is not None and time.monotonic() < self._not_before:
            return
        try:
            await self._writer.write(document)
        except NodeAgentError as error:
            self._reason = str(error)
            if self._trouble.should_say(type(error).__name__):
                log.warning("a report on the node cannot be written", report=self._writer.what, reason=error)
            self._not_before = time.monotonic() + spread(next(self._tries))
        else:
            self._trouble.clear()
            self._reason = None
            self._tries, self._not_before = pauses(FIRST_PAUSE, 2.0, LONGEST_PAUSE), None


class ConditionWriter:
    """Keeps a condition as it is ``wanted``. Where somebody else has set it, that one's word stands."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        kind: ConditionKind,
        wanted: Callable[[HealthDocument], NodeCondition],
        *,
        look_seconds: float = LOOK_SECONDS,
        unknown_seconds: float = UNKNOWN_SECONDS,
    ) -> None:
        self.what = f"condition {kind.type}"
        self._client = client
        self._node = node
        self._kind = kind
        self._wanted = wanted
        self._look_seconds = look_seconds
        self._unknown_seconds = unknown_seconds
        self._written: NodeCondition | None = None
        self._written_at = self._next = -math.inf
        self._unknown_since = math.inf
        self._owner: str | None = None

    @property
    def standing(self) -> str:
        if self._owner is not None:
            return f"set by {self._owner} and left alone"
        return f"{self._written.status}: {self._written.reason}" if self._written is not None else ""

    def pause(self) -> float:
        return max(self._next - time.monotonic(), 0.0)

    async def write(self, document: HealthDocument) -> None:
        wanted = self._wanted(document)
        if not self._is_due(wanted):
            return
        node = await self._client.get(NODES, self._node)
        stored = condition_of(node, self._kind)
        if not self._is_taken(node) and not says(stored, wanted):
            await self._apply(wanted, stored)
        self._written, self._next = wanted, time.monotonic() + spread(self._look_seconds)

    async def _apply(self, wanted: NodeCondition, stored: Object | None) -> None:
        kind, applied = self._kind, application(self._node, self._kind, wanted, stored, time.time())
        await self._client.patch(NODES, self._node, applied, how=Patch.APPLY, subresource="status", owner=kind.owner)
        self._written_at = time.monotonic()
        log.info(
            "node condition written",
            condition=kind.type,
            status=wanted.status,
            reason=wanted.reason,
            message=wanted.message,
        )

    def _is_due(self, wanted: NodeCondition) -> bool:
        """Whether to look at the Node now; where not, ``_next`` is when."""
        now, before = time.monotonic(), self._written
        unknown = wanted.status is Truth.UNKNOWN
        self._unknown_since = min(self._unknown_since, now) if unknown else math.inf
        settled = self._unknown_since + self._unknown_seconds
        if unknown and now < settled:
            self._next = settled
            return False
        if before is None or now >= self._next or (before.status, before.reason) != (wanted.status, wanted.reason):
            return True
        if before != wanted:
            self._next = min(self._next, self._written_at + REWORD_SECONDS)
        return now >= self._next

    def _is_taken(self, node: Object) -> bool:
        owner = other_owner(node, self._kind)
        if owner != self._owner and owner is not None:
            log.warning(
                "the node's condition is somebody else's and left alone", condition=self._kind.type, owner=owner
            )
        self._owner = owner
        return owner is not None


class EventWriter:
    """Writes Events of what is new in the document; a cause from before ``started``, wall-clock seconds, is not.

    ``others`` gives what else is new since it was asked last.
    """

    what, standing = "events", ""

    def __init__(
        self, client: KubeClient, node: str, started: float, others: Callable[[], Iterable[Notice]] = tuple
    ) -> None:
        self._client = client
        self._node = node
        self._told, self._others, self._outbox = Told(started), others, Outbox(node)

    def pause(self) -> float:
        return self._outbox.pause(time.monotonic())

    async def write(self, document: HealthDocument) -> None:
        now = time.monotonic()
        for notice in (*self._told.notices(document), *self._others()):
            self._outbox.add(notice, now)
        for entry in self._outbox.due(now):
            await self._write(entry)
            entry.wrote(now)

    async def _write(self, entry: Entry) -> None:
        epoch = time.time() - time.monotonic()
        if entry.written:
            try:
                change = {"series": series(entry, epoch)}
                await self._client.patch(EVENTS, entry.name, change, NAMESPACE)
            except NotFound:
                log.debug("an event was forgotten by the API server and is made anew", event=entry.name)
            else:
                return
        uid = (await self._client.get(NODES, self._node))["metadata"]["uid"]
        with suppress(AlreadyExists):  # a try of ours whose answer was lost
            await self._client.create(EVENTS, event(entry, self._node, uid, epoch))
