"""What the kubelet is answered when it asks for devices: over real gRPC, and the pure answer beneath."""

import grpc
import pytest
from grpc import aio

from node_agent.deviceplugin.answer import STRATEGIES, Naming, answer
from node_agent.errors import KubeletError
from node_agent.kubelet.embedded import EmbeddedKubelet
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Reason, Severity
from node_agent.telemetry.catalogue import ALLOCATIONS
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from node_agent.wire import deviceplugin_v1beta1_pb2_grpc as rpc
from tests.unit.deviceplugin.conftest import RESOURCE, World, device, node, served

NAMING = Naming(qualified=lambda name: f"test.example/gpu={name}")
XID = Cause(reason=Reason.XID, severity=Severity.WITHDRAWN, message="Xid 79; back when …", since=0.0, code=79)


def allocate(*ids: str) -> wire.AllocateRequest:
    return wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=ids)])


async def test_a_pod_gets_the_cdi_names_of_its_gpus_and_nothing_else(world: World, kubelet: EmbeddedKubelet) -> None:
    async with kubelet.running(), served(world, kubelet):
        await kubelet.until(RESOURCE, allocatable=8)
        ids, response = await kubelet.admit("pod", RESOURCE, 2)

    assert [device.name for device in response.cdi_devices] == [f"test.example/gpu={name}" for name in ids]
    assert not response.envs and not response.mounts and not response.devices and not response.annotations


async def test_pods_share_the_node_without_sharing_a_gpu(world: World, kubelet: EmbeddedKubelet) -> None:
    async with kubelet.running(), served(world, kubelet):
        await kubelet.until(RESOURCE, allocatable=8)
        taken = [(await kubelet.admit(pod, RESOURCE, count))[0] for pod, count in (("a", 4), ("b", 2), ("c", 2))]
        with pytest.raises(KubeletError, match=r"wants 1 of nvidia\.com/gpu, 0 are free"):
            await kubelet.admit("one-too-many", RESOURCE, 1)
        kubelet.release("a")
        again, _ = await kubelet.admit("next", RESOURCE, 4)

    assert sorted(name for ids in taken for name in ids) == [f"GPU-{number}" for number in range(8)]
    assert sorted(again) == sorted(taken[0])


async def test_a_pod_is_admitted_once(world: World, kubelet: EmbeddedKubelet) -> None:
    async with kubelet.running(), served(world, kubelet):
        await kubelet.until(RESOURCE, allocatable=8)
        await kubelet.admit("a", RESOURCE, 1)
        with pytest.raises(KubeletError, match="a is there already"):
            await kubelet.admit("a", RESOURCE, 1)


async def test_the_five_calls_are_served_on_the_registered_socket(world: World, kubelet: EmbeddedKubelet) -> None:
    async with kubelet.running(), served(world, kubelet):
        view = await kubelet.until(RESOURCE, allocatable=8)
        async with aio.insecure_channel(f"unix:{view.endpoint}") as channel:
            plugin = rpc.DevicePluginStub(channel)
            options = await plugin.GetDevicePluginOptions(wire.Empty())
            first = await plugin.ListAndWatch(wire.Empty()).read()
            preferred = await plugin.GetPreferredAllocation(
                wire.PreferredAllocationRequest(
                    container_requests=[
                        wire.ContainerPreferredAllocationRequest(
                            available_deviceIDs=["GPU-5", "GPU-1"], must_include_deviceIDs=["GPU-5"], allocation_size=1
                        )
                    ]
                )
            )
            allocated = await plugin.Allocate(allocate("GPU-5"))
            started = await plugin.PreStartContainer(wire.PreStartContainerRequest(devices_ids=["GPU-5"]))

    assert (options.pre_start_required, options.get_preferred_allocation_available) == (False, True)
    assert isinstance(first, wire.ListAndWatchResponse) and len(first.devices) == 8
    assert list(preferred.container_responses[0].deviceIDs) == ["GPU-5"]
    assert allocated.container_responses[0].cdi_devices[0].name == "test.example/gpu=GPU-5"
    assert started == wire.PreStartContainerResponse()


async def test_an_unknown_or_withdrawn_device_is_refused_with_the_reason(
    world: World, kubelet: EmbeddedKubelet
) -> None:
    async with kubelet.running(), served(world, kubelet):
        view = await kubelet.until(RESOURCE, allocatable=8)
        world.health.set(HealthReport(devices={GpuUuid("GPU-2"): DeviceHealth(causes=(XID,))}))
        await kubelet.until(RESOURCE, allocatable=7)
        async with aio.insecure_channel(f"unix:{view.endpoint}") as channel:
            plugin = rpc.DevicePluginStub(channel)
            refusals = []
            told = ALLOCATIONS.values[(RESOURCE, "failed")].count
            for name in ("GPU-2", "GPU-99"):
                with pytest.raises(aio.AioRpcError) as caught:
                    await plugin.Allocate(allocate(name))
                refusals.append((caught.value.code(), caught.value.details()))

    assert ALLOCATIONS.values[(RESOURCE, "failed")].count == told + 2
    assert refusals == [
        (grpc.StatusCode.FAILED_PRECONDITION, "GPU-2 is out of service: Xid 79; back when …"),
        (grpc.StatusCode.FAILED_PRECONDITION, "nvidia.com/gpu has no device 'GPU-99' on this node"),
    ]


