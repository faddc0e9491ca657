"""Whether the agent can do its work, part by part, and the states that it goes through. Pure; see ``readiness_watch``.

A part that waits or has failed keeps the agent from being ready; one that is degraded does less than it should, and the
rest goes on. The agent as a whole is ``starting`` until it was ready once or a minute has passed, and from then on
``ready`` or ``not-ready``.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct, field

from node_agent.model.gpu import PartitionMode
from node_agent.model.health import HealthReport, Reason
from node_agent.model.inventory import Inventory
from node_agent.reporting.parts import CdiStatus, ClaimsStatus, PartState, PartStatus, ResourceStatus, ServiceStatus

# An agent that starts is given so long; from then on it is news that it is not ready.
STARTING_SECONDS = 60.0

_PENDING = (PartitionMode.ENABLE_PENDING, PartitionMode.DISABLE_PENDING)


class Phase(StrEnum):
    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not-ready"


class Facts(Struct, frozen=True, kw_only=True):
    """What the judgement rests on. ``resources`` and ``claims`` are None where that front door is off.

    ``stalled`` says what the driver hangs in; ``mps`` has for each GPU that is shared by MPS why its daemon does not
    serve, None where it does. ``layout`` says what a change of the MIG layout waits for, or why it failed.
    """

    inventory: Inventory
    health: HealthReport = field(default_factory=HealthReport)
    resources: Sequence[ResourceStatus] | None = None
    claims: ClaimsStatus | None = None
    cdi: CdiStatus | None = None
    services: Sequence[ServiceStatus] = ()
    stalled: str | None = None
    mps: Mapping[str, str | None] = field(default_factory=dict)
    layout: tuple[str, ...] = ()


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The whole: its phase and ``since`` when, in wall-clock seconds, and the parts that it follows from."""

    phase: Phase = Phase.STARTING
    since: float = 0.0
    parts: tuple[PartStatus, ...] = ()

    @property
    def trouble(self) -> tuple[str, ...]:
        """What keeps the agent from its work, in words."""
        return tuple(message for part in self.parts if part.state.blocks for message in part.messages)


def parts_of(facts: Facts) -> tuple[PartStatus, ...]:
    """How each part stands; those that others rest on come first."""
    return (
        _services(facts),
        _library(facts.inventory),
        _driver(facts),
        _devices(facts),
        _cdi(facts.cdi),
        _registration(facts),
        *_claims(facts.claims),
        _mps(facts.mps),
        _mig(facts),
    )


def advanced(before: Readiness, parts: Sequence[PartStatus], now: float) -> Readiness:
    """The next state of the machine; what has not changed keeps its time."""
    known = {part.name: part for part in before.parts}
    dated = tuple(_dated(known.get(part.name), part, now) for part in parts)
    # Before the first look it has been starting for no time at all.
    began = before.since if before.parts else now
    phase = _next_phase(before.phase, any(part.state.blocks for part in parts), now - began)
    return Readiness(phase=phase, since=began if phase is before.phase else now, parts=dated)


def _next_phase(before: Phase, blocked: bool, seconds: float) -> Phase:
    if not blocked:
        return Phase.READY
    return Phase.STARTING if before is Phase.STARTING and seconds < STARTING_SECONDS else Phase.NOT_READY


def _dated(before: PartStatus | None, part: PartStatus, now: float) -> PartStatus:
    same = before is not None and (before.state, before.reason) == (part.state, part.reason)
    return msgspec.structs.replace(part, since=before.since if before is not None and same else now)


def _part(name: str, state: PartState, reason: str, *messages: str) -> PartStatus:
    return PartStatus(name=name, state=state, reason=reason, messages=messages)


def _services(facts: Facts) -> PartStatus:
    failed = [f"{one.name}: {one.trouble}" for one in facts.services if one.condition == "restarting"]
    if failed:
        return _part("services", PartState.FAILED, "ServicesRestarting", *failed)
    return _part("services", PartState.READY, "AllRunning")


def _library(inventory: Inventory) -> PartStatus:
    if inventory.generation == 0:
        # The driver's part says so; two lines for one thing are one too many.
        return _part("library", PartState.WAITING, "NotLookedYet")
    if inventory.problem and inventory.without_library:
        return _part("library", PartState.FAILED, "LibraryUnusable", inventory.problem)
    return _part("library", PartState.READY, "Loaded")


def _driver(facts: Facts) -> PartStatus:
    inventory, hangs = facts.inventory, [facts.stalled] if facts.stalled else []
    if inventory.generation == 0:
        return _part("driver", PartState.WAITING, "NotLookedYet", "the GPUs have not been looked at yet", *hangs)
    if inventory.problem and not inventory.without_library:
        return _part("driver", PartState.FAILED, "DriverUnavailable", inventory.problem, *hangs)
    if hangs:
        return _part("driver", PartState.FAILED, "DriverHangs", *hangs)
    if inventory.problem:
        return _part("driver", PartState.WAITING, "LibraryUnusable")
    return _part("driver", PartState.READY, "Answers")


