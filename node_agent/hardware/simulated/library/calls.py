"""How a Python function becomes a C function of ``libnvidia-ml.so.1``.

A function named like the C function and marked with ``@call`` takes what it needs by annotation and returns values;
the rest is done here. Annotations: ``Driver`` is handed in and takes no argument; ``int`` and ``str`` are plain
arguments; ``SimulatedGpu``, ``MigDevice``, ``Device`` (either), ``OwnedInstance``, ``ComputeHandle``, ``EventSet``
and ``PerformanceSample`` are handles; ``Target`` is what a pointer argument points at. Arguments left over are where
the result goes:

- a ``str`` into a buffer and its size, a ``dict`` into the fields of a structure, a tuple into one pointer each;
- a list into a count and an array; ``Sized`` where the count also says how large the caller's array is;
- ``None`` is NOT_SUPPORTED: a value that the board lacks.

``NvmlReturn`` ends a call with another code. Handles of a lost GPU, unusable drivers and injected faults are met
before the function runs.
"""

import ctypes
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import pynvml
from msgspec import Struct

from node_agent.hardware.simulated.driver import Driver, OwnedInstance
from node_agent.hardware.simulated.events import EventSet
from node_agent.hardware.simulated.gpu import MigDevice, SimulatedGpu
from node_agent.hardware.simulated.returns import NvmlReturn
from node_agent.hardware.simulated.samples import PerformanceSample

