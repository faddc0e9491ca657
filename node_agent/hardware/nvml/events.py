"""What the driver reports by itself: Xids, lost GPUs, and changes worth another look.

One NVML event set at a time, made, waited on and freed by one thread, apart from the one that asks everything else.
"""

import ctypes
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

import pynvml

from node_agent.errors import CallTimedOut, DeviceLost, HardwareError, NotSupported
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.nvml.translate import Calls, Handle
from node_agent.hardware.provider import EventKind, HardwareEvent
from node_agent.model.gpu import GpuUuid

# A wait cannot be interrupted, so it is kept short: closing and re-opening the library wait for its end.
WAIT_SECONDS = 1.0

# Beside Xids what may change the verdict on a GPU: each asks for another look at it. ECC errors that were corrected,
# clocks and power states change all the time and are not asked for.
_WANTED = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventMigConfigChange
    | pynvml.nvmlEventTypeDramRetirementFailure
    | pynvml.nvmlEventTypeFatalPoisonError
    | pynvml.nvmlEventTypeGpuUnavailableError
    | pynvml.nvmlEventTypeGpuRecoveryAction
)

_NO_INSTANCE = 0xFFFFFFFF

# A lost GPU may still answer what the library remembers, so it is asked for something that only the board knows too.
_PROBES = (pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlDeviceGetPciInfo)


class EventSet:
    """The events of some GPUs, from ``open`` to ``close``; void when the session starts anew."""

    def __init__(self, session: Session, calls: Calls) -> None:
        self._session = session
        self._calls = calls
        self._generation = 0
        self._set: Handle | None = None
        self._watched: dict[GpuUuid, Handle] = {}
        self._failure: HardwareError | None = None

    def open(self, gpus: Collection[GpuUuid]) -> Mapping[GpuUuid, HardwareError]:
        """Register the GPUs; answers those that cannot be monitored, and why."""
        with self._session.guard:
            self._generation = self._session.generation
            return self._register_all(gpus)

    def wait(self) -> list[HardwareEvent]:
        """Wait a moment for events; most often there are none. Raises HardwareError when the set is of no more use."""
        # What NVML makes of a wait for nobody is not documented.
        if not self._watched and self._failure is None:
            time.sleep(WAIT_SECONDS)
            return []
        with self._session.guard:
            return self._wait(WAIT_SECONDS)

    def close(self) -> list[HardwareEvent]:
        """Free the set; answers the events that were still queued."""
        with self._session.guard:
            events = self._drain()
            self._free()
        return events

    def _drain(self) -> list[HardwareEvent]:
        events: list[HardwareEvent] = []
        # Troubles of a set that is about to be freed are no news: whoever subscribes anew meets them with the new set.
        with suppress(HardwareError):
            while more := self._wait(0) if self._watched else []:
                events += more
        return events

    def _free(self) -> None:
        # Closing the library has freed the set already; one that the driver refuses to free is of no use either way.
        if self._set is not None and self._session.generation == self._generation:
            with suppress(HardwareError):
                self._calls(pynvml.nvmlEventSetFree, self._set)
        self._set, self._watched = None, {}

    def _register_all(self, gpus: Collection[GpuUuid]) -> dict[GpuUuid, HardwareError]:
        """Make a set of the GPUs that allow it. A failed registration may spoil it: then it is made again without."""
        refused: dict[GpuUuid, HardwareError] = {}
        while True:
            self._free()
            try:
                self._set = self._calls(pynvml.nvmlEventSetCreate)
            except NotSupported as error:
                return dict.fromkeys(gpus, error)
            spoiled = False
            for gpu in gpus:
                if gpu in refused:
                    continue
                try:
                    self._watched[gpu] = self._register(gpu)
                except HardwareError as error:
                    refused[gpu] = error
                    spoiled = spoiled or not isinstance(error, NotSupported)
            if not spoiled:
                return refused

    def _register(self, gpu: GpuUuid) -> Handle:
        handle = self._session.handle(gpu)
        # One type that the GPU cannot report would refuse all the others.
        supported = self._calls(pynvml.nvmlDeviceGetSupportedEventTypes, handle) & _WANTED
        if not supported & pynvml.nvmlEventTypeXidCriticalError:
            raise NotSupported(f"{gpu} reports no Xids", call="nvmlDeviceGetSupportedEventTypes")
        self._calls(pynvml.nvmlDeviceRegisterEvents, handle, supported, self._set)
        return handle

    def _wait(self, seconds: float) -> list[HardwareEvent]:
        if self._failure is not None:
            raise self._failure
        if self._session.generation != self._generation:
            raise HardwareError("the driver was opened anew: subscribe again")
        try:
            data = self._calls(pynvml.nvmlEventSetWait_v2, self._set, int(seconds * 1000))
        except CallTimedOut:
            return []
        except DeviceLost as error:
            return self._leave_out_lost(error)
        return [self._event(data)]

    def _event(self, data: pynvml.c_nvmlEventData_t) -> HardwareEvent:
        gpu = self._named(data.device)
        if data.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return HardwareEvent(kind=EventKind.CHANGED, gpu=gpu)
        return HardwareEvent(
            kind=EventKind.FAULT,
            gpu=gpu,
            code=data.eventData,
            instance=_instance(data.gpuInstanceId),
            compute_instance=_instance(data.computeInstanceId),
        )

    def _named(self, handle: Handle) -> GpuUuid | None:
        """The GPU behind an event's handle: by its UUID, or by the handle where the GPU does not answer any more."""
        try:
            return GpuUuid(self._calls.text(pynvml.nvmlDeviceGetUUID, handle))
        except HardwareError:
            address = _address(handle)
            return next((gpu for gpu, known in self._watched.items() if _address(known) == address), None)

    def _leave_out_lost(self, error: DeviceLost) -> list[HardwareEvent]:
        """Find out which GPUs are lost, since the driver does not say and repeats itself until they are left out."""
        lost = [gpu for gpu, handle in self._watched.items() if self._is_lost(handle)]
        if not lost:
            raise error
        refused = self._register_all([gpu for gpu in self._watched if gpu not in lost])
        lost += [gpu for gpu, reason in refused.items() if isinstance(reason, DeviceLost)]
        self._failure = next((reason for gpu, reason in refused.items() if gpu not in lost), None)
        return [HardwareEvent(kind=EventKind.LOST, gpu=gpu) for gpu in lost]

    def _is_lost(self, handle: Handle) -> bool:
        for probe in _PROBES:
            try:
                self._calls(probe, handle)
            except DeviceLost:
                return True
            except HardwareError:
                continue
        return False


def _instance(number: int) -> int | None:
    return None if number == _NO_INSTANCE else number


def _address(handle: Handle) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
