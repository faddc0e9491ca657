"""``make crash``: every operation killed at every boundary, random walks, and thousands of histories; prints counts.

``python -m tests.crash [operation …]`` kills in these operations alone.
"""

import asyncio
import sys
import time

from tests.crash.nursery import Nursery
from tests.crash.operations import OPERATIONS, PAIRS
from tests.crash.points import Report, at_rest, kill_in, kill_in_start, wander
from tests.crash.test_histories import Histories, long_run

WALKS, STEPS = 40, 12
HISTORIES = 3000


async def every_point(names: list[str]) -> None:
    with Nursery() as nursery:
        for operation in OPERATIONS:
            if operation.name in names or not names:
                began = time.monotonic()
                async with at_rest(nursery) as here:
                    _tell(await kill_in(operation, here, lambda number, count: True), began)
        if "start" in names or not names:
            began = time.monotonic()
            async with at_rest(nursery) as here:
                for pair in PAIRS.values():
                    await pair[0](here)
                    await here.rest()
                _tell(await kill_in_start(here, lambda number, count: True), began)


async def walks() -> None:
    with Nursery() as nursery:
        for seed in range(WALKS):
            async with at_rest(nursery) as here:
                told = await wander(here, seed, PAIRS, STEPS)
            print(f"walk {seed}: {len(told)} steps, {sum('twice' in one for one in told)} double deaths", flush=True)


def _tell(report: Report, began: float) -> None:
    seconds = time.monotonic() - began
    print(
        f"{report.name}: {len(report.crossed)} boundaries, killed {len(report.killed)} times, {seconds:.0f} s",
        flush=True,
    )
    for name in dict.fromkeys(report.crossed):
        print(f"    {name}", flush=True)


def main(names: list[str]) -> None:
    asyncio.run(every_point(names))
    if not names:
        asyncio.run(walks())
        began = time.monotonic()
        long_run(HISTORIES)
        print(f"{HISTORIES} histories of {Histories.__name__.lower()} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
