"""The answer of an NVML call that is not SUCCESS, from wherever it is decided up to the C function that returns it."""

from typing import TypeVar

import pynvml

_Value = TypeVar("_Value")

# How the binding names the codes.
_PREFIX = "NVML_ERROR_"


class NvmlReturn(Exception):
    """Ends a simulated NVML call with an error. ``code`` is NVML's number for ``name``, such as ``"NOT_SUPPORTED"``."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        self.code: int = getattr(pynvml, _PREFIX + name)


def error_names() -> dict[str, int]:
    """Every NVML error by its name without the prefix."""
    return {key.removeprefix(_PREFIX): value for key, value in vars(pynvml).items() if key.startswith(_PREFIX)}


def supported(value: _Value | None) -> _Value:
    """The value, or NOT_SUPPORTED where the board has none."""
    if value is None:
        raise NvmlReturn("NOT_SUPPORTED")
    return value
