"""The health stream that the kubelet shows in pods' status."""

import asyncio
from pathlib import Path

from grpc import aio

from node_agent.dra.health import (
    AGAIN_SECONDS,
    LONGEST_MESSAGE,
    TIMEOUT_SECONDS,
    HealthFeed,
    HealthServicerV1,
    HealthServicerV1Alpha1,
)
from node_agent.kit.latest import Latest
from node_agent.kubelet.server import serving
from node_agent.model.device import DeviceKind, PublishedDevice
from node_agent.model.gpu import GpuUuid, device_name
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Reason, Severity
from node_agent.model.inventory import Inventory
from node_agent.wire import dra_health_v1_pb2 as v1
from node_agent.wire import dra_health_v1_pb2_grpc as v1_rpc
from node_agent.wire import dra_health_v1alpha1_pb2 as v1alpha1
from node_agent.wire import dra_health_v1alpha1_pb2_grpc as v1alpha1_rpc

A, B = GpuUuid("GPU-0"), GpuUuid("GPU-1")
PUBLISHED: dict[str, PublishedDevice] = {
    device.name: device
    for device in (
        PublishedDevice(name=device_name("gpu-0"), kind=DeviceKind.GPU, gpus=(A,)),
        PublishedDevice(name=device_name("gpu-1"), kind=DeviceKind.GPU, gpus=(B,)),
        PublishedDevice(name=device_name("group-2-0"), kind=DeviceKind.GROUP, gpus=(A, B)),
    )
}


def report(message: str = "Xid 79", severity: Severity = Severity.WITHDRAWN) -> HealthReport:
    cause = Cause(reason=Reason.XID, severity=severity, message=message, since=0.0, code=79)
    return HealthReport(devices={A: DeviceHealth(causes=(cause,))})


def feed_of(health: Latest[HealthReport], again_seconds: float = 60.0) -> HealthFeed:
    return HealthFeed(
        pool="node-1",
        report=health,
        inventory=Latest(Inventory()),
        published=lambda: PUBLISHED,
        again_seconds=again_seconds,
    )


async def test_a_withdrawn_gpu_is_unhealthy_and_so_is_every_group_with_it() -> None:
    health = Latest(HealthReport())
    lists = feed_of(health).lists()
    assert [state.healthy for state in await anext(lists)] == [True, True, True]
    health.set(report())
    states = await anext(lists)
    assert [(state.device, state.healthy) for state in states] == [
        ("gpu-0", False),
        ("gpu-1", True),
        ("group-2-0", False),
    ]
    assert states[0].message == "GPU-0: Xid 79"


async def test_a_degraded_gpu_is_healthy_and_its_trouble_is_told() -> None:
    state, *_ = await anext(feed_of(Latest(report(severity=Severity.DEGRADED))).lists())
    assert state.healthy
    assert "Xid 79" in state.message


async def test_the_list_is_sent_again_before_the_kubelet_takes_it_for_stale() -> None:
    lists = feed_of(Latest(HealthReport()), again_seconds=0.01).lists()
    async with asyncio.timeout(30):
        first, second, third = [await anext(lists) for _ in range(3)]
    assert first == second == third


def test_a_list_that_is_lost_leaves_time_for_another_before_the_kubelet_doubts_it() -> None:
    assert 2 * AGAIN_SECONDS < TIMEOUT_SECONDS <= 30


async def test_a_long_message_is_cut_to_what_the_kubelet_keeps() -> None:
    state, *_ = await anext(feed_of(Latest(report("x" * 5000))).lists())
    assert len(state.message) == LONGEST_MESSAGE


async def test_both_versions_of_the_service_say_the_same_until_the_feed_closes(tmp_path: Path) -> None:
    health = Latest(report())
    feed, path = feed_of(health), tmp_path / "h.sock"

    def add(server: aio.Server) -> None:
        v1_rpc.add_DRAResourceHealthServicer_to_server(HealthServicerV1(feed), server)
        v1alpha1_rpc.add_DRAResourceHealthServicer_to_server(HealthServicerV1Alpha1(feed), server)

    async with serving(path, add), aio.insecure_channel(f"unix:{path}") as channel:
        new = v1_rpc.DRAResourceHealthStub(channel).NodeWatchResources(v1.NodeWatchResourcesRequest())
        old = v1alpha1_rpc.DRAResourceHealthStub(channel).NodeWatchResources(v1alpha1.NodeWatchResourcesRequest())
        first, other = await new.read(), await old.read()
        assert isinstance(first, v1.NodeWatchResourcesResponse)
        assert isinstance(other, v1alpha1.NodeWatchResourcesResponse)
        assert first.SerializeToString() == other.SerializeToString()
        device = first.devices[0]
        assert (device.device.pool_name, device.device.device_name) == ("node-1", "gpu-0")
        assert device.health == v1.HealthStatus.UNHEALTHY
        assert device.health_check_timeout_seconds == 30
        feed.close()
        assert await new.read() is aio.EOF
        assert await old.read() is aio.EOF
