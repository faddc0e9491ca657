"""The device plugin's life beside a real kubelet: each of them comes, goes, crashes and is replaced, pods run on.

The cases that this kubelet cannot be brought to are shown on the embedded one, in ``tests/unit/deviceplugin``.
"""

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import suppress
from pathlib import Path

import pytest

from node_agent.kit.unix import identity
from tests.node.agent import (
    GPU,
    allocated,
    gpu_pod,
    healthy_at_kubelet,
    knows,
    launch_process,
    minors,
    offered,
    registered,
    registrations,
    seconds_until,
    simulate,
    sockets,
    start_process,
    watched,
)
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.program import Program
from tests.node.rig.waiting import NotYet, wait_until

pytestmark = pytest.mark.node

SECOND = {"agent": {"paths": {"runDir": "/run/gpu-node-agent-2"}}}
"""A second agent on one node has its simulated GPUs controlled from another folder."""

TWO_PRODUCTS = """
summary: An L4 beside two A30
driver: {version: 570.133.20, cuda: "12.8"}
numa: {0: "0-31"}
gpus:
  - {board: l4, bus: "0000:3b:00.0", minor: 0, numa: 0, bridges: ["0000:3a:00.0"]}
  - {board: a30, bus: "0000:86:00.0", minor: 1, numa: 0, bridges: ["0000:85:00.0"]}
  - {board: a30, bus: "0000:af:00.0", minor: 2, numa: 0, bridges: ["0000:ae:00.0"]}
"""


def await_kubelet_socket(node: RealNode, before: object) -> None:
    """Await that a kubelet other than the one of ``before`` takes registrations."""
    path = node.device_plugins / "kubelet.sock"
    wait_until("the kubelet takes registrations", lambda: identity(path) not in (before, None), every=0.01)


@pytest.mark.parametrize("route", ["socket", "watcher"])
def test_by_either_route_all_gpus_are_offered_again_after_a_kubelet_crash_and_no_socket_is_left(
    node: RealNode, route: str
) -> None:
    folders = [node.device_plugins, node.plugins_registry, node.plugins / "gpu-node-agent"]
    # An agent sweeps what a killed one has left on its own route alone.
    for path in [folder / name for folder in folders for name in sockets(folder)]:
        path.unlink()
    agent = start_process(node, {"agent": {"registration": route}})
    assert [len(sockets(folder)) for folder in folders] == ([1, 0, 0] if route == "socket" else [0, 1, 1])
    pod = node.pods.run(gpu_pod("stays", 2))
    before = node.pods.container_id(pod)

    node.restart_kubelet(signal.SIGKILL)

    registered(agent, times=2)
    wait_until("the kubelet knows all GPUs", lambda: knows(node))
    assert node.pods.container_id(pod) == before
    assert agent.stop() == 0
    assert [sockets(folder) for folder in folders] == [set(), set(), set()]


def test_what_a_killed_agent_announced_is_swept_by_the_next(node: RealNode) -> None:
    settings = {"agent": {"registration": "watcher"}}
    launched = launch_process(node, settings)
    registered(launched)
    left = sockets(node.plugins_registry)
    launched.stop(signal.SIGKILL)
    assert sockets(node.plugins_registry) == left

    start_process(node, settings)
    assert len(sockets(node.plugins_registry) - left) == len(sockets(node.plugins_registry)) == 1


def test_two_kubelet_restarts_within_a_second_end_well(node: RealNode) -> None:
    agent = start_process(node)
    node.pods.run(gpu_pod("stays", 2))
    said, (held,) = len(agent.text()), allocated(agent)
    path = node.device_plugins / "kubelet.sock"
    for start_kubelet in (node.launch_kubelet, node.start_kubelet):
        before = identity(path)
        node.stop_kubelet(signal.SIGKILL)
        start_kubelet()
        await_kubelet_socket(node, before)

    wait_until("the kubelet knows all GPUs", lambda: knows(node))
    offered(node, 8)
    assert len(sockets(node.device_plugins)) == 1
    assert not [uuid for uuid in held if f"given back device={GPU}/{uuid}" in agent.text()[said:]]


def test_a_kubelet_that_was_away_for_long_has_all_gpus_within_seconds(node: RealNode) -> None:
    agent = start_process(node)
    path = node.device_plugins / "kubelet.sock"
    before = identity(path)
    node.stop_kubelet()
    # Long enough for the agent's tries to have pauses of seconds between them.
    time.sleep(6)
    with futures.ThreadPoolExecutor(1) as pool:
        ready = pool.submit(node.start_kubelet)
        await_kubelet_socket(node, before)
        assert seconds_until(lambda: knows(node), time.monotonic()) < 60
        ready.result()
    assert agent.text().count("registration failed") <= 4


