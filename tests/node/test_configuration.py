"""A configuration that changes under a running agent on the real node: what the kubelet offers, and what pods notice.

The folder of configurations is swapped as the kubelet swaps a mounted ConfigMap, and the node's label chooses one.
"""

import json
import time
from collections.abc import Mapping

import pytest

from tests.fakes.config_map import MountedConfigMap
from tests.node import agent as agents
from tests.node import installed
from tests.node.agent import (
    GPU,
    allocated,
    gpu_pod,
    healthy_at_kubelet,
    offered,
    registered,
    registrations,
    seconds_until,
)
from tests.node.installed import AgentPod
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until

pytestmark = pytest.mark.node

LABEL = "nvidia.com/device-plugin.config"
WHOLE = "version: v1"
WITHOUT_THE_FIRST = "version: v1\nagent: {devices: {exclude: [0]}}"


def start(node: RealNode, configs: MountedConfigMap) -> AgentPod:
    """The agent with the configurations of this folder, once the kubelet has its devices."""
    agent = installed.install(node, {}, folder=str(configs.folder))
    registered(agent)
    return agent


def mounted(node: RealNode, entries: Mapping[str, str]) -> MountedConfigMap:
    return MountedConfigMap(node.machine.folder / f"configs-{time.monotonic_ns()}", entries)


def config_of(node: RealNode) -> Object:
    """What the agent says of its configuration."""
    found: Object = json.loads(agents.command(node, "status", "--json"))["config"]
    return found


def test_a_changed_config_map_takes_seconds_and_no_pod_notices(node: RealNode) -> None:
    configs = mounted(node, {"default": WHOLE})
    agent = start(node, configs)
    offered(node, 8)
    pod = node.pods.run(gpu_pod("stays", 2))
    before = node.pods.container_id(pod)
    held = set(allocated(agent)[0])
    free = sorted(healthy_at_kubelet(node) - held)[0]

    began = time.monotonic()
    configs.write({"default": f"version: v1\nagent: {{devices: {{exclude: [{free}]}}}}"})
    seconds = seconds_until(lambda: len(healthy_at_kubelet(node)) == 7, began)
    offered(node, 7)
    assert free not in healthy_at_kubelet(node)
    assert seconds < 30, f"the kubelet heard of it after {seconds:.1f} s"

    configs.write({"default": WHOLE})
    offered(node, 8)
    assert node.pods.container_id(pod) == before
    assert registrations(agent) == 1


def test_what_a_pod_holds_is_waited_for_and_given_to_no_other(node: RealNode) -> None:
    configs = mounted(node, {"default": WHOLE})
    agent = start(node, configs)
    offered(node, 8)
    pod = node.pods.run(gpu_pod("holder", 1))
    ((held,),) = allocated(agent)

    configs.write({"default": f"version: v1\nagent: {{devices: {{exclude: [{held}]}}}}"})
    offered(node, 7)
    assert config_of(node)["waits"] == [f"{GPU}: {held}"]
    assert node.pods.execute(pod, ["true"]) == ""
    # The scheduler subtracts the holder from what is allocatable, though its GPU is not among that.
    node.pods.run(gpu_pod("others", 6))
    assert held not in allocated(agent)[1]

    node.api.delete("Pod", "holder")
    node.pods.wait_gone("holder")
    wait_until("nothing is waited for", lambda: "waits" not in config_of(node))
    assert node.capacity(GPU) == 7 or wait_until("the GPU has left the list", lambda: node.capacity(GPU) == 7)


def test_another_name_begins_when_the_old_one_has_ended(node: RealNode) -> None:
    configs = mounted(node, {"default": WHOLE})
    agent = start(node, configs)
    offered(node, 8)

    configs.write({"default": "version: v1\nresources: {gpus: [{pattern: '*', name: h200}]}"})
    wait_until("the new name has all", lambda: node.allocatable("nvidia.com/h200") == 8)
    offered(node, 0)
    wait_until("the old name has none", lambda: node.capacity(GPU) == 0)

    configs.write({"default": WHOLE})
    offered(node, 8)
    wait_until("the new name has none", lambda: node.capacity("nvidia.com/h200") == 0)
    assert registrations(agent) == 1


def test_the_label_of_the_node_chooses_and_a_bad_one_changes_nothing(node: RealNode) -> None:
    label(node, "less")
    try:
        configs = mounted(node, {"default": WHOLE, "less": WITHOUT_THE_FIRST})
        agent = start(node, configs)
        offered(node, 7)

        label(node, None)
        offered(node, 8)
        label(node, "none-such")
        wait_until("it is refused", lambda: config_of(node).get("trouble"))
        assert f"label {LABEL}=none-such: there is no such configuration" in config_of(node)["trouble"]
        mistaken = "version: v1\nagent: {devices: {exclde: [0]}}"
        configs.write({"default": WHOLE, "less": WITHOUT_THE_FIRST, "none-such": mistaken})
        wait_until("the mistake is named", lambda: "did you mean agent.devices.exclude?" in config_of(node)["trouble"])
        wait_until("an Event tells of it", lambda: refusals(node))
        assert node.allocatable(GPU) == 8
        label(node, "less")
        offered(node, 7)
        assert registrations(agent) == 1
    finally:
        label(node, None)


def test_an_edited_config_map_reaches_the_agent_in_its_pod(node: RealNode) -> None:
    agent = agents.start(node)
    installed.configure(node, WITHOUT_THE_FIRST)
    wait_until("seven are allocatable", lambda: node.allocatable(GPU) == 7)
    assert [pod["metadata"]["name"] for pod in installed.pods(node)] == [agent.name]
    assert agent.restarts == 0


def label(node: RealNode, name: str | None) -> None:
    node.api.patch("Node", node.name, {"metadata": {"labels": {LABEL: name}}}, namespace="")


def refusals(node: RealNode) -> list[str]:
    return [line for line in node.pods.events(node.name, kind="Node") if "did you mean agent.devices.exclude?" in line]
