"""The health of devices: open causes, and the verdict that follows from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from node_agent.model.gpu import GpuUuid


class Severity(IntEnum):
    """What a cause means for new work; a larger value is worse, and a device is as bad as its worst open cause."""

    NONE = 0
    DEGRADED = 1
    WITHDRAWN = 2


class Reason(StrEnum):
    """Why a device is out of service or degraded; part of the public interface of logs, status and metrics."""

    XID = "xid"
    LOST = "gpu-lost"
    QUERY_FAILED = "query-failed"
    RECOVERY = "recovery-needed"
    ECC = "ecc"
    ROW_REMAP = "row-remap-failed"
    RESET_NEEDED = "reset-needed"
    EVENTS_FAILED = "events-failed"
    NOT_MONITORED = "not-monitored"
    NOT_PROBED = "not-probed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """One open trouble of one device. ``message`` is for people: what was seen, and what clears it."""

    reason: Reason
    severity: Severity
    message: str
    since: float
    code: int | None = None

    @property
    def key(self) -> tuple[Reason, int | None]:
        """Two causes with one key are the same trouble seen again."""
        return (self.reason, self.code)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceHealth:
    """The open causes of one device, oldest first."""

    causes: tuple[Cause, ...] = ()

    @property
    def severity(self) -> Severity:
        return max((cause.severity for cause in self.causes), default=Severity.NONE)

    @property
    def withdrawn(self) -> bool:
        return self.severity >= Severity.WITHDRAWN


HEALTHY = DeviceHealth()


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthReport:
    """The health of every device that is known; ``others`` is that of all the rest."""

    devices: Mapping[GpuUuid, DeviceHealth] = field(default_factory=dict)
    others: DeviceHealth = HEALTHY

    def of(self, gpu: GpuUuid) -> DeviceHealth:
        return self.devices.get(gpu, self.others)
