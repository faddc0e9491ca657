"""An agent that dies at any step of a change, or within one, leaves what the next one finishes or takes back."""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from node_agent.allocation.grants import Door
from node_agent.errors import DeviceHeld
from node_agent.hardware.provider import Partitioning
from node_agent.hardware.simulated import SimulatedNode
from node_agent.layouts import layouts as layouts_module
from node_agent.layouts.orders import Order
from node_agent.layouts.state import Phase
from node_agent.model.gpu import GpuUuid, PartitionMode
from node_agent.model.partition import Instance, PartitionProfile, Piece
from tests.unit.layouts.world import World, layouts, order, simulated, world

LAYOUTS = layouts(
    halves='\n    - {devices: [0], mig-enabled: true, mig-devices: {"2g.12gb": 2}}',
    quarters='\n    - {devices: [0], mig-enabled: true, mig-devices: {"1g.6gb": 2, "2g.12gb": 1}}',
    whole="\n    - {devices: [0], mig-enabled: false}\n",
)
LYING = {
    "halves": ["2g.12gb at 0", "2g.12gb at 2"],
    "quarters": ["2g.12gb at 0", "1g.6gb at 2", "1g.6gb at 3"],
    "whole": None,
}
WAYS = [("whole", "halves"), ("halves", "quarters"), ("quarters", "whole")]


class Died(BaseException):
    """The agent is gone, as by SIGKILL: nothing of it is undone."""


class Mortal:
    """A driver's door at whose call number ``at`` the agent dies: ``before`` it, ``within`` or ``after`` it."""

    def __init__(self, real: Partitioning, node: SimulatedNode, at: int, when: str) -> None:
        self._real, self._node, self._left, self._when = real, node, at, when

    async def profiles(self, gpu: GpuUuid) -> tuple[PartitionProfile, ...]:
        return await self._real.profiles(gpu)

    async def instances(self, gpu: GpuUuid) -> tuple[Instance, ...]:
        return await self._real.instances(gpu)

    async def set_mode(self, gpu: GpuUuid, enabled: bool) -> PartitionMode:
        last = self._last("before")
        mode = await self._real.set_mode(gpu, enabled)
        return self._die() if last else mode

    async def create(self, gpu: GpuUuid, piece: Piece) -> Instance:
        last = self._last("before")
        made = await self._real.create(gpu, piece)
        if last and self._when == "within":
            self._halve(piece)
        return self._die() if last else made

    async def destroy(self, gpu: GpuUuid, piece: Piece) -> None:
        last = self._last("before")
        if last and self._when == "within":
            self._halve(piece)
            self._die()
        await self._real.destroy(gpu, piece)
        if last:
            self._die()

    def _last(self, when: str) -> bool:
        self._left -= 1
        if self._left == 0 and self._when == when:
            self._die()
        return self._left == 0

    def _halve(self, piece: Piece) -> None:
        """The GPU instance without its compute instances: as between two calls of the driver."""
        mig = self._node.faults.gpu(0).mig
        assert mig is not None
        for instance in mig.instances.values():
            if instance.start == piece.placement.start:
                instance.compute.clear()

    def _die(self) -> NoReturn:
        raise Died


def wanted(name: str) -> Order:
    return order(name, layouts=LAYOUTS)


def deaths() -> Iterator[tuple[str, str, int, str]]:
    for before, after in WAYS:
        for at in range(1, 6):
            for when in ("before", "within", "after"):
                yield before, after, at, when


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts_module, "AGAIN_SECONDS", 0.05)


async def dying(node: SimulatedNode, folder: Path, before: str, after: str, through: Callable[..., Mortal]) -> bool:
    """Lead the GPU from one layout to another, and let the agent die on the way; False where the way was too short."""
    async with world(node, folder, wanted(before)) as here:
        await here.done(before)
    with suppress(Died):
        async with world(node, folder, wanted(after), through=through) as here:
            await here.done_or_dead(after)
            return False
    return True


@pytest.mark.parametrize(("before", "after", "at", "when"), list(deaths()))
async def test_the_next_agent_finishes_what_one_began(
    tmp_path: Path, before: str, after: str, at: int, when: str
) -> None:
    with simulated("a30-2") as node:
        if not await dying(node, tmp_path, before, after, lambda real: Mortal(real, node, at, when)):
            return
        async with world(node, tmp_path, wanted(after), runs=False) as here:
            with pytest.raises(DeviceHeld, match="held by layout"):
                await here.give(0)
        async with world(node, tmp_path, wanted(after)) as here:
            await here.done(after)
            assert here.lying(0) == LYING[after]
            await free_again(here)


@pytest.mark.parametrize(("before", "after", "at", "when"), list(deaths()))
async def test_the_next_agent_takes_back_what_is_not_wanted_any_more(
    tmp_path: Path, before: str, after: str, at: int, when: str
) -> None:
    with simulated("a30-2") as node:
        if not await dying(node, tmp_path, before, after, lambda real: Mortal(real, node, at, when)):
            return
        async with world(node, tmp_path) as here:
            await here.nothing_held()
            assert here.lying(0) == LYING[before]
            await free_again(here)


async def free_again(here: World) -> None:
    """Nothing of the change is left in the ledger: the GPU can be given out."""
    assert here.ledger.grants_of(Door.LAYOUT) == ()
    if here.inventory.instances.get(here.gpus[0].uuid):
        await here.give(0, here.part(0, 0))
    else:
        await here.give(0)


async def test_many_agents_die_one_after_the_other_and_the_last_wish_is_carried_out(tmp_path: Path) -> None:
    chance = random.Random(26)
    with simulated("a30-2") as node:
        for _ in range(25):
            name = chance.choice(list(LYING))
            at, when = chance.randint(1, 4), chance.choice(["before", "within", "after"])

            def mortal(real: Partitioning, at: int = at, when: str = when) -> Mortal:
                return Mortal(real, node, at, when)

            with suppress(Died):
                async with world(node, tmp_path, wanted(name), through=mortal) as here:
                    await here.done_or_dead(name)
                    assert here.lying(0) == LYING[name]
        async with world(node, tmp_path, wanted("quarters")) as here:
            state = await here.done("quarters")
            assert state.phase is Phase.SUCCESS
            assert here.lying(0) == LYING["quarters"]
            await free_again(here)
