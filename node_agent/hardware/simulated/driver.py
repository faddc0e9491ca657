"""The driver of a simulated node: the state that the C functions in ``library`` read and that ``faults`` changes.

It knows which GPUs the last initialisation found, who is waiting for events, and which faults are set on which calls.
Everything is guarded by ``changed``, a condition that also wakes the waiters.
"""

import threading
from collections.abc import Callable
from itertools import count

from msgspec import Struct, field

from node_agent.hardware.simulated.events import Event, EventSet
from node_agent.hardware.simulated.gpu import MigDevice, SimulatedGpu, build_gpus
from node_agent.hardware.simulated.handles import Handles
from node_agent.hardware.simulated.mig import GpuInstance
from node_agent.hardware.simulated.profile import NodeProfile
from node_agent.hardware.simulated.returns import NvmlReturn
from node_agent.hardware.simulated.samples import PerformanceSample

MODULE_STATES = ("loaded", "not-loaded", "version-mismatch")


class OwnedInstance(Struct, frozen=True, kw_only=True):
    """A GPU instance with the GPU that it is cut from."""

    gpu: SimulatedGpu
    instance: GpuInstance


class CallFault(Struct, kw_only=True):
    """A named call fails or hangs, on one GPU or on all, ``times`` more or until cleared."""

    call: str
    gpu: SimulatedGpu | None = None
    error: str | None = None
    hang_seconds: float = 0.0
    times: int | None = None
    cleared: threading.Event = field(default_factory=threading.Event)

    def hits(self, call: str, gpu: SimulatedGpu | None) -> bool:
        return self.call == call and self.gpu in (None, gpu) and self.times != 0


