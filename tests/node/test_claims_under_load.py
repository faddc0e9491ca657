"""Claims and limits together, many times over, on a real node: alignment, races, and deaths at the wrong moment.

`make test-node FULL=1` shows each case more often.
"""

import itertools
import os
import re
import signal
import time
from functools import partial

import pytest

from tests.node import agent as agents
from tests.node.installed import AgentPod
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.pods import busybox_pod
from tests.node.rig.waiting import NotYet, wait_until
from tests.node.spans import SCRIPT, spans
from tests.node.test_claims import (
    DRIVER,
    NUMA,
    agent,
    allocated,
    attribute,
    claim,
    cluster,
    devices,
    pod_with,
    run,
    start_process,
)

__all__ = ["agent", "cluster"]

pytestmark = pytest.mark.node

FULL = bool(os.environ.get("FULL"))
# Which GPUs of one NUMA node, by their place in it, are taken when the claim for four comes.
FRAGMENTS = [(0, 3), (1, 2, 3), (0,), (1,), (2,), (3,), (0, 1), (1, 2), (2, 3), (0, 1, 2)][: None if FULL else 4]
ROUNDS = 10 if FULL else 3
PODS = 100 if FULL else 30


def by_numa(node: RealNode) -> list[list[str]]:
    """The names of the whole GPUs of each NUMA node."""
    found: dict[int, list[str]] = {}
    for name, device in devices(node).items():
        if name.startswith("gpu-"):
            found.setdefault(attribute(device, NUMA), []).append(name)
    return list(found.values())


def taking(name: str, uuids: list[str]) -> Object:
    """A claim for exactly these GPUs."""
    requests = [
        {
            "name": f"r{number}",
            "exactly": {
                "deviceClassName": DRIVER,
                "selectors": [{"cel": {"expression": f'device.attributes["{DRIVER}"].uuid == "{uuid}"'}}],
            },
        }
        for number, uuid in enumerate(uuids)
    ]
    wanted = claim(name)
    wanted["spec"]["devices"]["requests"] = requests
    return wanted


def clear(node: RealNode, *names: str) -> None:
    for name in names:
        node.api.delete("Pod", name)
    for name in names:
        node.pods.wait_gone(name)
        node.api.delete("ResourceClaim", name)
        # The controllers let go of a claim when they have seen its pod end.
        wait_until(f"claim {name} is gone", partial(is_gone, node, name))


def is_gone(node: RealNode, claim_name: str) -> bool:
    return node.api.find("ResourceClaim", claim_name) is None


def test_four_gpus_of_one_numa_node_are_found_from_every_fragmented_start(cluster: RealNode, agent: AgentPod) -> None:
    published, nodes = devices(cluster), by_numa(cluster)
    aligned = 0
    for number, places in enumerate(FRAGMENTS):
        taken = [nodes[number % 2][place] for place in places]
        cluster.api.create(taking("taken", [attribute(published[name], "uuid") for name in taken]))
        cluster.pods.run(pod_with("taken", "taken"))
        _, names = run(cluster, "four", 4, constraints=[{"matchAttribute": NUMA}])
        aligned += len({attribute(published[name], NUMA) for name in names}) == 1 and not set(names) & set(taken)
        clear(cluster, "taken", "four")
    assert aligned == len(FRAGMENTS)


def test_four_two_and_two_are_aligned_every_time_without_any_constraint(cluster: RealNode, agent: AgentPod) -> None:
    published = devices(cluster)
    aligned = 0
    for _ in range(ROUNDS):
        got = [run(cluster, name, count)[1] for name, count in (("a", 4), ("b", 2), ("c", 2))]
        aligned += all(len({attribute(published[name], NUMA) for name in names}) == 1 for names in got)
        clear(cluster, "a", "b", "c")
    assert aligned == ROUNDS


def test_the_first_available_alternative_is_taken_and_its_pod_started(cluster: RealNode, agent: AgentPod) -> None:
    wanted = claim("either")
    none = [{"cel": {"expression": f'device.attributes["{DRIVER}"].productName == "NVIDIA B200"'}}]
    alternatives = [
        {"name": "b200", "deviceClassName": DRIVER, "selectors": none},
        {"name": "any-two", "deviceClassName": DRIVER, "count": 2},
    ]
    wanted["spec"]["devices"]["requests"] = [{"name": "gpus", "firstAvailable": alternatives}]
    cluster.api.create(wanted)
    pod = pod_with("either", "either")
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus", "request": "gpus"}]}
    running = cluster.pods.run(pod)
    assert len(cluster.pods.execute(running, ["sh", "-c", "ls /dev/nvidia[0-9]*"]).split()) == 2


