"""The shipped DaemonSet through an update: controller, probes and kubelet at work on its manifest."""

import pytest

from tests.node import agent as agents
from tests.node.installed import NAME, NAMESPACE, available
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import await_nothing_held, serves_claims
from tests.node.test_rolling_update import forget_holders, stored

pytestmark = pytest.mark.node


def test_an_update_of_the_daemonset_takes_no_gpu_from_the_node(node: RealNode) -> None:
    forget_holders(node)
    serves_claims(node, agents.start(node))
    old = wait_until("the agent is ready", lambda: available(node))
    await_nothing_held(node)
    before = stored(node)

    with (
        agents.watched(lambda: len(agents.healthy_at_kubelet(node)), every=0.05) as at_kubelet,
        agents.watched(lambda: stored(node), every=0.05) as slices,
    ):
        change = {"spec": {"template": {"metadata": {"annotations": {"update": "yes"}}}}}
        node.api.patch("DaemonSet", NAME, change, NAMESPACE)
        new = wait_until("the update is done", lambda: available(node, 2))

    assert new.name != old.name
    assert (at_kubelet, slices) == ({8}, {before})


def test_the_pod_answers_to_the_commands_of_an_operator(node: RealNode) -> None:
    agents.start(node)
    agent = wait_until("the agent is ready", lambda: available(node))
    for health in ("live", "ready"):
        agent.run("status", "--check", health)
    assert "8" in agent.run("status")
