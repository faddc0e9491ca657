"""A process to be killed: prepares and unprepares claims without end, and says before and after each call which.

Run as ``python -m tests.unit.allocation.victim FOLDER SEED``. A line is ``preparing NAME``, ``prepared NAME``,
``unpreparing NAME`` or ``unprepared NAME``.
"""

import asyncio
import random
import sys
from pathlib import Path

from tests.unit.allocation.support import DEVICES, FakeStep, claim, node


async def work(folder: Path, seed: int) -> None:
    choice = random.Random(seed)
    step = FakeStep(folder)
    async with node(folder, step) as n:
        while True:
            name = f"c{choice.randrange(4)}"
            one = claim(name, f"gpu-{name[1:]}")
            step.for_all = name in ("c0", "c1")
            if n.ledger.grant_of(one.uid) is None:
                say(f"preparing {name}")
                await n.preparer.prepare(one, DEVICES)
                say(f"prepared {name}")
            else:
                say(f"unpreparing {name}")
                await n.preparer.unprepare(one.uid)
                say(f"unprepared {name}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2])))