class Driver:
    """One node's driver, module and library together.

    ``gpus`` are all of the profile, ``visible`` those that the last initialisation found, in the order of their index.
    """

    def __init__(self, profile: NodeProfile) -> None:
        self.profile = profile
        self.version = profile.driver.version
        self.cuda = profile.driver.cuda
        self.gpus = build_gpus(profile)
        self.visible: list[SimulatedGpu] = []
        self.changed = threading.Condition(threading.RLock())
        self.handles = Handles()
        self.event_sets: dict[int, EventSet] = {}
        self.call_faults: list[CallFault] = []
        self.module = "loaded"
        self.followers: list[Callable[[], None]] = []
        self._initialised = 0
        self._loads = 0
        self._loads_at_init = 0
        self._event_sets_made = 0
        self.samples: dict[int, PerformanceSample] = {}

    def initialise(self) -> None:
        """Count one more user; the first one finds the GPUs, and later changes need a new first one."""
        self._require_module(mismatch="LIB_RM_VERSION_MISMATCH")
        # The real library lists the GPUs once, at its first initialisation: a GPU plugged in later needs a new one.
        if not self._initialised:
            self.visible = [gpu for gpu in self.gpus if gpu.plugged]
            self._loads_at_init = self._loads
        self._initialised += 1

    def shut_down(self) -> None:
        self.require_initialised()
        self._initialised -= 1
        if not self._initialised:
            self.event_sets.clear()
            self.samples.clear()
            self.changed.notify_all()

    def require_initialised(self) -> None:
        if not self._initialised:
            raise NvmlReturn("UNINITIALIZED")

    def require_usable(self) -> None:
        """A driver that went away under its users stays unusable for them until they initialise again."""
        self.require_initialised()
        self._require_module(mismatch="UNKNOWN")
        if self._loads != self._loads_at_init:
            raise NvmlReturn("UNKNOWN")

    def load(self, module: str, version: str | None = None) -> None:
        """Unload the module, load it, or load one that does not fit the library; instances do not survive any of it."""
        self.module = module
        self.version = version or self.version
        self._loads += 1
        for gpu in self.gpus:
            gpu.reload()
        self.hardware_changed()

    def hardware_changed(self) -> None:
        """Say that GPUs, instances or the module came or went: who keeps files of them brings those up to date."""
        self.changed.notify_all()
        for follow in self.followers:
            follow()

    def handle(self, gpu: SimulatedGpu) -> int:
        return self.handles.address("gpu", gpu.slot)

    def mig_handle(self, device: MigDevice) -> int:
        return self.handles.address("mig", device.gpu.slot, device.compute.slot)

    def instance_handle(self, gpu: SimulatedGpu, instance: GpuInstance) -> int:
        return self.handles.address("instance", gpu.slot, instance.id)

    def compute_handle(self, device: MigDevice) -> int:
        return self.handles.address("compute", device.gpu.slot, device.instance.id, device.compute.id)

    def device(self, address: int | None) -> SimulatedGpu | MigDevice:
        """The GPU or MIG device behind a device handle."""
        match self.handles.place(address):
            case ("gpu", int(slot)):
                return self._reachable(slot)
            case ("mig", int(slot), int(number)):
                for device in self._reachable(slot).mig_devices():
                    if device.compute.slot == number:
                        return device
        raise NvmlReturn("INVALID_ARGUMENT")

    def instance(self, address: int | None) -> OwnedInstance:
        match self.handles.place(address):
            case ("instance", int(slot), int(number)):
                gpu = self._reachable(slot)
                if gpu.mig and number in gpu.mig.instances:
                    return OwnedInstance(gpu=gpu, instance=gpu.mig.instances[number])
        raise NvmlReturn("INVALID_ARGUMENT")

    def compute_instance(self, address: int | None) -> MigDevice:
        match self.handles.place(address):
            case ("compute", int(slot), int(instance), int(compute)):
                for device in self._reachable(slot).mig_devices():
                    if (device.instance.id, device.compute.id) == (instance, compute):
                        return device
        raise NvmlReturn("INVALID_ARGUMENT")

    def create_event_set(self) -> int:
        self._event_sets_made += 1
        self.event_sets[self._event_sets_made] = EventSet()
        return self.handles.address("events", self._event_sets_made)

    def event_set(self, address: int | None) -> EventSet:
        match self.handles.place(address):
            case ("events", int(number)) if number in self.event_sets:
                return self.event_sets[number]
        raise NvmlReturn("INVALID_ARGUMENT")

    def free_event_set(self, event_set: EventSet) -> None:
        self.event_sets = {number: other for number, other in self.event_sets.items() if other is not event_set}
        self.changed.notify_all()

    def allocate_sample(self) -> int:
        # A number that is free again is used again, as a heap does: each that was ever used takes an address.
        number = next(number for number in count() if number not in self.samples)
        self.samples[number] = PerformanceSample()
        return self.handles.address("sample", number)

    def sample(self, address: int | None) -> PerformanceSample:
        match self.handles.place(address):
            case ("sample", int(number)) if number in self.samples:
                return self.samples[number]
        raise NvmlReturn("INVALID_ARGUMENT")

    def free_sample(self, sample: PerformanceSample) -> None:
        self.samples = {number: other for number, other in self.samples.items() if other is not sample}

    def report(self, event: Event) -> None:
        """Queue an event wherever it is asked for, and wake whoever waits."""
        for event_set in self.event_sets.values():
            event_set.offer(event)
        self.changed.notify_all()

    def meet_fault(self, call: str, gpu: SimulatedGpu | None) -> None:
        """Hang and fail as the first fault set on this call says. Must not be called with ``changed`` held."""
        with self.changed:
            fault = next((fault for fault in self.call_faults if fault.hits(call, gpu)), None)
            if fault and fault.times:
                fault.times -= 1
        # Waiting is done without the lock, so that other calls go on and the fault can be cleared.
        if fault:
            fault.cleared.wait(fault.hang_seconds)
        if fault and fault.error:
            raise NvmlReturn(fault.error)

    def clear_call_faults(self) -> None:
        for fault in self.call_faults:
            fault.cleared.set()
        self.call_faults.clear()

    def _reachable(self, slot: int) -> SimulatedGpu:
        gpu = self.gpus[slot]
        # A handle from before a new initialisation is worth nothing if its GPU is not there any more.
        if gpu not in self.visible:
            raise NvmlReturn("INVALID_ARGUMENT")
        if not gpu.reachable:
            raise NvmlReturn("GPU_IS_LOST")
        return gpu

    def _require_module(self, *, mismatch: str) -> None:
        if self.module == "not-loaded":
            raise NvmlReturn("DRIVER_NOT_LOADED")
        if self.module == "version-mismatch":
            raise NvmlReturn(mismatch)
