"""The status document: what the agent knows and does, in one piece of JSON. Pure.

``node-agent status`` shows it, and the health endpoints read ``parts`` and ``trouble`` from it.
"""

from collections.abc import Sequence

import msgspec

from node_agent.model.gpu import Gpu
from node_agent.model.health import DeviceHealth
from node_agent.reporting.health import HEALTH_WORDS, CauseStatus, MissingStatus, cause_status, missing_gpus
from node_agent.reporting.parts import CdiStatus, ClaimsStatus, PartStatus, ResourceStatus, ServiceStatus
from node_agent.reporting.readiness import Facts, Readiness


class GpuStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU; ``health`` is ``healthy``, ``degraded``, ``withdrawn`` or ``evicted``, memory in bytes."""

    name: str
    uuid: str
    product: str
    pci: str
    health: str
    minor: int | None = None
    memory: int | None = None
    numa_node: int | None = None
    partition_mode: str | None = None
    causes: tuple[CauseStatus, ...] = ()


class ConfigStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The configuration in force: its source, how many there were, and ``since`` when, in wall-clock seconds.

    ``trouble`` says why the newest is not in force, ``refused`` how many were not. ``waits`` are devices that it takes
    away once no pod holds them, ``after_restart`` keys that only a new start puts in force.
    """

    source: str
    generation: int
    since: float
    trouble: str | None = None
    refused: int = 0
    waits: tuple[str, ...] = ()
    after_restart: tuple[str, ...] = ()


class ReportStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is written of the node in Kubernetes: where it stands, and why it could not be written last."""

    name: str
    standing: str = ""
    trouble: str | None = None


class LayoutStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The MIG layout that is asked for: its name, who asks, how far it is, and why it is no further."""

    name: str
    source: str
    phase: str
    reasons: tuple[str, ...] = ()


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole document. ``trouble`` lists what keeps the agent from its work; none where it is ready.

    ``phase`` is starting, ready or not-ready, ``parts`` are what that follows from. ``notices`` are what is configured
    for sharing and does not hold on this node.
    """

    version: str
    node: str
    started: float
    generation: int = 0
    driver: str | None = None
    cuda: str | None = None
    phase: str = "starting"
    phase_since: float = 0.0
    parts: tuple[PartStatus, ...] = ()
    trouble: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    gpus: tuple[GpuStatus, ...] = ()
    missing: tuple[MissingStatus, ...] = ()
    resources: tuple[ResourceStatus, ...] = ()
    claims: ClaimsStatus | None = None
    cdi: CdiStatus | None = None
    config: ConfigStatus | None = None
    layout: LayoutStatus | None = None
    services: tuple[ServiceStatus, ...] = ()
    reports: tuple[ReportStatus, ...] = ()

    @property
    def ready(self) -> bool:
        return not self.trouble


def gpu_status(gpu: Gpu, health: DeviceHealth) -> GpuStatus:
    return GpuStatus(
        name=gpu.name,
        uuid=gpu.uuid,
        product=gpu.product,
        pci=gpu.pci,
        health=HEALTH_WORDS[health.severity],
        minor=gpu.minor,
        memory=gpu.memory,
        numa_node=gpu.numa_node,
        partition_mode=gpu.partition_mode,
        causes=tuple(map(cause_status, health.causes)),
    )


def status(
    facts: Facts,
    readiness: Readiness,
    *,
    version: str,
    node: str,
    started: float,
    notices: Sequence[str] = (),
    config: ConfigStatus | None = None,
    reports: Sequence[ReportStatus] = (),
    layout: LayoutStatus | None = None,
) -> Status:
    """Put the document together."""
    inventory = facts.inventory
    return Status(
        version=version,
        node=node,
        started=started,
        generation=inventory.generation,
        driver=inventory.driver.version,
        cuda=inventory.driver.cuda,
        phase=readiness.phase,
        phase_since=readiness.since,
        parts=readiness.parts,
        trouble=readiness.trouble,
        notices=tuple(notices),
        gpus=tuple(gpu_status(gpu, facts.health.of(gpu.uuid)) for gpu in inventory.gpus),
        missing=missing_gpus(inventory),
        resources=tuple(facts.resources or ()),
        claims=facts.claims,
        cdi=facts.cdi,
        config=config,
        layout=layout,
        services=tuple(facts.services),
        reports=tuple(reports),
    )