async def test_devices_reach_the_answer_in_one_order_whatever_the_kubelets(
    world: World, kubelet: EmbeddedKubelet
) -> None:
    async with kubelet.running(), served(world, kubelet):
        view = await kubelet.until(RESOURCE, allocatable=8)
        async with aio.insecure_channel(f"unix:{view.endpoint}") as channel:
            plugin = rpc.DevicePluginStub(channel)
            one = await plugin.Allocate(allocate("GPU-3", "GPU-1", "GPU-2"))
            other = await plugin.Allocate(allocate("GPU-2", "GPU-3", "GPU-1"))

    assert one == other
    assert [device.id for device in world.given[0]] == ["GPU-1", "GPU-2", "GPU-3"]


@pytest.mark.parametrize("registrar_version", ["v1alpha1", ""])
async def test_the_embedded_kubelet_refuses_other_versions_as_the_real_one_does(
    kubelet: EmbeddedKubelet, registrar_version: str
) -> None:
    async with kubelet.running(), aio.insecure_channel(f"unix:{kubelet.folder}/kubelet.sock") as channel:
        with pytest.raises(aio.AioRpcError, match="not supported"):
            await rpc.RegistrationStub(channel).Register(
                wire.RegisterRequest(version=registrar_version, endpoint="x.sock", resource_name=RESOURCE)
            )


def test_the_envvar_strategy_names_uuids_for_the_container_toolkit() -> None:
    assert answer([device(1), device(2)], ["envvar"], NAMING).environment == {"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2"}


def test_the_volume_mounts_strategy_mounts_null_under_each_name() -> None:
    found = answer([device(1)], ["volume-mounts"], NAMING)
    assert found.environment == {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}
    assert [(mount.host_path, mount.container_path) for mount in found.mounts] == [
        ("/dev/null", "/var/run/nvidia-container-devices/GPU-1")
    ]


def test_the_annotation_strategy_lists_qualified_names_under_one_key() -> None:
    found = answer([device(1), device(2)], ["cdi-annotations"], NAMING)
    assert found.annotations == {"cdi.k8s.io/node-agent_gpu": "test.example/gpu=GPU-1,test.example/gpu=GPU-2"}


def test_devices_can_be_named_by_index() -> None:
    by_index = Naming(qualified=NAMING.qualified, by_index=True)
    assert answer([device(1)], ["cdi-cri", "envvar"], by_index).cdi_names == ("test.example/gpu=1",)
    assert answer([device(1)], ["cdi-cri", "envvar"], by_index).environment == {"NVIDIA_VISIBLE_DEVICES": "1"}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gpu_is_named_once_however_many_of_its_shares_are_given(strategy: str) -> None:
    assert answer([device(1)] * 1000, [strategy], NAMING) == answer([device(1)], [strategy], NAMING)


def test_the_fixture_node_has_two_numa_nodes() -> None:
    assert [one.numa_node for one in node(8).gpus] == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("available", "must", "size"),
    [
        (["GPU-0", "GPU-9"], [], 2),
        (["GPU-0"], [], 3),
        ([], [], 1),
        ([], ["GPU-1", "GPU-2"], 1),
        (["GPU-0"], ["GPU-9"], 2),
        (["GPU-0"], [], 0),
        (["GPU-0"], [], -1),
        (["GPU-0", "GPU-0"], ["GPU-0"], 2),
    ],
)
async def test_whatever_is_asked_there_is_a_preference_or_none_and_never_an_error(
    world: World, kubelet: EmbeddedKubelet, available: list[str], must: list[str], size: int
) -> None:
    """An error would fail the pod; a short answer the kubelet completes."""
    request = wire.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )
    async with kubelet.running(), served(world, kubelet):
        endpoint = (await kubelet.until(RESOURCE, allocatable=8)).endpoint
        async with aio.insecure_channel(f"unix:{endpoint}") as channel:
            plugin = rpc.DevicePluginStub(channel)
            answer = await plugin.GetPreferredAllocation(wire.PreferredAllocationRequest(container_requests=[request]))
    (chosen,) = answer.container_responses
    assert set(must) <= set(chosen.deviceIDs) <= {*available, *must}
