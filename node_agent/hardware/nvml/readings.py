"""What a GPU measures of itself, read anew at each look. What its links are up to is in ``wiring``."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pynvml
from msgspec import Struct

from node_agent.errors import DeviceLost, DriverUnavailable, HardwareError
from node_agent.hardware.nvml.activity import Activities
from node_agent.hardware.nvml.fabric import fabric
from node_agent.hardware.nvml.figures import figures as read_figures
from node_agent.hardware.nvml.partitions import live_devices
from node_agent.hardware.nvml.scan import memory_info
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.nvml.translate import Answers, Calls, Handle, Query, field_values, figure
from node_agent.hardware.nvml.wiring import Wiring
from node_agent.hardware.provider import GpuReadings, PcieLink, RecoveryAction, Throttle
from node_agent.model.gpu import GpuUuid

_ACTIONS = {
    pynvml.NVML_GPU_RECOVERY_ACTION_NONE: RecoveryAction.NONE,
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: RecoveryAction.RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: RecoveryAction.REBOOT,
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: RecoveryAction.DRAIN,
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: RecoveryAction.DRAIN_AND_RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: RecoveryAction.RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: RecoveryAction.REBOOT,
}

# Idle clocks and clocks that somebody has set are no trouble, and are left out.
_THROTTLES = {
    pynvml.nvmlClocksEventReasonSwPowerCap: Throttle.POWER_CAP,
    pynvml.nvmlClocksEventReasonHwSlowdown: Throttle.SLOWDOWN,
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: Throttle.POWER_BRAKE,
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: Throttle.HARDWARE_THERMAL,
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: Throttle.SOFTWARE_THERMAL,
}


_UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC

# Between two looks at what changes slowly, unless the driver reports something.
SLOW_SECONDS = 30.0

# The share of the time at work from which on a PCIe link is expected to run at its best: at rest it may slow down.
_AT_WORK = 0.5


class _Slow(Struct, frozen=True, kw_only=True):
    """What changes slowly or costs much to ask, with what went wrong.

    Good ``until`` then, by the monotonic clock, and while the library is not opened anew.
    """

    until: float
    generation: int
    values: Mapping[str, Any]
    failed: Mapping[str, str]


class Reader:
    """Reads one GPU at a time, on the thread of the session's calls; what changes slowly is not asked at each look."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._wiring = Wiring(session)
        self._activities = Activities(session)
        self._slow: dict[GpuUuid, _Slow] = {}

    def forget(self) -> None:
        """Ask for everything at the next look, since something has happened. May be called from any thread."""
        self._slow = {}

    def read(self, gpu: GpuUuid, *, figures: bool = False) -> GpuReadings:
        """Read one GPU, with its figures where they are wanted.

        Raises:
            DeviceLost: it is off the bus.
            HardwareError: it answers nothing at all.
        """
        # Taken out while the GPU is read: one that fails meanwhile is another one when it is back.
        remembered = self._slow
        known = remembered.pop(gpu, None)
        calls, handle, answers = self._session.calls, self._session.handle(gpu), Answers()
        values = answers.ask_all(_QUERIES, calls, handle)
        told = field_values(calls, handle, [(field, 0) for field, _ in _FIELDS.values()])
        for (name, (_, meaning)), answer in zip(_FIELDS.items(), told, strict=True):
            values[name] = answers.ask(name, partial(_meant, answer, meaning))
        # A GPU that lacks everything is an odd one; a GPU that fails everything is a broken one.
        if not answers.heard:
            raise answers.errors[0]
        slow = known if known and self._is_good(known) else self._read_slow(gpu, handle)
        remembered[gpu] = slow
        told_now = {name: value for name, value in values.items() if value is not None}
        if figures:
            told_now["figures"] = read_figures(calls, handle, partial(self._activities.of, gpu))
        return GpuReadings(failed={**slow.failed, **answers.failed}, **{**slow.values, **told_now})

    def _is_good(self, known: _Slow) -> bool:
        return time.monotonic() < known.until and known.generation == self._session.generation

    def _read_slow(self, gpu: GpuUuid, handle: Handle) -> _Slow:
        answers = Answers()
        values = answers.ask_all(_SLOW_QUERIES, self._session.calls, handle)
        values["links"] = answers.ask("links", partial(self._wiring.links, gpu))
        # What went wrong is tried again at the next look.
        until = time.monotonic() + (0 if answers.failed else SLOW_SECONDS)
        return _Slow(until=until, generation=self._session.generation, values=values, failed=answers.failed)


