"""What happens to a simulated node while it runs: the Python interface that tests use and ``control`` serves.

Each method either changes the node or raises SimulationError with the valid choices and changes nothing.
"""

import uuid
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Annotated, TypeVar

import msgspec
import pynvml

from node_agent.errors import SimulationError
from node_agent.hardware.simulated.driver import MODULE_STATES, CallFault, Driver
from node_agent.hardware.simulated.events import NO_INSTANCE, Event
from node_agent.hardware.simulated.gpu import PROCESS_KINDS, FabricState, Process, SimulatedGpu
from node_agent.hardware.simulated.library.calls import CALLS
from node_agent.hardware.simulated.library.memory_errors import error_locations
from node_agent.hardware.simulated.library.topology import is_nvlink5
from node_agent.hardware.simulated.links import Link
from node_agent.hardware.simulated.profile import nvml_members
from node_agent.hardware.simulated.returns import NvmlReturn, error_names

GpuSelector = int | str
Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
_Value = TypeVar("_Value")

FELL_OFF_THE_BUS = 79
RECOVERY_ACTION_CHANGED = 154
# 999 is what the library says of an Xid that it does not know.
XIDS = range(1, 1000)

RECOVERY_ACTIONS = nvml_members("NVML_GPU_RECOVERY_ACTION_")
# After the Xids that NVIDIA's catalogue answers with a reset of the GPU, or with a restart of the machine.
USUAL_RECOVERY = dict.fromkeys(
    (46, 48, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158), "gpu-reset"
) | {FELL_OFF_THE_BUS: "node-reboot"}
ERROR_KINDS = nvml_members("NVML_MEMORY_ERROR_TYPE_")
ERROR_EVENTS = {
    pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED: pynvml.nvmlEventTypeSingleBitEccError,
    pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED: pynvml.nvmlEventTypeDoubleBitEccError,
}
LOCATIONS = nvml_members("NVML_MEMORY_LOCATION_")
# Of NVLinks up to the fourth generation, and of newer ones.
LINK_XIDS = {False: 74, True: 149}
LINK_COUNTERS = {
    "replay": pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    "recovery": pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    "crc-flit": pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    "crc-data": pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
    "ecc-data": pynvml.NVML_NVLINK_ERROR_DL_ECC_DATA,
}
FABRIC_STATES = nvml_members("NVML_GPU_FABRIC_STATE_")
FABRIC_SUMMARIES = nvml_members("NVML_GPU_FABRIC_HEALTH_SUMMARY_")
SLOWDOWN_REASONS = {
    "sw-power-cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hw-slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
    "sw-thermal-slowdown": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hw-thermal-slowdown": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "hw-power-brake-slowdown": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
}
PAGE_CAUSES = {"single-bit": 0, "double-bit": 1}
SPARE_ROWS = ("high", "partial", "low", "none")

# Past so many, a message names the nearest choices only.
MOST_NAMES = 40


