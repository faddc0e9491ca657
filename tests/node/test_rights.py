"""The rights and the policy of the shipped manifests on a real API server, tried with the agent's own token.

The token is bound to a pod of this node, as a DaemonSet's is; ``other`` is a node that it has no part in.
"""

from typing import Any

import pytest

from tests.node.installed import NAMESPACE
from tests.node.rig import manifests
from tests.node.rig.api import Api, ApiError, Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import DRIVER, make_identity

pytestmark = pytest.mark.node

OVERLAYS = manifests.MANIFESTS / "overlays"
OTHER = "other"
LABEL = {"metadata": {"labels": {"nvidia.com/gpu.test": "1"}}}
# A write that leaves all as it is: a list of conditions would take the place of all that the node has.
STATUS: dict[str, Any] = {"status": {"nodeInfo": {}}}
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
APPLY = "application/apply-patch+yaml"


def granted(node: RealNode, mode: str = "") -> Api:
    """What one may do with the token of an agent that was installed in this mode."""
    objects = manifests.built(OVERLAYS / mode if mode else manifests.MANIFESTS)
    for one in objects:
        if one["kind"] == "Namespace" and node.api.find("Namespace", NAMESPACE) is None:
            node.api.request("POST", "/api/v1/namespaces", one)
        elif one["kind"] not in ("Namespace", "DaemonSet"):
            node.api.create(one)
    node.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": OTHER}})
    agent = Api(node.service_account_kubeconfig("gpu-node-agent", NAMESPACE, pod=make_identity(node)))
    wait_until(
        "the policy is in force",
        lambda: "must not touch" in refusal(agent.patch, "Node", OTHER, STATUS, "", "status"),
    )
    return agent


def slice_of(node: str) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-test"},
        "spec": {"driver": "test.example", "nodeName": node, "pool": pool, "devices": [{"name": "one"}]},
    }


def refusal(call: Any, *arguments: Any) -> str:
    """What the API server says against it; empty where it lets it happen."""
    try:
        call(*arguments)
    except ApiError as error:
        return str(error)
    return ""


def test_the_agent_writes_what_is_its_own_nodes_and_nothing_of_another(node: RealNode) -> None:
    agent = granted(node)
    made = agent.create(slice_of(node.name))
    agent.patch("Node", node.name, LABEL, "")
    agent.patch("Node", node.name, {"metadata": {"labels": {"nvidia.com/gpu.test": None}}}, "")
    agent.patch("Node", node.name, STATUS, "", "status")
    agent.delete("ResourceSlice", made["metadata"]["name"])

    theirs = node.api.create(slice_of(OTHER))
    for call, *arguments in (
        (agent.create, slice_of(OTHER)),
        (agent.delete, "ResourceSlice", theirs["metadata"]["name"]),
        (agent.patch, "Node", OTHER, LABEL, ""),
        (agent.patch, "Node", OTHER, STATUS, "", "status"),
    ):
        assert f"of node {OTHER}" in refusal(call, *arguments)


def test_an_agent_may_write_slices_of_its_own_node_alone(node: RealNode) -> None:
    bound = granted(node)
    made = bound.create(slice_of(node.name))
    with pytest.raises(ApiError, match="must not touch the resourceslices of node other"):
        bound.create(slice_of(OTHER))
    bound.delete("ResourceSlice", made["metadata"]["name"])

    unbound = Api(node.service_account_kubeconfig("gpu-node-agent", NAMESPACE))
    with pytest.raises(ApiError, match="token names no node"):
        unbound.create(slice_of(node.name))


@pytest.mark.parametrize(("where", "words"), [("own", ""), (OTHER, "resourceclaims/driver")])
def test_the_agent_says_in_a_claims_status_what_is_on_its_own_node_alone(
    node: RealNode, where: str, words: str
) -> None:
    agent = granted(node)
    made = node.api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "held"},
            "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": DRIVER}}]}},
        }
    )
    allocate(node, made, node.name if where == "own" else OTHER)
    device = {"driver": DRIVER, "pool": "pool", "device": "gpu-0", "conditions": []}
    status: Object = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "held"},
        "status": {"devices": [device]},
    }

    def say() -> None:
        path = f"{CLAIMS}/held/status?fieldManager=x&force=true"
        agent.request("PATCH", path, status, content_type=APPLY)

    said = refusal(say)
    assert words in said if words else said == ""


def allocate(node: RealNode, claim: Object, to: str) -> None:
    """What the scheduler writes."""
    result = {"request": "gpus", "driver": DRIVER, "pool": "pool", "device": "gpu-0"}
    selector = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [to]}]}
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [selector]}}
    node.api.request("PUT", f"{CLAIMS}/held/status", claim | {"status": {"allocation": allocation}})


@pytest.mark.parametrize(
    ("mode", "refused"),
    [
        ("device-plugin-only", {"resourceslices", "resourceclaims", "watch"}),
        ("dra-only", {"watch"}),
        ("mig", set()),
    ],
)
def test_a_mode_that_is_off_has_no_right(node: RealNode, mode: str, refused: set[str]) -> None:
    agent = granted(node, mode)
    said = {
        "resourceslices": refusal(agent.create, slice_of(node.name)),
        "resourceclaims": refusal(agent.request, "GET", "/apis/resource.k8s.io/v1/resourceclaims"),
        "watch": refusal(agent.request, "GET", "/api/v1/nodes"),
    }
    assert {what for what, words in said.items() if "cannot" in words} == refused
    assert "cannot" in refusal(agent.request, "GET", "/api/v1/secrets")
    assert "cannot" in refusal(agent.request, "GET", "/api/v1/pods")
