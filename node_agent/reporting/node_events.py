"""Which Events a Node gets of its GPUs' health: one for each cause that opens, one for each GPU that is restored.

Pure but for what it remembers: what was told of each GPU, and what is still to be written. ``node_reporter`` writes.
What happens again is the same Event with a higher count, written at growing intervals, so that no storm reaches the API
server; what could not be written for a while is old news, and dropped.
"""

import math
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime

from msgspec import Struct, field

from node_agent.kit.backoff import pauses
from node_agent.kube.resources import Object
from node_agent.model.health import Reason
from node_agent.reporting.health import CauseStatus, GpuHealth, HealthDocument
from node_agent.reporting.node_condition import REPORTER, in_words, unprobed

ACTION = "HealthChanged"
# Events of cluster-wide objects are kept there.
NAMESPACE = "default"
# The API server takes no longer ones.
LONGEST_NOTE, LONGEST_INSTANCE, LONGEST_NODE = 1024, 128, 200

# Between two writes of one Event: the first time, and the most.
AGAIN_SECONDS, LONGEST_SECONDS = 10.0, 300.0
# What has not happened for so long is a new Event when it does, since the API server forgets its Events after an hour;
# and what could not be written meanwhile is no news any more.
FORGET_SECONDS = 1800.0
MOST_ENTRIES = 64

WARNINGS = {"degraded": "GPUDegraded", "withdrawn": "GPUWithdrawn", "evicted": "GPUEvicted"}
WORSE = ("healthy", *WARNINGS)


class Notice(Struct, frozen=True, kw_only=True):
    """Something to tell; two of one ``key`` are the same happening again. ``note`` is for people."""

    key: tuple[object, ...]
    type: str
    reason: str
    note: str
    action: str = ACTION


class Entry(Struct, kw_only=True):
    """One Event: how often it happened, how often of that is written, and when it may be written next.

    Times are those of a clock that nobody sets.
    """

    name: str
    notice: Notice
    first: float
    last: float
    count: int = 1
    written: int = 0
    not_before: float = 0.0
    pauses: Iterator[float] = field(default_factory=lambda: pauses(AGAIN_SECONDS, 2.0, LONGEST_SECONDS))

    @property
    def waits(self) -> bool:
        return self.count > self.written

    def wrote(self, now: float) -> None:
        """All of it has just been written."""
        self.written, self.not_before = self.count, now + next(self.pauses)


class Told:
    """What was told of each GPU; ``notices`` are what is new in a document. Causes from before ``started`` are not."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._gpus: dict[str, GpuHealth] = {}
        self._trouble: str | None = None

    def notices(self, document: HealthDocument) -> Iterator[Notice]:
        if document.trouble:
            # Nothing is known of single GPUs; at the start of the agent that is no news.
            if self._gpus and not self._trouble:
                self._trouble = document.trouble
                yield Notice(key=("driver",), type="Warning", reason="GPUsUnknown", note=document.trouble)
            return
        if self._trouble:
            self._trouble = None
            yield Notice(key=("driver back",), type="Normal", reason="GPUsKnown", note="the driver answers again")
        for gpu in document.gpus:
            # One that is just being looked at is what it was.
            if not unprobed(gpu):
                yield from self._news(self._gpus.get(gpu.uuid), gpu)
                self._gpus[gpu.uuid] = gpu

    def _news(self, before: GpuHealth | None, after: GpuHealth) -> Iterator[Notice]:
        if not after.present:
            if before is not None and before.present:
                yield _notice(after, "Warning", "GPUWithdrawn", in_words(after))
            return
        known = {_key(cause): cause.severity for cause in before.causes} if before is not None else {}
        for cause in after.causes:
            worse = WORSE.index(cause.severity) > WORSE.index(known.get(_key(cause), "healthy"))
            # Of a GPU that is known already whatever opens is new, whoever has set the clock since.
            is_new = before is not None or cause.since >= self._started
            if worse and is_new and cause.reason != Reason.NOT_PROBED:
                yield _notice(after, "Warning", WARNINGS[cause.of_gpu], _line(after, cause), *_key(cause))
        if before is not None and _is_restored(before, after):
            state = "healthy again" if after.health == "healthy" else f"in service again; {in_words(after)}"
            yield _notice(after, "Normal", "GPURestored", f"{after.name} ({after.uuid}): {state}")


def _is_restored(before: GpuHealth, after: GpuHealth) -> bool:
    if after.health == "healthy":
        return not before.present or before.health != "healthy"
    return after.in_service and not before.in_service


def _key(cause: CauseStatus) -> tuple[object, ...]:
    return cause.reason, cause.code, cause.instance


def _line(gpu: GpuHealth, cause: CauseStatus) -> str:
    return f"{gpu.name} ({gpu.uuid}): {', '.join(filter(None, (cause.title, cause.reach)))}: {cause.text}"


def _notice(gpu: GpuHealth, kind: str, reason: str, note: str, *more: object) -> Notice:
    return Notice(key=(gpu.uuid, reason, *more), type=kind, reason=reason, note=note[:LONGEST_NOTE])


class Outbox:
    """The Events that were written lately or are still to be, the oldest first."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._entries: dict[tuple[object, ...], Entry] = {}

    def add(self, notice: Notice, now: float) -> None:
        known = self._entries.get(notice.key)
        if known is not None:
            known.count, known.last = known.count + 1, now
            return
        name = f"{self._node[:LONGEST_NODE]}.{secrets.token_hex(8)}"
        self._entries[notice.key] = Entry(name=name, notice=notice, first=now, last=now)
        while len(self._entries) > MOST_ENTRIES:
            del self._entries[next(iter(self._entries))]

    def due(self, now: float) -> list[Entry]:
        """What is to be written now; what is too old for that is dropped."""
        self._entries = {key: one for key, one in self._entries.items() if now - one.last <= FORGET_SECONDS}
        return [entry for entry in self._entries.values() if entry.waits and entry.not_before <= now]

    def pause(self, now: float) -> float:
        """Seconds until something may be written, which is never where nothing waits for it."""
        return max(min((one.not_before for one in self._entries.values() if one.waits), default=math.inf) - now, 0.0)


def event(entry: Entry, node: str, node_uid: str, epoch: float) -> Object:
    """The Event as it is made; ``epoch`` is the time of day, in wall-clock seconds, at which its times begin."""
    return {
        "metadata": {"name": entry.name, "namespace": NAMESPACE},
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid},
        "type": entry.notice.type,
        "reason": entry.notice.reason,
        "note": entry.notice.note,
        "action": entry.notice.action,
        "eventTime": _micro(epoch + entry.first),
        "reportingController": REPORTER,
        "reportingInstance": node[:LONGEST_INSTANCE],
        **({"series": series(entry, epoch)} if entry.count > 1 else {}),
    }


def series(entry: Entry, epoch: float) -> Object:
    """What changes in an Event that happened again; nothing else of it may."""
    return {"count": entry.count, "lastObservedTime": _micro(epoch + entry.last)}


def _micro(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
