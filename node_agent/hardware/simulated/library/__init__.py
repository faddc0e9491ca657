"""The stand-in for ``libnvidia-ml.so.1``: an object whose attributes are the C functions, by their C names.

Each module holds the functions of one subject; ``calls`` turns them into C functions.
"""

from functools import partial
from typing import Any

import pynvml

from node_agent.hardware.simulated.driver import Driver
from node_agent.hardware.simulated.library import (  # noqa: F401 - importing a module registers its functions
    events,
    fabric,
    fields,
    identity,
    memory,
    memory_errors,
    mig,
    performance,
    readings,
    system,
    topology,
)
from node_agent.hardware.simulated.library.calls import CALLS, invoke, number


class Library:
    """What takes the place of ``pynvml.nvmlLib``; ``install`` puts it there."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._missing = frozenset(driver.profile.driver.missing_symbols)

    def __getattr__(self, name: str) -> Any:
        """A C function; AttributeError, as from a shared library, where this driver's library does not export it."""
        # The binding sets ``restype`` on this one, which a bound method would not allow.
        if name == "nvmlErrorString":
            return partial(_error_string)
        if name not in CALLS or name in self._missing:
            raise AttributeError(f"simulated libnvidia-ml.so.1: undefined symbol: {name}")
        return partial(invoke, self._driver, CALLS[name])


def _error_string(code: Any) -> bytes:
    """The one C function that answers text itself instead of a return code."""
    texts: dict[int, str] = pynvml.NVMLError._errcode_to_string
    return texts.get(number(code), "Unknown Error").encode()
