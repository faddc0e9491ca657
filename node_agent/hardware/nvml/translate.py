"""NVML's calls, errors and texts in the agent's terms: the one place that knows its error codes."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

import pynvml

from node_agent.errors import (
    CallTimedOut,
    DeviceLost,
    DriverUnavailable,
    HardwareError,
    InUse,
    LibraryUnusable,
    NotSupported,
)
from node_agent.kit.lane import Busy

T = TypeVar("T")

Handle: TypeAlias = Any
"""A pointer into the library. It is no identity: the same one may stand for another GPU after the next init."""

# NVML answers all ones where it has no figure.
_NO_FIGURE = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)

_KINDS: dict[int, type[HardwareError]] = {
    pynvml.NVML_ERROR_UNINITIALIZED: DriverUnavailable,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: DriverUnavailable,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: LibraryUnusable,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: LibraryUnusable,
    pynvml.NVML_ERROR_NOT_SUPPORTED: NotSupported,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: NotSupported,
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: NotSupported,
    pynvml.NVML_ERROR_DEPRECATED: NotSupported,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: NotSupported,
    pynvml.NVML_ERROR_GPU_IS_LOST: DeviceLost,
    pynvml.NVML_ERROR_TIMEOUT: CallTimedOut,
    pynvml.NVML_ERROR_IN_USE: InUse,
}

_FIELD_FORMS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}

_ADVICE = {
    pynvml.NVML_ERROR_UNINITIALIZED: "the driver went away underneath; it is opened anew at the next look",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "load the kernel module (modprobe nvidia) and see that /dev/nvidiactl is there; dmesg tells why it failed. "
        "A pod may open it with NVIDIA's container runtime, or privileged"
    ),
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 comes with the driver: install it, or bring its libraries into the agent's container"
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the library and the kernel module are of different driver versions: reload the module or reboot the node"
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: "it has fallen off the bus; only a reset or a reboot brings it back",
    pynvml.NVML_ERROR_RESET_REQUIRED: "drain the GPU and reset it",
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "run the agent privileged or with CAP_SYS_ADMIN, as root, with access to /dev/nvidia*"
    ),
    pynvml.NVML_ERROR_OPERATING_SYSTEM: "the device cgroup blocks it: allow the agent's container /dev/nvidia*",
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: "connect the GPU's auxiliary power",
    pynvml.NVML_ERROR_IRQ_ISSUE: "the kernel found an interrupt problem with the GPU: see dmesg",
    pynvml.NVML_ERROR_IN_USE: "something uses it: wait until it is free, or end that",
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: "there is no room left for it on the GPU",
}


class Calls:
    """Calls NVML from one thread. What it raises is a HardwareError that names the call, the code and the way out."""

    def __init__(self) -> None:
        self.busy: Busy | None = None

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        self.busy = Busy(call=function.__name__, since=time.monotonic())
        try:
            return function(*args)
        except pynvml.NVMLError as error:
            raise translated(error, function.__name__) from error
        finally:
            self.busy = None

    def optional(self, function: Callable[..., Any], *args: Any) -> Any | None:
        """The answer, or None where the GPU or the driver does not have it: absent, never zero."""
        try:
            return self(function, *args)
        except NotSupported:
            return None

    def text(self, function: Callable[..., Any], *args: Any) -> str:
        """The answer of a call that returns a text, read past the binding's own decoding, which dies of bad UTF-8."""
        # functools.wraps leaves the undecorated function here; it answers bytes.
        return text(self(getattr(function, "__wrapped__", function), *args))

    def fields(self, handle: Handle, wanted: Sequence[tuple[int, int]]) -> list[int | HardwareError]:
        """Field values by (field, scope), each with an outcome of its own; what went wrong is answered, not raised."""
        values = self(pynvml.nvmlDeviceGetFieldValues, handle, wanted)
        return [_field(value) for value in values]


Query: TypeAlias = Callable[[Calls, Handle], Any]
"""Asks one GPU for one attribute."""


class Answers:
    """What one GPU answers to many queries: one that goes wrong costs its own attribute and no other."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}
        self.errors: list[HardwareError] = []
        self.heard = False

    def ask(self, name: str, query: Callable[[], T | None]) -> T | None:
        """The answer, or None. Raises DeviceLost and DriverUnavailable, since then nothing more will be answered."""
        try:
            answer = query()
        except (DeviceLost, DriverUnavailable):
            raise
        except NotSupported:
            answer = None
        except HardwareError as error:
            self.failed[name] = str(error)
            self.errors.append(error)
            return None
        self.heard = True
        return answer

    def ask_all(self, queries: Mapping[str, Query], calls: Calls, handle: Handle) -> dict[str, Any]:
        """The answer to each query by its name."""
        return {name: self.ask(name, partial(query, calls, handle)) for name, query in queries.items()}


def translated(error: pynvml.NVMLError, call: str) -> HardwareError:
    """The error of the agent's tree that says the same, with what to do about it where that is known."""
    code = int(error.value)
    advice = f": {_ADVICE[code]}" if code in _ADVICE else ""
    return _KINDS.get(code, HardwareError)(f"{call}: {error} (NVML error {code}){advice}", call=call, code=code)


def _field(value: Any) -> int | HardwareError:
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        return translated(pynvml.NVMLError(value.nvmlReturn), f"nvmlDeviceGetFieldValues({value.fieldId})")
    number: int = getattr(value.value, _FIELD_FORMS[value.valueType])
    return number


def field_values(calls: Calls, handle: Handle, wanted: Sequence[tuple[int, int]]) -> list[int | HardwareError]:
    """As ``Calls.fields``; where the call fails as a whole, so has each of them."""
    try:
        return calls.fields(handle, wanted)
    except (DeviceLost, DriverUnavailable):
        raise
    except HardwareError as error:
        return [error for _ in wanted]


def text(answer: bytes | str) -> str:
    """Always a str; bytes that are no UTF-8 show as replacement characters."""
    return answer if isinstance(answer, str) else answer.decode(errors="replace")


def figure(answer: int | None) -> int | None:
    """A figure, or None for the values by which NVML says that it has none."""
    return None if answer in _NO_FIGURE else answer
