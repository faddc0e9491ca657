"""A sick GPU on a real node: what pods, scheduler and operators see of it, and how it comes back."""

import json
import time
from collections.abc import Iterator

import pytest

from tests.node import agent as agents
from tests.node.installed import AgentPod
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import DRIVER, claim, cluster, devices, pod_with, run, start

__all__ = ["cluster"]

pytestmark = pytest.mark.node

# What is still open at the end of a test is none of the next one's business.
RECORD = "/var/lib/gpu-node-agent/health.json"
EVICTING = {"rules": [{"xids": [79], "action": "evict"}]}
FOR_THE_OPERATOR = {"rules": [{"xids": [79], "clearedBy": "operator"}]}


@pytest.fixture(autouse=True)
def no_state(real_node: RealNode) -> Iterator[None]:
    real_node.machine.run(["rm", "-f", RECORD])
    yield


def begin(node: RealNode, *, health: Object | None = None) -> AgentPod:
    agent = start(node, health=health or {})
    agents.registered(agent)
    agents.offered(node, 8)
    return agent


def break_gpu(node: RealNode, name: str) -> None:
    agents.simulate(node, "xid", "--gpu", name, "--code", "79")


def mend_gpu(node: RealNode, name: str) -> None:
    agents.simulate(node, "restore-gpu", "--gpu", name)


def effects(node: RealNode, name: str) -> set[str]:
    """The effects of the taints of a device that are about its health."""
    taints = devices(node)[name].get("taints", [])
    return {taint["effect"] for taint in taints if taint["key"] == f"{DRIVER}/xid"}


def condition(node: RealNode, kind: str = "GPUHealthy") -> Object:
    conditions: list[Object] = node.read()["status"]["conditions"]
    return next((one for one in conditions if one["type"] == kind), {})


def await_condition(node: RealNode, status: str) -> Object:
    wait_until(f"GPUHealthy is {status}", lambda: condition(node).get("status") == status)
    return condition(node)


def reported(node: RealNode, beginning: str) -> bool:
    return any(event.startswith(beginning) for event in node.pods.events(node.name, kind="Node"))


def health_of(node: RealNode, pod: str) -> list[Object]:
    """What the pod's status says of its devices."""
    (status,) = node.api.get("Pod", pod)["status"]["containerStatuses"]
    return [entry for one in status.get("allocatedResourcesStatus", []) for entry in one.get("resources", [])]


def await_health(node: RealNode, pod: str, health: str) -> Object:
    def told() -> Object | None:
        return next((entry for entry in health_of(node, pod) if entry.get("health") == health), None)

    found = wait_until(f"the status of pod {pod} says {health}", told)
    assert found is not None
    return found


def sees(node: RealNode, pod: Object) -> set[str]:
    """The GPUs whose device nodes a pod has."""
    return {f"gpu-{path.removeprefix('/dev/nvidia')}" for path in _nodes(node, pod)}


def _nodes(node: RealNode, pod: Object) -> list[str]:
    return node.pods.execute(pod, ["sh", "-c", "ls /dev/nvidia[0-9]*"]).split()


def test_a_gpu_that_breaks_under_a_pod_with_limits_is_kept_from_others_and_comes_back(cluster: RealNode) -> None:
    begin(cluster)
    first, other = (cluster.pods.run(agents.gpu_pod(name, 1)) for name in ("first", "other"))
    (sick,) = sees(cluster, first)
    before = cluster.pods.container_id(first), cluster.pods.container_id(other)
    await_condition(cluster, "True")

    break_gpu(cluster, sick)

    agents.offered(cluster, 7)
    wait_until("the device is tainted", lambda: effects(cluster, sick) == {"NoSchedule"})
    await_health(cluster, "first", "Unhealthy")
    assert f"{sick} withdrawn: " in await_condition(cluster, "False")["message"]
    wait_until("an Event tells it", lambda: reported(cluster, f"GPUWithdrawn: {sick} ("))

    _, six = run(cluster, "six", 6)
    assert sick not in six
    agents.offered(cluster, 1)
    cluster.api.create(agents.gpu_pod("one-more", 1))
    assert agents.GPU in cluster.pods.why_pending("one-more")
    await_health(cluster, "other", "Healthy")
    assert (cluster.pods.container_id(first), cluster.pods.container_id(other)) == before

    cluster.api.delete("Pod", "first")
    mend_gpu(cluster, sick)
    cluster.pods.wait("one-more")
    assert sees(cluster, cluster.api.get("Pod", "one-more")) == {sick}
    wait_until("the taint is gone", lambda: not effects(cluster, sick))
    assert await_condition(cluster, "True")["reason"] == "AllGPUsHealthy"
    wait_until("an Event tells it", lambda: reported(cluster, f"GPURestored: {sick} ("))


