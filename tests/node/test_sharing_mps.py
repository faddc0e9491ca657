"""GPUs that are shared by MPS on the real node, with the stand-in for NVIDIA's daemon: by limits and by claims."""

import json
import signal
import time
from contextlib import suppress

import pytest

from node_agent.hardware.simulated.mps import FAULTS
from tests.node import agent as agents
from tests.node import installed
from tests.node.agent import GPU, gpu_pod, seconds_until
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import claim, cluster, pod_with, start

__all__ = ["cluster"]

pytestmark = pytest.mark.node

WHOLE = "version: v1"
FOUR = {"agent": {"sharing": {"rules": [{"strategy": "mps", "replicas": 4, "devices": ["*"]}]}}}
RECORDS, FOLDERS = "/var/lib/gpu-node-agent/mps", "/run/nvidia/mps"


def records(node: RealNode) -> list[Object]:
    """The daemons that the agent has written down, one of which it may just be taking away."""
    found: list[Object] = []
    for path in node.machine.path(RECORDS).glob("*.json"):
        with suppress(FileNotFoundError):
            found.append(json.loads(path.read_text()))
    return found


def daemon_pids(node: RealNode, of: str = "shares") -> list[int]:
    """The daemons that run for claims, or for shares of pods with limits."""
    return [
        record["process"]["pid"]
        for record in records(node)
        if record["process"] is not None and any(user.startswith(of) for user in record["users"])
    ]


def runs(node: RealNode, pid: int) -> bool:
    state = node.machine.run(["sh", "-c", f"cut -d' ' -f3 /proc/{pid}/stat 2>/dev/null || true"])
    return state.strip() not in ("", "Z")


def nothing_left(node: RealNode, pids: list[int]) -> None:
    """Await that no daemon, no record and no folder of one is there any more."""
    wait_until(
        "all daemons are gone", lambda: not records(node) and not any(runs(node, pid) for pid in pids), timeout=120
    )
    assert not list(node.machine.path(FOLDERS).iterdir())
    assert FOLDERS not in node.machine.run(["cat", "/proc/mounts"])


def environment(node: RealNode, pod: Object) -> dict[str, str]:
    lines = node.pods.execute(pod, ["cat", "/proc/1/environ"]).split("\0")
    return dict(line.split("=", 1) for line in lines if line.startswith("CUDA_"))


def shared_memory(node: RealNode, pod: Object) -> str:
    """What is under /dev/shm of a container: a file system of its own daemon's, with what that one's server left."""
    return node.pods.execute(pod, ["sh", "-c", "grep ' /dev/shm ' /proc/mounts; ls /dev/shm"])


def start_sharing(node: RealNode) -> installed.AgentPod:
    return agents.start(node, FOUR, manifest=installed.MPS, offers={GPU: 32})


def mps_pod(name: str, script: str = "sleep 1000000") -> Object:
    return gpu_pod(name, 1, script)


