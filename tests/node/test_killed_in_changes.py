"""The kubelet, or the API server, is killed in the middle of a change and comes back: the change is made all the same.

The middle is where the agent waits: for whom it needs, or for a call of the driver that hangs.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from node_agent.allocation.grants import Door
from tests.node import agent as agents
from tests.node.agent import gpu_pod, offered
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import claim, cluster, pod_with, run, start_process
from tests.node.test_mig_claims import LIST, MIG, of_profile
from tests.node.test_mig_layouts import publishes, relabel, says

__all__ = ["cluster"]

pytestmark = pytest.mark.deaths

KUBELET, API_SERVER = "kubelet", "API server"
WHO = pytest.mark.parametrize("who", [KUBELET, API_SERVER])
CUT = "nvmlDeviceCreateGpuInstanceWithPlacement"
RENAMED = "nvidia.com/h200"


def kill(node: RealNode, who: str) -> None:
    node.stop_kubelet(signal.SIGKILL) if who == KUBELET else node.stop_api_server()


def revive(node: RealNode, who: str) -> None:
    node.start_kubelet() if who == KUBELET else node.await_api_server(node.launch_api_server())


@contextmanager
def hanging(node: RealNode, call: str) -> Iterator[None]:
    """A call of the driver hangs until the block has ended, for whose end no API server is needed."""
    simulate = [agents.PROGRAM, "simulate"]
    node.machine.run([*simulate, "hang", "--call", call, "--seconds", "600"])
    try:
        yield
    finally:
        node.machine.run([*simulate, "clear"])


def begun(node: RealNode, door: Door) -> None:
    """Await that the ledger has what somebody of this door is about to get."""

    def reserved() -> bool:
        found = agents.books(node)
        return found is not None and any(one.holder.door is door for one in found.grants.values())

    wait_until(f"a grant of {door} is begun", reserved, every=0.02)


def holders(node: RealNode) -> tuple[Object, Object]:
    """A pod by its limit and one by its claim, which have nothing to do with the change."""
    agents.offered(node, 8)
    return node.pods.run(gpu_pod("by-limit", 1)), run(node, "by-claim")[0]


def untouched(node: RealNode, pods: tuple[Object, ...]) -> bool:
    return all(
        node.pods.container_id(node.api.get("Pod", pod["metadata"]["name"])) == node.pods.container_id(pod)
        for pod in pods
    )


def rename(node: RealNode) -> None:
    """Have whole GPUs offered under another name: the configuration changes in one moment, as a ConfigMap does."""
    file = node.machine.folder / "agent.yaml"
    beside = file.with_suffix(".new")
    document = yaml.safe_load(file.read_text()) | {"resources": {"gpus": [{"pattern": "*", "name": "h200"}]}}
    beside.write_text(yaml.safe_dump(document))
    beside.replace(file)


@WHO
def test_a_reload_is_done(cluster: RealNode, who: str) -> None:
    agent = start_process(cluster)
    pods = holders(cluster)
    kill(cluster, who)
    rename(cluster)
    wait_until("it is in force", lambda: "configuration in force" in agent.text())
    revive(cluster, who)

    # What the two pods have is offered to nobody, under neither name.
    offered(cluster, 6, RENAMED)
    offered(cluster, 0)
    assert untouched(cluster, pods)


@WHO
def test_a_layout_is_made(cluster: RealNode, who: str) -> None:
    start_process(cluster)
    pods = holders(cluster)
    try:
        with hanging(cluster, CUT):
            relabel(cluster, "all-balanced")
            begun(cluster, Door.LAYOUT)
            kill(cluster, who)
        revive(cluster, who)
        publishes(cluster, **{"gpu": 2, "1g.18gb": 12, "2g.35gb": 6, "3g.71gb": 6})
        assert untouched(cluster, pods)
        for pod in pods:
            cluster.api.delete("Pod", pod["metadata"]["name"], grace=1)
        says(cluster, "success")
        relabel(cluster, "all-disabled")
        publishes(cluster, gpu=8)
    finally:
        relabel(cluster, None)


@WHO
def test_a_claim_is_prepared_once(cluster: RealNode, who: str) -> None:
    agent = start_process(cluster, mig={"onDemand": ["gpu-0"]})
    cluster.api.create(claim("part", selectors=of_profile("3g.71gb"), deviceClassName=MIG))
    with hanging(cluster, CUT):
        cluster.api.create(pod_with("part", "part"))
        begun(cluster, Door.CLAIM)
        kill(cluster, who)
    revive(cluster, who)

    pod = cluster.pods.wait("part")
    assert len(cluster.pods.execute(pod, LIST).split()) == 3
    assert agent.text().count(" partition made") == 1
    cluster.api.delete("Pod", "part", grace=1)
    cluster.pods.wait_gone("part")
    wait_until("its part is gone", lambda: agent.text().count(" partition removed") == 1)
    assert not list(cluster.cdi_folder.glob("*claim_*.json"))
