"""A kubelet that starts while the API server is away: it knows no pod, and what pods hold is held all the same."""

import signal
import time

import pytest

from node_agent.deviceplugin.holding import ADMISSION_SECONDS
from tests.node.agent import GPU, books, gpu_pod, held_at_kubelet, offered, start
from tests.node.installed import LIMITS
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until

pytestmark = pytest.mark.deaths


def held(node: RealNode) -> list[str]:
    """The devices that the agent has written down as held."""
    found = books(node)
    return [hold.device for grant in found.grants.values() for hold in grant.holds] if found else []


def test_what_a_pod_holds_is_held_by_an_agent_whose_kubelet_does_not_know_the_pod(node: RealNode) -> None:
    agent = start(node, manifest=LIMITS)
    trainer = node.pods.run(gpu_pod("trainer", 1))
    container = node.pods.container_id(trainer)
    (device,) = held_at_kubelet(node)["trainer"]
    wait_until("it is written down", lambda: device in held(node))

    node.stop_api_server()
    node.stop_kubelet(signal.SIGKILL)
    node.launch_kubelet()
    time.sleep(ADMISSION_SECONDS + 15)
    assert device in held(node)
    assert f"given back device={GPU}/{device}" not in agent.text()

    node.await_api_server(node.launch_api_server())
    offered(node, 8)
    assert node.pods.container_id(node.api.get("Pod", "trainer")) == container
    node.api.delete("Pod", "trainer")
    # The kubelet may be half a minute from asking the API server again, and has then never told of the pod.
    wait_until("it is given back", lambda: device not in held(node), timeout=60 + 2 * ADMISSION_SECONDS)
