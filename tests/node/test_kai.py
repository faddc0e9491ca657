"""Pods placed by the real KAI Scheduler, whole GPUs and fractions of one: `make test-kai`.

Its scheduler, its binder and its pod grouper run on the node outside of pods. Of a fraction two things are stood in
for: its webhook, by what it would write into the pod (``fraction``), and the program in the pod that reserves a GPU,
which asks NVML which one it has got: the test asks the kubelet instead (``tell``).
"""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml

from tests.node import agent as agents
from tests.node.rig import binaries, image
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.pods import busybox_pod
from tests.node.rig.waiting import NotYet, RigError, wait_until
from tests.node.test_scheduler_plugins import end_pods

pytestmark = pytest.mark.kai

RESERVING, IMAGE = "kai-resource-reservation", "rig.local/reserving:1"
KINDS = ("podgroups", "queues", "bindrequests")
SHARED_MAP = "runai/shared-gpu-configmap"
WHICH = "run.ai/reserve_for_gpu_index"

held = partial(agents.held_at_kubelet, timeout=30)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealNode]:
    """A node with KAI, whose agent serves limits alone and leaves one GPU to others."""
    with RealNode() as node:
        front_doors, devices = {"devicePlugin": True, "dra": False}, {"exclude": ["7"]}
        agents.start(node, {"agent": {"frontDoors": front_doors, "devices": devices}}, offers={agents.GPU: 7})
        install(node)
        yield node


def install(node: RealNode) -> None:
    folder = binaries.KAI.source
    crds = folder / "deployments" / "kai-scheduler" / "crds"
    for kind in KINDS:
        node.api.create(yaml.safe_load((crds / f"scheduling.run.ai_{kind}.yaml").read_text()))
    node.api.create(yaml.safe_load((crds / "kai.scheduler_topologies.yaml").read_text()))
    for kind, name, namespace in (("Namespace", RESERVING, ""), ("ServiceAccount", RESERVING, RESERVING)):
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        node.api.create({"apiVersion": "v1", "kind": kind, "metadata": metadata})
    wait_until("queues are served", lambda: serves_queues(node), timeout=60)
    for queue in yaml.safe_load_all((folder / "docs" / "quickstart" / "default-queues.yaml").read_text()):
        node.api.create(queue)
    bring_image(node)
    programs = binaries.build(binaries.KAI)
    environment = {"KUBECONFIG": str(node.kubeconfig)}
    flags = {
        "kai-scheduler": ["--listen-address=:9091", "--plugin-server-port=9092"],
        "kai-podgrouper": ["--metrics-bind-address=0", "--health-probe-bind-address=0"],
        "kai-binder": [
            "--metrics-bind-address=0",
            "--health-probe-bind-address=0",
            f"--resource-reservation-pod-image={IMAGE}",
        ],
    }
    for name, given in flags.items():
        node.machine.start(name, [str(programs[name]), *given], environment=environment)


def serves_queues(node: RealNode) -> bool:
    try:
        return node.api.find("Queue", "none") is None
    except RigError as error:
        raise NotYet(str(error)) from error


def bring_image(node: RealNode) -> None:
    content, archive = node.machine.folder / "reserving", node.machine.folder / "reserving.tar"
    image.fill_with_busybox(content)
    image.write_archive(archive, name=IMAGE, content=content, command=["sleep", "1000000"])
    node.machine.run(["ctr", "--namespace=k8s.io", "images", "import", str(archive)], timeout=300)


@pytest.fixture
def node(cluster: RealNode) -> Iterator[RealNode]:
    yield cluster
    end_pods(cluster)
    wait_until("no GPU is reserved", lambda: not reservations(cluster), timeout=120)
    wait_until("all GPUs are free", lambda: not held(cluster), timeout=120)


def queued(name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    """A pod for KAI, in its usual queue."""
    manifest = busybox_pod(name, schedulerName="kai-scheduler", **spec)
    manifest["metadata"] |= {"labels": {"kai.scheduler/queue": "default-queue"}, "annotations": annotations or {}}
    return manifest


def whole(name: str, gpus: int) -> Object:
    return queued(name, limits={agents.GPU: gpus})


def fraction(name: str, part: str) -> Object:
    """A pod for a part of a GPU, as KAI's webhook leaves it: the variable comes from a map that the binder fills."""
    variable = "NVIDIA_VISIBLE_DEVICES"
    manifest = queued(name, annotations={"gpu-fraction": part, SHARED_MAP: f"{name}-shared-gpu"})
    source = {"configMapKeyRef": {"key": variable, "name": f"{name}-shared-gpu-0"}}
    manifest["spec"]["containers"][0]["env"] = [{"name": variable, "valueFrom": source}]
    return manifest


def reservations(node: RealNode) -> list[Object]:
    return node.api.list("Pod", RESERVING)


def tell(node: RealNode) -> str:
    """Await the pod that reserves a GPU, and have it say which one it got."""

    def told() -> str:
        (pod,) = reservations(node)
        (gpu,) = held(node).get(pod["metadata"]["name"]) or [""]
        if not gpu:
            raise NotYet(node.pods.describe(pod))
        change = {"metadata": {"annotations": {WHICH: gpu}}}
        node.api.patch("Pod", pod["metadata"]["name"], change, RESERVING)
        return gpu

    def waited() -> str:
        if not reservations(node):
            raise NotYet("no GPU is reserved yet")
        return told()

    return wait_until("a GPU is reserved and named", waited, timeout=120)


def sees(node: RealNode, name: str) -> str:
    running = node.pods.wait(name, timeout=120)
    return node.pods.execute(running, ["sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES"]).strip()


def refused(node: RealNode, name: str) -> str:
    return node.pods.why_pending(name, timeout=120)


def test_whole_gpus_are_given_out_as_far_as_the_node_has_them(node: RealNode) -> None:
    node.pods.run(whole("four", 4), timeout=120)
    node.api.create(whole("over", 4))
    assert "GPU" in refused(node, "over")
    node.api.delete("Pod", "four")
    node.pods.wait("over", timeout=120)


def test_two_halves_are_of_one_gpu_and_the_agent_holds_it_for_the_pod_that_reserves_it(node: RealNode) -> None:
    node.api.create(fraction("first", "0.5"))
    gpu = tell(node)
    assert sees(node, "first") == gpu
    node.api.create(fraction("second", "0.5"))
    assert sees(node, "second") == gpu
    (reserving,) = reservations(node)
    assert held(node) == {reserving["metadata"]["name"]: [gpu]}
    status = json.loads(agents.command(node, "status", "--json"))
    assert gpu in {one["uuid"] for one in status["gpus"]}


def test_a_fraction_takes_a_whole_gpu_off_also_where_one_is_left_to_others(node: RealNode) -> None:
    """KAI takes one off only where the label counts no more GPUs than there are."""
    labels = node.read()["metadata"]["labels"]
    assert labels["nvidia.com/gpu.count"] == "7"
    node.api.create(fraction("half", "0.5"))
    gpu = tell(node)
    assert sees(node, "half") == gpu
    node.pods.run(whole("six", 6), timeout=120)
    node.api.create(whole("one", 1))
    assert "GPU" in refused(node, "one")
    node.api.delete("Pod", "six")
    node.pods.wait("one", timeout=120)