def test_sockets_that_are_wiped_under_a_running_kubelet_are_made_again(node: RealNode) -> None:
    agent = start_process(node)
    wiped = sockets(node.device_plugins)
    for name in wiped:
        (node.device_plugins / name).unlink()

    registered(agent, times=2)
    wait_until("the kubelet knows all GPUs", lambda: knows(node))
    assert len(sockets(node.device_plugins) - wiped) == 1


def test_nothing_is_given_up_when_the_kubelets_own_socket_is_wiped_too(node: RealNode) -> None:
    agent = start_process(node)
    # The kubelet's first: an agent that finds only its own gone registers again.
    for path in sorted(node.device_plugins.glob("*.sock"), key=lambda path: path.name != "kubelet.sock"):
        path.unlink()
    with watched(lambda: len(healthy_at_kubelet(node))) as seen:
        node.pods.run(gpu_pod("next", 2))
    assert seen == {8}

    node.restart_kubelet()
    registered(agent, times=2)
    wait_until("the kubelet knows all GPUs", lambda: knows(node))


def test_a_connection_that_breaks_is_followed_by_another_registration(node: RealNode) -> None:
    agent = start_process(node)
    (name,) = sockets(node.device_plugins)

    cut_connections(agent, name)

    registered(agent, times=2)
    wait_until("the kubelet knows all GPUs", lambda: knows(node))
    assert sockets(node.device_plugins).isdisjoint({name})


