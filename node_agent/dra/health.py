"""The health of the offered devices, as a stream for the kubelet: it shows in the status of the pods that hold them."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from msgspec import Struct

from node_agent.dra.device_health import causes_of, health_of
from node_agent.kit.latest import Latest, changes
from node_agent.model.device import PublishedDevice
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory
from node_agent.wire import dra_health_v1_pb2 as v1
from node_agent.wire import dra_health_v1_pb2_grpc as v1_rpc
from node_agent.wire import dra_health_v1alpha1_pb2 as v1alpha1
from node_agent.wire import dra_health_v1alpha1_pb2_grpc as v1alpha1_rpc

# The kubelet takes a health that was not sent again for 30 seconds for unknown.
TIMEOUT_SECONDS = 30
AGAIN_SECONDS = 10.0
# It cuts longer messages off.
LONGEST_MESSAGE = 1024


class DeviceState(Struct, frozen=True, kw_only=True):
    """One device's health, as both versions of the service tell it."""

    pool: str
    device: str
    healthy: bool
    message: str = ""


class HealthFeed:
    """What is sent, and when: the whole list at each change, and again before the kubelet takes it for stale."""

    def __init__(
        self,
        *,
        pool: str,
        report: Latest[HealthReport],
        inventory: Latest[Inventory],
        published: Callable[[], Mapping[str, PublishedDevice]],
        again_seconds: float = AGAIN_SECONDS,
    ) -> None:
        self._pool = pool
        self._report = report
        self._inventory = inventory
        self._published = published
        self._again_seconds = again_seconds
        self._closed = Latest(False)

    def close(self) -> None:
        """End every stream, so that the server can stop."""
        self._closed.set(True)

    async def lists(self) -> AsyncIterator[list[DeviceState]]:
        """The present list, and each that follows, until ``close``."""
        async for _ in changes(self._report, self._inventory, self._closed, every=lambda: self._again_seconds):
            if self._closed.value:
                return
            yield [self._state(device) for device in self._published().values()]

    def _state(self, device: PublishedDevice) -> DeviceState:
        """A device is as healthy as the worst GPU that it stands for, or as its part of one."""
        report, inventory = self._report.value, self._inventory.value
        message = "; ".join(f"{gpu}: {cause.text}" for gpu, cause in causes_of(device, report, inventory))
        return DeviceState(
            pool=self._pool,
            device=device.name,
            healthy=not health_of(device, report, inventory).withdrawn,
            message=message[:LONGEST_MESSAGE],
        )


class HealthServicerV1(v1_rpc.DRAResourceHealthServicer):
    """``v1.DRAResourceHealth``."""

    def __init__(self, feed: HealthFeed) -> None:
        self._feed = feed

    async def NodeWatchResources(
        self, request: v1.NodeWatchResourcesRequest, context: Any
    ) -> AsyncIterator[v1.NodeWatchResourcesResponse]:
        async for states in self._feed.lists():
            yield v1.NodeWatchResourcesResponse(
                devices=[
                    v1.DeviceHealth(
                        device=v1.DeviceIdentifier(pool_name=state.pool, device_name=state.device),
                        health=v1.HealthStatus.HEALTHY if state.healthy else v1.HealthStatus.UNHEALTHY,
                        health_check_timeout_seconds=TIMEOUT_SECONDS,
                        message=state.message,
                    )
                    for state in states
                ]
            )


class HealthServicerV1Alpha1(v1alpha1_rpc.DRAResourceHealthServicer):
    """``v1alpha1.DRAResourceHealth``, for kubelets before v1."""

    def __init__(self, feed: HealthFeed) -> None:
        self._feed = feed

    async def NodeWatchResources(
        self, request: v1alpha1.NodeWatchResourcesRequest, context: Any
    ) -> AsyncIterator[v1alpha1.NodeWatchResourcesResponse]:
        async for states in self._feed.lists():
            yield v1alpha1.NodeWatchResourcesResponse(
                devices=[
                    v1alpha1.DeviceHealth(
                        device=v1alpha1.DeviceIdentifier(pool_name=state.pool, device_name=state.device),
                        health=v1alpha1.HealthStatus.HEALTHY if state.healthy else v1alpha1.HealthStatus.UNHEALTHY,
                        health_check_timeout_seconds=TIMEOUT_SECONDS,
                        message=state.message,
                    )
                    for state in states
                ]
            )
