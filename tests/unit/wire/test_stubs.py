"""The stubs are those of ``protos/``, and speak under the names by which the other side knows each service."""

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool

from node_agent import wire
from node_agent.wire import dra_health_v1_pb2, dra_health_v1_pb2_grpc, dra_v1_pb2, dra_v1beta1_pb2

ROOT = Path(__file__).parents[3]
STUBS = "node_agent/wire"

PATHS = {
    "deviceplugin_v1beta1": {
        "/v1beta1.Registration/Register": "unary",
        "/v1beta1.DevicePlugin/GetDevicePluginOptions": "unary",
        "/v1beta1.DevicePlugin/ListAndWatch": "stream",
        "/v1beta1.DevicePlugin/GetPreferredAllocation": "unary",
        "/v1beta1.DevicePlugin/Allocate": "unary",
        "/v1beta1.DevicePlugin/PreStartContainer": "unary",
    },
    "pluginregistration_v1": {
        "/pluginregistration.Registration/GetInfo": "unary",
        "/pluginregistration.Registration/NotifyRegistrationStatus": "unary",
    },
    "dra_v1": {
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources": "unary",
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources": "unary",
    },
    "dra_v1beta1": {
        "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources": "unary",
        "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources": "unary",
    },
    "dra_health_v1": {"/v1.DRAResourceHealth/NodeWatchResources": "stream"},
    "dra_health_v1alpha1": {"/v1alpha1.DRAResourceHealth/NodeWatchResources": "stream"},
    "podresources_v1": {
        "/v1.PodResourcesLister/List": "unary",
        "/v1.PodResourcesLister/GetAllocatableResources": "unary",
        "/v1.PodResourcesLister/Get": "unary",
    },
    "health_v1": {
        "/gpu.nvidia.com.health.v1.HealthWatcher/Get": "unary",
        "/gpu.nvidia.com.health.v1.HealthWatcher/Watch": "stream",
    },
    "grpc_health_v1": {
        "/grpc.health.v1.Health/Check": "unary",
        "/grpc.health.v1.Health/List": "unary",
        "/grpc.health.v1.Health/Watch": "stream",
    },
}


class RecordingChannel:
    """Stands in for a channel and notes which paths a stub would dial, and how."""

    def __init__(self) -> None:
        self.paths: dict[str, str] = {}

    def unary_unary(self, path: str, **_: object) -> None:
        self.paths[path] = "unary"

    def unary_stream(self, path: str, **_: object) -> None:
        self.paths[path] = "stream"


class RecordingServer:
    """Stands in for a server and notes under which paths a servicer would answer, and how."""

    def __init__(self) -> None:
        self.paths: dict[str, str] = {}

    def add_generic_rpc_handlers(self, methods: object) -> None:
        """The same methods once more, in the form for servers that look a path up at each call."""

    def add_registered_method_handlers(self, service: str, methods: Mapping[str, Any]) -> None:
        for method, rpc in methods.items():
            self.paths[f"/{service}/{method}"] = "stream" if rpc.response_streaming else "unary"


def services_of(proto: str) -> Iterator[tuple[ModuleType, str]]:
    """The module of a contract's gRPC stubs, with the name of each service in it."""
    messages = importlib.import_module(f"node_agent.wire.{proto}_pb2")
    stubs = importlib.import_module(f"node_agent.wire.{proto}_pb2_grpc")
    return ((stubs, service) for service in messages.DESCRIPTOR.services_by_name)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*_pb2*.py*")}


def test_the_committed_stubs_are_what_the_protos_generate(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "protos/generate.py", tmp_path], check=True)
    generated, committed = contents(tmp_path / STUBS), contents(ROOT / STUBS)
    assert len(generated) == 4 * len(PATHS)
    outdated = {name for name in generated | committed if generated.get(name) != committed.get(name)}
    assert not outdated, "generate them anew with `make protos`"


