"""The health of devices: open causes, where each of them reaches, and the verdict that follows from them."""

from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from node_agent.model.gpu import GpuUuid


class Severity(IntEnum):
    """What a cause means for work; a larger value is worse, and a device is as bad as its worst open cause.

    NONE only tells. A DEGRADED device is still given out, a WITHDRAWN one is not; work that has an EVICTED one is to be
    ended as well, where Kubernetes can do that.
    """

    NONE = 0
    DEGRADED = 1
    WITHDRAWN = 2
    EVICTED = 3


class Reason(StrEnum):
    """Why a device is out of service or degraded; part of the public interface of logs, taints, status and metrics."""

    XID = "xid"
    LOST = "gpu-lost"
    QUERY_FAILED = "query-failed"
    RECOVERY = "recovery-needed"
    ECC = "ecc"
    ROW_REMAP = "row-remap-failed"
    RETIRED_PAGES = "retired-pages"
    RESET_NEEDED = "reset-needed"
    NVLINK = "nvlink"
    FABRIC = "fabric"
    FABRIC_JOINING = "fabric-joining"
    PCIE = "pcie-degraded"
    THERMAL = "thermal-throttling"
    POWER = "power-throttling"
    DEVICE_NODE = "device-node-missing"
    MPS = "mps-daemon-dead"
    EVENTS_FAILED = "events-failed"
    NOT_MONITORED = "not-monitored"
    NOT_PROBED = "not-probed"


class Instance(Struct, frozen=True, kw_only=True):
    """The part of a GPU in MIG mode that a cause is confined to, by the driver's ids; all of it without ``compute``."""

    id: int
    compute: int | None = None

    def covers(self, other: "Instance") -> bool:
        return self.id == other.id and self.compute in (None, other.compute)


CauseKey: TypeAlias = tuple[Reason, int | None, Instance | None]
"""What tells two troubles of one GPU apart: the reason, the driver's number, and the instance it is confined to."""


class Cause(Struct, frozen=True, kw_only=True):
    """One open trouble of one GPU. ``message`` is for people: what was seen; ``clears``: what ends it.

    It reaches the whole GPU unless it is confined: to one ``instance`` of a GPU in MIG mode, or to the links to its
    ``peers``, so that only devices are hit that hold the GPU together with one of them. ``code`` is the driver's own
    number, such as that of an Xid; ``since`` is wall-clock time in seconds.
    """

    reason: Reason
    severity: Severity
    message: str
    since: float
    clears: str = ""
    code: int | None = None
    instance: Instance | None = None
    peers: frozenset[GpuUuid] | None = None

    def __post_init__(self) -> None:
        if self.instance is not None and self.peers is not None:
            raise ValueError(f"{self.reason}: a cause is confined to an instance or to links, not to both")

    @property
    def key(self) -> CauseKey:
        """Two causes with one key are the same trouble seen again."""
        return (self.reason, self.code, self.instance)

    @property
    def text(self) -> str:
        """What was seen and what ends it, in one line."""
        return f"{self.message}; {self.clears}" if self.clears else self.message


class DeviceHealth(Struct, frozen=True, kw_only=True):
    """The open causes of one device, as far as they reach it."""

    causes: tuple[Cause, ...] = ()

    @property
    def severity(self) -> Severity:
        return max((cause.severity for cause in self.causes), default=Severity.NONE)

    @property
    def withdrawn(self) -> bool:
        return self.severity >= Severity.WITHDRAWN

    @property
    def probed(self) -> bool:
        """Whether it has been looked at since it is known."""
        return all(cause.reason is not Reason.NOT_PROBED for cause in self.causes)


HEALTHY = DeviceHealth()


class HealthReport(Struct, frozen=True, kw_only=True):
    """The open causes of every GPU that is known, oldest first; ``others`` are those of all the rest.

    A cause confined to links or to an instance degrades the GPU, and withdraws only what needs just those.
    """

    devices: Mapping[GpuUuid, DeviceHealth] = field(default_factory=dict)
    others: DeviceHealth = HEALTHY

    def known_of(self, gpu: GpuUuid) -> DeviceHealth:
        """The causes of a GPU as they are on record, whatever they reach."""
        return self.devices.get(gpu, self.others)

    def of(self, gpu: GpuUuid) -> DeviceHealth:
        """The health of a GPU that is given out whole and by itself."""
        return self.of_group((gpu,))

    def of_group(self, gpus: Collection[GpuUuid]) -> DeviceHealth:
        """The health of a device that holds all of these GPUs."""
        held = frozenset(gpus)
        return _reaching(
            (cause, cause.instance is None and (cause.peers is None or bool(cause.peers & held - {gpu})))
            for gpu in gpus
            for cause in self.known_of(gpu).causes
        )

    def of_instance(self, gpu: GpuUuid, instance: Instance) -> DeviceHealth:
        """The health of one instance of a GPU in MIG mode: NVLink is not for it, so links do not count."""
        return _reaching(
            (cause, cause.peers is None)
            for cause in self.known_of(gpu).causes
            if cause.instance is None or cause.instance.covers(instance)
        )


def _reaching(causes: Iterable[tuple[Cause, bool]]) -> DeviceHealth:
    """The causes, each with whether it reaches the device: one that does not is no worse than a shortcoming."""
    return DeviceHealth(
        causes=tuple(
            cause if reaches else replace(cause, severity=min(cause.severity, Severity.DEGRADED))
            for cause, reaches in causes
        )
    )
