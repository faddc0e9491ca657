"""The layout that the node's label asks for, made under load on a real node: what pods hold stays, the rest is cut."""

import time

import pytest

from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import DRIVER, attribute, claim, cluster, devices, pod_with, start_process

__all__ = ["cluster"]

pytestmark = pytest.mark.node

LABEL, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
MIG = "mig.nvidia.com"


def relabel(node: RealNode, layout: str | None) -> None:
    node.api.patch("Node", node.name, {"metadata": {"labels": {LABEL: layout}}})


def state(node: RealNode) -> str | None:
    found: str | None = node.api.get("Node", node.name)["metadata"]["labels"].get(STATE)
    return found


def says(node: RealNode, phase: str | None) -> None:
    wait_until(f"the node says {phase} of its layout", lambda: state(node) == phase)


def profiles(node: RealNode) -> dict[str, int]:
    """How many devices of each profile are published, and of whole GPUs."""
    found: dict[str, int] = {}
    for device in devices(node).values():
        kind = attribute(device, "type")
        name = attribute(device, "profile") if kind == "mig" else kind
        found[name] = found.get(name, 0) + 1
    return found


def publishes(node: RealNode, **wanted: int) -> None:
    wait_until(f"{wanted} are published", lambda: profiles(node) == wanted)


def of_profile(profile: str) -> list[Object]:
    return [{"cel": {"expression": f'device.attributes["{DRIVER}"].profile == "{profile}"'}}]


def ended(node: RealNode, name: str) -> None:
    node.api.delete("Pod", name)
    node.pods.wait_gone(name)
    node.api.delete("ResourceClaim", name)


def test_the_label_is_followed_under_load(cluster: RealNode) -> None:
    start_process(cluster)
    cluster.api.create(claim("whole"))
    cluster.api.create(pod_with("whole", "whole"))
    cluster.pods.wait("whole")

    # Seven GPUs are cut, and the one that a pod holds is waited for.
    relabel(cluster, "all-balanced")
    publishes(cluster, **{"gpu": 1, "1g.18gb": 14, "2g.35gb": 7, "3g.71gb": 7})
    says(cluster, "pending")
    wait_until("an Event says for whom", lambda: tells(cluster, "GPULayoutWaits", "pod default/whole"))
    cluster.api.create(claim("large", selectors=of_profile("3g.71gb"), deviceClassName=MIG))
    cluster.api.create(pod_with("large", "large"))
    cluster.pods.wait("large")
    ended(cluster, "whole")
    says(cluster, "success")
    publishes(cluster, **{"1g.18gb": 16, "2g.35gb": 8, "3g.71gb": 8})

    # A wish in the middle of another: the last one holds, and the partition that a pod has stays.
    relabel(cluster, "all-1g.18gb")
    relabel(cluster, "all-2g.35gb")
    wait_until("an Event says for whom", lambda: tells(cluster, "GPULayoutWaits", "3g.71gb"))
    publishes(cluster, **{"2g.35gb": 22, "3g.71gb": 1, "1g.18gb": 2})
    wait_until("what is to go is given to nobody", lambda: all(map(tainted, small(cluster))))
    says(cluster, "pending")
    began = time.monotonic()
    ended(cluster, "large")
    says(cluster, "success")
    print(f"\nfrom the end of the last holder to success: {time.monotonic() - began:.1f} s")
    publishes(cluster, **{"2g.35gb": 24})

    # What is not there changes nothing and is said; without the label nothing is said any more.
    relabel(cluster, "all-9g.1gb")
    says(cluster, "failed")
    wait_until("an Event names the mistake", lambda: tells(cluster, "GPULayoutFailed", "'all-9g.1gb'"))
    publishes(cluster, **{"2g.35gb": 24})
    relabel(cluster, "all-disabled")
    says(cluster, "success")
    publishes(cluster, gpu=8)
    relabel(cluster, None)
    says(cluster, None)


def small(node: RealNode) -> list[Object]:
    """What waits for its neighbour to go, too."""
    return [one for one in devices(node).values() if attribute(one, "profile") == "1g.18gb"]


def tainted(device: Object) -> bool:
    return any(taint["effect"] == "NoSchedule" for taint in device.get("taints") or ())


def tells(node: RealNode, reason: str, words: str) -> bool:
    """Whether an Event of the node has this reason, and these words."""
    return any(one.startswith(reason) and words in one for one in node.pods.events(node.name, kind="Node"))
