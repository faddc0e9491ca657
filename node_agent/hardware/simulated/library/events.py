"""C functions about events: sets, registration, and the wait that a fault ends at once."""

import time
from typing import Any

from node_agent.hardware.simulated.driver import Driver
from node_agent.hardware.simulated.events import Event, EventSet, supported_events
from node_agent.hardware.simulated.gpu import SimulatedGpu
from node_agent.hardware.simulated.library.calls import Target, call, fill
from node_agent.hardware.simulated.returns import NvmlReturn


@call()
def nvmlEventSetCreate(driver: Driver) -> int:
    return driver.create_event_set()


@call()
def nvmlEventSetFree(driver: Driver, event_set: EventSet) -> None:
    driver.free_event_set(event_set)


@call()
def nvmlDeviceGetSupportedEventTypes(gpu: SimulatedGpu) -> int:
    return supported_events(gpu)


@call()
def nvmlDeviceRegisterEvents(gpu: SimulatedGpu, mask: int, event_set: EventSet) -> None:
    """All of the mask or nothing: one event that the GPU cannot report refuses the others, too."""
    if mask & ~supported_events(gpu):
        raise NvmlReturn("NOT_SUPPORTED")
    event_set.register(gpu, mask)


@call()
def nvmlEventSetWait_v2(driver: Driver, event_set: EventSet, data: Target, timeout_ms: int) -> None:
    deadline = time.monotonic() + timeout_ms / 1000
    # Events queued before a GPU was lost still come out first; after them the loss ends every wait.
    while not event_set.queue:
        if event_set.has_lost:
            raise NvmlReturn("GPU_IS_LOST")
        if not driver.changed.wait(deadline - time.monotonic()):
            raise NvmlReturn("TIMEOUT")
        # Shutdown frees all sets, and a driver that was unloaded reports nothing any more.
        driver.require_usable()
    fill(data, _event_fields(driver, event_set.queue.popleft()))


def _event_fields(driver: Driver, event: Event) -> dict[str, Any]:
    return {
        "device": driver.handle(event.gpu),
        "eventType": event.type,
        "eventData": event.data,
        "gpuInstanceId": event.instance,
        "computeInstanceId": event.compute_instance,
    }
