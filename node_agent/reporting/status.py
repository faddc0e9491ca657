"""The status document: what the agent knows and does, in one piece of JSON. Pure.

``node-agent status`` shows it, and the health endpoints read ``ready`` and ``trouble`` from it.
"""

from collections.abc import Sequence

import msgspec

from node_agent.model.gpu import Gpu
from node_agent.model.health import DeviceHealth, HealthReport, Reason
from node_agent.model.inventory import Inventory
from node_agent.reporting.health import HEALTH_WORDS, CauseStatus, MissingStatus, cause_status, missing_gpus


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


class ResourceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A resource at the kubelet: ``phase`` of its registration, how many devices it lists, how many of them healthy.

    ``withheld`` says, GPU by GPU, why devices of it must not be given out, or what they wait for; ``trouble`` why
    nothing is listed.
    """

    name: str
    phase: str
    detail: str
    registrations: int
    devices: int
    healthy: int
    withheld: tuple[str, ...] = ()
    trouble: str | None = None


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A service of the agent and its last failure."""

    name: str
    condition: str
    restarts: int = 0
    trouble: str | None = None


class CdiStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The CDI spec in force: its file, the kind of its devices, what was left out, and why there is none."""

    path: str
    kind: str
    devices: int = 0
    notes: tuple[str, ...] = ()
    trouble: str | None = None


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


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole document. ``trouble`` lists what keeps the agent from its work; none where it is ready.

    ``notices`` are what is configured for sharing and does not hold on this node.
    """

    version: str
    node: str
    started: float
    generation: int = 0
    driver: str | None = None
    cuda: str | None = None
    trouble: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    gpus: tuple[GpuStatus, ...] = ()
    missing: tuple[MissingStatus, ...] = ()
    resources: tuple[ResourceStatus, ...] = ()
    cdi: CdiStatus | None = None
    config: ConfigStatus | None = None
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
    *,
    version: str,
    node: str,
    started: float,
    inventory: Inventory,
    health: HealthReport,
    resources: Sequence[ResourceStatus],
    cdi: CdiStatus | None,
    services: Sequence[ServiceStatus],
    stalled: str | None,
    notices: Sequence[str] = (),
    config: ConfigStatus | None = None,
    reports: Sequence[ReportStatus] = (),
) -> Status:
    """Put the document together; ``stalled`` says what the driver hangs in, if it does."""
    return Status(
        version=version,
        node=node,
        started=started,
        generation=inventory.generation,
        driver=inventory.driver.version,
        cuda=inventory.driver.cuda,
        trouble=(*_troubles(inventory, resources, cdi, services, stalled), *_deafness(inventory, health)),
        notices=tuple(notices),
        gpus=tuple(gpu_status(gpu, health.of(gpu.uuid)) for gpu in inventory.gpus),
        missing=missing_gpus(inventory),
        resources=tuple(resources),
        cdi=cdi,
        config=config,
        services=tuple(services),
        reports=tuple(reports),
    )


def _troubles(
    inventory: Inventory,
    resources: Sequence[ResourceStatus],
    cdi: CdiStatus | None,
    services: Sequence[ServiceStatus],
    stalled: str | None,
) -> list[str]:
    found = [f"{service.name}: {service.trouble}" for service in services if service.condition == "restarting"]
    if inventory.generation == 0:
        found.append("the GPUs have not been looked at yet")
    if inventory.problem:
        found.append(inventory.problem)
    if stalled:
        found.append(stalled)
    if cdi is not None and cdi.trouble:
        found.append(cdi.trouble)
    # A name that no GPU of this node gets has no devices, and nothing to register.
    standing = [_standing(one) for one in resources if one.devices and one.phase != "registered"]
    return found + standing + [f"{one.name}: {one.trouble}" for one in resources if one.trouble]


def _deafness(inventory: Inventory, health: HealthReport) -> list[str]:
    """Why nobody would hear of a fault of any GPU, if that is so; a GPU alone whose events fail is its own trouble."""
    found = [
        cause.message
        for gpu in inventory.gpus
        for cause in health.known_of(gpu.uuid).causes
        if cause.reason is Reason.EVENTS_FAILED
    ]
    return [f"no GPU is watched: {found[0]}"] if found and len(found) == len(inventory.gpus) else []


def _standing(resource: ResourceStatus) -> str:
    if not resource.detail:
        return f"{resource.name}: none of its {resource.devices} devices has been fit to be offered yet"
    return f"{resource.name}: {resource.phase}: {resource.detail}"
