"""Objects for the API client's contract, as valid as a real API server wants them."""

import uuid
from typing import Any

from node_agent.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES, Object, Resource

CONFIG_MAPS = Resource(plural="configmaps", kind="ConfigMap")
DRIVER = "gpu.test"


def named(name: str = "", **metadata: Any) -> Object:
    """The metadata of an object in the tests' own namespace, of a name that no other test uses."""
    return {"name": name or f"test-{uuid.uuid4().hex[:8]}", **metadata}


def config_map(**data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named(namespace="default"), "data": data}


def resource_slice(pool: str = "", *devices: str, driver: str = DRIVER, node: str = "n0") -> Object:
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": named(),
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": pool or node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": name} for name in devices],
        },
    }


def resource_claim() -> Object:
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1}}
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": named(namespace="default"),
        "spec": {"devices": {"requests": [request]}},
    }


def allocated(*devices: str) -> Object:
    """The status of a claim that the scheduler has given devices to, of a driver each."""
    results = [{"request": "gpu", "driver": f"{device}.test", "pool": "n0", "device": device} for device in devices]
    return {"allocation": {"devices": {"results": results}}}


def reported(device: str, **data: Any) -> Object:
    return {"driver": f"{device}.test", "pool": "n0", "device": device, "conditions": None, "data": data}


def without_own(item: Object) -> Object:
    """An object without what the server says of it."""
    own = {"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"}
    return item | {"metadata": {key: value for key, value in item["metadata"].items() if key not in own}}