def _devices(facts: Facts) -> PartStatus:
    """One dead GPU is no reason to take the agent out of service: the other seven need it."""
    inventory, report = facts.inventory, facts.health
    if deaf := _deafness(facts):
        return _part("devices", PartState.FAILED, "NotWatched", f"no GPU is watched: {deaf}")
    if inventory.generation == 0 or inventory.problem:
        return _part("devices", PartState.WAITING, "Unknown")
    out = [gpu.name for gpu in inventory.gpus if report.of(gpu.uuid).withdrawn]
    lines = [f"{name} is out of service" for name in out]
    lines += [f"index {one.index}: {one.reason}" for one in inventory.missing]
    if lines:
        return _part("devices", PartState.DEGRADED, "SomeOutOfService", *lines)
    if not inventory.gpus:
        return _part("devices", PartState.DEGRADED, "NoGPUs", "the driver lists no GPU")
    return _part("devices", PartState.READY, "AllInService")


def _deafness(facts: Facts) -> str | None:
    """Why nobody would hear of a fault of any GPU, if that is so; a GPU alone whose events fail is its own trouble."""
    gpus = facts.inventory.gpus
    found = [
        cause.message
        for gpu in gpus
        for cause in facts.health.known_of(gpu.uuid).causes
        if cause.reason is Reason.EVENTS_FAILED
    ]
    return found[0] if found and len(found) == len(gpus) else None


def _cdi(cdi: CdiStatus | None) -> PartStatus:
    if cdi is None:
        return _part("cdi", PartState.OFF, "NotUsed")
    if cdi.trouble:
        return _part("cdi", PartState.FAILED, "SpecNotWritten", cdi.trouble)
    return _part("cdi", PartState.READY, "SpecWritten")


def _registration(facts: Facts) -> PartStatus:
    if facts.resources is None:
        return _part("registration", PartState.OFF, "NotConfigured")
    # A name that no GPU of this node gets has no devices, and nothing to register.
    lines = [_standing(one) for one in facts.resources if one.devices and one.phase != "registered"]
    lines += [f"{one.name}: {one.trouble}" for one in facts.resources if one.trouble]
    refused = any(one.phase == "refused" or one.trouble for one in facts.resources)
    if lines:
        state = PartState.FAILED if refused else PartState.WAITING
        return _part("registration", state, "Refused" if refused else "NotRegistered", *lines)
    return _part("registration", PartState.READY, "Registered")


def _standing(resource: ResourceStatus) -> str:
    if not resource.detail:
        return f"{resource.name}: none of its {resource.devices} devices has been fit to be offered yet"
    return f"{resource.name}: {resource.phase}: {resource.detail}"


def _claims(claims: ClaimsStatus | None) -> Iterator[PartStatus]:
    """Where claims are served only if the cluster can, one that cannot is no trouble: limits work all the same."""
    if claims is None:
        yield _part("claims", PartState.OFF, "NotConfigured")
        yield _part("slices", PartState.OFF, "NotConfigured")
        return
    if claims.phase == "registered":
        yield _part("claims", PartState.READY, "Registered")
    else:
        message = f"{claims.driver}: {claims.phase}{': ' if claims.detail else ''}{claims.detail}"
        yield _part("claims", PartState.WAITING if claims.required else PartState.DEGRADED, "NotRegistered", message)
    if claims.trouble:
        # What was published stays true for the scheduler while the API server is away.
        first = claims.required and claims.generation == 0
        state = PartState.FAILED if first else PartState.DEGRADED
        yield _part("slices", state, "NotPublished", f"slices cannot be published: {claims.trouble}")
    elif claims.generation == 0:
        # An agent that is to be replaced publishes until it ends: waiting for its end would keep it from ending.
        yield _part("slices", PartState.DEGRADED, "NotPublishedYet", "no slices have been published yet")
    else:
        yield _part("slices", PartState.READY, "Published")


def _mps(daemons: Mapping[str, str | None]) -> PartStatus:
    lines = [f"{gpu}: {trouble}" for gpu, trouble in daemons.items() if trouble]
    if lines:
        return _part("mps", PartState.DEGRADED, "DaemonsNotServing", *lines)
    return _part("mps", *((PartState.READY, "DaemonsServe") if daemons else (PartState.OFF, "NotUsed")))


def _mig(facts: Facts) -> PartStatus:
    """Pods get what there is while a layout cannot be made: it is told, and keeps nobody from work."""
    modes = {gpu.name: gpu.partition_mode for gpu in facts.inventory.gpus}
    pending = [
        f"{name}: a change of its MIG mode waits for a reset" for name, mode in modes.items() if mode in _PENDING
    ]
    if pending:
        return _part("mig", PartState.DEGRADED, "ResetNeeded", *pending)
    if facts.layout:
        return _part("mig", PartState.DEGRADED, "LayoutNotMade", *facts.layout)
    used = any(mode is not None and mode.active for mode in modes.values())
    return _part("mig", *((PartState.READY, "InUse") if used else (PartState.OFF, "NotUsed")))
