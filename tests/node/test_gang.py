"""Gangs of pods with claims, by the scheduler of Kubernetes 1.37.2 itself: PodGroups, whose gates are off by default.

The node is one of its own, since the gates go to every component, and the agent a process on it, which is quicker.
"""

from collections.abc import Iterator

import pytest

from tests.node import examples
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import NotYet, wait_until
from tests.node.test_claims import prepare_cluster, run, start_process

pytestmark = pytest.mark.node

GATES = {"GenericWorkload": True, "DRAWorkloadResourceClaims": True}
WORKERS = ("worker-0", "worker-1")
NOTHING_FREE = "cannot allocate all claims"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealNode]:
    with RealNode(feature_gates=GATES, runtime_config={"scheduling.k8s.io/v1beta1": True}) as node:
        start_process(prepare_cluster(node), device_plugin=False)
        yield node


@pytest.fixture
def node(cluster: RealNode) -> Iterator[RealNode]:
    before = len(cluster.api.created)
    yield cluster
    for made in reversed(cluster.api.created[before:]):
        remove(cluster, made["kind"], made["metadata"]["name"])
    # That of a group would wait for the garbage collector.
    for claim in cluster.api.list("ResourceClaim"):
        remove(cluster, "ResourceClaim", claim["metadata"]["name"])
    del cluster.api.created[before:]
    wait_until("nothing is left", lambda: not [*cluster.api.list("Pod", "default"), *cluster.api.list("ResourceClaim")])


def remove(node: RealNode, kind: str, name: str) -> None:
    """The shell in the examples' pods does not heed SIGTERM, which would take half a minute each."""
    node.api.remove(kind, name, grace=1 if kind == "Pod" else None)


def leave_one(node: RealNode) -> None:
    """Have two pods hold all GPUs but one."""
    run(node, "others", 6)
    run(node, "seventh", 1)


def make(node: RealNode, objects: list[Object]) -> None:
    for one in objects:
        node.api.create(one)


def refused(node: RealNode, group: str) -> Object:
    """What the scheduler says of a group that it cannot place, once it does."""
    conditions = node.api.get("PodGroup", group)["status"].get("conditions", [])
    for one in conditions:
        if (one["type"], one["status"]) == ("PodGroupInitiallyScheduled", "False"):
            return dict(one)
    raise NotYet(f"{conditions}")


def bound(node: RealNode) -> set[str]:
    """The workers that have a node."""
    return {name for name in WORKERS if node.api.get("Pod", name)["spec"].get("nodeName")}


def allocations(node: RealNode) -> list[Object]:
    """The allocated claims that were made from templates."""
    claims = [one for one in node.api.list("ResourceClaim") if "ownerReferences" in one["metadata"]]
    return [one for one in claims if one.get("status", {}).get("allocation")]


def test_two_pods_that_are_no_gang_take_the_one_gpu_that_is_free_and_wait_half_started(node: RealNode) -> None:
    """What a gang is for: without it, the next test's workers hold a GPU and get nowhere."""
    leave_one(node)
    objects = examples.example("gang/claims").objects
    for pod in objects:
        pod["spec"].pop("schedulingGroup", None)
    make(node, [one for one in objects if one["kind"] != "PodGroup"])
    wait_until("one of them has a node", lambda: len(bound(node)) == 1)
    (waits,) = set(WORKERS) - bound(node)
    assert NOTHING_FREE in node.pods.why_pending(waits)


def test_a_gang_of_two_with_claims_waits_whole_while_one_gpu_is_free_and_starts_whole_when_two_are(
    node: RealNode,
) -> None:
    leave_one(node)
    gang = examples.example("gang/claims")
    make(node, gang.objects)
    said = wait_until("the scheduler has refused the gang", lambda: refused(node, "training"))
    assert (said["reason"], bound(node), allocations(node)) == ("Unschedulable", set(), [])
    assert "minCount (2) cannot be satisfied: 1 scheduled" in said["message"]

    remove(node, "Pod", "seventh")
    node.pods.wait_gone("seventh")
    remove(node, "ResourceClaim", "seventh")
    examples.held(node, gang)
    assert len({one["metadata"]["uid"] for one in allocations(node)}) == 2


def test_a_gang_with_one_claim_for_all_has_its_gpus_until_the_group_is_gone(node: RealNode) -> None:
    """The claim is reserved for the PodGroup instead of its pods: the agent prepares it for each pod all the same."""
    gang = examples.example("gang/shared")
    make(node, gang.objects)
    examples.held(node, gang)
    (claim,) = allocations(node)
    reserved = [(one["apiGroup"], one["resource"], one["name"]) for one in claim["status"]["reservedFor"]]
    assert reserved == [("scheduling.k8s.io", "podgroups", "serving")]

    for name in WORKERS:
        remove(node, "Pod", name)
    for name in WORKERS:
        node.pods.wait_gone(name)
    assert [one["metadata"]["name"] for one in allocations(node)] == [claim["metadata"]["name"]]
    make(node, examples.pods(gang))
    examples.held(node, gang)
    assert [one["metadata"]["uid"] for one in allocations(node)] == [claim["metadata"]["uid"]]
