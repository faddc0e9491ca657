"""Pods with ResourceClaims on a real node: scheduled, prepared by the agent, started by containerd.

The agent is installed: it has the rights of the shipped manifests and no others, and its device classes are theirs.
"""

import itertools
import json
import time
from typing import Any

import pytest

from tests.node import agent as agents
from tests.node import installed
from tests.node.installed import NAMESPACE, AgentPod
from tests.node.rig.api import Object
from tests.node.rig.kustomized import rendered
from tests.node.rig.node import RealNode
from tests.node.rig.pods import busybox_pod
from tests.node.rig.program import Program
from tests.node.rig.waiting import NotYet, wait_until

pytestmark = pytest.mark.node

DRIVER = "gpu.nvidia.com"
NUMA = "resource.kubernetes.io/numaNode"
# A kubelet may still have the volumes in mind of a pod whose name was taken before; so no name is taken twice.
IDENTITIES = itertools.count()
RUN_DIR = "/run/gpu-node-agent"


def prepare_cluster(node: RealNode, *modes: str) -> RealNode:
    """Make namespace, rights, policy and classes as shipped, with those of further modes."""
    for one in rendered(installed.BASE, *modes):
        if one["kind"] != "DaemonSet":
            installed.lay(node, one)
    return node


@pytest.fixture
def cluster(node: RealNode) -> RealNode:
    """The node with namespace, rights, policy and classes as shipped."""
    return prepare_cluster(node)


def start(
    node: RealNode,
    *,
    groups: bool = False,
    device_plugin: bool = True,
    shareable: str = "",
    manifest: str = installed.BASE,
    **more: Any,
) -> AgentPod:
    """Install the agent and await its slices. ``more`` are further keys of the section ``agent``."""
    given = settings(groups=groups, device_plugin=device_plugin, shareable=shareable, **more)
    agent = agents.start(node, given, manifest=manifest, offers={})
    if not device_plugin:
        # What an agent before offered is gone: where nothing is allocatable the scheduler makes claims of limits.
        agents.offered(node, 0)
    serves_claims(node, agent)
    return agent


def start_process(
    node: RealNode,
    *,
    name: str = "agent",
    run_dir: str = RUN_DIR,
    state_dir: str = "/var/lib/gpu-node-agent",
    **more: Any,
) -> Program:
    """Start the agent beside the kubelet, with its service account's token, bound to a pod of this node.

    A second agent beside a first has its own ``run_dir``, as each pod has; what an agent has in ``state_dir`` outlives
    the test. It has the rights for all modes.
    """
    prepare_cluster(node, *installed.MODES)
    kubeconfig = node.service_account_kubeconfig("gpu-node-agent", NAMESPACE, pod=make_identity(node, name))
    paths = {"runDir": run_dir, "stateDir": state_dir}
    agent = agents.launch_process(node, settings(kubeconfig=str(kubeconfig), paths=paths, **more), name=name)
    # Of two agents one publishes.
    serves_claims(node, agent, publishes=run_dir == RUN_DIR)
    return agent


def make_identity(node: RealNode, name: str = "agent") -> Object:
    """A pod to whose service account an agent's token can be bound that is none itself."""
    manifest = busybox_pod(f"identity-{name}-{next(IDENTITIES)}", serviceAccountName="gpu-node-agent")
    manifest["metadata"]["namespace"] = NAMESPACE
    return node.pods.run(manifest)


def identity_of(node: RealNode, name: str) -> Object:
    """The pod as which the agent of this name, started as a process, speaks to the API server."""
    (found,) = [
        one for one in node.api.list("Pod", NAMESPACE) if one["metadata"]["name"].startswith(f"identity-{name}-")
    ]
    return found


def settings(*, groups: bool = False, device_plugin: bool = True, shareable: str = "", **more: Any) -> Object:
    return {
        "agent": {
            "frontDoors": {"dra": True, "devicePlugin": device_plugin},
            "dra": {"groups": groups, "metadata": True},
            "devices": {"shareable": [shareable] if shareable else []},
            **more,
        }
    }


