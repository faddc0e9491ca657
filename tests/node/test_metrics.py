"""What Prometheus is told of pods on a real node, over the port that it scrapes."""

import pytest

from tests.fakes.scraped import Found, of_text, series
from tests.node.agent import ask, gpu_pod, offered, registered
from tests.node.installed import METRICS, NAME, NAMESPACE
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import await_held, cluster, run, start
from tests.node.test_modes import serve

__all__ = ["cluster"]

pytestmark = pytest.mark.node

TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"


def scrape(node: RealNode) -> Found:
    return series(of_text(ask(node, "/metrics")[1]))


def pods(found: Found, name: str = TEMPERATURE) -> dict[str, int]:
    """Of how many devices each pod has series."""
    names = [labels["pod"] for labels, _ in found.get(name, ()) if labels.get("pod")]
    return {pod: names.count(pod) for pod in names}


def test_a_running_pods_series_have_its_name_and_go_when_it_ends(cluster: RealNode) -> None:
    """By its limits and by a claim alike."""
    serve(cluster, "monitoring.coreos.com", "v1", "PodMonitor", "PrometheusRule")
    agent = start(cluster, manifest=METRICS)
    # Else the scheduler makes a claim of the limits as well.
    registered(agent)
    offered(cluster, 8)
    cluster.pods.run(gpu_pod("by-limit", 2))
    await_held(cluster, 2)
    _, (claimed,) = run(cluster, "by-claim")

    (endpoint,) = cluster.api.get("PodMonitor", NAME, NAMESPACE)["spec"]["podMetricsEndpoints"]
    assert endpoint["path"] == "/metrics"
    assert {one["name"]: one["containerPort"] for one in agent.ports}[endpoint["port"]] == 9400
    wait_until("both have series", lambda: pods(scrape(cluster)) == {"by-limit": 2, "by-claim": 1})
    found = scrape(cluster)
    holders = [labels for labels, _ in found["node_agent_device_holder_info"]]
    assert {(one["door"], one["of"], one["pod"], one["container"]) for one in holders} == {
        ("limit", "nvidia.com/gpu", "by-limit", "main"),
        ("claim", "default/by-claim", "by-claim", "main"),
    }
    (index,) = (labels["gpu"] for labels, _ in found[TEMPERATURE] if labels.get("pod") == "by-claim")
    assert claimed.startswith("gpu-")
    assert [labels["Hostname"] for labels, _ in found[TEMPERATURE]] == [cluster.name] * 8
    done = {labels["operation"]: value for labels, value in found["node_agent_claim_operation_seconds_count"]}
    assert done == {"prepare": 1}
    # The slices of an agent before may still be there: those of GPUs that a pod holds are written anew all the same.
    asked = [labels for labels, _ in found["node_agent_api_request_seconds_count"]]
    written = [labels for labels in asked if labels["verb"] in {"create", "update", "patch"}]
    assert ("resourceslices", "ok") in {(labels["resource"], labels["result"]) for labels in written}

    for pod in ("by-limit", "by-claim"):
        cluster.api.delete("Pod", pod)
        cluster.pods.wait_gone(pod)
    wait_until("neither has", lambda: not pods(scrape(cluster)))
    found = scrape(cluster)
    assert len(found[TEMPERATURE]) == 8
    assert "node_agent_device_holder_info" not in found
    assert index in {labels["gpu"] for labels, _ in found[TEMPERATURE]}
    assert agent.refused == []
