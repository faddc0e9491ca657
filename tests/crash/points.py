"""Kills an operation at the boundaries that it crosses, one after another, and sees to it that all comes to rest.

``wander`` does operations in any order, dies anywhere and now and then once more while the next agent starts.
"""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.crash.nursery import Nursery
from tests.crash.operations import PLAIN, Act, Operation, nothing
from tests.crash.site import Killed, Site, site

PROFILE = "h200-8"
# GPU 0 of the profile is the one that claims cut.
CUT = 0

Chosen = Callable[[int, int], bool]
"""Whether to kill at a boundary, by its number from 1 on and how many the operation crosses."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an operation crosses when nothing happens to it, and where it was killed."""

    name: str
    crossed: list[str]
    killed: list[str] = field(default_factory=list)


@asynccontextmanager
async def at_rest(nursery: Nursery) -> AsyncIterator[Site]:
    """A node with an agent at rest; who fails beside it is told what the agent said last."""
    async with site(PROFILE, PLAIN, nursery) as here:
        here.cut.add(here.place.uuid(CUT))
        try:
            here.start()
            await here.rest()
            yield here
        except BaseException as error:
            error.add_note("the agent's last words:\n" + "\n".join(here.log.read_text().splitlines()[-30:]))
            error.add_note(f"boundaries since the fuse was lit: {here.fuse.crossed}")
            raise


async def kill_in(operation: Operation, here: Site, chosen: Chosen) -> Report:
    """Do an operation once, then kill it at each chosen boundary."""
    await operation.before(here)
    await here.rest()
    here.fuse.light(0)
    await operation.act(here)
    await here.rest()
    report = Report(name=operation.name, crossed=here.fuse.crossed)
    await operation.after(here)
    await here.rest()
    for number in range(1, len(report.crossed) + 1):
        if chosen(number, len(report.crossed)):
            await _kill_at(number, operation, here, report)
    return report


async def kill_in_start(here: Site, chosen: Chosen) -> Report:
    """As ``kill_in``, of an agent that starts on what another one has left."""
    await here.kill()
    here.fuse.light(0)
    here.start()
    await here.rest()
    report = Report(name="start", crossed=here.fuse.crossed)
    for number in range(1, len(report.crossed) + 1):
        if chosen(number, len(report.crossed)):
            await here.kill()
            here.fuse.light(number)
            here.start()
            if not await survived(nothing, here):
                report.killed.append(here.fuse.crossed[-1])
                await again(nothing, here)
            here.fuse.light(0)
    return report


async def _kill_at(number: int, operation: Operation, here: Site, report: Report) -> None:
    """Where it was killed at an odd boundary the call is made once more, at an even one it is given up."""
    await operation.before(here)
    await here.rest()
    here.fuse.light(number)
    if await survived(operation.act, here):
        here.fuse.light(0)
    else:
        report.killed.append(here.fuse.crossed[-1])
        await again(operation.act if number % 2 else nothing, here)
    # What the call has left to be done may be killed as late as this.
    if not await survived(operation.after, here):
        await again(operation.after, here)


async def survived(act: Act, here: Site) -> bool:
    """Whether the agent has done it and come to rest, and was not killed meanwhile."""
    try:
        await act(here)
        await here.rest()
    except Killed:
        if not here.fuse.burnt:
            raise
    return not here.fuse.burnt


async def again(act: Act, here: Site) -> None:
    """Have the next agent find what the dead one has left, and then do it."""
    await here.dead()
    here.fuse.light(0)
    here.start()
    await here.rest()
    await act(here)
    await here.rest()


async def wander(here: Site, seed: int, pairs: dict[str, tuple[Act, Act]], steps: int) -> list[str]:
    """Do and undo the pairs in an order that follows from the seed, killed on the way; returns what was done."""
    chance, done, told = random.Random(seed), set[str](), []
    for _ in range(steps):
        name = chance.choice(sorted(pairs))
        act, fuse = pairs[name][name in done], chance.choice([0, *range(1, 30)])
        told.append(f"{'undo' if name in done else 'do'} {name}, fuse {fuse}")
        here.fuse.light(fuse)
        if not await survived(act, here):
            await here.dead()
            # The next one dies as well, now and then, and the one after it lives.
            here.fuse.light(chance.choice([0, 0, *range(1, 40)]))
            here.start()
            if not await survived(nothing, here):
                told[-1] += ", killed twice"
            await again(act, here) if here.fuse.burnt else await act(here)
        here.fuse.light(0)
        done ^= {name}
    for name in sorted(done):
        if not await survived(pairs[name][1], here):
            await again(pairs[name][1], here)
    return told