def test_a_gpu_that_breaks_under_a_claim_is_kept_from_others_and_the_pod_is_told_why(cluster: RealNode) -> None:
    begin(cluster)
    pod, (sick,) = run(cluster, "held", 1)
    other, _ = run(cluster, "beside", 1)
    before = cluster.pods.container_id(pod), cluster.pods.container_id(other)

    break_gpu(cluster, sick)

    wait_until("the device is tainted", lambda: effects(cluster, sick) == {"NoSchedule"})
    assert "Xid 79" in await_health(cluster, "held", "Unhealthy").get("message", "")
    _, six = run(cluster, "six", 6)
    assert sick not in six
    cluster.api.create(claim("one-more"))
    cluster.api.create(pod_with("one-more", "one-more"))
    assert "cannot allocate all claims" in cluster.pods.why_pending("one-more")
    await_health(cluster, "beside", "Healthy")
    assert (cluster.pods.container_id(pod), cluster.pods.container_id(other)) == before

    mend_gpu(cluster, sick)
    await_health(cluster, "held", "Healthy")
    wait_until("the taint is gone", lambda: not effects(cluster, sick))
    for name in ("held", "beside", "six", "one-more"):
        cluster.api.delete("Pod", name)
        cluster.pods.wait_gone(name)
        cluster.api.delete("ResourceClaim", name)
    agents.offered(cluster, 8)


def tolerating(seconds: int) -> list[Object]:
    return [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]


def test_where_the_policy_says_so_pods_are_evicted_as_they_tolerate_it(cluster: RealNode) -> None:
    begin(cluster, health=EVICTING)
    _, (at_once,) = run(cluster, "at-once", 1)
    _, (later,) = run(cluster, "later", 1, tolerations=tolerating(8))
    untouched, _ = run(cluster, "untouched", 1)
    before = cluster.pods.container_id(untouched)

    began = time.monotonic()
    for name in (at_once, later):
        break_gpu(cluster, name)

    cluster.pods.wait_gone("at-once")
    wait_until("the other is tainted", lambda: "NoExecute" in effects(cluster, later))
    left_alone_for = seconds_until_deleted(cluster, "later", began)
    assert 6 < left_alone_for < 60
    cluster.pods.wait_gone("later")
    assert cluster.pods.container_id(untouched) == before


def seconds_until_deleted(node: RealNode, pod: str, since: float) -> float:
    """How long after ``since``, of the monotonic clock, a pod was told to go."""

    def told() -> bool:
        found = node.api.find("Pod", pod)
        return found is None or "deletionTimestamp" in found["metadata"]

    return agents.seconds_until(told, since)


def recorded(node: RealNode, code: int) -> bool:
    file = node.machine.path(RECORD)
    return file.exists() and f'"code":{code},' in file.read_text()


def test_a_cause_outlives_the_agent_until_an_operator_clears_it(cluster: RealNode) -> None:
    agent = begin(cluster, health=FOR_THE_OPERATOR)
    break_gpu(cluster, "gpu-3")
    agents.offered(cluster, 7)
    wait_until("the fault is on record", lambda: recorded(cluster, 79))
    agent.kill()

    agents.registered(agent)
    agents.offered(cluster, 7)
    time.sleep(8)
    assert cluster.allocatable(agents.GPU) == 7
    told = json.loads(agent.run("health", "-o", "json"))
    assert [gpu["name"] for gpu in told["gpus"] if gpu["health"] == "withdrawn"] == ["gpu-3"]

    assert "cleared xid 79 of gpu-3" in agent.run("health", "clear", "gpu-3")
    agents.offered(cluster, 8)
    await_condition(cluster, "True")


def test_the_conditions_of_the_agent_stand_beside_the_kubelets_and_each_has_its_owner(cluster: RealNode) -> None:
    begin(cluster)
    await_condition(cluster, "True")
    wait_until("the agent is said to be ready", lambda: condition(cluster, "GPUAgentReady").get("status") == "True")
    types = {one["type"] for one in cluster.read()["status"]["conditions"]}
    assert {"Ready", "MemoryPressure", "GPUHealthy"} <= types
    assert managers_of(cluster, "GPUHealthy") == {"gpu-node-agent"}
    assert managers_of(cluster, "GPUAgentReady") == {"gpu-node-agent-readiness"}


def managers_of(node: RealNode, condition: str) -> set[str]:
    """Who has set a condition of the Node."""
    return {
        entry["manager"]
        for entry in node.read()["metadata"]["managedFields"]
        if f'k:{{"type":"{condition}"}}' in entry["fieldsV1"].get("f:status", {}).get("f:conditions", {})
    }
