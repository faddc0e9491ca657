"""Conditions of the Node, and ``GPUHealthy`` from the health document. Pure; ``node_reporter`` writes them.

True while all GPUs are in service, also those that are degraded; False where one is not; Unknown where nobody can tell.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct

from node_agent.kube.resources import Object
from node_agent.model.health import Reason
from node_agent.reporting.health import GpuHealth, HealthDocument

# As who the agent tells Kubernetes of the node.
REPORTER = "gpu-node-agent"
# Enough for the causes of a whole node; a condition that is read by eye is not to be longer.
LONGEST_MESSAGE = 1024


class ConditionKind(Struct, frozen=True, kw_only=True):
    """A condition by its type, and whose field it is: each has an owner of its own, since one takes away what it leaves
    out.
    """

    type: str
    owner: str


HEALTHY = ConditionKind(type="GPUHealthy", owner=REPORTER)


class Truth(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class NodeCondition(Struct, frozen=True, kw_only=True):
    """What the condition says, without its times; ``reason`` is one word for machines."""

    status: Truth
    reason: str
    message: str


def node_condition(document: HealthDocument) -> NodeCondition:
    if document.trouble:
        return said(Truth.UNKNOWN, "GPUsUnknown", [document.trouble])
    out = [gpu for gpu in document.gpus if not gpu.in_service]
    known = {gpu.uuid for gpu in document.gpus}
    missing = [f"index {one.index}: {one.reason}" for one in document.missing if one.uuid not in known]
    if missing or not all(map(unprobed, out)):
        return said(Truth.FALSE, "GPUsOutOfService", [*map(in_words, out), *missing])
    if out:
        return said(Truth.UNKNOWN, "GPUsNotProbed", map(in_words, out))
    degraded = [gpu for gpu in document.gpus if gpu.health != "healthy"]
    if degraded:
        return said(Truth.TRUE, "GPUsDegraded", map(in_words, degraded))
    return said(Truth.TRUE, "AllGPUsHealthy", [f"{len(document.gpus)} GPUs are in service"])


def said(status: Truth, reason: str, parts: Iterable[str]) -> NodeCondition:
    return NodeCondition(status=status, reason=reason, message="; ".join(parts)[:LONGEST_MESSAGE])


def unprobed(gpu: GpuHealth) -> bool:
    """Whether a GPU is out of service for no other reason than that nobody has looked at it yet."""
    out = {cause.reason for cause in gpu.causes if cause.severity in ("withdrawn", "evicted")}
    return gpu.present and out == {Reason.NOT_PROBED}


def in_words(gpu: GpuHealth) -> str:
    """Why a GPU is not healthy, in one line."""
    if not gpu.present:
        return f"{gpu.name} gone: the driver does not list it any more"
    causes = "; ".join(cause.text for cause in gpu.causes if cause.severity != "healthy")
    return f"{gpu.name} {gpu.health}: {causes}"


def condition_of(node: Object, kind: ConditionKind) -> Object | None:
    """The condition as the Node has it."""
    conditions: list[Object] = node.get("status", {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == kind.type), None)


def says(stored: Object | None, wanted: NodeCondition) -> bool:
    """Whether a stored condition says what is wanted."""
    return stored is not None and _facts(stored) == (wanted.status, wanted.reason, wanted.message)


def _facts(stored: Object) -> tuple[Any, ...]:
    return stored["status"], stored.get("reason"), stored.get("message")


def application(node: str, kind: ConditionKind, wanted: NodeCondition, stored: Object | None, now: float) -> Object:
    """What to apply to the Node's status; the time of the transition stays where the status does."""
    stays = stored is not None and stored["status"] == wanted.status and stored.get("lastTransitionTime")
    entry = {
        "type": kind.type,
        "status": wanted.status,
        "reason": wanted.reason,
        "message": wanted.message,
        "lastTransitionTime": stays or datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "status": {"conditions": [entry]}}


def other_owner(node: Object, kind: ConditionKind) -> str | None:
    """Who else has set the condition, by the Node's record of who set which field."""
    key = f'k:{{"type":"{kind.type}"}}'
    for entry in node["metadata"].get("managedFields") or ():
        fields = entry.get("fieldsV1", {}).get("f:status", {}).get("f:conditions", {})
        if key in fields and entry.get("manager") != kind.owner:
            return str(entry.get("manager"))
    return None
