"""What is wrong with a GPU by its own readings. Pure, and without a word on what it costs: that is the policy's.

What a GPU does not support says nothing about it; a query that went wrong is a finding of its own.
"""

from dataclasses import dataclass

from node_agent.hardware.provider import GpuReadings, RecoveryAction
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Instance, Reason

# A GPU that cannot tell these, although it should, may be sick; whatever else it cannot tell is a gap in the metrics.
HEALTH_READINGS = frozenset({"recovery_action", "uncorrected_ecc_errors", "row_remap_pending", "row_remap_failed"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong; the fields mean what they mean in ``Cause``, which a policy makes of it."""

    reason: Reason
    message: str
    code: int | None = None
    instance: Instance | None = None
    peers: frozenset[GpuUuid] | None = None

    @property
    def key(self) -> tuple[Reason, int | None, Instance | None]:
        """That of the cause."""
        return (self.reason, self.code, self.instance)


def findings(readings: GpuReadings) -> tuple[Finding, ...]:
    """What is wrong, by one look at a GPU; at most one finding for a reason."""
    found: list[Finding] = []
    failed = {name: why for name, why in readings.failed.items() if name in HEALTH_READINGS}
    if failed:
        what = "; ".join(f"{name}: {why}" for name, why in failed.items())
        found.append(Finding(reason=Reason.QUERY_FAILED, message=f"what tells of its health cannot be read: {what}"))
    if readings.recovery_action not in (None, RecoveryAction.NONE):
        message = f"the driver asks for recovery: {readings.recovery_action}"
        found.append(Finding(reason=Reason.RECOVERY, message=message))
    if readings.row_remap_failed:
        found.append(Finding(reason=Reason.ROW_REMAP, message="row remapping failed: the board needs replacement"))
    if count := readings.uncorrected_ecc_errors:
        found.append(Finding(reason=Reason.ECC, message=f"{count} uncorrected ECC errors since the last reset"))
    if readings.row_remap_pending:
        message = "a row waits to be remapped: reset it when idle"
        found.append(Finding(reason=Reason.RESET_NEEDED, message=message))
    return tuple(found)
