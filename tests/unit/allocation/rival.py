"""One of several agents that want the same GPUs: takes and gives back without end, and says when it had what.

Run as ``python -m tests.unit.allocation.rival FOLDER NAME SEED``. It ends when its input does. Each line is
``GPU FROM TO``: it surely had that GPU between these moments, of the clock that all processes of a machine share.
``keeps GPU`` is what it holds at its end.
"""

import asyncio
import random
import sys
import time
from pathlib import Path

from node_agent.allocation import ledger as module
from node_agent.allocation.grants import FRONT_DOORS, Grant
from node_agent.allocation.ledger import Ledger
from node_agent.errors import DeviceHeld
from node_agent.kit.tasks import running
from tests.unit.allocation.support import grant, opened

GPUS = 3


async def work(folder: Path, name: str, seed: int) -> None:
    module.LOOK_SECONDS = 0.03
    choice = random.Random(seed)
    end = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with opened(folder, told=False) as ledger, running(ledger.run()):
        for door in FRONT_DOORS:
            await ledger.reconcile(door, [])
        say("inside")
        held: dict[int, Grant] = {}
        while not end.done():
            await asyncio.gather(*(turn(ledger, held, f"{name}-{i}", i, choice) for i in range(GPUS)))
        # Whoever is alone has yet to write what was not worth it.
        await ledger.release("nobody")
        say(f"keeps {' '.join(map(str, sorted(held)))}")


async def turn(ledger: Ledger, held: dict[int, Grant], name: str, gpu: int, choice: random.Random) -> None:
    """Try for a GPU, keep it for a moment or for longer, and give it back."""
    try:
        if gpu not in held:
            held[gpu] = await ledger.reserve(grant(name, gpu), durable=choice.random() < 0.5)
    except DeviceHeld:
        return
    since = time.monotonic()
    await asyncio.sleep(choice.random() * 0.002)
    say(f"{gpu} {since} {time.monotonic()}")
    if choice.random() < 0.8:
        await ledger.release(held.pop(gpu).holder.id, durable=choice.random() < 0.5)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
