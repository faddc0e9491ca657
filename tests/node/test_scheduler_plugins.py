"""Pods placed by the real scheduler-plugins, which reads the agent's topology object: `make test-numa`.

The machine here has one NUMA node and the simulated one two, so that the kubelet itself cannot align: it is the
scheduler that is told of ``single-numa-node``, by the object.
"""

from collections.abc import Iterator

import pytest
import yaml

from tests.node import agent as agents
from tests.node.rig import binaries
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.pods import busybox_pod
from tests.node.rig.program import Program
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import prepare_cluster, start_process
from tests.node.test_topology_object import found, gpus

pytestmark = pytest.mark.scheduler_plugins

SCHEDULER, PLUGIN = "topology-aware-scheduler", "NodeResourceTopologyMatch"
STATE = "/var/lib/gpu-node-agent-topology"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealNode]:
    """A node with the agent and its topology object, of the kind that scheduler-plugins ships."""
    with RealNode() as node:
        prepare_cluster(node)
        crd = binaries.SCHEDULER_PLUGINS.source / "manifests" / "noderesourcetopology" / "crd.yaml"
        for manifest in yaml.safe_load_all(crd.read_text()):
            node.api.create(manifest)
        wait_until("the kind is served", lambda: found(node) == {})
        aligned = node.machine.folder / "aligned.yaml"
        said = {"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "pod"}
        aligned.write_text(yaml.safe_dump({"kind": "KubeletConfiguration"} | said))
        start_process(node, nodeReports={"topology": True, "kubeletConfig": str(aligned)}, state_dir=STATE)
        agents.offered(node, 8)
        yield node


@pytest.fixture
def node(cluster: RealNode) -> Iterator[RealNode]:
    wait_until("all GPUs are free", lambda: free(cluster) == [4, 4])
    yield cluster
    cluster.machine.programs.pop(SCHEDULER).stop()
    end_pods(cluster)


def end_pods(node: RealNode) -> None:
    for one in node.api.list("Pod", "default"):
        node.api.delete("Pod", one["metadata"]["name"])
    wait_until("all pods have ended", lambda: not node.api.list("Pod", "default"))


def start_scheduler(node: RealNode) -> Program:
    """The scheduler as its documents have it, for pods that name it."""
    plugin = {"enabled": [{"name": PLUGIN}]}
    profile = {
        "schedulerName": SCHEDULER,
        "plugins": {"multiPoint": plugin},
        "pluginConfig": [{"name": PLUGIN, "args": {"scoringStrategy": {"type": "LeastAllocated"}}}],
    }
    settings = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(node.kubeconfig)},
        "profiles": [profile],
    }
    file = node.machine.folder / f"{SCHEDULER}.yaml"
    file.write_text(yaml.safe_dump(settings))
    program = binaries.build(binaries.SCHEDULER_PLUGINS)["topology-scheduler"]
    return node.machine.start(SCHEDULER, [str(program), f"--config={file}", "--secure-port=0", "--v=4"])


def free(node: RealNode) -> list[int]:
    """How many GPUs are available on each NUMA node, fewest first."""
    return sorted(int(available) for _, _, available in gpus(node).values())


def pod(name: str, gpus: int) -> Object:
    return agents.gpu_pod(name, gpus, schedulerName=SCHEDULER)


def placed(node: RealNode, manifest: Object) -> Object:
    return node.pods.run(manifest)


def turned_away(node: RealNode, name: str) -> str:
    return node.pods.why_pending(name)


def test_a_pod_waits_until_one_numa_node_has_all_that_it_asks_for(node: RealNode) -> None:
    start_scheduler(node)
    node.api.create(pod("five", 5))
    assert "cannot align pod" in turned_away(node, "five")

    placed(node, pod("three", 3))
    wait_until("three are taken", lambda: free(node) == [1, 4])
    placed(node, pod("others", 3))
    wait_until("one GPU is left of each", lambda: free(node) == [1, 1])
    node.api.create(pod("two", 2))
    assert "cannot align pod" in turned_away(node, "two")
    node.api.delete("Pod", "three")
    node.pods.wait("two")


def test_kubernetes_own_scheduler_would_have_sent_it_here(node: RealNode) -> None:
    """What the plugin keeps from the node, and the kubelet of an aligned node would refuse."""
    start_scheduler(node)
    placed(node, agents.gpu_pod("anywhere", 5))


def test_a_gpu_that_is_out_of_service_is_not_counted(node: RealNode) -> None:
    start_scheduler(node)
    agents.simulate(node, "xid", "--gpu", "gpu-6", "--code", "79")
    agents.simulate(node, "xid", "--gpu", "gpu-1", "--code", "79")
    try:
        wait_until("both NUMA nodes have three", lambda: free(node) == [3, 3])
        node.api.create(pod("four", 4))
        assert "cannot align pod" in turned_away(node, "four")
    finally:
        agents.simulate(node, "restore-gpu", "--gpu", "gpu-6")
        agents.simulate(node, "restore-gpu", "--gpu", "gpu-1")
    node.pods.wait("four")


def test_an_ordinary_pod_with_guaranteed_cpus_and_memory_is_placed(node: RealNode) -> None:
    start_scheduler(node)
    placed(node, busybox_pod("ordinary", limits={"cpu": "100m", "memory": "64Mi"}, schedulerName=SCHEDULER))
