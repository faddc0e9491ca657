"""Pods that ask for `nvidia.com/gpu` on a real node: API server, scheduler, kubelet and containerd at work.

The agent is installed for limits alone, over a simulated node with eight GPUs.
"""

import hashlib
import signal
import time

import pytest

from node_agent.deviceplugin.holding import ADMISSION_SECONDS
from tests.node.agent import (
    GPU,
    allocated,
    books,
    gpu_pod,
    held_at_kubelet,
    minors,
    offered,
    registered,
    simulate,
    sockets,
    spec_of,
    start,
)
from tests.node.installed import LIMITS, NAMESPACE, AgentPod, available
from tests.node.rig.node import RealNode
from tests.node.rig.pods import busybox_pod
from tests.node.rig.waiting import wait_until

pytestmark = pytest.mark.node


@pytest.fixture
def agent(node: RealNode) -> AgentPod:
    return start(node, manifest=LIMITS)


def test_a_pod_sees_exactly_the_two_gpus_that_the_agent_chose(node: RealNode, agent: AgentPod) -> None:
    pod = node.pods.run(gpu_pod("two", 2))

    (uuids,) = allocated(agent)
    chosen = minors(node, uuids)
    listed = node.pods.execute(pod, ["sh", "-c", "ls /dev/nvidia[0-9]*"]).split()
    assert len(chosen) == 2
    assert set(listed) == chosen
    numbers = node.pods.execute(pod, ["stat", "-c", "%n %t %T", *sorted(chosen)]).splitlines()
    assert numbers == [f"{path} c3 {int(path.removeprefix('/dev/nvidia')):x}" for path in sorted(chosen)]
    wait_until("the node says of its GPUs", lambda: "GPUHealthy" in str(node.read()["status"]["conditions"]))
    assert agent.refused == []


def test_the_driver_library_is_in_the_container_under_the_name_that_programs_load(
    node: RealNode, agent: AgentPod
) -> None:
    pod = node.pods.run(gpu_pod("library", 1))

    mounts = {mount["containerPath"]: mount["hostPath"] for mount in spec_of(node)["containerEdits"]["mounts"]}
    library = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    on_host = hashlib.sha256(node.machine.path(mounts[library]).read_bytes()).hexdigest()
    in_container = node.pods.execute(pod, ["busybox", "sha256sum", library]).split()[0]
    assert in_container == on_host
    environment = node.pods.runtime_spec(pod)["process"]["env"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in environment


def test_two_pods_never_share_a_gpu_and_an_ended_pod_gives_its_gpus_back(node: RealNode, agent: AgentPod) -> None:
    first = node.pods.run(gpu_pod("first", 4))
    node.pods.run(gpu_pod("second", 4))
    one, other = allocated(agent)
    assert not set(one) & set(other)

    node.api.delete("Pod", first["metadata"]["name"])
    node.pods.wait_gone("first")
    node.pods.run(gpu_pod("third", 4))
    assert set(allocated(agent)[2]) == set(one)


def test_four_gpus_of_a_pod_share_a_numa_node(node: RealNode, agent: AgentPod) -> None:
    node.pods.run(gpu_pod("one", 1))
    node.pods.run(gpu_pod("four", 4))
    node.pods.run(gpu_pod("three", 3))

    chosen = [minors(node, uuids) for uuids in allocated(agent)]
    assert [len(found) for found in chosen] == [1, 4, 3]
    assert len(chosen[0] | chosen[2]) == 4


def test_a_pod_that_wants_nine_stays_pending_with_the_schedulers_reason(node: RealNode, agent: AgentPod) -> None:
    node.api.create(gpu_pod("nine", 9))
    assert f"Insufficient {GPU}" in node.pods.why_pending("nine")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restarted_kubelet_offers_all_gpus_again_without_a_human(
    node: RealNode, agent: AgentPod, number: signal.Signals
) -> None:
    pod = node.pods.run(gpu_pod("stays", 2))
    before = node.pods.container_id(pod)

    node.restart_kubelet(number)

    offered(node, 8)
    assert node.pods.container_id(pod) == before
    node.pods.run(gpu_pod("next", 6))
    one, other = allocated(agent)
    assert not set(one) & set(other)


def test_a_killed_agent_leaves_running_pods_untouched_and_comes_back(node: RealNode, agent: AgentPod) -> None:
    pod = node.pods.run(gpu_pod("stays", 2))
    before = node.pods.container_id(pod)
    (held,) = allocated(agent)

    agent.kill()
    assert node.pods.execute(pod, ["true"]) == ""
    registered(agent)
    offered(node, 8)

    assert node.pods.container_id(pod) == before
    node.pods.run(gpu_pod("next", 6))
    assert not set(held) & set(allocated(agent)[0])
    assert len(sockets(node.device_plugins)) == 1


def test_a_gpu_with_a_fatal_xid_is_withdrawn_and_comes_back(node: RealNode, agent: AgentPod) -> None:
    simulate(node, "xid", "--gpu", "2", "--code", "79")
    offered(node, 7)
    assert node.capacity(GPU) == 8

    simulate(node, "restore-gpu", "--gpu", "2")
    offered(node, 8)


def test_what_only_an_init_container_has_is_held_as_long_as_its_pod_is_there(node: RealNode, agent: AgentPod) -> None:
    """The kubelet's pod resources say nothing of it: the day that comparison fails, its checkpoint may stay unread."""

    def held() -> int:
        return len(found.grants) if (found := books(node)) else 0

    pod = busybox_pod("prepares")
    first = gpu_pod("prepares", 2)["spec"]["containers"][0] | {"name": "first"}
    pod["spec"]["initContainers"] = [first]
    node.api.create(pod)
    wait_until("the ledger has what the pod got", lambda: held() == 2)
    # After so long what nobody tells of is given back.
    time.sleep(ADMISSION_SECONDS + 10)
    assert "prepares" not in held_at_kubelet(node)
    assert held() == 2

    node.api.delete("Pod", "prepares")
    node.pods.wait_gone("prepares")
    wait_until("it is given back", lambda: held() == 0)


def test_an_agent_whose_pod_is_deleted_leaves_no_socket_and_is_followed_by_another(
    node: RealNode, agent: AgentPod
) -> None:
    before = sockets(node.device_plugins)
    node.api.delete("Pod", agent.name, NAMESPACE)
    node.pods.wait_gone(agent.name, NAMESPACE)
    registered(wait_until("another agent is there", lambda: available(node)))
    offered(node, 8)
    assert len(sockets(node.device_plugins)) == 1
    assert not sockets(node.device_plugins) & before