def _meant(answer: int | HardwareError, meaning: Callable[[int], Any]) -> Any:
    if isinstance(answer, HardwareError):
        raise answer
    return meaning(answer)


def _memory_used(calls: Calls, handle: Handle) -> int | None:
    info = memory_info(calls, handle)
    return figure(info.used) if info and info.total else None


def _uncorrected_ecc_errors(calls: Calls, handle: Handle) -> int | None:
    """Of a GPU that counts as a whole."""
    return figure(calls(pynvml.nvmlDeviceGetTotalEccErrors, handle, *_UNCORRECTED))


def _uncorrected_ecc_errors_of_parts(calls: Calls, handle: Handle) -> int | None:
    """Of a GPU that is cut into MIG devices, which counts by them."""
    parts = live_devices(calls, handle).values()
    counts = [calls.optional(pynvml.nvmlDeviceGetTotalEccErrors, part, *_UNCORRECTED) for part in parts]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _utilization(calls: Calls, handle: Handle) -> float:
    share: float = calls(pynvml.nvmlDeviceGetUtilizationRates, handle).gpu / 100
    return share


def _power(calls: Calls, handle: Handle) -> float | None:
    milliwatts = figure(calls(pynvml.nvmlDeviceGetPowerUsage, handle))
    return None if milliwatts is None else milliwatts / 1000


def _is_at_work(calls: Calls, handle: Handle) -> bool:
    try:
        return _utilization(calls, handle) >= _AT_WORK
    except (DeviceLost, DriverUnavailable):
        raise
    except HardwareError:
        return False  # the reading of the utilization says what is wrong with it


def _pcie(calls: Calls, handle: Handle) -> PcieLink:
    return PcieLink(
        generation=calls(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        width=calls(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        max_generation=calls(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        max_width=calls(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        at_work=_is_at_work(calls, handle),
    )


def _throttles(calls: Calls, handle: Handle) -> frozenset[Throttle]:
    bits = calls.optional(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if bits is None:
        # By the name that it had before driver 535.
        bits = calls(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return frozenset(throttle for bit, throttle in _THROTTLES.items() if bits & bit)


_QUERIES: Mapping[str, Query] = {
    "memory_used": _memory_used,
    "utilization": _utilization,
    "temperature": lambda calls, handle: calls(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
    "power": _power,
    "uncorrected_ecc_errors": _uncorrected_ecc_errors,
    "throttles": _throttles,
}

_SLOW_QUERIES: Mapping[str, Query] = {
    "uncorrected_ecc_errors": _uncorrected_ecc_errors_of_parts,
    "fabric": fabric,
    "pcie": _pcie,
}

_FIELDS: Mapping[str, tuple[int, Callable[[int], Any]]] = {
    "recovery_action": (
        pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
        lambda action: _ACTIONS.get(action, RecoveryAction.OTHER),
    ),
    "row_remap_pending": (pynvml.NVML_FI_DEV_REMAPPED_PENDING, bool),
    "row_remap_failed": (pynvml.NVML_FI_DEV_REMAPPED_FAILURE, bool),
    "pages_retired_for_single_bits": (pynvml.NVML_FI_DEV_RETIRED_SBE, figure),
    "pages_retired_for_double_bits": (pynvml.NVML_FI_DEV_RETIRED_DBE, figure),
    "page_retirement_pending": (pynvml.NVML_FI_DEV_RETIRED_PENDING, bool),
}
