"""GPUs that are shared by time-slicing on the real node: what pods get, and a ConfigMap that shares and unshares them.

The folder of configurations is swapped as the kubelet swaps a mounted ConfigMap.
"""

import json
import time

import pytest

from node_agent.hardware.simulated.tree.smi import FOLDER
from tests.node.agent import (
    GPU,
    allocated,
    command,
    driver_root,
    gpu_pod,
    healthy_at_kubelet,
    minors,
    offered,
    registrations,
    seconds_until,
    spec_of,
)
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until
from tests.node.test_configuration import WHOLE, mounted, start

pytestmark = pytest.mark.node

FOUR = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
SLICED = "version: v1\nagent: {sharing: {rules: [{replicas: 2, devices: ['0'], timeSlice: Short}]}}"
DISTINCT = "version: v1\nagent: {sharing: {placement: distinct, rules: [{replicas: 4, devices: ['0', '1']}]}}"


def status_of(node: RealNode) -> Object:
    found: Object = json.loads(command(node, "status", "--json"))
    return found


def withheld(node: RealNode) -> list[str]:
    """What the agent says it waits for, or withholds."""
    return [reason for resource in status_of(node)["resources"] for reason in resource.get("withheld", ())]


def gpu_of(device: str) -> str:
    return device.partition("::")[0]


def test_pods_have_shares_of_the_same_gpus_and_each_sees_each_gpu_once(node: RealNode) -> None:
    agent = start(node, mounted(node, {"default": FOUR}))
    offered(node, 32)

    pods = [node.pods.run(gpu_pod(f"sharer-{number}", 9)) for number in range(3)]
    answers = allocated(agent)
    assert [len(ids) for ids in answers] == [9, 9, 9]
    assert len({share for ids in answers for share in ids}) == 27
    for pod, ids in zip(pods, answers, strict=True):
        listed = node.pods.execute(pod, ["sh", "-c", "ls /dev/nvidia[0-9]*"]).split()
        assert set(listed) == minors(node, sorted({gpu_of(share) for share in ids}))
        assert len(listed) == 8

    node.api.create(gpu_pod("too-many", 6))
    assert f"Insufficient {GPU}" in node.pods.why_pending("too-many")


def test_one_to_four_replicas_and_back_while_pods_run(node: RealNode) -> None:
    configs = mounted(node, {"default": WHOLE})
    agent = start(node, configs)
    offered(node, 8)
    first = node.pods.run(gpu_pod("first", 1))
    container = node.pods.container_id(first)
    ((whole,),) = allocated(agent)

    began = time.monotonic()
    configs.write({"default": FOUR})
    at_kubelet = seconds_until(lambda: len(healthy_at_kubelet(node)) == 32, began)
    seconds_until(lambda: node.allocatable(GPU) == 32, began)
    at_node = time.monotonic() - began
    print(f"from the swap to the kubelet {at_kubelet:.1f} s, to the node's status {at_node:.1f} s")
    assert at_kubelet < 30, f"the kubelet heard of it after {at_kubelet:.1f} s"
    assert node.pods.container_id(first) == container
    assert any(f"waits until pods have given back {GPU}/{whole}" in reason for reason in withheld(node))

    # As many pods as the scheduler has counted for: 32 with the first one.
    node.pods.run(gpu_pod("rest", 31))
    assert len({share for ids in allocated(agent) for share in ids}) == 32
    node.api.delete("Pod", "rest")
    node.pods.wait_gone("rest")
    node.api.delete("Pod", "first")
    node.pods.wait_gone("first")
    wait_until("all shares are free", lambda: healthy_at_kubelet(node) == all_shares(node))


def test_back_to_whole_gpus_while_three_shares_of_one_are_in_use(node: RealNode) -> None:
    configs = mounted(node, {"default": f"{FOUR}\nflags: {{plugin: {{sharedDevicesAllocationPolicy: packed}}}}"})
    agent = start(node, configs)
    offered(node, 32)
    pods = [node.pods.run(gpu_pod(f"sharer-{number}", 1)) for number in range(3)]
    containers = [node.pods.container_id(pod) for pod in pods]
    shares = [share for ids in allocated(agent) for share in ids]
    (shared,) = {gpu_of(share) for share in shares}

    configs.write({"default": WHOLE})
    offered(node, 10)
    wait_until("the others are gone", lambda: len(healthy_at_kubelet(node)) == 10)
    assert healthy_at_kubelet(node) >= set(shares)
    assert shared not in healthy_at_kubelet(node)
    assert any(reason.startswith(f"{shared}: waits until pods have given back") for reason in withheld(node))
    # What the scheduler counts as free is what there is: seven whole GPUs.
    node.pods.run(gpu_pod("seven", 7))
    assert shared not in allocated(agent)[-1]
    assert [node.pods.container_id(pod) for pod in pods] == containers

    for number in range(3):
        node.api.delete("Pod", f"sharer-{number}")
        node.pods.wait_gone(f"sharer-{number}")
    wait_until("the GPU is whole again", lambda: shared in healthy_at_kubelet(node))
    offered(node, 8)
    assert registrations(agent) == 1


def test_an_interval_is_set_while_a_gpu_is_shared_and_undone_afterwards(node: RealNode) -> None:
    configs = mounted(node, {"default": SLICED})
    start(node, configs)
    offered(node, 9)
    wait_until("the interval is set", lambda: set_intervals(node) == ["1"])
    configs.write({"default": WHOLE})
    offered(node, 8)
    wait_until("the interval is undone", lambda: set_intervals(node) == ["0"])


def test_shares_of_one_request_that_have_to_be_distinct_are_refused_where_they_cannot(node: RealNode) -> None:
    agent = start(node, mounted(node, {"default": DISTINCT}))
    offered(node, 14)
    node.pods.run(gpu_pod("eight", 8))
    assert len({gpu_of(device) for device in allocated(agent)[0]}) == 8
    node.api.create(gpu_pod("three", 3))
    wait_until("the pod is refused", lambda: node.api.get("Pod", "three")["status"].get("reason"))
    assert "each on another GPU, and too few GPUs have one left" in node.api.get("Pod", "three")["status"]["message"]


def all_shares(node: RealNode) -> set[str]:
    uuids = [device["name"] for device in spec_of(node)["devices"] if device["name"].startswith("GPU-")]
    return {f"{uuid}::{number}" for uuid in uuids for number in range(4)}


def set_intervals(node: RealNode) -> list[str]:
    """What the stand-in of nvidia-smi was told, for each GPU that it was told of."""
    return [file.read_text().strip() for file in (driver_root(node) / FOLDER).glob("GPU-*")]
