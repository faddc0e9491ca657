"""The agent as ``node-agent run`` has it, which writes what its memory consists of when it gets SIGUSR1.

``python -X tracemalloc=8 -m tests.life.told <folder> run …``: the n-th answer is ``<folder>/<n>.json``, and where
allocations are traced, ``<folder>/<n>.trace``.
"""

import ctypes
import gc
import itertools
import json
import os
import signal
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

from node_agent.cli.main import main


class Mallinfo2(ctypes.Structure):
    """What glibc's malloc says of itself, in bytes; of all arenas together."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "used", "free", "keepcost")
    ]


def mallinfo() -> dict[str, int]:
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = Mallinfo2
    answer = ask()
    return {"taken": answer.arena + answer.hblkhd, "used": answer.used + answer.hblkhd, "free": answer.free}


def tell(file: Path) -> None:
    gc.collect()
    if tracemalloc.is_tracing():
        tracemalloc.take_snapshot().dump(str(file.with_suffix(".trace")))
    kinds = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
    facts = {"malloc": mallinfo(), "blocks": sys.getallocatedblocks(), "objects": kinds}
    new = file.with_suffix(".new")
    new.write_text(json.dumps(facts))
    os.rename(new, file)


def serve(folder: Path) -> None:
    numbers = itertools.count(1)
    signal.signal(signal.SIGUSR1, lambda *_: tell(folder / f"{next(numbers)}.json"))
    sys.argv[:2] = ["node-agent"]
    main()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
