"""What the kubelet makes of plugins that are no agent of ours, and the agent of that."""

import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import grpc
import pytest

from node_agent.hardware.simulated.gpu import build_gpus
from node_agent.hardware.simulated.profile import load_profile
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from tests.node.agent import (
    GPU,
    allocated,
    call,
    gpu_pod,
    healthy_at_kubelet,
    held_at_kubelet,
    knows,
    offered,
    registered,
    sockets,
    start_process,
)
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import PATIENCE, wait_until
from tests.node.test_page import pods

pytestmark = pytest.mark.node


def test_the_kubelet_wedges_a_socket_path_that_registers_again_while_its_stream_lives(node: RealNode) -> None:
    """Why each registration has a socket of a fresh name. The day this fails, names may be kept."""
    resource, name = "trap.test/gpu", "trap.sock"
    with bare_plugin(node.device_plugins / name):
        register(node, resource, name)
        wait_until("the kubelet has the device", lambda: healthy_at_kubelet(node, resource) == {"one"})
        with pytest.raises(grpc.RpcError, match="already connected"):
            register(node, resource, name)
    # The plugin has ended, and the kubelet does not notice.
    time.sleep(1)
    assert healthy_at_kubelet(node, resource) == {"one"}
    with bare_plugin(node.device_plugins / name), pytest.raises(grpc.RpcError, match="already connected"):
        register(node, resource, name)

    node.restart_kubelet()
    assert healthy_at_kubelet(node, resource) == frozenset()


def test_the_kubelet_gives_a_device_to_two_pods_if_it_is_asked_at_the_wrong_moment_what_pods_hold(
    node: RealNode,
) -> None:
    """Why the agent asks it before a device goes to the next pod. The day this fails, that may go.

    Asked what pods hold while another pod has ended, it makes its books anew from what pods have; and what is on its
    way to a pod, between the call of Allocate and the answer, is in none.
    """
    resource, name = "trap.test/twice", "twice.sock"
    with bare_plugin(node.device_plugins / name, [f"{number:03}" for number in range(200)]) as calls:
        register(node, resource, name)
        offered(node, 200, resource)
        ending = gpu_pod("ending", 1, resource=resource)
        ending["spec"]["terminationGracePeriodSeconds"] = 3
        ending["spec"]["containers"][0]["command"] = ["sh", "-c", "trap '' TERM; while true; do sleep 1; done"]
        node.pods.run(ending)
        node.api.delete("Pod", "ending", grace=3)
        calls.come.clear()
        calls.may_go.clear()
        node.api.create(gpu_pod("first", 1, resource=resource))
        assert calls.come.wait(PATIENCE)
        node.pods.wait_gone("ending")
        held_at_kubelet(node, resource)
        calls.may_go.set()
        (device,) = visible(node, node.pods.wait("first"))
        assert device in visible(node, node.pods.run(gpu_pod("second", 199, resource=resource)))


def test_a_device_that_a_running_pod_has_the_agent_gives_to_no_second_one(node: RealNode) -> None:
    """Called as the kubelet would that has forgotten the first pod; of that one's end it is heard at once."""
    start_process(node)
    node.pods.run(gpu_pod("first", 1))
    (device,) = held_at_kubelet(node)["first"]
    with pytest.raises(grpc.RpcError, match="held by a pod that is still there: the kubelet has given it out twice"):
        allocate(node, device)
    node.api.delete("Pod", "first")
    node.pods.wait_gone("first")
    assert device in str(allocate(node, device))


def allocate(node: RealNode, device: str) -> wire.AllocateResponse:
    """Ask the agent for a device, in the kubelet's place."""
    (socket,) = sockets(node.device_plugins)
    request = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=[device])])
    method = "/v1beta1.DevicePlugin/Allocate"
    return call(node.device_plugins / socket, method, request, wire.AllocateResponse, timeout=10)


def register(node: RealNode, resource: str, endpoint: str) -> None:
    request = wire.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=resource)
    call(node.device_plugins / "kubelet.sock", "/v1beta1.Registration/Register", request, wire.Empty, timeout=10)


class Calls(NamedTuple):
    """Calls of Allocate: whether one has ``come``, and whether they ``may_go`` on to their answers."""

    come: Event
    may_go: Event


