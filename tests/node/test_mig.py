"""MIG devices for pods with limits, on a real node: each container gets its own part, and changes from outside are
taken up while pods run.
"""

import time

import pytest

from tests.node.agent import (
    GPU,
    allocated,
    gpu_pod,
    healthy_at_kubelet,
    offered,
    seconds_until,
    simulate,
    spec_of,
    start,
)
from tests.node.rig.node import RealNode

pytestmark = pytest.mark.node

LIST = ["sh", "-c", "ls -d /dev/nvidia[0-9]* /dev/nvidia-caps/*"]
MIXED = {"flags": {"migStrategy": "mixed"}}


def nodes_in_spec(node: RealNode, uuid: str) -> list[str]:
    """The device nodes that the CDI spec has for a device."""
    devices = {device["name"]: device["containerEdits"]["deviceNodes"] for device in spec_of(node)["devices"]}
    return sorted(one["path"] for one in devices[uuid])


def test_pods_get_their_mig_devices_and_a_change_from_outside_leaves_them_alone(node: RealNode) -> None:
    agent = start(node, MIXED)
    half, small, quarter = (f"nvidia.com/mig-{profile}" for profile in ("3g.71gb", "1g.18gb", "2g.35gb"))
    simulate(node, "cut-gpu", "--gpu", "0", "3g.71gb@0", "1g.18gb@4", "1g.18gb@5")
    simulate(node, "cut-gpu", "--gpu", "1", "2g.35gb@0", "2g.35gb@2")
    for count, resource in ((6, GPU), (1, half), (2, small), (2, quarter)):
        offered(node, count, resource)

    pods = [
        node.pods.run(gpu_pod(f"part-{number}", 1, resource=one)) for number, one in enumerate((half, small, small))
    ]
    given = [uuid for (uuid,) in allocated(agent)]
    seen = [sorted(node.pods.execute(pod, LIST).split()) for pod in pods]
    assert seen == [nodes_in_spec(node, uuid) for uuid in given]
    assert [len(paths) for paths in seen] == [3, 3, 3]
    assert len({path for paths in seen for path in paths}) == 7, "one GPU, and two capabilities of each part"

    began = time.monotonic()
    simulate(node, "cut-gpu", "--gpu", "1", "3g.71gb@4")
    at_kubelet = seconds_until(lambda: len(healthy_at_kubelet(node, half)) == 2, began)
    print(f"\nfrom the change to the kubelet {at_kubelet:.1f} s")
    offered(node, 2, half)
    offered(node, 0, quarter)
    late = node.pods.run(gpu_pod("late", 1, resource=half))
    assert not set(node.pods.execute(late, LIST).split()) & {path for paths in seen for path in paths}
    assert [sorted(node.pods.execute(pod, LIST).split()) for pod in pods] == seen
    node.api.create(gpu_pod("too-many", 1, resource=small))
    assert f"Insufficient {small}" in node.pods.why_pending("too-many")


def test_equal_mig_devices_are_gpus_by_strategy_single_on_boards_that_would_need_a_reset(node: RealNode) -> None:
    profile = node.machine.folder / "cut.yaml"
    profile.write_text(A100)
    agent = start(node, {"flags": {"migStrategy": "single"}}, profile=str(profile), offers={GPU: 4})
    pods = [node.pods.run(gpu_pod(f"part-{number}", 2)) for number in range(2)]
    assert len({uuid for uuids in allocated(agent) for uuid in uuids}) == 4
    seen = [node.pods.execute(pod, LIST).split() for pod in pods]
    caps = [path for paths in seen for path in paths if "nvidia-cap" in path]
    assert len(caps) == len(set(caps)) == 8
    assert {path for paths in seen for path in paths} - set(caps) == {"/dev/nvidia0", "/dev/nvidia1"}


A100 = """
summary: Two A100 in equal parts
driver: {version: 570.133.20, cuda: "12.8"}
numa: {0: "0-31"}
gpus:
  - {board: a100-sxm4-40gb, bus: "0000:86:00.0", minor: 0, numa: 0, mig: [3g.20gb@0, 3g.20gb@4]}
  - {board: a100-sxm4-40gb, bus: "0000:af:00.0", minor: 1, numa: 0, mig: [3g.20gb@0, 3g.20gb@4]}
"""
