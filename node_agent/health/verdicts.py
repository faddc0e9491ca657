"""What an event, a reading or an operator's word means for a GPU. Pure: a chart and a fact in, a chart out.

The one evaluator: whatever is said of a device's health anywhere follows from the charts that come from here. ``rules``
says what a trouble costs and what ends it; a trouble that comes again and again is held open longer and longer.
"""

import time
from collections.abc import Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from node_agent.errors import DeviceLost, HardwareError, NotSupported
from node_agent.hardware.provider import EventKind, GpuReadings, HardwareEvent, RecoveryAction
from node_agent.health.chart import Chart, Course
from node_agent.health.findings import Finding, findings
from node_agent.health.policy import Action, ClearedBy
from node_agent.health.rules import Decision, Policy
from node_agent.health.xids import XidScope, xid
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Cause, Instance, Reason, Severity

# "The recovery action has changed": no fault of its own, but always a reason to read the action at once.
RECOVERY_ACTION_CHANGED = 154

# What only a subscription can find and end.
OF_EVENTS = frozenset({Reason.EVENTS_FAILED, Reason.NOT_MONITORED})
# What is ended by who found it; a probe says nothing about these.
FOUND_ELSEWHERE = OF_EVENTS | {Reason.DEVICE_NODE, Reason.MPS}
# An answer of any kind ends these.
_UNANSWERED = frozenset({Reason.QUERY_FAILED, Reason.NOT_PROBED})

FLAPPING_SECONDS, FLAPPING_OPENINGS = 600.0, 3
"""A trouble that takes a GPU out so often in so long a time is held open."""
LONGEST_HOLD = 600.0
# More make no hold longer.
_MOST_OPENINGS = 12

NOT_PROBED = Finding(reason=Reason.NOT_PROBED, message="not looked at yet")
"""Of a GPU that is new or was away: it may have come broken, and no event would tell."""
LOST = Finding(reason=Reason.LOST, message="fallen off the bus, from which only a reset or a reboot brings it back")

_ENDS = {
    ClearedBy.PROBE: "a look at it finds this no more",
    ClearedBy.RECOVERY: "it answers and the driver asks for no recovery",
    ClearedBy.RESET: "it was reset, or the node rebooted, and it answers",
    ClearedBy.OPERATOR: "an operator says so: node-agent health clear",
}
# In place of the first, where more can be said.
_ENDS_OF: Mapping[Reason, str] = {
    Reason.LOST: "it answers again",
    Reason.QUERY_FAILED: "it answers again",
    Reason.RECOVERY: "the driver asks for no recovery any more",
    Reason.ECC: "it was reset",
    Reason.ROW_REMAP: "the board was replaced",
    Reason.RETIRED_PAGES: "the board was replaced",
    Reason.RESET_NEEDED: "it was reset",
    Reason.DEVICE_NODE: "the device node is there",
    Reason.MPS: "the daemon runs again",
    Reason.EVENTS_FAILED: "its events can be watched",
    Reason.NOT_MONITORED: "it reports events",
    Reason.NOT_PROBED: "it was looked at, which takes milliseconds",
}


def of_event(event: HardwareEvent, peers: frozenset[GpuUuid] = frozenset()) -> Finding | None:
    """What an event says of a GPU with NVLinks to ``peers``; None where it is only a reason to look at it."""
    if event.kind is EventKind.LOST:
        return LOST
    if event.kind is not EventKind.FAULT or event.code is None or event.code == RECOVERY_ACTION_CHANGED:
        return None
    known = xid(event.code)
    of_links = known.scope is XidScope.LINKS and bool(peers)
    part = None if event.instance is None else Instance(id=event.instance, compute=event.compute_instance)
    return Finding(
        reason=Reason.XID,
        message=f"Xid {event.code}: {known.name}",
        code=event.code,
        peers=peers if of_links else None,
        instance=None if of_links else part,
    )


def of_subscription(error: Exception) -> Finding:
    """What it says of a GPU that its events cannot be subscribed to."""
    return LOST if isinstance(error, DeviceLost) else unwatched(error)


def unwatched(error: Exception) -> Finding:
    """Of a GPU whose events will not come. A board without events is neutral: probes watch it."""
    if isinstance(error, NotSupported):
        message = "it reports no events: what goes wrong is found by the next probe"
        return Finding(reason=Reason.NOT_MONITORED, message=message)
    return Finding(reason=Reason.EVENTS_FAILED, message=f"its events cannot be watched: {error}")


