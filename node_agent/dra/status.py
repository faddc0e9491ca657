"""What a claim's status says of its devices on this node: that they are ready, and which hardware they are. Pure.

Written by server-side apply under the agent's own name, so that entries of other drivers in the same claim stay theirs.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

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
) -> list[dict[str, Any]]:
    """The entries of ``status.devices`` for a prepared claim; ``now`` is wall-clock time in seconds."""
    return [
        _entry(result, _gpus(published[result.device], inventory), inventory, health, now)
        for result in claim.of_driver(driver)
        if result.device in published
    ]


def apply_patch(claim: Claim, api_version: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The object to apply to the claim's ``status`` subresource; the uid keeps it from a later claim of that name."""
    return {
        "apiVersion": api_version,
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {"devices": list(entries)},
    }


def _entry(
    result: AllocatedDevice, gpus: Sequence[Gpu], inventory: Inventory, health: HealthReport, now: float
) -> dict[str, Any]:
    entry: dict[str, Any] = {"driver": result.driver, "pool": result.pool, "device": result.device}
    if result.share_id is not None:
        entry["shareID"] = result.share_id
    return entry | {"conditions": [_ready(gpus, health, now)], "data": _data(gpus, inventory)}


def _ready(gpus: Iterable[Gpu], health: HealthReport, now: float) -> dict[str, Any]:
    troubles = [f"{gpu.name}: {cause.text}" for gpu in gpus for cause in health.known_of(gpu.uuid).causes]
    severity = health.of_group([gpu.uuid for gpu in gpus]).severity
    withdrawn = severity >= Severity.WITHDRAWN
    return {
        "type": "Ready",
        "status": "False" if withdrawn else "True",
        "reason": "Unhealthy" if withdrawn else "Degraded" if severity else "Prepared",
        "message": "; ".join(troubles)[:LONGEST_MESSAGE] or "prepared on the node",
        "lastTransitionTime": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _data(gpus: Sequence[Gpu], inventory: Inventory) -> dict[str, Any]:
    """The hardware behind the device; at most some hundred bytes a GPU, of the ten kilobytes that are allowed."""
    return {
        "gpus": [{"name": gpu.name, "uuid": gpu.uuid, "pciBusID": gpu.pci, "productName": gpu.product} for gpu in gpus],
        "links": [
            {"between": [a.name, b.name], "nvlinks": link.nvlinks, "bandwidthMBps": link.bandwidth}
            for a, b in combinations(gpus, 2)
            if (link := inventory.links.between(a.uuid, b.uuid)).nvlinks
        ],
    }


def _gpus(device: PublishedDevice, inventory: Inventory) -> list[Gpu]:
    return [inventory.by_uuid[uuid] for uuid in device.gpus if uuid in inventory.by_uuid]