def serves_claims(node: RealNode, agent: agents.Agent, *, publishes: bool = True) -> None:
    """Await that the kubelet knows the driver since the agent's latest start, and that the slices are this agent's."""
    wanted = [f"registered driver={DRIVER}", *(["slices published"] if publishes else [])]

    def does() -> bool:
        agent.require_running()
        return all(done in agent.text() for done in wanted)

    wait_until(" and ".join(wanted), does)


@pytest.fixture
def agent(cluster: RealNode) -> AgentPod:
    agent = start(cluster)
    await_nothing_held(cluster)
    return agent


def await_held(node: RealNode, count: int) -> None:
    """Await that so many devices are tainted: that claims are kept from what pods have by limits, and nothing else."""
    wait_until(f"{count} are held", lambda: sum(bool(one.get("taints")) for one in devices(node).values()) == count)


def await_nothing_held(node: RealNode) -> None:
    """What pods of an earlier agent had by limits is given back in half a minute."""
    await_held(node, 0)


def slices(node: RealNode) -> list[Object]:
    return node.api.list("ResourceSlice", fieldSelector=f"spec.driver={DRIVER}")


def devices(node: RealNode) -> dict[str, Object]:
    """The published devices by name, as the API server has them."""
    return {device["name"]: device for one in slices(node) for device in one["spec"].get("devices") or ()}


def attribute(device: Object, name: str) -> Any:
    (value,) = device["attributes"][name].values()
    return value


def claim(name: str, count: int = 1, constraints: list[Object] | None = None, **exactly: Any) -> Object:
    request = {"name": "gpus", "exactly": {"deviceClassName": DRIVER, "count": count, **exactly}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request], "constraints": constraints or []}},
    }


def pod_with(name: str, claim_name: str, script: str = "sleep 1000000") -> Object:
    pod = busybox_pod(name, script, resourceClaims=[{"name": "gpus", "resourceClaimName": claim_name}])
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    return pod


def run(node: RealNode, name: str, count: int = 1, **wants: Any) -> tuple[Object, list[str]]:
    """A pod with a claim of its own; answers the pod and the names of its devices."""
    node.api.create(claim(name, count, **wants))
    pod = node.pods.run(pod_with(name, name))
    return pod, allocated(node, name)


def allocated(node: RealNode, name: str) -> list[str]:
    status = node.api.get("ResourceClaim", name)["status"]
    return [result["device"] for result in status["allocation"]["devices"]["results"]]


def test_a_pod_with_a_claim_for_four_of_one_numa_node_sees_exactly_those_four(
    cluster: RealNode, agent: AgentPod
) -> None:
    pod, names = run(cluster, "four", 4, constraints=[{"matchAttribute": NUMA}])

    published = devices(cluster)
    assert len({attribute(published[name], NUMA) for name in names}) == 1
    seen = cluster.pods.execute(pod, ["sh", "-c", "ls /dev/nvidia[0-9]*"]).split()
    assert sorted(seen) == sorted(f"/dev/nvidia{name.removeprefix('gpu-')}" for name in names)


def test_claims_for_four_two_and_two_are_aligned_by_the_order_of_the_devices_alone(
    cluster: RealNode, agent: AgentPod
) -> None:
    published = devices(cluster)
    for name, count in (("a", 4), ("b", 2), ("c", 2)):
        _, names = run(cluster, name, count)
        assert len({attribute(published[one], NUMA) for one in names}) == 1


def test_a_gpu_that_a_claim_holds_no_pod_gets_by_its_limit_and_the_other_way_round(
    cluster: RealNode, agent: AgentPod
) -> None:
    agents.offered(cluster, 8)
    _, names = run(cluster, "three", 3)
    agents.offered(cluster, 5)
    cluster.pods.run(agents.gpu_pod("limits", 5))
    await_held(cluster, 5)
    cluster.api.create(claim("one"))
    cluster.api.create(pod_with("one", "one"))
    assert "cannot allocate all claims" in cluster.pods.why_pending("one")

    cluster.api.delete("Pod", "limits")
    cluster.pods.wait_gone("limits")
    cluster.pods.wait("one")
    assert not set(allocated(cluster, "one")) & set(names)


