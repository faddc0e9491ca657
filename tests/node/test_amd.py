"""AMD's GPUs on a real node: installed as the overlay for them says, with the rights that this gives and no others."""

from collections.abc import Iterator

import pytest

from tests.node.agent import gpu_pod, start
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.pods import busybox_pod
from tests.node.rig.waiting import wait_until

pytestmark = pytest.mark.node

RESOURCE, DRIVER = "amd.com/gpu", "gpu.amd.com"
NAMES = "/var/lib/gpu-node-agent/names.json"


@pytest.fixture(autouse=True)
def other_gpus(real_node: RealNode) -> Iterator[None]:
    """Have the node forget these GPUs: their names would be those of no GPU of the next test's."""
    yield
    real_node.machine.run(["rm", "-f", NAMES])
    for one in real_node.api.list("ResourceSlice"):
        if one["spec"]["driver"] == DRIVER:
            real_node.api.delete("ResourceSlice", one["metadata"]["name"])


def claim(name: str) -> Object:
    """For a GPU by what AMD's own driver publishes of it."""
    memory = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("128Gi")) >= 0'
    exactly = {"deviceClassName": DRIVER, "selectors": [{"cel": {"expression": memory}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def device_nodes(node: RealNode, pod: Object) -> set[str]:
    """What a pod has of /dev/kfd and /dev/dri, which it can look at."""
    found = node.pods.execute(pod, ["sh", "-c", "ls -d /dev/kfd /dev/dri/renderD* /dev/dri/card*"]).split()
    return set(found)


def test_pods_with_a_limit_and_with_a_claim_get_gpus_of_amds_and_the_node_is_labelled(node: RealNode) -> None:
    node.api.patch("Node", node.name, {"metadata": {"labels": {"amd.com/gpu.present": "true"}}}, "")
    agent = start(node, profile="mi300x-8", manifest="daemonset/overlays/amd", offers={RESOURCE: 8})

    by_limit = device_nodes(node, node.pods.run(gpu_pod("by-limit", 2, resource=RESOURCE)))
    assert "/dev/kfd" in by_limit
    assert sorted(path[:10] for path in by_limit) == [
        "/dev/dri/c",
        "/dev/dri/c",
        "/dev/dri/r",
        "/dev/dri/r",
        "/dev/kfd",
    ]

    node.api.create(claim("by-claim"))
    pod = busybox_pod("by-claim", "sleep 1000000", resourceClaims=[{"name": "gpu", "resourceClaimName": "by-claim"}])
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    by_claim = device_nodes(node, node.pods.run(pod))
    assert by_claim & by_limit == {"/dev/kfd"}
    assert len(by_claim) == 3

    def labels() -> dict[str, str]:
        return {key: value for key, value in node.read()["metadata"]["labels"].items() if "amd.com/" in key}

    wait_until("the node is labelled", lambda: labels().get("node-agent.gpu.amd.com/health") == "healthy")
    assert (labels()["amd.com/gpu.count"], labels()["amd.com/gpu.vram"]) == ("8", "192G")
    assert agent.refused == []
