"""Claims and the kubelet's ways with them: when it wipes, asks again, and how long it believes what it was told."""

import signal
import time

import pytest

from tests.node import agent as agents
from tests.node.installed import AgentPod
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import NotYet, wait_until
from tests.node.test_claims import agent, claim, cluster, devices, pod_with, run, start_process

__all__ = ["agent", "cluster"]

pytestmark = pytest.mark.node

LIST = ["sh", "-c", "ls /dev/nvidia[0-9]*"]


def health(node: RealNode, pod: str, container: str = "main") -> dict[str, str]:
    """What the pod's status says of its devices, by their ids."""
    statuses = node.api.get("Pod", pod)["status"]["containerStatuses"]
    (status,) = [status for status in statuses if status["name"] == container]
    found = [one for entry in status.get("allocatedResourcesStatus", []) for one in entry["resources"]]
    return {one["resourceID"]: one["health"] for one in found}


def test_slices_that_the_kubelet_wipes_behind_a_dead_agent_come_back_and_what_is_held_stays_held(
    cluster: RealNode,
) -> None:
    agent = start_process(cluster)
    pod, names = run(cluster, "held", 4)
    container = cluster.pods.container_id(pod)
    agent.stop(signal.SIGKILL)
    died = time.monotonic()
    wait_until("the kubelet has wiped the slices", lambda: not devices(cluster))
    assert time.monotonic() - died > 20, "an agent has half a minute to be replaced"

    start_process(cluster, name="second")
    assert len(devices(cluster)) == 8
    assert cluster.pods.container_id(pod) == container
    assert not set(run(cluster, "others", 4)[1]) & set(names)


def test_the_health_of_a_claims_device_stays_known_for_longer_than_the_kubelet_believes_one_report(
    cluster: RealNode, agent: AgentPod
) -> None:
    run(cluster, "long", 1)
    wait_until("the health is known", lambda: set(health(cluster, "long").values()) == {"Healthy"})
    with agents.watched(lambda: tuple(health(cluster, "long").values()), every=1) as seen:
        time.sleep(35)
    assert seen == {("Healthy",)}


def test_each_container_sees_the_devices_of_the_requests_that_it_names_and_the_pods_status_all_of_them(
    cluster: RealNode, agent: AgentPod
) -> None:
    wanted = claim("two-requests")
    (request,) = wanted["spec"]["devices"]["requests"]
    exactly = request["exactly"]
    wanted["spec"]["devices"]["requests"] = [
        {"name": "one", "exactly": exactly},
        {"name": "pair", "exactly": {**exactly, "count": 2}},
    ]
    cluster.api.create(wanted)
    manifest = pod_with("parts", "two-requests")
    (main,) = manifest["spec"]["containers"]
    manifest["spec"]["containers"] = [naming(main, "one"), naming(main, "pair"), naming(main, "one", "pair")]
    pod = cluster.pods.run(manifest)

    one, pair, both = (
        set(cluster.pods.execute(pod, LIST, container).split()) for container in ("one", "pair", "one-pair")
    )
    assert (len(one), len(pair)) == (1, 2)
    assert both == one | pair and not one & pair

    def told() -> dict[str, int]:
        counts = {name: len(health(cluster, "parts", name)) for name in ("one", "pair", "one-pair")}
        if not all(counts.values()):
            raise NotYet(f"{counts}")
        return counts

    assert wait_until("the pod's status tells of all devices", told) == {"one": 1, "pair": 2, "one-pair": 3}


def naming(container: Object, *requests: str) -> Object:
    claims = [{"name": "gpus", "request": request} for request in requests]
    return {**container, "name": "-".join(requests), "resources": {"claims": claims}}


def test_a_kubelet_that_forgot_what_is_prepared_asks_again_and_changes_nothing_for_who_runs(
    cluster: RealNode, agent: AgentPod
) -> None:
    first, names = run(cluster, "shared", 2)
    container = cluster.pods.container_id(first)
    spec = {path.name: path.stat().st_mtime_ns for path in cluster.cdi_folder.glob("*claim_*.json")}
    cluster.restart_kubelet()
    before = agent.text().count(" answered claim=default/shared")

    second = cluster.pods.run(pod_with("second", "shared"))

    assert agent.text().count(" answered claim=default/shared") == before + 1
    assert cluster.pods.container_id(first) == container
    assert cluster.pods.execute(second, LIST) == cluster.pods.execute(first, LIST)
    assert {path.name: path.stat().st_mtime_ns for path in cluster.cdi_folder.glob("*claim_*.json")} == spec
    assert len(names) == 2
