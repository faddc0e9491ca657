"""The health document: every GPU with its open causes, in one piece of JSON. Pure.

What others see of health is made from it: ``health_view`` has the present one, ``server`` and ``health_service`` serve
it, ``node_condition`` and ``node_events`` tell it to Kubernetes, and ``node-agent health`` shows it.
"""

from collections.abc import Mapping
from difflib import get_close_matches

import msgspec

from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Cause, HealthReport, Severity
from node_agent.model.inventory import Inventory

HEALTH_WORDS = {
    Severity.NONE: "healthy",
    Severity.DEGRADED: "degraded",
    Severity.WITHDRAWN: "withdrawn",
    Severity.EVICTED: "evicted",
}

Names = Mapping[GpuUuid, str]
Counts = Mapping[tuple[GpuUuid, int], int]
"""How often each Xid was seen, by the GPU and the Xid's number."""


class CauseStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An open cause: what was seen, since when (wall-clock time in seconds), and what clears it.

    It reaches the whole GPU, or only the MIG ``instance`` (as ``<GPU instance>`` or ``<GPU instance>/<compute
    instance>``), or only the links to the GPUs ``peers``.
    """

    reason: str
    severity: str
    message: str
    since: float
    clears: str = ""
    code: int | None = None
    instance: str | None = None
    peers: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What was seen and what ends it, in one line."""
        return f"{self.message} ({self.clears})" if self.clears else self.message

    @property
    def title(self) -> str:
        """The reason with the driver's number for it, such as ``xid 79``."""
        return self.reason if self.code is None else f"{self.reason} {self.code}"

    @property
    def reach(self) -> str:
        """How far it reaches, in words; nothing where it is the whole GPU."""
        if self.instance is not None:
            return f"MIG instance {self.instance} only"
        return f"links to {', '.join(self.peers)} only" if self.peers else ""

    @property
    def of_gpu(self) -> str:
        """What it means for the GPU as a whole."""
        return "degraded" if self.reach and self.severity in ("withdrawn", "evicted") else self.severity


class GpuHealth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU; ``health`` is ``healthy``, ``degraded``, ``withdrawn`` or ``evicted``; ``xids``: how often each was seen.

    One that is not ``present`` has been here since the agent started, and the driver does not list it any more.
    """

    name: str
    uuid: str
    health: str
    present: bool = True
    causes: tuple[CauseStatus, ...] = ()
    xids: dict[str, int] = {}

    @property
    def in_service(self) -> bool:
        return self.present and self.health in ("healthy", "degraded")


class MissingStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU that the driver counts but that cannot be read."""

    index: int
    reason: str
    uuid: str | None = None


class HealthDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole document. ``trouble`` says why nothing is known of the GPUs, where that is so."""

    node: str
    gpus: tuple[GpuHealth, ...] = ()
    missing: tuple[MissingStatus, ...] = ()
    trouble: str | None = None


def cause_status(cause: Cause) -> CauseStatus:
    part = cause.instance
    numbers = () if part is None else (part.id,) if part.compute is None else (part.id, part.compute)
    return CauseStatus(
        reason=cause.reason,
        severity=HEALTH_WORDS[cause.severity],
        message=cause.message,
        since=cause.since,
        clears=cause.clears,
        code=cause.code,
        instance="/".join(map(str, numbers)) or None,
        peers=tuple(sorted(cause.peers or ())),
    )


def health_document(
    *, node: str, inventory: Inventory, report: HealthReport, names: Names, counts: Counts
) -> HealthDocument:
    """Put the document together; ``names`` are those of all GPUs that were ever here."""
    present = inventory.by_uuid
    gone = sorted(report.devices.keys() - present.keys(), key=lambda gpu: names.get(gpu, gpu))
    return HealthDocument(
        node=node,
        gpus=tuple(
            GpuHealth(
                name=names.get(gpu, gpu),
                uuid=gpu,
                health=HEALTH_WORDS[report.of(gpu).severity],
                present=gpu in present,
                causes=tuple(map(cause_status, report.known_of(gpu).causes)),
                xids={str(code): count for (where, code), count in sorted(counts.items()) if where == gpu},
            )
            for gpu in (*present, *gone)
        ),
        missing=missing_gpus(inventory),
        trouble=inventory.problem or ("the GPUs have not been looked at yet" if inventory.generation == 0 else None),
    )


def missing_gpus(inventory: Inventory) -> tuple[MissingStatus, ...]:
    return tuple(MissingStatus(index=one.index, reason=one.reason, uuid=one.uuid) for one in inventory.missing)


def found(document: HealthDocument, word: str) -> GpuHealth | None:
    """The GPU of this name or UUID."""
    return next((gpu for gpu in document.gpus if word in (gpu.name, gpu.uuid)), None)


def not_found(document: HealthDocument, word: str) -> str:
    """What to tell somebody who named a GPU that is not here."""
    names = [name for gpu in document.gpus for name in (gpu.name, gpu.uuid)]
    if near := get_close_matches(word, names, n=2):
        return f"no GPU is called {word!r} here; did you mean {' or '.join(near)}?"
    return f"no GPU is called {word!r} here; there is {', '.join(gpu.name for gpu in document.gpus) or 'none'}"
