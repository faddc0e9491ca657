"""The shipped DaemonSet on a real node, through an update: controller, probes and kubelet at work on its own manifest.

There is no image: the pod's program is this checkout's agent, over a simulated node, in the node's own file system.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.node import agent as agents
from tests.node.rig import manifests
from tests.node.rig.api import Object
from tests.node.rig.image import BUSYBOX
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import NotYet, wait_until
from tests.node.test_claims import NAMESPACE, cluster, devices
from tests.node.test_rolling_update import await_nothing_held, forget_holders, stored

__all__ = ["cluster"]

pytestmark = pytest.mark.node

TOKEN = "run/secrets/kubernetes.io/serviceaccount"
LABEL = "nvidia.com/gpu.present"


def manifest() -> Object:
    """The shipped one, with the node's own file system in the place of the image."""
    found = manifests.only(manifests.built(), "DaemonSet")
    spec = found["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    container |= {
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["chroot", "/host", agents.PROGRAM],
        "args": [*container["args"], "--simulate=h200-8"],
        "env": [one for one in container["env"] if one["name"] == "NODE_NAME"],
        "volumeMounts": [
            {"name": "host", "mountPath": "/host", "mountPropagation": "HostToContainer"},
            {"name": "run", "mountPath": "/host/run/gpu-node-agent"},
            {"name": "token", "mountPath": f"/host/{TOKEN}"},
        ],
    }
    spec["automountServiceAccountToken"] = False
    token: list[Any] = [
        {"serviceAccountToken": {"path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    spec["volumes"] = [
        {"name": "host", "hostPath": {"path": "/"}},
        {"name": "run", "emptyDir": {"medium": "Memory"}},
        {"name": "token", "projected": {"sources": token}},
    ]
    return found


def pods(node: RealNode) -> list[Object]:
    return node.api.list("Pod", NAMESPACE, labelSelector="app.kubernetes.io/name=gpu-node-agent")


def available(node: RealNode, generation: int) -> str:
    """The name of the DaemonSet's pod, once it is the only one and of so late a generation."""
    status = node.api.get("DaemonSet", "gpu-node-agent", NAMESPACE)["status"]
    if (
        status.get("observedGeneration", 0) < generation
        or status.get("updatedNumberScheduled") != 1
        or status.get("numberAvailable") != 1
        or len(pods(node)) != 1
    ):
        described = [node.pods.describe(pod) for pod in pods(node)]
        raise NotYet(f"{status}: {described}")
    return str(pods(node)[0]["metadata"]["name"])


@pytest.fixture
def gpu_node(cluster: RealNode) -> Iterator[RealNode]:
    """The cluster with the label on its node that marks GPU nodes."""
    forget_holders(cluster)
    cluster.api.patch("Node", cluster.name, {"metadata": {"labels": {LABEL: "true"}}}, "")
    yield cluster
    cluster.api.patch("Node", cluster.name, {"metadata": {"labels": {LABEL: None}}}, "")


def test_an_update_of_the_daemonset_takes_no_gpu_from_the_node(gpu_node: RealNode) -> None:
    gpu_node.api.create(manifest())
    old = wait_until("the agent is there", lambda: available(gpu_node, 1), timeout=60)
    agents.offered(gpu_node, 8)
    wait_until("the slices are there", lambda: len(devices(gpu_node)) == 8, timeout=20)
    await_nothing_held(gpu_node)
    before = stored(gpu_node)

    with (
        agents.watched(lambda: len(agents.healthy_at_kubelet(gpu_node)), every=0.05) as at_kubelet,
        agents.watched(lambda: stored(gpu_node), every=0.05) as slices,
    ):
        change = {"spec": {"template": {"metadata": {"annotations": {"update": "yes"}}}}}
        gpu_node.api.patch("DaemonSet", "gpu-node-agent", change, NAMESPACE)
        new = wait_until("the update is done", lambda: available(gpu_node, 2), timeout=90)

    assert new != old
    assert (at_kubelet, slices) == ({8}, {before})