Device = SimulatedGpu | MigDevice
ComputeHandle = Annotated[MigDevice, "by the handle of its compute instance"]
Target = Annotated[Any, "what a pointer argument points at; None for NULL"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Sized(list[Any]):
    """A list for a caller who says how many entries fit; too few is INSUFFICIENT_SIZE, with the number needed."""


class CFunction(Struct, frozen=True, kw_only=True):
    """The Python function behind a C function, and how each of its parameters is read."""

    name: str
    python: Callable[..., Any]
    parameters: tuple[Any, ...]
    versions: tuple[int, ...]
    needs_init: bool


CALLS: dict[str, CFunction] = {}


def call(
    *, also: Sequence[str] = (), versions: Sequence[int] = (), needs_init: bool = True
) -> Callable[[_Function], _Function]:
    """Register a function under its own name and under those in ``also``.

    ``versions`` are the version words that the caller may have put into the structure to fill.
    """

    def register(function: _Function) -> _Function:
        hints = typing.get_type_hints(function, include_extras=True)
        hints.pop("return", None)
        for name in (function.__name__, *also):
            CALLS[name] = CFunction(
                name=name,
                python=function,
                parameters=tuple(hints.values()),
                versions=tuple(versions),
                needs_init=needs_init,
            )
        return function

    return register


def invoke(driver: Driver, function: CFunction, *arguments: Any) -> int:
    """Run one C call; answers the NVML return code."""
    try:
        # Arguments are read twice where faults are set: a call that hung may find its GPU lost when it goes on.
        if driver.call_faults:
            driver.meet_fault(function.name, _gpu_among(driver, function, arguments))
        with driver.changed:
            inputs, outputs = _read(driver, function, arguments)
            _check_version(arguments, function.versions)
            _store(outputs, function.python(*inputs))
    except NvmlReturn as answer:
        return answer.code
    return int(pynvml.NVML_SUCCESS)


def number(argument: Any) -> int:
    """An integer passed as a Python int or as a ctypes number."""
    return int(getattr(argument, "value", argument))


def target(argument: Any) -> Any:
    """What a pointer, a ``byref`` or an array argument points at."""
    if argument is None:
        return None
    # ``byref`` makes a light-weight object that only remembers what it was given.
    if hasattr(argument, "_obj"):
        return argument._obj
    return argument.contents if isinstance(argument, ctypes._Pointer) else argument


def address(argument: Any) -> int | None:
    """The address in a handle argument."""
    return ctypes.cast(argument, ctypes.c_void_p).value


def fill(structure: Any, values: Mapping[str, Any]) -> None:
    """Set the fields of a structure; values that this version of the structure has no field for are left out."""
    kinds = {entry[0]: entry[1] for entry in structure._fields_}
    for name, value in values.items():
        if name not in kinds:
            continue
        if issubclass(kinds[name], ctypes.Structure):
            fill(getattr(structure, name), value)
        elif issubclass(kinds[name], ctypes._Pointer):
            setattr(structure, name, ctypes.cast(value, kinds[name]))
        elif issubclass(kinds[name], ctypes.Array) and kinds[name]._type_ is not ctypes.c_char:
            getattr(structure, name)[:] = value
        else:
            setattr(structure, name, value.encode() if isinstance(value, str) else value)


def _read(driver: Driver, function: CFunction, arguments: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The values for the function's parameters, and the arguments that are left for its results."""
    if function.needs_init:
        driver.require_usable()
    rest = iter(arguments)
    inputs = [driver if kind is Driver else _READERS[kind](driver, next(rest)) for kind in function.parameters]
    gpu = _gpu_of(inputs)
    if gpu and function.name in gpu.board.unsupported:
        raise NvmlReturn("NOT_SUPPORTED")
    return inputs, list(rest)


def _gpu_among(driver: Driver, function: CFunction, arguments: Sequence[Any]) -> SimulatedGpu | None:
    with driver.changed:
        return _gpu_of(_read(driver, function, arguments)[0])


def _gpu_of(inputs: Sequence[Any]) -> SimulatedGpu | None:
    """The GPU that a call is about, itself or through one of its instances."""
    for value in inputs:
        gpu = getattr(value, "gpu", None)
        if isinstance(gpu, SimulatedGpu):
            return gpu
    return None


def _read_gpu(driver: Driver, argument: Any) -> SimulatedGpu:
    device = driver.device(address(argument))
    if isinstance(device, MigDevice):
        raise NvmlReturn("NOT_SUPPORTED")
    return device


def _read_mig_device(driver: Driver, argument: Any) -> MigDevice:
    device = driver.device(address(argument))
    if isinstance(device, SimulatedGpu):
        raise NvmlReturn("INVALID_ARGUMENT")
    return device


def _read_text(_: Driver, argument: Any) -> str:
    value = getattr(argument, "value", argument)
    return value.decode() if isinstance(value, bytes) else str(value)


_READERS: dict[Any, Callable[[Driver, Any], Any]] = {
    int: lambda _, argument: number(argument),
    str: _read_text,
    Target: lambda _, argument: target(argument),
    SimulatedGpu: _read_gpu,
    MigDevice: _read_mig_device,
    Device: lambda driver, argument: driver.device(address(argument)),
    OwnedInstance: lambda driver, argument: driver.instance(address(argument)),
    ComputeHandle: lambda driver, argument: driver.compute_instance(address(argument)),
    EventSet: lambda driver, argument: driver.event_set(address(argument)),
    PerformanceSample: lambda driver, argument: driver.sample(address(argument)),
}


def _check_version(arguments: Sequence[Any], versions: Sequence[int]) -> None:
    """The low 24 bits of a version word are the size of the structure that the caller says it passes."""
    if not versions:
        return
    structure = next(target(argument) for argument in arguments if hasattr(target(argument), "version"))
    if structure.version not in versions or ctypes.sizeof(structure) < structure.version & 0xFFFFFF:
        raise NvmlReturn("ARGUMENT_VERSION_MISMATCH")


def _store(outputs: Sequence[Any], value: Any) -> None:
    if not outputs:
        return
    if value is None or (isinstance(value, tuple) and None in value):
        raise NvmlReturn("NOT_SUPPORTED")
    if isinstance(value, str):
        _store_text(outputs, value.encode())
    elif isinstance(value, list):
        _store_list(outputs, value)
    elif isinstance(value, dict):
        _store_one(target(outputs[0]), value)
    else:
        for output, part in zip(outputs, value if isinstance(value, tuple) else (value,), strict=True):
            _store_one(target(output), part)


def _store_one(place: Any, value: Any) -> None:
    if place is None:
        raise NvmlReturn("INVALID_ARGUMENT")
    if isinstance(place, ctypes.Structure):
        fill(place, value)
    elif isinstance(place, ctypes._Pointer):
        ctypes.c_void_p.from_buffer(place).value = value
    else:
        place.value = value


def _store_text(outputs: Sequence[Any], text: bytes) -> None:
    buffer = target(outputs[0])
    if buffer is None:
        raise NvmlReturn("INVALID_ARGUMENT")
    size = number(outputs[1]) if len(outputs) > 1 else len(buffer)
    # The size that the caller states may be wrong; writing past the buffer is not simulated.
    if len(text) >= min(size, len(buffer)):
        raise NvmlReturn("INSUFFICIENT_SIZE")
    buffer.value = text


def _store_list(outputs: Sequence[Any], values: list[Any]) -> None:
    """Fill a count and an array, in either order; a NULL array asks for the count alone."""
    is_count = [isinstance(target(output), ctypes.c_uint) for output in outputs]
    if True not in is_count:
        raise NvmlReturn("INVALID_ARGUMENT")
    count, array = target(outputs[is_count.index(True)]), outputs[is_count.index(False)]
    room, count.value = count.value, len(values)
    array = array if isinstance(array, ctypes._Pointer) else target(array)
    if array is None:
        if isinstance(values, Sized) and values:
            raise NvmlReturn("INSUFFICIENT_SIZE")
        return
    # Without a stated size the real library trusts the caller; an array known to be too small is refused here.
    room = room if isinstance(values, Sized) else len(values)
    if min(room, len(array) if isinstance(array, ctypes.Array) else room) < len(values):
        raise NvmlReturn("INSUFFICIENT_SIZE")
    for index, value in enumerate(values):
        _store_entry(array, index, value)


def _store_entry(array: Any, index: int, value: Any) -> None:
    kind = array._type_
    if issubclass(kind, ctypes.Structure):
        fill(array[index], value)
    else:
        array[index] = ctypes.cast(value, kind) if issubclass(kind, ctypes._Pointer) else value
