"""Memory of a program that lives for months: what glibc's malloc keeps of it, and what Python searches for garbage."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

# The numbers are those of glibc's <malloc.h>.
TRIM_THRESHOLD, ARENA_MAX = -1, -8
TRIM_BYTES = 128 * 1024


def give_back_freed() -> None:
    """Have what is freed go back to the system; to be called before there are threads. Without glibc nothing happens.

    Else each thread that allocates gets an arena of its own, and once a large block was freed those of its size come
    from the heap as well, whose holes stay: of the same use a little more is kept hour after hour. It is not set in the
    environment, which programs that are started here would have too.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, TRIM_BYTES)
        mallopt(ARENA_MAX, 1)


@contextmanager
def nothing_to_collect() -> Iterator[None]:
    """A block that makes what stays for good, as imports do: nothing is searched for garbage meanwhile.

    What there is at its end, from before too, is not searched later either; for the start of a program.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
