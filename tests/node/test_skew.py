"""The main cases on Kubernetes 1.34, the oldest release with claims by default: `make test-skew`.

Absent there, and so not shown here: device taints (a GPU in trouble leaves its slice instead), shared counters (groups
are not published), shares of one device, and the extended resource of a device class.
"""

from collections.abc import Iterator

import pytest

from tests.node import agent as agents
from tests.node.rig import binaries
from tests.node.rig.node import RealNode
from tests.node.rig.program import Program
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import NUMA, attribute, devices, prepare_cluster, run, start_process

pytestmark = pytest.mark.skew


@pytest.fixture(scope="module")
def old_node() -> Iterator[RealNode]:
    with RealNode(kubernetes=binaries.KUBERNETES_1_34) as node:
        yield node


@pytest.fixture
def old_cluster(old_node: RealNode) -> Iterator[RealNode]:
    yield prepare_cluster(old_node)
    old_node.clean()


@pytest.fixture
def old_agent(old_cluster: RealNode) -> Program:
    return start_process(old_cluster)


def test_it_is_the_old_release(old_node: RealNode) -> None:
    assert old_node.read()["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.34.")


def test_pods_get_gpus_by_limits(old_cluster: RealNode, old_agent: Program) -> None:
    agents.offered(old_cluster, 8)
    pod = old_cluster.pods.run(agents.gpu_pod("two", 2))
    assert len(old_cluster.pods.execute(pod, ["sh", "-c", "ls /dev/nvidia[0-9]*"]).split()) == 2


def test_pods_get_gpus_of_one_numa_node_by_claims(old_cluster: RealNode, old_agent: Program) -> None:
    pod, names = run(old_cluster, "four", 4, constraints=[{"matchAttribute": NUMA}])
    published = devices(old_cluster)
    assert len({attribute(published[name], NUMA) for name in names}) == 1
    assert len(old_cluster.pods.execute(pod, ["sh", "-c", "ls /dev/nvidia[0-9]*"]).split()) == 4


def test_a_gpu_that_a_claim_holds_is_withdrawn_from_limits(old_cluster: RealNode, old_agent: Program) -> None:
    agents.offered(old_cluster, 8)
    run(old_cluster, "three", 3)
    agents.offered(old_cluster, 5)


def test_a_gpu_in_trouble_leaves_its_slice_and_comes_back(old_cluster: RealNode, old_agent: Program) -> None:
    agents.simulate(old_cluster, "xid", "--gpu", "gpu-2", "--code", "79")
    wait_until("the GPU has left its slice", lambda: "gpu-2" not in devices(old_cluster))
    agents.simulate(old_cluster, "restore-gpu", "--gpu", "gpu-2")
    wait_until("the GPU is back", lambda: "gpu-2" in devices(old_cluster))


def test_a_restarted_kubelet_gets_everything_again(old_cluster: RealNode, old_agent: Program) -> None:
    before = devices(old_cluster)
    old_cluster.restart_kubelet()
    wait_until("the slices are there again", lambda: devices(old_cluster) == before)
    agents.offered(old_cluster, 8)
    run(old_cluster, "after", 1)
