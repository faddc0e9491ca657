"""Device metadata for pods: a file in the container that says which devices each request was given, and what they are.

The form and the places are Kubernetes' own (``metadata.resource.k8s.io``), shared by all drivers: a program in a pod
finds every driver's devices in the same way. Pure; ``allocation.prepare`` writes what is worked out here.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct

from node_agent.model.claim import AllocatedDevice, Claim

API_VERSION = "metadata.resource.k8s.io/v1beta1"
IN_CONTAINER = PurePosixPath("/var/run/kubernetes.io/dra-device-attributes")

Attributes = Mapping[str, Mapping[str, Any]]
"""A device's attributes as its slice has them."""


class RequestMetadata(Struct, frozen=True, kw_only=True):
    """The file of one request: where it is below the driver's folder and in the container, and what it says."""

    request: str
    host_path: PurePosixPath
    container_path: PurePosixPath
    content: bytes


def metadata_of(claim: Claim, driver: str, attributes: Mapping[str, Attributes]) -> list[RequestMetadata]:
    """A file for each request that has devices of this driver; ``attributes`` are given by device name."""
    by_request: dict[str, list[AllocatedDevice]] = {}
    for result in claim.of_driver(driver):
        by_request.setdefault(result.base_request, []).append(result)
    return [
        RequestMetadata(
            request=request,
            host_path=_on_host(claim, request),
            container_path=_in_container(claim, driver, request),
            content=_content(claim, request, results, attributes),
        )
        for request, results in by_request.items()
    ]


def _on_host(claim: Claim, request: str) -> PurePosixPath:
    return PurePosixPath("dra-device-metadata", f"{claim.namespace}_{claim.name}", request, "metadata.json")


def _in_container(claim: Claim, driver: str, request: str) -> PurePosixPath:
    """A claim that a template made is found by the name that the pod has for it, any other by its own."""
    if claim.pod_claim_name is not None:
        folder = IN_CONTAINER / "resourceclaimtemplates" / claim.pod_claim_name
    else:
        folder = IN_CONTAINER / "resourceclaims" / claim.name
    return folder / request / f"{driver}-metadata.json"


def _content(
    claim: Claim, request: str, results: Sequence[AllocatedDevice], attributes: Mapping[str, Attributes]
) -> bytes:
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "DeviceMetadata",
        "metadata": {
            "name": claim.name,
            "namespace": claim.namespace,
            "uid": claim.uid,
            "generation": claim.generation,
        },
        "requests": [
            {
                "name": request,
                "devices": [
                    {
                        "driver": result.driver,
                        "pool": result.pool,
                        "name": result.device,
                        "attributes": attributes.get(result.device, {}),
                    }
                    for result in results
                ],
            }
        ],
    }
    if claim.pod_claim_name is not None:
        document["podClaimName"] = claim.pod_claim_name
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