@contextmanager
def bare_plugin(path: Path, ids: Sequence[str] = ("one",)) -> Iterator[Calls]:
    """A plugin that does what the protocol wants and no more; containers are told their devices by NVIDIA's word."""
    ended, calls = Event(), Calls(come=Event(), may_go=Event())
    calls.may_go.set()

    def options(request: wire.Empty, context: grpc.ServicerContext) -> wire.DevicePluginOptions:
        return wire.DevicePluginOptions()

    def devices(request: wire.Empty, context: grpc.ServicerContext) -> Iterator[wire.ListAndWatchResponse]:
        yield wire.ListAndWatchResponse(devices=[wire.Device(ID=one, health="Healthy") for one in ids])
        ended.wait()

    def allocate(request: wire.AllocateRequest, context: grpc.ServicerContext) -> wire.AllocateResponse:
        calls.come.set()
        calls.may_go.wait()
        asked = [",".join(container.devices_ids) for container in request.container_requests]
        answers = [wire.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": one}) for one in asked]
        return wire.AllocateResponse(container_responses=answers)

    answers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
            options, wire.Empty.FromString, wire.DevicePluginOptions.SerializeToString
        ),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(
            devices, wire.Empty.FromString, wire.ListAndWatchResponse.SerializeToString
        ),
        "Allocate": grpc.unary_unary_rpc_method_handler(
            allocate, wire.AllocateRequest.FromString, wire.AllocateResponse.SerializeToString
        ),
    }
    with futures.ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", answers)])
        server.add_insecure_port(f"unix:{path}")
        server.start()
        try:
            yield calls
        finally:
            calls.may_go.set()
            ended.set()
            server.stop(None).wait()


def test_a_second_plugin_of_the_resource_that_dies_takes_no_gpu_for_good(node: RealNode) -> None:
    """The kubelet goes on with the list that a dead plugin has sent, however healthy the living one is."""
    agent = start_process(node)
    with bare_plugin(node.device_plugins / "other.sock"):
        register(node, GPU, "other.sock")
        wait_until("the kubelet has the other's list", lambda: healthy_at_kubelet(node) == {"one"})
    time.sleep(1)
    assert healthy_at_kubelet(node) == {"one"}

    registered(agent, times=2)
    wait_until("the kubelet knows all GPUs", lambda: knows(node))
    offered(node, 8)
    node.pods.run(gpu_pod("all", 8))


def test_the_agent_takes_the_place_of_another_plugin_and_gives_it_back_while_a_pod_runs(node: RealNode) -> None:
    """The devices of both are the GPUs' UUIDs, so that what the kubelet remembers of the pod holds for either."""
    gpus = frozenset(gpu.uuid for gpu in build_gpus(load_profile("h200-8")))
    with theirs(node, gpus):
        trainer = node.pods.run(gpu_pod("trainer", 1))
        container = node.pods.container_id(trainer)
        (held,) = visible(node, trainer)
        assert held in gpus
    wait_until("the kubelet has no plugin", lambda: node.allocatable(GPU) == 0)

    agent = start_process(node, {"agent": {"http": {"address": ":9400"}}})
    wait_until("the agent knows whose GPU it is", lambda: pods(node) == {"trainer": 1})
    node.pods.run(gpu_pod("rest", 7))
    (given,) = allocated(agent)
    assert frozenset(given) == gpus - {held}
    assert node.pods.container_id(trainer) == container
    node.pods.execute(trainer, ["true"])

    agent.stop()
    with theirs(node, gpus):
        offered(node, 8)
        node.api.create(gpu_pod("waits", 1))
        assert "Insufficient nvidia.com/gpu" in node.pods.why_pending("waits")
        assert node.pods.container_id(trainer) == container


@contextmanager
def theirs(node: RealNode, ids: frozenset[str]) -> Iterator[None]:
    """Another plugin that offers the node's GPUs, as the kubelet has it."""
    socket = "nvidia-gpu.sock"
    with bare_plugin(node.device_plugins / socket, sorted(ids)):
        register(node, GPU, socket)
        wait_until("the kubelet has the other's GPUs", lambda: healthy_at_kubelet(node) == ids)
        offered(node, len(ids))
        yield


def visible(node: RealNode, pod: Object) -> list[str]:
    """The GPUs of which the other plugin has told a pod."""
    (found,) = [one for one in node.pods.runtime_spec(pod)["process"]["env"] if one.startswith("NVIDIA_VISIBLE")]
    return str(found).partition("=")[2].split(",")
