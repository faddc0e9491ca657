"""The NodeResourceTopology on a real API server, beside a real kubelet, with the rights of the shipped manifests."""

from typing import Any

import pytest

from node_agent.reporting.topology_object import fingerprint
from tests.node import agent as agents
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import NotYet, RigError, wait_until
from tests.node.test_claims import cluster, start_process
from tests.node.test_labels import reported

__all__ = ["cluster"]

pytestmark = pytest.mark.node

# What is still open or held at the end is none of the next test's business.
STATE = "/var/lib/gpu-node-agent-topology"
GROUP = "topology.node.k8s.io"
QUANTITY = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}


def listed(required: list[str], **properties: Any) -> Object:
    return {"type": "array", "items": {"type": "object", "required": required, "properties": properties}}


TEXT = {"type": "string"}
SCHEMA: Object = {
    "type": "object",
    "required": ["zones"],
    "properties": {
        "topologyPolicies": {"type": "array", "items": TEXT},
        "attributes": listed(["name", "value"], name=TEXT, value=TEXT),
        "zones": listed(
            ["name", "type"],
            name=TEXT,
            type=TEXT,
            parent=TEXT,
            attributes=listed(["name", "value"], name=TEXT, value=TEXT),
            costs=listed(["name", "value"], name=TEXT, value={"type": "integer", "format": "int64"}),
            resources=listed(
                ["allocatable", "available", "capacity", "name"],
                name=TEXT,
                capacity=QUANTITY,
                allocatable=QUANTITY,
                available=QUANTITY,
            ),
        ),
    },
}
DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"noderesourcetopologies.{GROUP}",
        # The API server wants to know who has agreed to a group of Kubernetes' own domain.
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"},
    },
    "spec": {
        "group": GROUP,
        "scope": "Cluster",
        "names": {
            "kind": "NodeResourceTopology",
            "plural": "noderesourcetopologies",
            "singular": "noderesourcetopology",
        },
        "versions": [{"name": "v1alpha2", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}],
    },
}


def found(node: RealNode) -> Object:
    try:
        return node.api.find("NodeResourceTopology", node.name) or {}
    except RigError as error:
        raise NotYet(str(error)) from error


def resources(node: RealNode) -> dict[str, dict[str, tuple[str, str, str]]]:
    """Capacity, allocatable and available by zone and resource."""
    return {
        zone["name"]: {
            one["name"]: (one["capacity"], one["allocatable"], one["available"]) for one in zone["resources"]
        }
        for zone in found(node).get("zones", ())
    }


def gpus(node: RealNode) -> dict[str, tuple[str, str, str]]:
    return {name: of[agents.GPU] for name, of in resources(node).items() if agents.GPU in of}


def test_the_topology_object_follows_pods_and_health_and_another_writers_one_is_left_alone(cluster: RealNode) -> None:
    node = cluster
    node.api.create(DEFINITION)
    wait_until("the kind is served", lambda: found(node) == {})
    reports = {"topology": True, "kubeletConfig": str(node.machine.folder / "etc" / "kubelet.yaml")}
    node.machine.run(["rm", "-rf", STATE])
    agent = start_process(node, nodeReports=reports, state_dir=STATE)
    agents.offered(node, 8)

    full = ("4", "4", "4")
    wait_until("all GPUs are there", lambda: gpus(node) == {"node-0": full, "node-1": full})
    made = found(node)
    attributes = {one["name"]: one["value"] for one in made["attributes"]}
    assert (attributes["topologyManagerPolicy"], attributes["topologyManagerScope"]) == ("none", "container")
    pods = [(one["metadata"]["namespace"], one["metadata"]["name"]) for one in node.api.list("Pod")]
    assert attributes["nodeTopologyPodsFingerprint"] == fingerprint(pods)
    assert [cost["value"] for zone in made["zones"] for cost in zone["costs"]] == [10, 21, 21, 10]
    assert all({"cpu", "memory"} < of.keys() for of in resources(node).values())

    node.pods.run(agents.gpu_pod("three", 3))
    taken = wait_until(
        "three are taken", lambda: gpus(node)["node-0"] == ("4", "4", "1") or gpus(node)["node-1"] == ("4", "4", "1")
    )
    assert taken
    agents.simulate(node, "xid", "--gpu", "gpu-6", "--code", "79")
    wait_until("the sick one is there and cannot be had", lambda: ("4", "3", "3") in gpus(node).values())

    agent.stop()
    path = f"/apis/{GROUP}/v1alpha2/noderesourcetopologies/{node.name}?fieldManager=nfd-topology-updater&force=true"
    theirs = {key: made[key] for key in ("apiVersion", "kind", "zones", "attributes")}
    body = theirs | {"metadata": {"name": node.name}}
    node.api.request("PATCH", path, body, content_type="application/apply-patch+yaml")
    start_process(node, nodeReports=reports, name="second", state_dir=STATE)
    wait_until("it stands back", lambda: "nfd-topology-updater" in reported(node, "topology"))
    assert found(node)["zones"] == made["zones"]
