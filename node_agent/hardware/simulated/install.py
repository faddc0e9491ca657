"""Putting the simulated library in the place of the real one, below NVIDIA's own binding."""

from collections.abc import Iterator
from contextlib import contextmanager

import pynvml

from node_agent.hardware.simulated.node import SimulatedNode


@contextmanager
def install(node: SimulatedNode) -> Iterator[SimulatedNode]:
    """Let ``pynvml`` talk to the node until the end of the block, then to whatever it talked to before.

    The binding loads the real library only while ``nvmlLib`` is None, and keeps every function it has ever looked up,
    so its cache is emptied on both sides.
    """
    before = pynvml.nvmlLib, pynvml._nvmlLib_refcount
    _replace(node.library, 0)
    try:
        yield node
    finally:
        _replace(*before)


def _replace(library: object, users: int) -> None:
    # The binding's own lock: nobody loads or looks up a function in between.
    with pynvml.libLoadLock:
        pynvml.nvmlLib = library
        pynvml._nvmlLib_refcount = users
        pynvml._nvmlGetFunctionPointer_cache.clear()
