"""The agent on the real node: starting it, breaking its GPUs, and what node and kubelet say of its work.

It runs over a simulated node, as a DaemonSet's pod from the shipped manifests (``installed.py``). Where a test has to
be nearer to it than a pod allows, for two agents of different settings or none for a while, it starts a process.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any, Protocol, TypeVar

import grpc
import yaml
from google.protobuf.message import Message

from node_agent.allocation.checkpoint import decode
from node_agent.allocation.grants import Books
from node_agent.cdi.names import file_name
from node_agent.wire import podresources_v1_pb2 as wire
from tests.fakes.names import KIND
from tests.node import installed
from tests.node.installed import AgentPod
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.pods import busybox_pod
from tests.node.rig.program import Program
from tests.node.rig.waiting import PATIENCE, wait_until

GPU = "nvidia.com/gpu"
PROGRAM = str(Path(sys.executable).with_name("node-agent"))

ASK = """
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=30)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode(), sep="\\n", end="")
"""
"""To be run on the node, to whose network the test's own process does not belong."""

LEDGER = "/var/lib/gpu-node-agent/ledger.json"

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class Agent(Protocol):
    """An agent that runs, in whichever way."""

    def require_running(self) -> None: ...

    def text(self) -> str: ...


def start(
    node: RealNode,
    settings: Object | None = None,
    *,
    profile: str = "h200-8",
    manifest: str = installed.BASE,
    offers: Mapping[str, int] | None = None,
) -> AgentPod:
    """Install the agent and await that the kubelet has its devices, not only remembers those of an earlier agent.

    ``settings`` are those of its ConfigMap. ``offers`` is what shall be allocatable then, by resource: eight GPUs
    unless a test says otherwise.
    """
    given = {"version": "v1", **(settings or {})}
    given["agent"] = {"log": {"level": "debug"}, **given.get("agent", {})}
    pod = installed.install(node, given, profile=profile, manifest=manifest)
    _await_offers(node, pod, offers)
    return pod


def _await_offers(node: RealNode, agent: Agent, offers: Mapping[str, int] | None) -> None:
    for resource, count in ({GPU: 8} if offers is None else offers).items():
        registered(agent, resource)
        offered(node, count, resource)


def launch_process(
    node: RealNode, settings: Object | None = None, *, name: str = "agent", profile: str = "h200-8"
) -> Program:
    """Start the agent beside the kubelet and wait for nothing. ``name`` names its log."""
    command = [PROGRAM, "run", "--simulate", profile, "--log-level", "debug"]
    if settings is not None:
        file = node.machine.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump({"version": "v1"} | settings))
        command += ["--config", str(file)]
    return node.machine.start(name, command, environment={"NODE_NAME": node.name})


def start_process(
    node: RealNode,
    settings: Object | None = None,
    *,
    name: str = "agent",
    profile: str = "h200-8",
    offers: Mapping[str, int] | None = None,
) -> Program:
    """Start the agent beside the kubelet, which knows nothing of it as a pod, and await what it offers."""
    agent = launch_process(node, settings, name=name, profile=profile)
    _await_offers(node, agent, offers)
    return agent


def registered(agent: Agent, resource: str = GPU, times: int = 1, *, timeout: float = PATIENCE) -> None:
    """Await that the agent has registered a resource so often since its start."""
    wait_until(
        f"{resource} is registered", lambda: registrations(agent, resource) >= times, timeout=timeout, every=0.05
    )


def registrations(agent: Agent, resource: str = GPU) -> int:
    agent.require_running()
    return len(re.findall(rf" registered .*?resource={re.escape(resource)}\b", agent.text()))


def offered(node: RealNode, count: int, resource: str = GPU, *, timeout: float = PATIENCE) -> None:
    """Await that the kubelet has so many to give out, and that the node's status says so: that is seconds behind.

    What pods of another configuration held that have just ended is given back half a minute later.
    """

    def is_so() -> bool:
        return knows(node, count, resource) and node.allocatable(resource) == count

    wait_until(f"{count} {resource} are allocatable", is_so, timeout=timeout)


def healthy_at_kubelet(node: RealNode, resource: str = GPU) -> frozenset[str]:
    """The ids that the kubelet would give out now or holds for pods; its own word, ahead of the node's status."""
    method, request = "/v1.PodResourcesLister/GetAllocatableResources", wire.AllocatableResourcesRequest()
    answer = call(node.pod_resources_socket, method, request, wire.AllocatableResourcesResponse, timeout=30)
    return frozenset(
        name for devices in answer.devices if devices.resource_name == resource for name in devices.device_ids
    )


