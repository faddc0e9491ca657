"""Faults put into a simulated node while it runs: the Python interface that tests use and ``control`` serves.

Each method either changes the node or raises SimulationError with the valid choices and changes nothing.
"""

from collections.abc import Collection
from typing import TypeVar

import pynvml

from node_agent.errors import SimulationError
from node_agent.hardware.simulated.driver import CallFault, Driver, ModuleState
from node_agent.hardware.simulated.events import NO_INSTANCE, Event
from node_agent.hardware.simulated.gpu import SimulatedGpu
from node_agent.hardware.simulated.library.calls import CALLS
from node_agent.hardware.simulated.returns import error_names

GpuSelector = int | str
_Value = TypeVar("_Value")

FELL_OFF_THE_BUS = 79
RECOVERY_ACTION_CHANGED = 154

RECOVERY_ACTIONS = {
    key.removeprefix("NVML_GPU_RECOVERY_ACTION_").lower().replace("_", "-"): value
    for key, value in vars(pynvml).items()
    if key.startswith("NVML_GPU_RECOVERY_ACTION_")
}


class Faults:
    """A GPU is given by its slot in the profile, its UUID, or the name ``gpu-<minor>``."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def gpu(self, selector: GpuSelector) -> SimulatedGpu:
        """The GPU that a selector means."""
        text = str(selector)
        for gpu in self._driver.gpus:
            if text in (str(gpu.slot), gpu.uuid, f"gpu-{gpu.place.minor}"):
                return gpu
        known = "; ".join(f"{gpu.slot} = gpu-{gpu.place.minor} = {gpu.uuid}" for gpu in self._driver.gpus)
        raise SimulationError(f"no GPU is {text!r}; there are {known or 'none'}")

    def xid(
        self, gpu: GpuSelector, code: int, *, instance: int | None = None, compute_instance: int | None = None
    ) -> None:
        """Report an Xid; nothing else changes. The instance ids say which MIG device it is confined to."""
        event = Event(
            gpu=self.gpu(gpu),
            type=pynvml.nvmlEventTypeXidCriticalError,
            data=_choose("Xid", code, range(1, 1000)),
            instance=NO_INSTANCE if instance is None else instance,
            compute_instance=NO_INSTANCE if compute_instance is None else compute_instance,
        )
        with self._driver.changed:
            self._driver.report(event)

    def lose(self, gpu: GpuSelector, *, xid: bool = False) -> None:
        """Take a GPU off the bus: every call on it fails, with Xid 79 first if asked for."""
        lost = self.gpu(gpu)
        with self._driver.changed:
            if xid:
                self.xid(gpu, FELL_OFF_THE_BUS)
            lost.lost = True
            self._driver.changed.notify_all()

    def restore(self, gpu: GpuSelector) -> None:
        """Bring a GPU back as a reset leaves it: it answers, no recovery action, no volatile errors, no instances."""
        found = self.gpu(gpu)
        with self._driver.changed:
            found.reset()

    def recovery_action(self, gpu: GpuSelector, action: str) -> None:
        """Change what the driver says must be done with a GPU, and announce it as the driver does."""
        found = self.gpu(gpu)
        value = RECOVERY_ACTIONS[_choose("recovery action", action, RECOVERY_ACTIONS)]
        with self._driver.changed:
            found.recovery_action = value
            self._driver.report(Event(gpu=found, type=pynvml.nvmlEventTypeGpuRecoveryAction))
            self.xid(gpu, RECOVERY_ACTION_CHANGED)

    def fail(self, call: str, code: str | int, *, gpu: GpuSelector | None = None, times: int | None = None) -> None:
        """Let a C function fail with an NVML error, such as ``"UNKNOWN"`` or 999, ``times`` times or until cleared."""
        self._add(CallFault(call=call, gpu=self._optional(gpu), error=_error_name(code), times=times))

    def hang(self, call: str, seconds: float, *, gpu: GpuSelector | None = None, times: int | None = None) -> None:
        """Let a C function take so long before it answers, ``times`` times or until cleared, which frees the waiters."""
        self._add(CallFault(call=call, gpu=self._optional(gpu), hang_seconds=seconds, times=times))

    def clear(self) -> None:
        """Forget all failing and hanging calls."""
        with self._driver.changed:
            self._driver.clear_call_faults()

    def unplug(self, gpu: GpuSelector) -> None:
        """Remove a GPU; the library's next initialisation does not find it."""
        found = self.gpu(gpu)
        with self._driver.changed:
            found.plugged = False
            self._driver.changed.notify_all()

    def plug(self, gpu: GpuSelector) -> None:
        """Put a GPU back; the library's next initialisation finds it."""
        found = self.gpu(gpu)
        with self._driver.changed:
            found.reset()
            found.plugged = True

    def driver(self, state: ModuleState, *, version: str | None = None) -> None:
        """Unload, load (another version of) or mismatch the kernel module, under whoever uses the library."""
        with self._driver.changed:
            self._driver.load(_choose("driver state", state, ("loaded", "not-loaded", "version-mismatch")), version)

    def _add(self, fault: CallFault) -> None:
        _choose("call", fault.call, CALLS)
        with self._driver.changed:
            self._driver.call_faults.append(fault)

    def _optional(self, gpu: GpuSelector | None) -> SimulatedGpu | None:
        return None if gpu is None else self.gpu(gpu)


def _error_name(code: str | int) -> str:
    names = error_names()
    for name, value in names.items():
        if str(code).upper() in (name, str(value)):
            return name
    raise SimulationError(f"no NVML error is {code!r}; there are {', '.join(names)}")


def _choose(what: str, value: _Value, choices: Collection[object]) -> _Value:
    if value not in choices:
        listed = f"{choices[0]} to {choices[-1]}" if isinstance(choices, range) else ", ".join(map(str, choices))
        raise SimulationError(f"no {what} is {value!r}; there are {listed}")
    return value
