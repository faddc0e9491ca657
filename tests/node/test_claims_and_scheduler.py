"""What scheduler and API server make of the node's slices and of the agent's rights."""

import signal
import time

import pytest

from tests.node import agent as agents
from tests.node.installed import AgentPod
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import (
    DRIVER,
    agent,
    attribute,
    await_held,
    await_nothing_held,
    claim,
    cluster,
    devices,
    pod_with,
    run,
    start_process,
)

__all__ = ["agent", "cluster"]

pytestmark = pytest.mark.node

LIST = ["sh", "-c", "ls /dev/nvidia[0-9]*"]


def test_where_the_kubelet_has_no_gpu_limits_come_as_claims_and_no_gpu_is_given_out_twice(
    cluster: RealNode,
) -> None:
    """While allocatable is 0 the scheduler takes the class that serves the extended resource."""
    agent = start_process(cluster)
    agents.registered(agent)
    agents.offered(cluster, 8)
    await_nothing_held(cluster)
    by_plugin = cluster.pods.run(agents.gpu_pod("by-plugin", 5))
    await_held(cluster, 5)
    agent.stop(signal.SIGKILL)
    agents.offered(cluster, 0)

    cluster.api.create(agents.gpu_pod("by-claim", 3))
    wait_until("the scheduler has made a claim of it", lambda: extended(cluster))
    start_process(cluster, name="second")
    by_claim = cluster.pods.wait("by-claim")

    one, other = (set(cluster.pods.execute(pod, LIST).split()) for pod in (by_plugin, by_claim))
    assert (len(one), len(other)) == (5, 3)
    assert not one & other
    agents.offered(cluster, 5)


def extended(node: RealNode) -> list[Object]:
    return [
        one
        for one in node.api.list("ResourceClaim")
        if "resource.kubernetes.io/extended-resource-claim" in one["metadata"].get("annotations", {})
        and one.get("status", {}).get("allocation")
    ]


def test_a_gpu_in_trouble_goes_to_those_who_tolerate_it_alone(cluster: RealNode, agent: AgentPod) -> None:
    only = f'device.attributes["{DRIVER}"].uuid == "{attribute(devices(cluster)["gpu-5"], "uuid")}"'
    selectors = [{"cel": {"expression": only}}]
    agents.simulate(cluster, "xid", "--gpu", "gpu-5", "--code", "79")
    wait_until("the device is tainted", lambda: devices(cluster)["gpu-5"].get("taints"))

    cluster.api.create(claim("careful", selectors=selectors))
    cluster.api.create(pod_with("careful", "careful"))
    assert "cannot allocate all claims" in cluster.pods.why_pending("careful")
    # Who does not name the effect NoExecute gets the device and is evicted from it.
    tolerations = [{"operator": "Exists"}, {"operator": "Exists", "effect": "NoExecute"}]
    assert run(cluster, "diagnosis", selectors=selectors, tolerations=tolerations)[1] == ["gpu-5"]
    agents.simulate(cluster, "restore-gpu", "--gpu", "gpu-5")


def test_a_gpu_that_an_operators_rule_taints_goes_to_no_claim_and_who_has_it_is_evicted_by_noexecute(
    cluster: RealNode, agent: AgentPod
) -> None:
    """DeviceTaintRule of resource.k8s.io/v1; the agent itself has nothing to do with it."""
    cluster.api.create(rule("maintenance", "gpu-0", "NoSchedule"))
    # Nothing shows when the scheduler has heard of it, which watches rules, claims and pods one by one.
    time.sleep(2)
    cluster.api.create(claim("all", 8))
    cluster.api.create(pod_with("all", "all"))
    assert "cannot allocate all claims" in cluster.pods.why_pending("all")
    assert "gpu-0" not in run(cluster, "seven", 7)[1]
    diagnosis, names = run(cluster, "diagnosis", tolerations=[{"key": MAINTENANCE, "operator": "Exists"}])
    assert names == ["gpu-0"]

    cluster.api.delete("DeviceTaintRule", "maintenance")
    cluster.api.create(rule("out", "gpu-0", "NoExecute", key="example.com/out"))
    cluster.pods.wait_gone(diagnosis["metadata"]["name"])
    wait_until("its GPU is given back", lambda: "claim=default/diagnosis" in unprepared(agent))


MAINTENANCE = "example.com/maintenance"


def rule(name: str, device: str, effect: str, *, key: str = MAINTENANCE) -> Object:
    """What an operator writes to keep a device from claims."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": name},
        "spec": {
            "deviceSelector": {"driver": DRIVER, "device": device},
            "taint": {"key": key, "effect": effect},
        },
    }


def unprepared(agent: AgentPod) -> str:
    return "\n".join(line for line in agent.text().splitlines() if "claim unprepared" in line)