def held_at_kubelet(node: RealNode, resource: str = GPU, *, timeout: float = 30) -> dict[str, list[str]]:
    """The ids of a resource that the kubelet has given out, by the pods that hold them."""
    method, request = "/v1.PodResourcesLister/List", wire.ListPodResourcesRequest()
    answer = call(node.pod_resources_socket, method, request, wire.ListPodResourcesResponse, timeout=timeout)
    return {
        pod.name: list(devices.device_ids)
        for pod in answer.pod_resources
        for container in pod.containers
        for devices in container.devices
        if devices.resource_name == resource
    }


def call(socket: Path, method: str, request: Message, answer: type[M], *, timeout: float = 5) -> M:
    """One call of gRPC over a socket of the node."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        ask = channel.unary_unary(
            method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        return ask(request, timeout=timeout)


def books(node: RealNode) -> Books | None:
    """What the agent has in its ledger; None before there is one."""
    file = node.machine.path(LEDGER)
    return decode(file.read_bytes()) if file.exists() else None


def knows(node: RealNode, count: int = 8, resource: str = GPU) -> bool:
    """Whether the kubelet has so many of a resource; one that is starting does not answer yet."""
    with suppress(grpc.RpcError):
        return len(healthy_at_kubelet(node, resource)) == count
    return False


def command(node: RealNode, *arguments: str) -> str:
    """Run ``node-agent`` where the agent runs: in its pod, or on the node where a test has started a process."""
    for pod in installed.pods(node):
        return installed.AgentPod(node, pod).run(*arguments)
    return node.machine.run([PROGRAM, *arguments])


def simulate(node: RealNode, *arguments: str) -> None:
    """Break the simulated node of the running agent, or mend it."""
    command(node, "simulate", *arguments)


def url(node: RealNode, path: str) -> str:
    """Where the agent answers, for programs on the node: its pod has an address of its own."""
    address = next((one["status"]["podIP"] for one in installed.pods(node)), node.machine.address)
    return f"http://{address}:9400{path}"


def ask(node: RealNode, path: str) -> tuple[int, str]:
    """What the agent answers over HTTP: the status and the text."""
    code, _, text = node.machine.run([sys.executable, "-c", ASK, url(node, path)]).partition("\n")
    return int(code), text


def allocated(agent: Agent) -> list[list[str]]:
    """The UUIDs of each allocation, from the agent's log."""
    return [found.split(",") for found in re.findall(r"allocated .*?devices=(\S+)", agent.text())]


def sockets(folder: Path) -> set[str]:
    """The names of the agent's sockets in a folder."""
    return {path.name for path in folder.glob("node-agent-*.sock")}


def spec_of(node: RealNode) -> Object:
    """The agent's CDI spec."""
    spec: Object = json.loads((node.cdi_folder / file_name(KIND)).read_text())
    return spec


def driver_root(node: RealNode) -> Path:
    """Where the running agent has the files of its simulated driver, as its CDI spec has it."""
    wait_until("the CDI spec is there", (node.cdi_folder / file_name(KIND)).exists)
    mounts = spec_of(node)["containerEdits"]["mounts"]
    (program,) = {mount["hostPath"] for mount in mounts if mount["containerPath"] == "/usr/bin/nvidia-smi"}
    return Path(program).parents[2]


def minors(node: RealNode, uuids: list[str]) -> set[str]:
    """The GPUs' own device nodes, as the CDI spec has them."""
    devices = {device["name"]: device["containerEdits"]["deviceNodes"] for device in spec_of(node)["devices"]}
    return {one["path"] for uuid in uuids for one in devices[uuid] if one["path"].startswith("/dev/nvidia")}


def gpu_pod(name: str, count: int, script: str = "sleep 1000000", *, resource: str = GPU, **spec: Any) -> Object:
    return busybox_pod(name, script, limits={resource: count}, **spec)


@contextmanager
def watched(read: Callable[[], T], every: float = 0.1) -> Iterator[set[T]]:
    """Everything that ``read`` answers while the block runs, asked every so many seconds in a thread of its own."""
    seen: set[T] = set()
    ended = Event()

    def look() -> None:
        while not ended.wait(every):
            seen.add(read())

    with ThreadPoolExecutor(1) as pool:
        looks = pool.submit(look)
        try:
            yield seen
        finally:
            ended.set()
        looks.result()


def seconds_until(condition: Callable[[], object], since: float, timeout: float = PATIENCE) -> float:
    """Await a condition, looked at every 20 ms; how long after ``since``, of the monotonic clock, it was met."""
    wait_until("a condition whose time is measured", condition, timeout=timeout, every=0.02)
    return time.monotonic() - since