def opened(agent: Program) -> dict[int, str]:
    """What each descriptor of the agent stands for, but for those that it closes just now."""
    found = {}
    for fd in Path(f"/proc/{agent.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found[int(fd.name)] = os.readlink(fd)
    return found


def cut_connections(agent: Program, name: str) -> None:
    """Shut down what is connected to a socket of the agent, through copies of the agent's own descriptors."""
    listed = [line.split() for line in Path(f"/proc/{agent.pid}/net/unix").read_text().splitlines()]
    # A socket is listed by the name under which it was bound, which is the hidden one; 03 means connected.
    connected = {f"socket:[{line[6]}]" for line in listed if line[-1].endswith(name) and line[5] == "03"}
    numbers = [number for number, target in opened(agent).items() if target in connected]
    assert numbers
    process = os.pidfd_open(agent.pid)
    for number in numbers:
        with socket.socket(fileno=pidfd_getfd(process, number)) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    os.close(process)


def pidfd_getfd(process: int, descriptor: int) -> int:
    """Another process's descriptor as one of our own; Python has no word for this system call, 438 everywhere."""
    libc = ctypes.CDLL(None, use_errno=True)
    copy = int(libc.syscall(438, process, descriptor, 0))
    if copy < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return copy


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_rolling_update_of_the_agent_never_takes_a_gpu_from_the_node(node: RealNode, number: signal.Signals) -> None:
    old = start_process(node)
    pod = node.pods.run(gpu_pod("stays", 2))
    before, old_sockets = node.pods.container_id(pod), sockets(node.device_plugins)
    # A status that the kubelet worked out before this agent came may be under way.
    time.sleep(2)
    offered(node, 8)

    with (
        watched(lambda: node.allocatable(GPU)) as in_status,
        watched(lambda: len(healthy_at_kubelet(node)), every=0.05) as at_kubelet,
    ):
        new = launch_process(node, SECOND, name="agent-2")
        registered(new)
        old.send(number)
        node.pods.run(gpu_pod("next", 6))
        old.wait()
        time.sleep(1.5)

    assert (in_status, at_kubelet) == ({8}, {8})
    assert node.pods.container_id(pod) == before
    assert not set(allocated(old)[0]) & set(allocated(new)[0])
    assert registrations(new) == 1
    if number == signal.SIGTERM:
        assert sockets(node.device_plugins).isdisjoint(old_sockets)


def test_the_agent_takes_few_inotify_instances(node: RealNode) -> None:
    agent = start_process(node)
    names = list(opened(agent).values())
    assert any(name.startswith("socket:") for name in names)
    assert names.count("anon_inode:inotify") <= 3


def test_a_pod_that_meets_the_kubelet_while_the_agent_is_down_fails_and_the_next_one_runs(node: RealNode) -> None:
    agent = start_process(node)
    agent.stop(signal.SIGKILL)
    offered(node, 0)
    # Past the scheduler, which would keep it pending: what happens to a pod that was bound before.
    pod = node.pods.run(gpu_pod("early", 1, nodeName=node.name), "Failed")
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert "no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu" in pod["status"]["message"]

    waiting = node.api.create(gpu_pod("waits", 1))
    assert f"Insufficient {GPU}" in node.pods.why_pending("waits")
    start_process(node)
    node.pods.wait(waiting["metadata"]["name"])


def test_a_gpu_that_falls_off_the_bus_under_a_pod_is_unhealthy_in_the_pods_status_until_it_is_back(
    node: RealNode,
) -> None:
    agent = start_process(node, {"agent": {"health": {"probeInterval": "1s"}}})
    pod = node.pods.run(gpu_pod("holds", 1))
    before = node.pods.container_id(pod)
    ((held,),) = allocated(agent)

    for command, health, count in (("lose-gpu", "Unhealthy", 7), ("restore-gpu", "Healthy", 8)):
        simulate(node, command, "--gpu", held)
        offered(node, count)
        assert node.capacity(GPU) == 8
        await_device_health(node, pod, {held: health})
        assert node.pods.container_id(pod) == before
        assert node.pods.execute(pod, ["true"]) == ""


def await_device_health(node: RealNode, pod: Object, expected: dict[str, str]) -> None:
    """Await what the kubelet says in a pod's status of the devices that its container was given."""

    def said() -> bool:
        (container,) = node.api.get("Pod", pod["metadata"]["name"])["status"]["containerStatuses"]
        statuses = container.get("allocatedResourcesStatus", [])
        health = {one["resourceID"]: one["health"] for status in statuses for one in status["resources"]}
        if health != expected:
            raise NotYet(f"the pod's status says {health}")
        return True

    wait_until(f"the pod's status says {expected}", said)


@pytest.fixture
def policies(node: RealNode) -> Iterator[Callable[[str], None]]:
    """Lets a test choose the kubelet's policy on NUMA nodes; the machine has one such node, of number 0."""

    def choose(policy: str) -> None:
        node.kubelet_settings["topologyManagerPolicy"] = policy
        node.restart_kubelet()

    yield choose
    node.kubelet_settings.clear()
    node.stop_kubelet()


def test_gpus_of_a_numa_node_that_the_kubelet_does_not_know_are_given_out_like_others(
    node: RealNode, policies: Callable[[str], None]
) -> None:
    policies("best-effort")
    agent = start_process(node)
    for name in ("one", "other"):
        node.pods.run(gpu_pod(name, 4))
    one, other = allocated(agent)
    assert len({*one, *other}) == 8


def test_a_kubelet_that_insists_on_one_numa_node_gives_the_gpus_of_its_own_and_refuses_the_rest(
    node: RealNode, policies: Callable[[str], None]
) -> None:
    policies("single-numa-node")
    agent = start_process(node)
    for name in ("one", "other"):
        node.pods.run(gpu_pod(name, 2))
    refused = node.pods.run(gpu_pod("third", 2), "Failed")
    assert refused["status"]["reason"] == "TopologyAffinityError"
    one, other = allocated(agent)
    assert minors(node, one + other) == {f"/dev/nvidia{minor}" for minor in range(4)}


def test_gpus_that_the_configuration_excludes_are_not_offered(node: RealNode) -> None:
    start_process(node)
    first, *_, last = sorted(healthy_at_kubelet(node))
    node.machine.programs["agent"].stop()

    start_process(node, {"agent": {"devices": {"exclude": [first, "gpu-1"]}}}, offers={GPU: 6})
    assert first not in healthy_at_kubelet(node)
    assert last in healthy_at_kubelet(node)


def test_gpus_of_two_products_are_two_resources(node: RealNode) -> None:
    profile = node.machine.folder / "two-products.yaml"
    profile.write_text(TWO_PRODUCTS)
    rules = {"resources": {"gpus": [{"pattern": "*A30", "name": "a30"}]}}
    agent = start_process(node, rules, profile=str(profile), offers={"nvidia.com/a30": 2, GPU: 1})
    node.pods.run(gpu_pod("computes", 2, resource="nvidia.com/a30"))
    node.pods.run(gpu_pod("infers", 1))
    assert sorted(len(uuids) for uuids in allocated(agent)) == [1, 2]


def test_an_unknown_key_in_the_configuration_keeps_the_agent_from_starting_with_one_line(node: RealNode) -> None:
    agent = launch_process(node, {"agent": {"registraton": "socket"}})
    assert agent.wait() != 0
    (line,) = agent.text().splitlines()
    assert "agent.registraton" in line
    assert "registration" in line


def test_the_strategy_envvar_names_the_gpus_in_the_containers_environment(node: RealNode) -> None:
    agent = start_process(node, {"flags": {"plugin": {"deviceListStrategy": "envvar"}}})
    pod = node.pods.run(gpu_pod("reads", 2, "echo $NVIDIA_VISIBLE_DEVICES"), "Succeeded")
    ((one, other),) = allocated(agent)
    assert node.pods.log(pod) in (f"{one},{other}\n", f"{other},{one}\n")


def test_the_strategy_cdi_annotations_gives_a_container_its_gpus_as_cdi_names_do(node: RealNode) -> None:
    """containerd 2.4.2 reads them from the container's annotations, as NVIDIA's device plugin writes them."""
    agent = start_process(node, {"flags": {"plugin": {"deviceListStrategy": "cdi-annotations"}}})
    pod = node.pods.run(gpu_pod("annotated", 2))
    (uuids,) = allocated(agent)
    assert set(node.pods.execute(pod, ["sh", "-c", "ls /dev/nvidia[0-9]*"]).split()) == minors(node, uuids)