def test_all_mode_takes_the_whole_node(cluster: RealNode, agent: AgentPod) -> None:
    wanted = claim("all")
    wanted["spec"]["devices"]["requests"] = [
        {"name": "gpus", "exactly": {"deviceClassName": DRIVER, "allocationMode": "All"}}
    ]
    cluster.api.create(wanted)
    pod = cluster.pods.run(pod_with("all", "all"))
    assert len(cluster.pods.execute(pod, ["sh", "-c", "ls /dev/nvidia[0-9]*"]).split()) == 8


def test_admin_access_sees_a_gpu_that_another_pod_holds(cluster: RealNode, agent: AgentPod) -> None:
    cluster.api.patch(
        "Namespace", "default", {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}, ""
    )
    _, held = run(cluster, "holder", 8)
    wanted = claim("admin")
    wanted["spec"]["devices"]["requests"] = [
        {"name": "gpus", "exactly": {"deviceClassName": DRIVER, "allocationMode": "All", "adminAccess": True}}
    ]
    cluster.api.create(wanted)
    pod = cluster.pods.run(pod_with("admin", "admin"))
    assert len(cluster.pods.execute(pod, ["sh", "-c", "ls /dev/nvidia[0-9]*"]).split()) == 8
    assert len(held) == 8


def test_an_agent_killed_in_the_middle_of_prepare_prepares_again_and_forgets_nothing(cluster: RealNode) -> None:
    victim = start_process(cluster)
    for round_number in range(3):
        name = f"hit-{round_number}"
        cluster.api.create(claim(name, 2))
        cluster.api.create(pod_with(name, name))
        wait_until("the claim is allocated", partial(allocated_or_none, cluster, name), every=0.01)
        # The kubelet calls within milliseconds of the binding; each round dies at another moment of it.
        time.sleep(0.02 * round_number)
        victim.stop(signal.SIGKILL)
        victim = start_process(cluster, name=f"agent-{round_number}")
        cluster.pods.wait(name)
    holders = [allocated(cluster, f"hit-{number}") for number in range(3)]
    assert len(set(itertools.chain(*holders))) == 6


def allocated_or_none(node: RealNode, name: str) -> list[str]:
    try:
        return allocated(node, name)
    except KeyError as error:
        raise NotYet("not allocated") from error


def test_a_pod_deleted_while_its_claim_is_prepared_leaves_nothing_held(cluster: RealNode, agent: AgentPod) -> None:
    for number in range(5):
        name = f"brief-{number}"
        cluster.api.create(claim(name, 8))
        cluster.api.create(pod_with(name, name))
        wait_until("the claim is allocated", partial(allocated_or_none, cluster, name), every=0.01)
        cluster.api.delete("Pod", name)
        cluster.pods.wait_gone(name)
        cluster.api.delete("ResourceClaim", name)
    run(cluster, "after", 8)
    written = list(cluster.cdi_folder.glob("*claim_*.json"))
    assert len(written) == 1


def test_many_pods_by_limit_and_as_many_by_claim_never_share_a_gpu(cluster: RealNode, agent: AgentPod) -> None:
    script = SCRIPT.format(seconds=0.3)
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one"},
        "spec": {"spec": claim("one")["spec"]},
    }
    cluster.api.create(template)
    for number in range(PODS):
        cluster.api.create(agents.gpu_pod(f"limit-{number}", 1, script))
        by_claim = busybox_pod(
            f"claim-{number}", script, resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": "one"}]
        )
        by_claim["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
        cluster.api.create(by_claim)

    def finished() -> list[Object]:
        pods: list[Object] = [
            pod for pod in cluster.api.list("Pod", "default") if re.match("(limit|claim)-", pod["metadata"]["name"])
        ]
        unfinished = [pod for pod in pods if pod["status"]["phase"] not in ("Succeeded", "Failed")]
        if unfinished:
            raise NotYet(f"{len(unfinished)} are not finished")
        return pods

    pods = wait_until("all pods have ended", finished, timeout=1200, every=2)
    failed = [pod for pod in pods if pod["status"]["phase"] == "Failed"]
    reasons = {pod["status"].get("reason", "?") for pod in failed}
    print(f"{len(pods)} pods, {len(failed)} failed admissions {sorted(reasons)}")
    # The scheduler may choose a GPU that a claim has just got: the kubelet says so when it counts, or when it asks us.
    assert reasons <= {"UnexpectedAdmissionError", f"OutOf{agents.GPU}"}
    assert not any(pod["metadata"]["name"].startswith("claim-") for pod in failed)
    assert overlapping(cluster, pods) == []
    assert "a pod has what another holds" not in agent.text()


def overlapping(node: RealNode, pods: list[Object]) -> list[str]:
    """Pairs of pods that saw one GPU at the same time, by their own word."""
    ended = [pod for pod in pods if pod["status"]["phase"] == "Succeeded"]
    seen = [span for pod in ended for span in spans(pod["metadata"]["name"], node.pods.log(pod))]
    assert len(seen) == len(ended), "each pod has said of one GPU that it sees it"
    return [f"{one.path}: {one}, {other}" for one, other in itertools.combinations(seen, 2) if one.clashes(other)]