def test_generating_removes_the_stubs_of_a_proto_that_has_gone(tmp_path: Path) -> None:
    orphan = tmp_path / STUBS / "gone_v1_pb2.py"
    orphan.parent.mkdir(parents=True)
    orphan.touch()
    subprocess.run([sys.executable, ROOT / "protos/generate.py", tmp_path], check=True)
    assert not orphan.exists()


def test_every_contract_is_among_those_whose_paths_are_checked() -> None:
    assert {proto.stem for proto in (ROOT / "protos").glob("*.proto")} == set(PATHS)


@pytest.mark.parametrize("proto", PATHS)
def test_a_stub_dials_the_paths_of_its_contract(proto: str) -> None:
    channel = RecordingChannel()
    for stubs, service in services_of(proto):
        getattr(stubs, f"{service}Stub")(channel)
    assert channel.paths == PATHS[proto]


@pytest.mark.parametrize("proto", PATHS)
def test_a_servicer_answers_under_the_paths_of_its_contract(proto: str) -> None:
    server = RecordingServer()
    for stubs, service in services_of(proto):
        getattr(stubs, f"add_{service}Servicer_to_server")(getattr(stubs, f"{service}Servicer")(), server)
    assert server.paths == PATHS[proto]


def test_all_modules_live_together_in_one_process() -> None:
    modules = [
        importlib.import_module(f"{wire.__name__}.{found.name}") for found in pkgutil.iter_modules(wire.__path__)
    ]
    files = {module.DESCRIPTOR.name for module in modules if hasattr(module, "DESCRIPTOR")}
    assert files == {f"{STUBS}/{proto}.proto" for proto in PATHS}


def test_pod_resources_and_device_health_share_a_package_without_a_clash() -> None:
    pool = descriptor_pool.Default()
    importlib.import_module("node_agent.wire.podresources_v1_pb2")
    homes = {name: pool.FindMessageTypeByName(name).file.name for name in ("v1.PodResources", "v1.DeviceHealth")}
    assert homes == {
        "v1.PodResources": f"{STUBS}/podresources_v1.proto",
        "v1.DeviceHealth": f"{STUBS}/dra_health_v1.proto",
    }


def test_an_older_kubelet_reads_a_prepared_device_of_the_newer_contract() -> None:
    newer = dra_v1_pb2.Device(
        request_names=["gpu"], pool_name="node-a", device_name="gpu-0", cdi_device_ids=["a/b=c"], share_id="s"
    )
    older = dra_v1beta1_pb2.Device.FromString(newer.SerializeToString())
    assert (older.pool_name, older.device_name) == ("node-a", "gpu-0")
    assert (list(older.request_names), list(older.cdi_device_ids)) == (["gpu"], ["a/b=c"])


def test_a_share_id_that_was_not_set_differs_from_an_empty_one() -> None:
    assert not dra_v1_pb2.Device().HasField("share_id")
    assert dra_v1_pb2.Device(share_id="").HasField("share_id")


class OneSickGpu(dra_health_v1_pb2_grpc.DRAResourceHealthServicer):
    """Reports one device, unhealthy, and ends the stream."""

    async def NodeWatchResources(
        self, request: dra_health_v1_pb2.NodeWatchResourcesRequest, context: object
    ) -> AsyncIterator[dra_health_v1_pb2.NodeWatchResourcesResponse]:
        device = dra_health_v1_pb2.DeviceIdentifier(pool_name="node-a", device_name="gpu-0")
        health = dra_health_v1_pb2.DeviceHealth(device=device, health=dra_health_v1_pb2.UNHEALTHY)
        yield dra_health_v1_pb2.NodeWatchResourcesResponse(devices=[health])


async def test_a_stream_reaches_its_client_over_a_unix_socket(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/health.sock"
    server = grpc.aio.server()
    dra_health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(OneSickGpu(), server)
    server.add_insecure_port(address)
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        stub = dra_health_v1_pb2_grpc.DRAResourceHealthStub(channel)
        request = dra_health_v1_pb2.NodeWatchResourcesRequest()
        reports = [report.devices[0].device.device_name async for report in stub.NodeWatchResources(request)]
    await server.stop(None)
    assert reports == ["gpu-0"]