def of_probe(outcome: GpuReadings | HardwareError) -> tuple[Finding, ...]:
    """What a probe finds wrong; nothing where the GPU is fit for work, or supports nothing that could tell."""
    if isinstance(outcome, DeviceLost):
        return (LOST,)
    if isinstance(outcome, NotSupported):
        return ()
    if isinstance(outcome, HardwareError):
        return (Finding(reason=Reason.QUERY_FAILED, message=f"it does not answer: {outcome}"),)
    return findings(outcome)


class Verdicts(Struct, frozen=True, kw_only=True):
    """The rules at work in the boot ``boot``; GPUs are probed every ``probe_seconds``. ``now`` is wall-clock time."""

    policy: Policy = field(default_factory=Policy)
    probe_seconds: float = 5.0
    boot: str = ""

    def is_idle(self, event: HardwareEvent) -> bool:
        """Whether an event says nothing about the GPU, so that even a storm of them is worth no look at it."""
        if event.kind is not EventKind.FAULT or event.code == RECOVERY_ACTION_CHANGED:
            return False
        return self.policy.decide(Reason.XID, event.code).action is Action.IGNORE

    def found(self, chart: Chart, finding: Finding, now: float) -> Chart:
        """After something was found: its cause is open, once it was seen as often as its rule wants."""
        decision = self.policy.decide(finding.reason, finding.code)
        if not _opens(decision, finding.reason):
            return chart
        open_causes = {cause.key: cause for cause in chart.causes}
        before, course = open_causes.get(finding.key), chart.course(finding.key)
        times = (*_recent(course.seen, now, decision.within), now)[-decision.after :]
        course = replace(course, seen=times, boot=self.boot, over=False)
        if before is not None or len(times) >= decision.after:
            cause = _cause(finding, decision, now if before is None else before.since)
            open_causes[finding.key] = cause
            if before is None and _is_damped(cause):
                opened = (*_recent(course.opened, now, FLAPPING_SECONDS), now)[-_MOST_OPENINGS:]
                course = replace(course, opened=opened)
        courses = {**chart.courses, finding.key: course}
        return replace(chart, causes=tuple(open_causes.values()), courses=courses)

    def over(self, chart: Chart, reasons: Iterable[Reason], now: float) -> Chart:
        """After those who found something elsewhere find it no more."""
        ended = {cause.key for cause in chart.causes if cause.reason in reasons}
        courses = {key: replace(course, over=course.over or key in ended) for key, course in chart.courses.items()}
        return self._closed(replace(chart, courses=courses), now, None)

    def probed(self, chart: Chart, outcome: GpuReadings | HardwareError, now: float) -> Chart:
        """After a look at the GPU: what it found is open, and what is over is closed."""
        found = of_probe(outcome)
        if _shows_reset(chart, outcome):
            chart = replace(chart, courses={key: replace(one, boot=None) for key, one in chart.courses.items()})
        for finding in found:
            chart = self.found(chart, finding, now)
        return self._closed(chart, now, Look(outcome=outcome, found=found))

    def cleared(self, chart: Chart, reason: Reason | None = None, code: int | None = None) -> Chart:
        """After an operator's word that these are over; without a reason and a code, all. Their past is forgotten."""
        meant = {one.key for one in chart.causes if reason in (None, one.reason) and code in (None, one.code)}
        return replace(
            chart,
            causes=tuple(cause for cause in chart.causes if cause.key not in meant),
            courses={key: course for key, course in chart.courses.items() if key not in meant},
        )

    def remembered(self, chart: Chart, now: float) -> Chart:
        """A chart of an earlier agent, by the rules of this one, and not looked at yet."""
        return self.found(self.judged(chart, now), NOT_PROBED, now)

    def judged(self, chart: Chart, now: float) -> Chart:
        """A chart that other rules have made, by these."""
        decided = [(cause, self.policy.decide(cause.reason, cause.code)) for cause in chart.causes]
        causes = {
            cause.key: replace(cause, severity=decision.severity, clears=_clears(cause.reason, decision))
            for cause, decision in decided
            if _opens(decision, cause.reason)
        }
        courses = {
            key: course
            for key, course in chart.courses.items()
            if key in causes or 0 <= now - course.last < FLAPPING_SECONDS
        }
        return replace(chart, causes=tuple(causes.values()), courses=courses)

    def _closed(self, chart: Chart, now: float, look: "Look | None") -> Chart:
        """The chart without the causes that are over, except those that are held open."""
        causes = []
        for cause in chart.causes:
            course = chart.course(cause.key)
            if not self._is_over(cause, course, now, look):
                causes.append(cause)
            elif (until := self._held_until(cause, course)) and 0 <= now - course.last < until - course.last:
                causes.append(replace(cause, clears=_held(course, until)))
        return replace(chart, causes=tuple(causes))

    def _is_over(self, cause: Cause, course: Course, now: float, look: "Look | None") -> bool:
        ends = self.policy.decide(cause.reason, cause.code).cleared_by
        if ends is ClearedBy.OPERATOR:
            return False
        if cause.reason in FOUND_ELSEWHERE:
            return course.over
        if look is None or look.finds(cause):
            return False
        return cause.reason in _UNANSWERED or (look.answered and self._is_proven(cause, course, ends, now, look))

    def _is_proven(self, cause: Cause, course: Course, ends: ClearedBy, now: float, look: "Look") -> bool:
        """Whether a look that does not find a trouble is enough to end it."""
        if cause.reason is Reason.XID and self._is_fresh(course, now):
            return False
        if ends is ClearedBy.PROBE or course.boot != self.boot:
            return True
        return ends is ClearedBy.RECOVERY and look.needs_no_recovery

    def _is_fresh(self, course: Course, now: float) -> bool:
        """The driver takes a moment to make up its mind; a clock that is set, as at boot, must not make it longer."""
        return 0 <= now - course.last < self.probe_seconds

    def _held_until(self, cause: Cause, course: Course) -> float | None:
        """Until when a trouble that came again and again is held open: each time twice as long."""
        count = len(course.opened)
        if count < FLAPPING_OPENINGS or not _is_damped(cause):
            return None
        return course.last + min(LONGEST_HOLD, self.probe_seconds * 2.0**count)


