"""Idle partitions are merged so that one of a profile is ready, and nothing in use, or anybody else's, is touched."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent.config.resolve import resolve
from node_agent.config.settings import Settings
from node_agent.hardware.simulated import SimulatedNode
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.layouts import room as room_module
from node_agent.layouts.room import Room
from node_agent.model.gpu import GpuUuid
from tests.unit.layouts.world import World, layouts, order, simulated, world

LYING = ["1g.6gb at 0", "1g.6gb at 1", "2g.12gb at 2"]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_module, "AGAIN_SECONDS", 0.05)


def settings(mode: str, *profiles: str, **more: object) -> Settings:
    flags = {"defragment": mode, "keepRoomFor": list(profiles), **more}
    return resolve(None, {}, {f"agent.mig.{key}": value for key, value in flags.items()}).settings


@asynccontextmanager
async def keeping(
    node: SimulatedNode, folder: Path, given: Settings, followed: frozenset[GpuUuid] | None = None
) -> AsyncIterator[tuple[World, Room]]:
    async with world(node, folder) as here:
        room = Room(
            settings=Latest(given),
            inventory=here.keeper.inventory,
            ledger=here.ledger,
            changer=here.changer,
            followed=lambda: here.layouts.followed if followed is None else followed,
            turn=here.turn,
            known=[here.layouts.looked],
        )
        async with running(room.run()):
            yield here, room


async def lies(here: World, *pieces: str) -> None:
    async with asyncio.timeout(30):
        while here.lying(1) != list(pieces):
            await asyncio.sleep(0.02)
    await here.nothing_held()


async def test_idle_partitions_are_merged_for_a_profile_that_is_to_be_ready(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        async with keeping(node, tmp_path, settings("act", "4g.24gb")) as (here, room):
            await lies(here, "4g.24gb at 0")
            assert room.notes.value == ()


async def test_what_is_in_use_stays_and_it_is_said_that_there_is_no_room(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        async with keeping(node, tmp_path, settings("act", "2g.12gb", "4g.24gb")) as (here, room):
            await here.give(1, here.part(1, 2))
            await lies(here, "2g.12gb at 0", "2g.12gb at 2")
            async with asyncio.timeout(30):
                async for notes in room.notes.watch():
                    if len(notes) == 1:
                        break
            assert notes[0].startswith("room for a 4g.24gb: there is none: ")
            assert here.lying(1) == ["2g.12gb at 0", "2g.12gb at 2"]


async def test_advice_says_the_steps_and_takes_none(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        async with keeping(node, tmp_path, settings("advise", "4g.24gb")) as (here, room):
            async with asyncio.timeout(30):
                async for notes in room.notes.watch():
                    if notes:
                        break
            assert notes == (
                f"room for a 4g.24gb: {here.gpus[1].name}: remove 1g.6gb at 0, remove 1g.6gb at 1, "
                "remove 2g.12gb at 2, make 4g.24gb at 0; set agent.mig.defragment to act to have that done",
            )
            assert here.lying(1) == LYING


@pytest.mark.parametrize(
    "given",
    [
        settings("off", "4g.24gb"),
        settings("act"),
        settings("act", "4g.24gb", onDemand=["1"]),
        replace(settings("act", "4g.24gb"), exclude=("1",)),
    ],
)
async def test_nothing_is_merged_where_nobody_asks_or_claims_or_others_cut(tmp_path: Path, given: Settings) -> None:
    with simulated("a30-2") as node:
        async with keeping(node, tmp_path, given) as (here, _):
            await asyncio.sleep(0.3)
            assert here.lying(1) == LYING


async def test_what_a_layout_has_cut_is_left_as_it_is(tmp_path: Path) -> None:
    quarters = layouts(quarters='\n    - {devices: [1], mig-enabled: true, mig-devices: {"1g.6gb": 4}}\n')
    with simulated("a30-2") as node:
        async with keeping(node, tmp_path, settings("off", "4g.24gb")) as (here, _):
            here.order.set(order("quarters", layouts=quarters))
            await here.done("quarters")
        async with world(node, tmp_path, order("quarters", layouts=quarters)) as here:
            await here.done("quarters")
            assert here.layouts.followed == {here.gpus[1].uuid}
        with_all = frozenset({here.gpus[1].uuid})
        async with keeping(node, tmp_path, settings("act", "4g.24gb"), with_all) as (here, _):
            await asyncio.sleep(0.3)
            assert here.lying(1) == [f"1g.6gb at {start}" for start in range(4)]


async def test_a_merge_that_fails_is_undone_and_not_tried_again_at_once(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        node.faults.fail("nvmlGpuInstanceCreateComputeInstance", code="UNKNOWN", times=1)
        async with keeping(node, tmp_path, settings("act", "4g.24gb")) as (here, _):
            await asyncio.sleep(0.5)
            await lies(here, *LYING)
            await asyncio.sleep(0.3)
            assert here.lying(1) == LYING
