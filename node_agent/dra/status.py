"""What a claim's status says of its devices on this node: that they are ready, and which hardware they are. Pure.

Written by server-side apply under the agent's own name, so that entries of other drivers in the same claim stay theirs.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

from node_agent.allocation.grants import Hold
from node_agent.dra.configs import DEFAULT
from node_agent.dra.device_health import causes_of, health_of
from node_agent.dra.sharing import MPS_MODES, Use
from node_agent.model.claim import AllocatedDevice, Claim
from node_agent.model.device import PublishedDevice
from node_agent.model.gpu import Gpu
from node_agent.model.health import HealthReport, Severity
from node_agent.model.inventory import Inventory

# The API server keeps no longer message in a condition.
LONGEST_MESSAGE = 32768


def device_statuses(
    claim: Claim,
    driver: str,
    *,
    published: Mapping[str, PublishedDevice],
    inventory: Inventory,
    health: HealthReport,
    now: float,
    holds: Sequence[Hold] = (),
) -> list[dict[str, Any]]:
    """The entries of ``status.devices`` for a prepared claim; ``now`` is wall-clock time in seconds.

    ``holds`` are what was prepared: they tell whether parts of a GPU are enforced.
    """
    modes = {(hold.request, hold.device, hold.share_id): hold.mode for hold in holds}
    found = [
        (result, published[result.device], modes.get((result.request, result.device, result.share_id)))
        for result in claim.of_driver(driver)
        if result.device in published
    ]
    return [
        _entry(
            result,
            _data(device, inventory),
            [_ready(device, inventory, health, now), *_enforced(result, _gpus(device, inventory), mode, now)],
        )
        for result, device, mode in found
    ]


def apply_patch(claim: Claim, api_version: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The object to apply to the claim's ``status`` subresource; the uid keeps it from a later claim of that name."""
    return {
        "apiVersion": api_version,
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {"devices": list(entries)},
    }


def _entry(result: AllocatedDevice, data: Mapping[str, Any], conditions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    entry: dict[str, Any] = {"driver": result.driver, "pool": result.pool, "device": result.device}
    if result.share_id is not None:
        entry["shareID"] = result.share_id
    return entry | {"conditions": list(conditions), "data": data}


def _ready(device: PublishedDevice, inventory: Inventory, health: HealthReport, now: float) -> dict[str, Any]:
    causes, gpus = causes_of(device, health, inventory), inventory.by_uuid
    troubles = [f"{gpus[gpu].name}: {cause.text}" for gpu, cause in causes if gpu in gpus]
    severity = health_of(device, health, inventory).severity
    withdrawn = severity >= Severity.WITHDRAWN
    reason = "Unhealthy" if withdrawn else "Degraded" if severity else "Prepared"
    return _condition("Ready", not withdrawn, reason, "; ".join(troubles) or "prepared on the node", now)


def _enforced(result: AllocatedDevice, gpus: Sequence[Gpu], mode: str | None, now: float) -> Iterator[dict[str, Any]]:
    """Whether the part that a claim takes of a shareable GPU is all that it gets."""
    if mode is None or Use(result=result, gpus=tuple(gpus), config=DEFAULT).part is None:
        return
    taken = ", ".join(f"{name} {value}" for name, value in sorted(result.consumed.items()))
    if mode in MPS_MODES:
        message = f"each CUDA process of the claim is held by MPS to its part ({taken})"
        yield _condition("LimitsEnforced", True, "ByMps", message, now)
    else:
        message = f"the scheduler counts the claim's part ({taken}), and nothing on the node holds the claim to it"
        yield _condition("LimitsEnforced", False, "NotEnforced", message, now)


def _condition(kind: str, holds: bool, reason: str, message: str, now: float) -> dict[str, Any]:
    return {
        "type": kind,
        "status": str(holds),
        "reason": reason,
        "message": message[:LONGEST_MESSAGE],
        "lastTransitionTime": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _data(device: PublishedDevice, inventory: Inventory) -> dict[str, Any]:
    """The hardware behind the device; at most some hundred bytes a GPU, of the ten kilobytes that are allowed."""
    gpus, (place, *_) = _gpus(device, inventory), device.places
    live = inventory.by_place.get(place)
    return {
        "gpus": [{"name": gpu.name, "uuid": gpu.uuid, "pciBusID": gpu.pci, "productName": gpu.product} for gpu in gpus],
        "links": [
            {"between": [a.name, b.name], "nvlinks": link.nvlinks, "bandwidthMBps": link.bandwidth}
            for a, b in combinations(gpus, 2)
            if (link := inventory.links.between(a.uuid, b.uuid)).nvlinks
        ],
        **({"migDevice": {"uuid": live.uuid, "profile": live.profile}} if live is not None else {}),
    }


def _gpus(device: PublishedDevice, inventory: Inventory) -> list[Gpu]:
    return [inventory.by_uuid[uuid] for uuid in device.gpus if uuid in inventory.by_uuid]