def test_pods_with_limits_get_pipe_limits_and_shared_memory_of_their_gpus_own_daemon(node: RealNode) -> None:
    start_sharing(node)
    pods = []
    for number in range(9):
        # A daemon that is slow to answer takes its GPU out for a moment, and the pods would go to others.
        agents.offered(node, 32)
        pods.append(node.pods.run(mps_pod(f"sharer-{number}")))

    for number, pod in enumerate(pods):
        assert environment(node, pod) == {
            "CUDA_MPS_PIPE_DIRECTORY": "/run/nvidia-mps",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={143771 // 4}M",
        }
        assert node.pods.execute(pod, ["sh", "-c", "test -S /run/nvidia-mps/control && echo there"]).strip() == "there"
        node.pods.execute(pod, ["touch", f"/dev/shm/of-{number}"])
        assert "node-agent-mps /dev/shm tmpfs" in shared_memory(node, pod)
    together = [shared_memory(node, pod).count("of-") for pod in pods]
    # Nine pods on eight GPUs: two of them have one GPU, and so one daemon and one shared memory.
    assert sorted(together) == [1, 1, 1, 1, 1, 1, 1, 2, 2]

    node.api.create(gpu_pod("two", 2))
    wait_until("two shares are refused", lambda: "at most 1 can be had" in str(node.api.get("Pod", "two")["status"]))


def test_a_daemon_that_dies_takes_its_shares_out_until_it_is_back_and_its_pods_live_on(node: RealNode) -> None:
    agent = start_sharing(node)
    pod = node.pods.run(mps_pod("stays"))
    before = node.pods.container_id(pod)
    began = time.monotonic()
    node.machine.run(["kill", "-9", str(daemon_pids(node)[0])])
    down = seconds_until(lambda: len(agents.healthy_at_kubelet(node)) == 28, began)
    up = seconds_until(lambda: len(agents.healthy_at_kubelet(node)) == 32, began)
    print(f"a dead daemon is known after {down:.2f} s, and serves again after {up:.2f} s")
    assert "mps-daemon-dead" in agent.text()
    assert node.pods.container_id(pod) == before
    assert node.pods.execute(pod, ["sh", "-c", "test -S /run/nvidia-mps/control && echo there"]).strip() == "there"


def test_gpus_whose_pods_have_ended_while_no_agent_ran_are_shared_all_the_same(node: RealNode) -> None:
    """Until they are given back none is in service; the kubelet writes down what has ended when it gets a list."""
    agent = agents.start_process(node)
    node.pods.run(gpu_pod("eight", 8))
    wait_until("it is written down", lambda: (found := agents.books(node)) is not None and len(found.grants) == 8)
    agent.stop(signal.SIGKILL)
    node.api.delete("Pod", "eight")
    node.pods.wait_gone("eight")

    began = time.monotonic()
    start_sharing(node)
    print(f"the shares were there after {time.monotonic() - began:.0f} s")
    assert "CUDA_MPS_PIPE_DIRECTORY" in environment(node, node.pods.run(mps_pod("sharer")))


@pytest.mark.parametrize("end", ["its pod is deleted", "it is killed"])
def test_daemons_and_their_clients_outlive_the_agent_and_end_with_the_sharing(node: RealNode, end: str) -> None:
    agent = start_sharing(node)
    wait_until("all holders are known", lambda: holders_known(node))
    pod = node.pods.run(mps_pod("stays"))
    node.pods.execute(pod, ["touch", "/dev/shm/kept"])
    before, pids = node.pods.container_id(pod), sorted(daemon_pids(node))

    if end == "it is killed":
        agent.kill()
    else:
        node.api.delete("Pod", agent.name, installed.NAMESPACE)
        node.pods.wait_gone(agent.name, installed.NAMESPACE)
    assert all(runs(node, pid) for pid in pids)
    agents.registered(wait_until("the agent is ready", lambda: installed.available(node)))
    agents.offered(node, 32)

    assert sorted(daemon_pids(node)) == pids
    assert node.pods.container_id(pod) == before
    assert "kept" in shared_memory(node, pod)
    assert node.pods.execute(pod, ["sh", "-c", "test -S /run/nvidia-mps/control && echo there"]).strip() == "there"

    node.api.delete("Pod", "stays")
    node.pods.wait_gone("stays")
    installed.configure(node, WHOLE)
    nothing_left(node, pids)


def holders_known(node: RealNode) -> bool:
    """Whether the agent has heard of all claims of the node, without which nobody new gets a device."""
    found = agents.books(node)
    return found is not None and not found.unreconciled


# Claims


def part(name: str, memory: str, **capacity: str) -> Object:
    """A claim for a part of the one GPU that is shareable."""
    return claim(
        name,
        selectors=[{"cel": {"expression": "device.allowMultipleAllocations == true"}}],
        capacity={"requests": {"memory": memory, **capacity}},
    )


def wait_prepared(node: RealNode, name: str) -> Object:
    node.api.create(pod_with(name, name))
    return node.pods.wait(name)


def test_claims_for_twenty_gib_share_a_gpu_and_one_that_does_not_fit_stays_pending(cluster: RealNode) -> None:
    start(cluster, shareable="gpu-3", manifest=installed.MPS)
    for name, cores in (("a", "25"), ("b", "50")):
        cluster.api.create(part(name, "20Gi", cores=cores))
    pods = [wait_prepared(cluster, name) for name in ("a", "b")]
    cluster.api.create(part("c", "120Gi"))
    cluster.api.create(pod_with("c", "c"))
    assert "cannot allocate all claims" in cluster.pods.why_pending("c")
    cluster.api.delete("Pod", "c")

    for pod, cores in zip(pods, ("25", "50"), strict=True):
        assert environment(cluster, pod) == {
            "CUDA_MPS_PIPE_DIRECTORY": "/run/nvidia-mps",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": cores,
        }
    (pid,) = daemon_pids(cluster, of="claim")
    wait_until("its status tells", lambda: cluster.api.get("ResourceClaim", "a")["status"].get("devices"))
    told = cluster.api.get("ResourceClaim", "a")["status"]["devices"][0]["conditions"]
    assert {one["type"]: one["status"] for one in told} == {"Ready": "True", "LimitsEnforced": "True"}

    cluster.api.delete("Pod", "a")
    cluster.pods.wait_gone("a")
    cluster.api.delete("ResourceClaim", "a")
    assert runs(cluster, pid)
    cluster.api.delete("Pod", "b")
    cluster.pods.wait_gone("b")
    nothing_left(cluster, [pid])


def test_an_agent_that_is_killed_while_a_daemon_starts_leaves_a_claim_that_can_be_prepared(cluster: RealNode) -> None:
    agent = start(cluster, shareable="gpu-3", manifest=installed.MPS)
    faults = agents.driver_root(cluster) / FAULTS
    faults.write_text('{"ready_after": -1}')
    cluster.api.create(part("a", "20Gi"))
    cluster.api.create(pod_with("a", "a"))
    wait_until("a daemon is started", lambda: daemon_pids(cluster, of="claim"))
    (stuck,) = daemon_pids(cluster, of="claim")

    faults.write_text("{}")
    agent.kill()
    cluster.machine.run(["kill", "-9", str(stuck)])

    cluster.pods.wait("a")
    (pid,) = daemon_pids(cluster, of="claim")
    assert pid != stuck
    cluster.api.delete("Pod", "a")
    cluster.pods.wait_gone("a")
    nothing_left(cluster, [pid])