def test_a_claim_comes_back_when_its_pod_ends(cluster: RealNode, agent: AgentPod) -> None:
    run(cluster, "all", 8)
    cluster.api.delete("Pod", "all")
    cluster.pods.wait_gone("all")
    cluster.api.delete("ResourceClaim", "all")
    run(cluster, "again", 8)
    assert "claim unprepared" in agent.text()


def test_two_pods_share_one_claim(cluster: RealNode, agent: AgentPod) -> None:
    _, names = run(cluster, "shared", 2)
    other = cluster.pods.run(pod_with("other", "shared"))
    seen = cluster.pods.execute(other, ["sh", "-c", "ls /dev/nvidia[0-9]*"]).split()
    assert len(seen) == len(names) == 2


def test_selectors_on_memory_and_product_choose(cluster: RealNode, agent: AgentPod) -> None:
    def selecting(expression: str) -> list[Object]:
        return [{"cel": {"expression": expression}}]

    large = f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("100Gi"))'
    run(cluster, "large", selectors=selecting(large))
    product = f'device.attributes["{DRIVER}"].productName == "NVIDIA H200"'
    run(cluster, "h200", selectors=selecting(product))
    cluster.api.create(claim("t4", selectors=selecting(product.replace("H200", "T4"))))
    cluster.api.create(pod_with("t4", "t4"))
    assert "cannot allocate all claims" in cluster.pods.why_pending("t4")


def test_a_claims_status_and_the_pods_metadata_say_which_gpus_it_has(cluster: RealNode, agent: AgentPod) -> None:
    _, names = run(cluster, "told", 2)

    def told() -> list[Object]:
        entries: list[Object] = cluster.api.get("ResourceClaim", "told")["status"].get("devices") or []
        if len(entries) < 2:
            raise NotYet(f"{entries}")
        return entries

    entries = wait_until("the claim's status tells its devices", told)
    assert sorted(entry["device"] for entry in entries) == sorted(names)
    assert {entry["conditions"][0]["status"] for entry in entries} == {"True"}


def test_the_pod_finds_its_devices_in_a_metadata_file(cluster: RealNode, agent: AgentPod) -> None:
    pod, names = run(cluster, "reads", 2)
    path = f"/var/run/kubernetes.io/dra-device-attributes/resourceclaims/reads/gpus/{DRIVER}-metadata.json"
    document = json.loads(cluster.pods.execute(pod, ["cat", path]))
    told = document["requests"][0]["devices"]
    assert sorted(device["name"] for device in told) == sorted(names)
    assert all("uuid" in device["attributes"] for device in told)


def test_two_claims_share_a_gpu_by_parts_of_its_memory_where_it_is_shareable(cluster: RealNode) -> None:
    start(cluster, shareable="gpu-3", manifest=installed.MPS)
    only = [{"cel": {"expression": f'device.allowMultipleAllocations && device.driver == "{DRIVER}"'}}]
    shares = []
    for name in ("half", "rest"):
        _, devices_of = run(cluster, name, selectors=only, capacity={"requests": {"memory": "60Gi"}})
        results = cluster.api.get("ResourceClaim", name)["status"]["allocation"]["devices"]["results"]
        shares.append((devices_of, results[0]["shareID"]))
    assert [names for names, _ in shares] == [["gpu-3"], ["gpu-3"]]
    assert shares[0][1] != shares[1][1]
    cluster.api.create(claim("too-much", selectors=only, capacity={"requests": {"memory": "60Gi"}}))
    cluster.api.create(pod_with("too-much", "too-much"))
    assert "cannot allocate all claims" in cluster.pods.why_pending("too-much")


