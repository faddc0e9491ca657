"""What a GPU adds to a pod's start before its sandbox: ``python -m tests.node.pod_start [REPETITIONS]``.

It prints milliseconds from the moment in which a real kubelet hears of a pod until it asks containerd for the sandbox,
by the logs of both: admission with the device plugin's calls, volumes, cgroups, and the preparation of claims. The
three kinds of pods come in turns, one at a time, each on a node at rest; what a GPU adds is the difference to the pod
without one of the same turn. They have no token, for whose volume the kubelet would wait a third of a second.
"""

import re
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from tests.node.agent import gpu_pod
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.pods import busybox_pod
from tests.node.test_claims import claim, pod_with, prepare_cluster, start

REST_SECONDS = 1.0


def without(node: RealNode, name: str) -> Object:
    return busybox_pod(name)


def by_limit(node: RealNode, name: str) -> Object:
    return gpu_pod(name, 1)


def by_claim(node: RealNode, name: str) -> Object:
    """Its claim is allocated before the kubelet hears of the pod, and stands for as long as the node does."""
    node.api.create(claim(name))
    return pod_with(name, name)


KINDS: dict[str, Callable[[RealNode, str], Object]] = {
    "without a GPU": without,
    "by its limit": by_limit,
    "by its claim": by_claim,
}


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with RealNode() as node:
        prepare_cluster(node)
        start(node)
        for turn in range(repetitions + 1):
            # In another order each turn: what the pod before has left to be done costs the next one something.
            for number, kind in enumerate(turned(list(KINDS), turn)):
                milliseconds = before_its_sandbox(node, KINDS[kind](node, f"pod-{turn}-{number}"))
                if turn:  # the first of each kind warms up
                    found[kind].append(milliseconds)
    for kind, figures in found.items():
        line(kind, figures)
    for kind in list(KINDS)[1:]:
        pairs = zip(found[kind], found["without a GPU"], strict=True)
        line(f"{kind}, more than without", [one - other for one, other in pairs])


def turned(kinds: list[str], turn: int) -> list[str]:
    first = turn % len(kinds)
    return kinds[first:] + kinds[:first]


def line(kind: str, figures: list[float]) -> None:
    print(
        f"{kind}: median {statistics.median(figures):.1f} ms, {min(figures):.1f} to {max(figures):.1f},"
        f" of {len(figures)}",
        flush=True,
    )


def before_its_sandbox(node: RealNode, pod: Object) -> float:
    """Start a pod, end it, and answer in milliseconds."""
    pod["spec"]["automountServiceAccountToken"] = False
    time.sleep(REST_SECONDS)
    name = pod["metadata"]["name"]
    node.pods.run(pod)
    node.api.delete("Pod", name)
    node.pods.wait_gone(name)
    heard = re.search(
        rf'^I(\d{{4}} [\d:.]+) .*"SyncLoop ADD" source="api" pods=\["default/{name}"\]',
        node.machine.programs["kubelet"].text(),
        re.MULTILINE,
    )
    asked = re.search(
        rf'^time="([^"]+)" .*msg="RunPodSandbox for name:\\"{name}\\" uid:\\"[^"]*" namespace:\\"default\\""$',
        node.machine.programs["containerd"].text(),
        re.MULTILINE,
    )
    if heard is None or asked is None:
        raise RuntimeError(f"the logs of kubelet and containerd do not tell of {name}")
    until = datetime.fromisoformat(asked[1])
    since = datetime.strptime(f"{until.year}{heard[1]}", "%Y%m%d %H:%M:%S.%f").replace(tzinfo=UTC)
    took = (until - since).total_seconds()
    if not 0 < took < 60:
        raise RuntimeError(f"{name} took {took:.3f} s: kubelet and containerd do not go by one clock and time zone")
    return took * 1000


if __name__ == "__main__":
    main()
