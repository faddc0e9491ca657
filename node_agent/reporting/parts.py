"""The agent's parts as the status document shows them: what each is, and how it stands. ``readiness`` judges them."""

from enum import StrEnum

import msgspec


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


class ClaimsStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The driver of claims: ``phase`` of its registration at the kubelet, and what is published by now.

    ``required`` says that the configuration wants it whatever the cluster can do; ``trouble`` why slices cannot be
    published.
    """

    driver: str
    phase: str
    detail: str = ""
    registrations: int = 0
    generation: int = 0
    slices: int = 0
    devices: int = 0
    required: bool = False
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


class PartState(StrEnum):
    """Whether a part does its work. Only one that waits or has failed keeps the agent from being ready."""

    OFF = "off"
    READY = "ready"
    DEGRADED = "degraded"
    WAITING = "waiting"
    FAILED = "failed"

    @property
    def blocks(self) -> bool:
        return self in (PartState.WAITING, PartState.FAILED)


class PartStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of the agent's work. ``reason`` is one word for machines; ``messages`` say what is wrong.

    ``since`` is when the state or the reason last changed, in wall-clock seconds.
    """

    name: str
    state: PartState
    reason: str
    messages: tuple[str, ...] = ()
    since: float = 0.0