def test_slices_are_back_within_seconds_of_a_kubelet_restart(cluster: RealNode, agent: AgentPod) -> None:
    before = devices(cluster)
    cluster.restart_kubelet()
    began = time.monotonic()
    wait_until("the slices are there again", lambda: devices(cluster) == before, every=0.05)
    assert time.monotonic() - began < 60
    run(cluster, "after", 1)


def test_a_restarted_agent_writes_nothing_that_is_there_already(cluster: RealNode, agent: AgentPod) -> None:
    versions = {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in slices(cluster)}
    agent.kill()
    serves_claims(cluster, agent)
    time.sleep(2)
    assert versions == {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in slices(cluster)}


def test_a_killed_agent_knows_its_claims_again(cluster: RealNode, agent: AgentPod) -> None:
    pod, names = run(cluster, "held", 4)
    before = cluster.pods.container_id(pod)
    agent.kill()
    serves_claims(cluster, agent)
    assert cluster.pods.container_id(pod) == before
    _, others = run(cluster, "others", 4)
    assert not set(names) & set(others)
    cluster.api.delete("Pod", "held")
    cluster.pods.wait_gone("held")


def test_a_fatal_xid_taints_the_device_and_shows_in_the_pods_status(cluster: RealNode, agent: AgentPod) -> None:
    pod, (name,) = run(cluster, "sick", 1)
    agents.simulate(cluster, "xid", "--gpu", name, "--code", "79")

    def tainted() -> bool:
        return any(taint["effect"] == "NoSchedule" for taint in devices(cluster)[name].get("taints", []))

    wait_until("the device is tainted", tainted)

    def unhealthy() -> bool:
        status = cluster.api.get("Pod", pod["metadata"]["name"])["status"]["containerStatuses"][0]
        resources = [entry for one in status.get("allocatedResourcesStatus", []) for entry in one.get("resources", [])]
        return any(entry.get("health") == "Unhealthy" for entry in resources)

    wait_until("the pod's status says so", unhealthy)
    agents.simulate(cluster, "restore-gpu", "--gpu", name)
    wait_until("the taint is gone", lambda: not tainted())


def test_a_claim_with_a_mistaken_configuration_fails_with_its_path(cluster: RealNode, agent: AgentPod) -> None:
    mistaken = claim("mistaken")
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "shareing": {}}
    mistaken["spec"]["devices"]["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    cluster.api.create(mistaken)
    cluster.api.create(pod_with("mistaken", "mistaken"))

    def said() -> bool:
        return any("unknown field `shareing`" in event for event in cluster.pods.events("mistaken"))

    wait_until("the pod's events name the mistake", said)


def test_groups_are_offered_where_they_are_configured(cluster: RealNode) -> None:
    start(cluster, groups=True)
    group = f'device.attributes["{DRIVER}"].gpuCount == 4'
    wanted = claim("group", selectors=[{"cel": {"expression": group}}], deviceClassName="gpu-group.nvidia.com")
    cluster.api.create(wanted)
    pod = cluster.pods.run(pod_with("group", "group"))
    assert len(cluster.pods.execute(pod, ["sh", "-c", "ls /dev/nvidia[0-9]*"]).split()) == 4
    _, names = run(cluster, "rest", 4)
    assert len(names) == 4
    cluster.api.create(claim("more"))
    cluster.api.create(pod_with("more", "more"))
    assert "cannot allocate all claims" in cluster.pods.why_pending("more")


def test_plain_limits_are_served_by_claims_where_the_device_plugin_is_off(cluster: RealNode) -> None:
    agent = start(cluster, device_plugin=False, manifest=installed.CLAIMS)
    pod = cluster.pods.run(agents.gpu_pod("plain", 2))
    assert len(cluster.pods.execute(pod, ["sh", "-c", "ls /dev/nvidia[0-9]*"]).split()) == 2
    assert agent.refused == []
