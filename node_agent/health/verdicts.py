"""What an event or a reading means for a GPU. Pure: facts in, causes out.

A fault that the application caused itself says nothing about the GPU. Any other fault withdraws the GPU until the
driver asks for no recovery any more and the GPU answers: a healthy GPU comes back by itself.
"""

from collections.abc import Container
from dataclasses import dataclass

from node_agent.errors import DeviceLost, HardwareError, NotSupported
from node_agent.hardware.provider import EventKind, GpuReadings, HardwareEvent, RecoveryAction
from node_agent.health.findings import findings
from node_agent.model.health import Cause, Reason, Severity

# Xids after which the GPU goes on working: the application's own doing, or announced again by a worse one. The set that
# NVIDIA's device plugin ignores.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})


# "The recovery action has changed": no fault of its own, but a reason to read the action at once.
RECOVERY_ACTION_CHANGED = 154


# What a probe finds withdraws the GPU, but for these.
MILD = {Reason.RESET_NEEDED: Severity.DEGRADED}

# What only a subscription can find and clear; a probe says nothing about events.
OF_EVENTS = frozenset({Reason.EVENTS_FAILED, Reason.NOT_MONITORED})


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Which faults leave a GPU in service."""

    ignored: Container[int] = APPLICATION_XIDS


def is_idle(event: HardwareEvent, policy: Policy) -> bool:
    """Whether an event says nothing about the GPU, so that even a storm of them is worth no look at it."""
    return event.kind is EventKind.FAULT and event.code in policy.ignored and event.code != RECOVERY_ACTION_CHANGED


def of_event(event: HardwareEvent, policy: Policy, now: float) -> Cause | None:
    """The cause that an event opens, or None where it opens none. ``now`` is wall-clock time in seconds."""
    if event.kind is EventKind.LOST:
        return lost(now)
    if event.kind is not EventKind.FAULT or event.code == RECOVERY_ACTION_CHANGED or is_idle(event, policy):
        return None
    return Cause(
        reason=Reason.XID,
        severity=Severity.WITHDRAWN,
        code=event.code,
        since=now,
        message=f"Xid {event.code}; back when the GPU answers and the driver asks for no recovery",
    )


def lost(now: float) -> Cause:
    return Cause(
        reason=Reason.LOST,
        severity=Severity.WITHDRAWN,
        since=now,
        message="fallen off the bus; back when it answers again, which takes a reset or a reboot",
    )


def not_probed(now: float) -> Cause:
    """Of a GPU that is new or was away: it may have come broken, and no event would tell."""
    return Cause(reason=Reason.NOT_PROBED, severity=Severity.WITHDRAWN, since=now, message="not looked at yet")


def of_subscription(error: Exception, now: float) -> Cause:
    """The cause that is opened by a GPU whose events cannot be subscribed to."""
    return lost(now) if isinstance(error, DeviceLost) else unwatched(error, now)


def unwatched(error: Exception, now: float) -> Cause:
    """Of a GPU whose events will not come. Boards without events are neutral: probes find what is wrong with them."""
    if isinstance(error, NotSupported):
        message = "it reports no events: what goes wrong is found by the next probe"
        return Cause(reason=Reason.NOT_MONITORED, severity=Severity.NONE, since=now, message=message)
    message = f"its events cannot be watched: {error}"
    return Cause(reason=Reason.EVENTS_FAILED, severity=Severity.WITHDRAWN, since=now, message=message)


def of_probe(outcome: GpuReadings | HardwareError, now: float) -> tuple[Cause, ...]:
    """The causes that a probe of the GPU finds; none where the GPU is fit for work."""
    if isinstance(outcome, DeviceLost):
        return (lost(now),)
    if isinstance(outcome, NotSupported):
        return ()
    if isinstance(outcome, HardwareError):
        return (
            Cause(
                reason=Reason.QUERY_FAILED,
                severity=Severity.WITHDRAWN,
                since=now,
                message=f"it does not answer: {outcome}",
            ),
        )
    return tuple(
        Cause(
            reason=finding.reason,
            severity=MILD.get(finding.reason, Severity.WITHDRAWN),
            message=finding.message,
            since=now,
            peers=finding.peers,
        )
        for finding in findings(outcome)
    )


def cleared_by(cause: Cause, outcome: GpuReadings | HardwareError, now: float, settle_seconds: float) -> bool:
    """Whether a probe closes an open cause that it did not find again.

    What only an event told needs the driver's word that no recovery is due; a driver too old to give it keeps the GPU
    out. The word counts only some time after the event, since the driver takes a moment to make up its mind.
    """
    if cause.reason in OF_EVENTS:
        return False
    if cause.reason is not Reason.XID:
        return True
    fit = isinstance(outcome, GpuReadings) and outcome.recovery_action is RecoveryAction.NONE
    # A clock that is set back, as at boot, must not keep the GPU out until it has caught up.
    return fit and not 0 <= now - cause.since < settle_seconds
