"""Labels on a real API server, with the rights and under the policy of the shipped manifests."""

from collections.abc import Iterator

import pytest

from tests.fakes.names import OWN_PREFIX
from tests.golden.labels_examples import FOLDER
from tests.node import agent as agents
from tests.node import installed
from tests.node.installed import NAMESPACE
from tests.node.rig.api import Api, ApiError, Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import RigError, wait_until
from tests.node.test_claims import cluster, identity_of, start, start_process

__all__ = ["cluster"]

pytestmark = pytest.mark.node

STAMP, COUNT = "nvidia.com/gfd.timestamp", "nvidia.com/gpu.count"
OTHERS = "example.com/rack"

NODE_FEATURES: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodefeatures.nfd.k8s-sigs.io"},
    "spec": {
        "group": "nfd.k8s-sigs.io",
        "scope": "Namespaced",
        "names": {"kind": "NodeFeature", "plural": "nodefeatures", "singular": "nodefeature"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["features"],
                                "properties": {
                                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                                    "features": {
                                        "type": "object",
                                        "required": ["attributes", "flags", "instances"],
                                        "properties": {
                                            kind: {
                                                "type": "object",
                                                "additionalProperties": {
                                                    "type": "object",
                                                    "x-kubernetes-preserve-unknown-fields": True,
                                                },
                                            }
                                            for kind in ("attributes", "flags", "instances")
                                        },
                                    },
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}


def expected(in_service: int = 8, health: str = "healthy") -> dict[str, str]:
    printed = dict(line.split("=") for line in (FOLDER / "h200-8.txt").read_text().splitlines())
    return printed | {f"{OWN_PREFIX}health": health, f"{OWN_PREFIX}gpus-in-service": str(in_service)}


def labels(node: RealNode) -> dict[str, str]:
    """The Node's labels of NVIDIA's domains, without the stamp."""
    found: dict[str, str] = node.read()["metadata"]["labels"]
    return {key: value for key, value in found.items() if "nvidia.com/" in key and key != STAMP}


def await_labels(node: RealNode, wanted: dict[str, str]) -> None:
    wait_until(f"the node's labels are {wanted}", lambda: labels(node) == wanted)


@pytest.fixture
def labelled(cluster: RealNode) -> Iterator[RealNode]:
    """The cluster, whose node has none of our labels before and after: agents of other tests leave theirs."""
    _clean(cluster)
    yield cluster
    _clean(cluster)


def _clean(node: RealNode) -> None:
    mine = {key: None for key in [*labels(node), STAMP, OTHERS]}
    node.api.patch("Node", node.name, {"metadata": {"labels": mine}}, "")


def test_the_nodes_labels_are_those_of_its_gpus_and_nobody_elses_are_touched(labelled: RealNode) -> None:
    node = labelled
    node.api.patch("Node", node.name, {"metadata": {"labels": {OTHERS: "7"}}}, "")
    agent = start_process(node, labels={"writer": "auto"})
    await_labels(node, expected())
    stamp = node.read()["metadata"]["labels"][STAMP]

    agents.simulate(node, "xid", "--gpu", "gpu-3", "--code", "79")
    await_labels(node, expected(7, "withdrawn"))
    agents.simulate(node, "restore-gpu", "--gpu", "gpu-3")
    await_labels(node, expected())
    assert node.read()["metadata"]["labels"][STAMP] >= stamp

    # The driver goes, the agent ends, another one starts: nothing is written.
    before = node.read()["metadata"]["labels"]
    agents.simulate(node, "driver", "not-loaded")
    wait_until("the agent knows", lambda: "driver unavailable" in agent.text())
    agent.stop()
    assert node.read()["metadata"]["labels"] == before
    agent = start_process(node, labels={"writer": "auto"}, name="second")
    wait_until("the labels were looked at", lambda: reported(node, "labels"))
    assert "labels written" not in agent.text()
    assert node.read()["metadata"]["labels"] == before

    agent.stop()
    command = [agents.PROGRAM, "labels", "--remove", "--config", str(node.machine.folder / "second.yaml")]
    node.machine.run(["env", f"NODE_NAME={node.name}", *command])
    assert labels(node) == {}
    assert node.read()["metadata"]["labels"][OTHERS] == "7"


def reported(node: RealNode, name: str) -> str:
    """What the agent's status says of a report."""
    shown = agents.command(node, "status")
    return next((line for line in shown.splitlines() if line.startswith(f"{name} ")), "")


def test_the_policy_holds_the_agent_to_its_own_labels(labelled: RealNode) -> None:
    start(labelled, labels={"writer": "node"})
    await_labels(labelled, expected())
    own = Api(labelled.service_account_kubeconfig("gpu-node-agent", NAMESPACE, pod=installed.pods(labelled)[0]))
    for change, by in (
        ({"metadata": {"labels": {OTHERS: "7"}}}, ("", "status")),
        ({"metadata": {"labels": {"kubernetes.io/hostname": None}}}, ("", "status")),
        ({"metadata": {"annotations": {OTHERS: "7"}}}, ("", "status")),
        ({"metadata": {"finalizers": [OTHERS]}}, ("",)),
        ({"spec": {"unschedulable": True}}, ("",)),  # with the status the API server passes it over
    ):
        for subresource in by:
            with pytest.raises(ApiError, match="may change nothing of a node but its status and its labels"):
                own.patch("Node", labelled.name, change, "", subresource)
    own.patch("Node", labelled.name, {"metadata": {"labels": {"nvidia.com/gpu.test": "1"}}}, "")


def test_a_label_that_somebody_else_has_set_is_left_to_them(labelled: RealNode) -> None:
    labelled.api.patch("Node", labelled.name, {"metadata": {"labels": {COUNT: "5"}}}, "")
    start(labelled, labels={"writer": "node"})
    await_labels(labelled, expected() | {COUNT: "5"})
    said = wait_until("the status says so", lambda: reported(labelled, "labels"))
    assert "1 more are set by" in str(said)


def test_where_the_cluster_has_nfds_objects_one_of_the_agents_own_has_the_labels(labelled: RealNode) -> None:
    node = labelled
    node.api.create(NODE_FEATURES)
    gfd: Object = {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {
            "name": f"nvidia-features-for-{node.name}",
            "namespace": "default",
            "labels": {"nfd.node.kubernetes.io/node-name": node.name},
        },
        "spec": {"features": {"attributes": {}, "flags": {}, "instances": {}}, "labels": {COUNT: "8"}},
    }
    wait_until("the kind is served", lambda: _made(node, gfd))
    agent = start_process(node, labels={"writer": "auto"})

    wait_until("the object is there", lambda: _feature(node))
    found = _feature(node)
    assert found["metadata"]["labels"] == {"nfd.node.kubernetes.io/node-name": node.name}
    written = {key: value for key, value in found["spec"]["labels"].items() if key != STAMP}
    assert written == {key: value for key, value in expected().items() if key != COUNT}
    assert labels(node) == {}

    node.api.delete("NodeFeature", gfd["metadata"]["name"])
    agent.stop()
    start_process(node, labels={"writer": "node-feature"}, name="second")
    wait_until("the count is ours", lambda: _feature(node)["spec"]["labels"].get(COUNT) == "8")

    own = Api(node.service_account_kubeconfig("gpu-node-agent", NAMESPACE, pod=identity_of(node, "second")))
    head = {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature"}
    mine, foreign = f"gpu-node-agent-{node.name}", gfd["spec"] | {"labels": {OTHERS: "7"}}
    for name, of, spec, said in (
        ("gpu-node-agent-another", "another", gfd["spec"], "must not touch the nodefeatures of node another"),
        (mine, "another", gfd["spec"], "are those of its own node"),
        (mine, node.name, foreign, "are labels of nvidia.com"),
    ):
        metadata = {"name": name, "labels": {"nfd.node.kubernetes.io/node-name": of}}
        with pytest.raises(ApiError, match=said):
            path = f"/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/default/nodefeatures/{name}?fieldManager=x&force=true"
            body = head | {"metadata": metadata, "spec": spec}
            own.request("PATCH", path, body, content_type="application/apply-patch+yaml")


def _feature(node: RealNode) -> Object:
    return node.api.find("NodeFeature", f"gpu-node-agent-{node.name}") or {}


def _made(node: RealNode, manifest: Object) -> bool:
    """Whether it could be made: a kind that is new is served a moment later."""
    try:
        node.api.create(manifest)
    except RigError:
        return False
    return True
