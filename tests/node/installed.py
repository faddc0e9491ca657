"""The agent as an operator installs it: its image, and the shipped manifests, as a DaemonSet's pod on the real node.

Beside them lie what a node without GPUs needs (``deploy/daemonset/components/simulated``) and the test's settings, in a
ConfigMap. ``agent.py`` has what tests do with it.
"""

import time

import yaml

from tests.node.rig import agent_image, kustomized
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.program import Ended
from tests.node.rig.waiting import NotYet, wait_until

NAMESPACE, NAME = "gpu-node-agent", "gpu-node-agent"
BASE = "daemonset"
MIG, MPS, LIMITS, CLAIMS, METRICS, DOMAINS = (
    f"daemonset/overlays/{mode}"
    for mode in ("mig", "mps", "device-plugin-only", "dra-only", "metrics", "compute-domains")
)
CONFIGS, SIMULATED = "daemonset/components/configs", "daemonset/components/simulated"
MODES = tuple(f"daemonset/components/{mode}" for mode in ("configs", "mig", "topology"))
"""What the usual modes have no rights for."""
MARK = "feature.node.kubernetes.io/pci-10de.present"
"""The label of nodes with GPUs, by Node Feature Discovery; the test's node keeps it."""
CONFIG, FOLDER = "gpu-configs", "/configs"


class AgentPod:
    """The one pod of the DaemonSet on a node, through restarts of its container."""

    def __init__(self, node: RealNode, pod: Object) -> None:
        self.name = str(pod["metadata"]["name"])
        self._node = node
        self._pod = pod

    def require_running(self) -> None:
        """Ended, with what is known of it, when the pod runs no more."""
        pod = self._node.api.find("Pod", self.name, NAMESPACE)
        if pod is None or pod["status"]["phase"] != "Running":
            raise Ended(f"the agent's pod {self.name} is {pod and self._node.pods.describe(pod)}")

    def text(self) -> str:
        """What the agent has logged since its latest start."""
        return self._node.pods.log(self._pod, "agent")

    @property
    def refused(self) -> list[str]:
        """The lines of its log that tell of a request for which it has no right."""
        return [line for line in self.text().splitlines() if "forbidden" in line]

    def run(self, *arguments: str) -> str:
        """Run ``node-agent`` in the pod, as with ``kubectl exec``."""
        return self._node.pods.execute(self._pod, ["node-agent", *arguments], "agent")

    @property
    def address(self) -> str:
        return str(self._node.api.get("Pod", self.name, NAMESPACE)["status"]["podIP"])

    @property
    def ports(self) -> list[Object]:
        (container,) = self._pod["spec"]["containers"]
        return list(container["ports"])

    @property
    def restarts(self) -> int:
        (container,) = self._node.api.get("Pod", self.name, NAMESPACE)["status"]["containerStatuses"]
        return int(container["restartCount"])

    def kill(self) -> None:
        """End the agent as a crash would, and await that the kubelet has started it again."""
        before, container = self.restarts, self._node.pods.container_id(self._pod, "agent")
        self._node.machine.run(["ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", container])
        wait_until("the agent runs again", lambda: self.restarts > before and self._started())

    def _started(self) -> bool:
        (container,) = self._node.api.get("Pod", self.name, NAMESPACE)["status"]["containerStatuses"]
        return "running" in container["state"]


def pods(node: RealNode) -> list[Object]:
    """The agent's pods: one, but for a moment of an update."""
    return node.api.list("Pod", NAMESPACE, labelSelector=f"app.kubernetes.io/name={NAME}")


def install(
    node: RealNode, settings: Object, *, profile: str = "h200-8", manifest: str = BASE, folder: str = ""
) -> AgentPod:
    """Install the agent as a manifest below ``deploy`` says, with these settings, and await that its container runs.

    It has the rights of that manifest and no others. Where a test has to write the configurations itself, ``folder`` is
    where on the node, below /tmp; among those the node's label chooses, for which there is a right of its own.
    """
    agent_image.bring(node.machine)
    components = (CONFIGS, SIMULATED) if folder else (SIMULATED,)
    objects = kustomized.rendered(manifest, *components, patches=[choice_of(profile, folder)])
    for one in sorted([*objects, _config_map(settings)], key=lambda one: one["kind"] == "DaemonSet"):
        lay(node, one)
    node.api.patch("Node", node.name, {"metadata": {"labels": {MARK: "true"}}}, "")
    return AgentPod(node, wait_until("the agent runs", lambda: _running(node)))


def configure(node: RealNode, document: str) -> None:
    """Edit the agent's ConfigMap and let the kubelet look at the pod's mounts, which else takes it up to a minute."""
    node.api.patch("ConfigMap", CONFIG, {"data": {"default": document}}, NAMESPACE)
    for pod in pods(node):
        look = {"metadata": {"annotations": {"looked-at": str(time.monotonic_ns())}}}
        node.api.patch("Pod", pod["metadata"]["name"], look, NAMESPACE)


def lay(node: RealNode, manifest: Object) -> None:
    """Apply a manifest; the test's end takes it back. A namespace stays, since it takes its time to go."""
    if manifest["kind"] != "Namespace":
        node.api.apply(manifest)
    elif node.api.find("Namespace", manifest["metadata"]["name"]) is None:
        node.api.request("POST", "/api/v1/namespaces", manifest)


def available(node: RealNode, generation: int = 1) -> AgentPod:
    """The DaemonSet's pod, once it is ready, the only one, and of so late a generation."""
    status = node.api.get("DaemonSet", NAME, NAMESPACE)["status"]
    found = pods(node)
    if (
        status.get("observedGeneration", 0) < generation
        or status.get("updatedNumberScheduled") != 1
        or status.get("numberAvailable") != 1
        or len(found) != 1
    ):
        raise NotYet(f"{status}: {[node.pods.describe(pod) for pod in found]}")
    return AgentPod(node, found[0])


def _running(node: RealNode) -> Object:
    found = pods(node)
    if [pod["status"]["phase"] for pod in found] != ["Running"]:
        raise NotYet(f"{[node.pods.describe(pod) for pod in found]}")
    return found[0]


def _config_map(settings: Object) -> Object:
    metadata = {"name": CONFIG, "namespace": NAMESPACE}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"default": yaml.safe_dump(settings)},
    }


def choice_of(profile: str, folder: str) -> Object:
    """Which node is simulated, and where its configuration is: as docs/user/configuration.md has it."""
    source = (
        {"name": "CONFIG_FILE_SRCDIR", "value": folder}
        if folder
        else {"name": "CONFIG_FILE", "value": f"{FOLDER}/default"}
    )
    container = {
        "name": "agent",
        "env": [
            {"name": "NODE_AGENT_SIMULATE", "value": profile},
            source,
        ],
        "volumeMounts": [{"name": "configs", "mountPath": FOLDER, "readOnly": True}],
    }
    volume = {"name": "configs", "configMap": {"name": CONFIG}}
    spec = {"template": {"spec": {"containers": [container], "volumes": [volume]}}}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": NAME}, "spec": spec}
