"""What the kubelet makes of plugins that are no agent of ours, and the agent of that."""

import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import grpc
import pytest

from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from tests.node.agent import GPU, gpu_pod, healthy_at_kubelet, known, offered, registered, start
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until

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


def register(node: RealNode, resource: str, endpoint: str) -> None:
    with grpc.insecure_channel(f"unix:{node.device_plugins / 'kubelet.sock'}") as channel:
        ask = channel.unary_unary(
            "/v1beta1.Registration/Register",
            request_serializer=wire.RegisterRequest.SerializeToString,
            response_deserializer=wire.Empty.FromString,
        )
        ask(wire.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=resource), timeout=10)


@contextmanager
def bare_plugin(path: Path) -> Iterator[None]:
    """A plugin with one device that does what the protocol wants and no more."""
    ended = Event()

    def options(request: wire.Empty, context: grpc.ServicerContext) -> wire.DevicePluginOptions:
        return wire.DevicePluginOptions()

    def devices(request: wire.Empty, context: grpc.ServicerContext) -> Iterator[wire.ListAndWatchResponse]:
        yield wire.ListAndWatchResponse(devices=[wire.Device(ID="one", health="Healthy")])
        ended.wait()

    answers = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
            options, wire.Empty.FromString, wire.DevicePluginOptions.SerializeToString
        ),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(
            devices, wire.Empty.FromString, wire.ListAndWatchResponse.SerializeToString
        ),
    }
    with futures.ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", answers)])
        server.add_insecure_port(f"unix:{path}")
        server.start()
        try:
            yield
        finally:
            ended.set()
            server.stop(None).wait()


def test_a_second_plugin_of_the_resource_that_dies_takes_no_gpu_for_good(node: RealNode) -> None:
    """The kubelet goes on with the list that a dead plugin has sent, however healthy the living one is."""
    agent = start(node)
    with bare_plugin(node.device_plugins / "other.sock"):
        register(node, GPU, "other.sock")
        wait_until("the kubelet has the other's list", lambda: healthy_at_kubelet(node) == {"one"})
    time.sleep(1)
    assert healthy_at_kubelet(node) == {"one"}

    registered(agent, times=2, timeout=45)
    wait_until("the kubelet knows all GPUs", lambda: known(node))
    offered(node, 8)
    node.pods.run(gpu_pod("all", 8))