class Look(Struct, frozen=True, kw_only=True):
    """What one look at a GPU came to."""

    outcome: GpuReadings | HardwareError
    found: tuple[Finding, ...]

    def finds(self, cause: Cause) -> bool:
        return any(finding.key == cause.key for finding in self.found)

    @property
    def answered(self) -> bool:
        """Whether the GPU told all that it can tell of its health."""
        return not any(finding.reason in (Reason.LOST, Reason.QUERY_FAILED) for finding in self.found)

    @property
    def needs_no_recovery(self) -> bool:
        """By the driver's word; one that is too old to give it says nothing."""
        return isinstance(self.outcome, GpuReadings) and self.outcome.recovery_action is RecoveryAction.NONE


def _opens(decision: Decision, reason: Reason) -> bool:
    """Whether a trouble is shown as a cause: an event that costs nothing is over at once, so it is only counted."""
    mildest = Action.IGNORE, Action.COUNT if reason is Reason.XID else Action.IGNORE
    return decision.action not in mildest


def _cause(finding: Finding, decision: Decision, since: float) -> Cause:
    often = f", {decision.after} times in {decision.within:.0f} s" if decision.after > 1 else ""
    return Cause(
        reason=finding.reason,
        severity=decision.severity,
        message=f"{finding.message}{often}",
        since=since,
        clears=_clears(finding.reason, decision),
        code=finding.code,
        instance=finding.instance,
        peers=finding.peers,
    )


def _clears(reason: Reason, decision: Decision) -> str:
    ends = _ENDS[decision.cleared_by]
    return f"ends when {_ENDS_OF.get(reason, ends) if decision.cleared_by is ClearedBy.PROBE else ends}"


def _held(course: Course, until: float) -> str:
    clock = time.strftime("%H:%M:%S", time.gmtime(until))
    return (
        f"over, but it came {len(course.opened)} times in {FLAPPING_SECONDS / 60:.0f} minutes: held until {clock} UTC"
    )


def _is_damped(cause: Cause) -> bool:
    return cause.severity >= Severity.WITHDRAWN and cause.reason is not Reason.NOT_PROBED


def _recent(times: Iterable[float], now: float, seconds: float) -> tuple[float, ...]:
    return tuple(time for time in times if 0 <= now - time <= seconds)


def _shows_reset(chart: Chart, outcome: GpuReadings | HardwareError) -> bool:
    """Whether the GPU was reset since the last look, as far as that can be told.

    It answers although it had been off the bus, the driver asks for no recovery any more, or the memory errors since
    the last reset are gone. A reset without any of these is not noticed.
    """
    before = {cause.reason for cause in chart.causes}
    if not isinstance(outcome, GpuReadings):
        return False
    return (
        Reason.LOST in before
        or (Reason.RECOVERY in before and outcome.recovery_action is RecoveryAction.NONE)
        or (Reason.ECC in before and outcome.uncorrected_ecc_errors == 0)
    )
