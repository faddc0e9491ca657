"""Random histories of wishes, pods and processes: what is held is never touched, and in the end the last wish holds."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from node_agent.allocation.grants import Holder
from node_agent.errors import AllocationError
from node_agent.layouts import layouts as layouts_module
from node_agent.model.partition import Part
from tests.unit.layouts.world import World, layouts, order, simulated, world

GPUS = range(2)
COUNTS: tuple[dict[str, int], ...] = (
    {},
    {"1g.6gb": 4},
    {"2g.12gb": 2},
    {"1g.6gb": 2, "2g.12gb": 1},
    {"4g.24gb": 1},
    {"1c.2g.12gb": 2},
)
ENTRY = "    - {{devices: [{}], mig-enabled: {}, mig-devices: {}}}\n"
NAMED = {
    f"{first}-{second}": "".join(
        ENTRY.format(gpu, "true", str(COUNTS[number]).replace("'", '"'))
        for gpu, number in zip(GPUS, (first, second), strict=True)
    )
    for first in range(len(COUNTS))
    for second in range(len(COUNTS))
} | {"off": "\n    - {devices: all, mig-enabled: false}\n"}
LAYOUTS = layouts(**NAMED)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts_module, "AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(layouts_module, "FIRST_SECONDS", 0.02)


def offered(here: World) -> Iterator[tuple[int, Part | None]]:
    """What a front door would give out, going by the inventory of the moment."""
    for index in GPUS:
        gpu = here.gpus[index]
        if gpu.partition_mode is not None and gpu.partition_mode.active:
            for instance in here.inventory.instances.get(gpu.uuid, ()):
                yield from ((index, partition.part) for partition in instance.partitions)
        else:
            yield index, None


def is_there(here: World, index: int, part: Part | None) -> bool:
    """Whether what somebody holds is still what it was, by the driver's own word."""
    lying = here.lying(index)
    if part is None:
        return lying is None
    whole = part.profile.partition(".")[2] if part.computes else part.profile
    return lying is not None and f"{whole} at {part.placement.start}" in lying


@pytest.mark.parametrize("seed", range(6))
async def test_no_wish_touches_what_is_held_and_the_last_one_holds_in_the_end(tmp_path: Path, seed: int) -> None:
    chance, held = random.Random(seed), dict[tuple[int, Part | None], Holder]()
    with simulated("a30-2") as node:
        async with world(node, tmp_path) as here:
            for _ in range(60):
                what = chance.random()
                if what < 0.3:
                    here.order.set(order(chance.choice(list(NAMED)), layouts=LAYOUTS, refuse=chance.random() < 0.2))
                elif what < 0.65 and (free := [one for one in offered(here) if one not in held]):
                    index, part = chance.choice(free)
                    with suppress(AllocationError):
                        held[index, part] = await here.give(index, part)
                elif held:
                    await here.ledger.release(held.pop(chance.choice(list(held))).id)
                await asyncio.sleep(chance.choice((0, 0.01, 0.05)))
                assert all(is_there(here, *one) for one in held), (seed, held, [here.lying(index) for index in GPUS])
            here.order.set(order("1-2", layouts=LAYOUTS))
            for holder in held.values():
                await here.ledger.release(holder.id)
            await here.done("1-2")
            assert here.lying(0) == [f"1g.6gb at {start}" for start in range(4)]
            assert here.lying(1) == ["2g.12gb at 0", "2g.12gb at 2"]