class Faults:
    """A GPU is given by its place in the profile, its UUID, or the name ``gpu-<minor>``."""

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

    # What the driver reports

    def xid(
        self,
        gpu: GpuSelector,
        code: int,
        *,
        instance: int | None = None,
        compute_instance: int | None = None,
        recovery: bool = False,
    ) -> None:
        """Report an Xid. The instance ids say which MIG device it is confined to.

        With ``recovery`` the driver then asks for what it usually asks for after that Xid, where it can; without it
        nothing else changes.
        """
        found = self.gpu(gpu)
        event = Event(
            gpu=found,
            type=pynvml.nvmlEventTypeXidCriticalError,
            data=_choose("Xid", code, XIDS),
            instance=NO_INSTANCE if instance is None else instance,
            compute_instance=NO_INSTANCE if compute_instance is None else compute_instance,
        )
        with self._driver.changed:
            self._driver.report(event)
            if recovery and code in USUAL_RECOVERY and found.board.recovery_action:
                self.recovery_action(gpu, USUAL_RECOVERY[code])

    def recovery_action(self, gpu: GpuSelector, action: str) -> None:
        """Change what the driver says must be done with a GPU, and announce it as the driver does."""
        found = self.gpu(gpu)
        value = RECOVERY_ACTIONS[_choose("recovery action", action, RECOVERY_ACTIONS)]
        _require(found.board.recovery_action, found, "has no recovery action")
        with self._driver.changed:
            found.recovery_action = value
            self._driver.report(Event(gpu=found, type=pynvml.nvmlEventTypeGpuRecoveryAction))
            self.xid(gpu, RECOVERY_ACTION_CHANGED)

    # Whole GPUs

    def lose(self, gpu: GpuSelector, *, xid: bool = False) -> None:
        """Take a GPU off the bus: every call on it fails, with Xid 79 first if asked for."""
        found = self.gpu(gpu)
        with self._driver.changed:
            # Often the driver notices nothing: the Xid is the exception.
            if xid:
                self.xid(gpu, FELL_OFF_THE_BUS)
            found.lost = True
            self._driver.changed.notify_all()

    def restore(self, gpu: GpuSelector) -> None:
        """Bring a GPU back as a reset leaves it: it answers, no recovery action, no volatile errors, no instances."""
        found = self.gpu(gpu)
        with self._driver.changed:
            found.reset()
            self._driver.hardware_changed()

    def unplug(self, gpu: GpuSelector) -> None:
        """Remove a GPU: calls on it fail, and the library's next initialisation does not find it."""
        found = self.gpu(gpu)
        with self._driver.changed:
            found.plugged = False
            self._driver.hardware_changed()

    def plug(self, gpu: GpuSelector) -> None:
        """Put a GPU back; the library's next initialisation finds it."""
        found = self.gpu(gpu)
        with self._driver.changed:
            found.reset()
            found.plugged = True
            self._driver.hardware_changed()

    def cut(self, gpu: GpuSelector, parts: Sequence[str] = (), *, enabled: bool = True) -> None:
        """Cut a GPU by MIG as another program would: only what is listed, as ``1g.18gb@0``, lies on it then."""
        found = self.gpu(gpu)
        _require(found.mig is not None, found, "has no MIG")
        assert found.mig is not None
        with self._driver.changed:
            found.mig.enabled = found.mig.pending = enabled
            try:
                found.mig.lay_out(parts if enabled else ())
            except (ValueError, NvmlReturn) as error:
                raise SimulationError(f"gpu-{found.place.minor}: {error}") from error
            finally:
                self._driver.report(Event(gpu=found, type=pynvml.nvmlEventMigConfigChange))
                self._driver.hardware_changed()

    def load(self, gpu: GpuSelector, load: float) -> None:
        """Set how busy a GPU is, from 0 to 1; power, heat, clocks and counters follow."""
        found = self.gpu(gpu)
        if not 0 <= load <= 1:
            raise SimulationError(f"a load of {load} is not between 0 and 1")
        with self._driver.changed:
            found.set_load(load)

    def slow_down(self, gpu: GpuSelector, reasons: Sequence[str]) -> None:
        """Set why a GPU holds its clocks back; no reason lets it run free."""
        found = self.gpu(gpu)
        bits = [SLOWDOWN_REASONS[_choose("reason", reason, SLOWDOWN_REASONS)] for reason in reasons]
        with self._driver.changed:
            found.clock_reasons = sum(set(bits))

    def pcie(self, gpu: GpuSelector, *, generation: Positive | None = None, width: Positive | None = None) -> None:
        """Hold a GPU's PCIe link down to a generation or a number of lanes; what is not given runs at its best."""
        found = self.gpu(gpu)
        _require(found.board.pcie is not None, found, "has no PCIe link")
        with self._driver.changed:
            found.pcie_generation, found.pcie_width = generation, width
            self._driver.hardware_changed()

    def start_process(
        self,
        gpu: GpuSelector,
        pid: Positive,
        *,
        kind: str = "compute",
        memory: NotNegative | None = None,
        instance: int | None = None,
        compute_instance: int | None = None,
    ) -> None:
        """Let a process use a GPU or one of its MIG devices, which then refuses to change; ``memory`` is in bytes."""
        found = self.gpu(gpu)
        _choose("kind of process", kind, PROCESS_KINDS)
        with self._driver.changed:
            found.processes.append(
                Process(pid=pid, kind=kind, memory=memory, instance=instance, compute_instance=compute_instance)
            )

    def stop_process(self, gpu: GpuSelector, pid: int) -> None:
        found = self.gpu(gpu)
        with self._driver.changed:
            _choose("process", pid, [process.pid for process in found.processes])
            found.processes[:] = [process for process in found.processes if process.pid != pid]

    # Memory

    def ecc(self, gpu: GpuSelector, kind: str, count: Positive = 1, *, location: str = "dram") -> None:
        """Count errors, ``corrected`` or ``uncorrected``, since the last reset and for ever, and report one event."""
        found = self.gpu(gpu)
        error = ERROR_KINDS[_choose("kind of memory error", kind, ERROR_KINDS)]
        _require(found.board.ecc, found, "has no ECC")
        counted = {name: place for name, place in LOCATIONS.items() if place in error_locations(found)}
        place = counted[_choose("memory location", location, counted)]
        with self._driver.changed:
            for counter in (pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC):
                found.ecc_errors[error, counter, place] += count
            self._driver.report(Event(gpu=found, type=ERROR_EVENTS[error]))

    def remap_rows(
        self,
        gpu: GpuSelector,
        *,
        correctable: NotNegative | None = None,
        uncorrectable: NotNegative | None = None,
        pending: bool | None = None,
        failure: bool | None = None,
        spent: dict[str, NotNegative] | None = None,
    ) -> None:
        """Set what is given of a GPU's row remapping; ``spent`` counts banks by what they have left."""
        found = self.gpu(gpu)
        _require(found.board.remap_banks is not None, found, "does not remap rows")
        for name in spent or {}:
            _choose("bank state", name, SPARE_ROWS)
        # What is not given stays as it is.
        changes = {"correctable": correctable, "uncorrectable": uncorrectable, "pending": pending, "failure": failure}
        with self._driver.changed:
            for name, value in {**changes, "spent": spent}.items():
                if value is not None:
                    setattr(found.remapping, name, value)

    def retire_pages(
        self, gpu: GpuSelector, cause: str, addresses: Sequence[NotNegative], *, pending: bool = True
    ) -> None:
        """Retire memory pages; they stay in use until the next reset while ``pending``."""
        found = self.gpu(gpu)
        number = PAGE_CAUSES[_choose("cause", cause, PAGE_CAUSES)]
        _require(found.board.page_retirement, found, "does not retire pages")
        with self._driver.changed:
            found.retired_pages.setdefault(number, []).extend(addresses)
            found.retirement_pending = pending

    # Links and fabric

    def link(self, gpu: GpuSelector, link: int, *, up: bool, xid: bool = False) -> None:
        """Take an NVLink down or bring it up again, at both ends where the far end is a GPU.

        With ``xid`` the driver reports what it usually reports of a link that fails.
        """
        found = self._link(self.gpu(gpu), link)
        with self._driver.changed:
            if xid:
                self.xid(gpu, LINK_XIDS[is_nvlink5(self.gpu(gpu))])
            # A cable is up or down for both that it joins; a switch has no state of its own here.
            found.up = up
            if found.peer is not None and found.peer_link is not None:
                self._driver.gpus[found.peer].links[found.peer_link].up = up

    def link_errors(self, gpu: GpuSelector, link: int, counter: str, count: Positive = 1) -> None:
        """Add to an error counter of an NVLink."""
        found = self._link(self.gpu(gpu), link)
        number = LINK_COUNTERS[_choose("link counter", counter, LINK_COUNTERS)]
        with self._driver.changed:
            found.errors[number] = found.errors.get(number, 0) + count

    def fabric(
        self,
        gpu: GpuSelector | None = None,
        *,
        state: str | None = None,
        status: str | int | None = None,
        summary: str | None = None,
        health_mask: NotNegative | None = None,
        clique: NotNegative | None = None,
        cluster: uuid.UUID | None = None,
    ) -> None:
        """Set what is given of the fabric's state, as one GPU sees it or as all do."""
        changes = {
            "state": None if state is None else FABRIC_STATES[_choose("fabric state", state, FABRIC_STATES)],
            "status": None if status is None else _error_code(status),
            "summary": None if summary is None else FABRIC_SUMMARIES[_choose("summary", summary, FABRIC_SUMMARIES)],
            "health_mask": health_mask,
            "clique": clique,
            "cluster": cluster,
        }
        # All are looked up before the first is changed: one GPU without a fabric refuses the whole request.
        fabrics = [self._fabric(found) for found in (self._driver.gpus if gpu is None else [self.gpu(gpu)])]
        with self._driver.changed:
            for fabric in fabrics:
                for name, value in changes.items():
                    if value is not None:
                        setattr(fabric, name, value)

    # Calls and the driver

    def fail(
        self, call: str, code: str | int, *, gpu: GpuSelector | None = None, times: Positive | None = None
    ) -> None:
        """Let a C function fail with an NVML error, such as ``UNKNOWN`` or 999, ``times`` times or until cleared."""
        self._add(CallFault(call=call, gpu=self._optional(gpu), error=_error_name(code), times=times))

    def hang(
        self, call: str, seconds: Seconds, *, gpu: GpuSelector | None = None, times: Positive | None = None
    ) -> None:
        """Let a C function take so long to answer, ``times`` times or until cleared; clearing ends the wait."""
        self._add(CallFault(call=call, gpu=self._optional(gpu), hang_seconds=seconds, times=times))

    def clear(self) -> None:
        """Forget all failing and hanging calls."""
        with self._driver.changed:
            self._driver.clear_call_faults()

    def driver(self, state: str, *, version: str | None = None) -> None:
        """Unload, load (another version of) or mismatch the kernel module, under whoever uses the library."""
        _choose("driver state", state, MODULE_STATES)
        with self._driver.changed:
            self._driver.load(state, version)

    def _add(self, fault: CallFault) -> None:
        _choose("call", fault.call, CALLS.keys())
        with self._driver.changed:
            self._driver.call_faults.append(fault)

    def _optional(self, gpu: GpuSelector | None) -> SimulatedGpu | None:
        return None if gpu is None else self.gpu(gpu)

    def _link(self, gpu: SimulatedGpu, link: int) -> Link:
        return gpu.links[_choose("link", link, range(len(gpu.links)))]

    def _fabric(self, gpu: SimulatedGpu) -> FabricState:
        if gpu.fabric is None:
            raise SimulationError(f"GPU {gpu.slot} ({gpu.board.name}) belongs to no fabric")
        return gpu.fabric


def _error_name(code: str | int) -> str:
    names = error_names()
    for name, value in names.items():
        if str(code).upper() in (name, str(value)):
            return name
    raise SimulationError(f"no NVML error is {code!r}; there are {', '.join(names)}")


def _error_code(code: str | int) -> int:
    return 0 if str(code) in ("0", "SUCCESS") else error_names()[_error_name(code)]


def _require(condition: bool, gpu: SimulatedGpu, lack: str) -> None:
    if not condition:
        raise SimulationError(f"GPU {gpu.slot} ({gpu.board.name}) {lack}")


def _choose(what: str, value: _Value, choices: Collection[object]) -> _Value:
    if value in choices:
        return value
    names = [str(choice) for choice in choices]
    if names and isinstance(choices, range):
        names = [f"{names[0]} to {names[-1]}"]
    elif len(names) > MOST_NAMES:
        near = get_close_matches(str(value), names, cutoff=0.0)
        names = [f"for instance {near[0]}", *near[1:]]
    raise SimulationError(f"no {what} is {value!r}; there are {', '.join(names) or 'none'}")
