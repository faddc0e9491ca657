"""Two agents of one node on one ledger, as in a rolling update: neither waits for the other's end, and no GPU is given
out twice."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent.allocation import ledger as module
from node_agent.allocation.checkpoint import decode
from node_agent.allocation.grants import FRONT_DOORS, Door, State
from node_agent.allocation.ledger import Ledger
from node_agent.errors import DeviceHeld, HoldersUnknown, StateError
from node_agent.kit import hints
from node_agent.kit.tasks import running
from node_agent.kit.unix import identity
from tests.fakes.builders import uuid
from tests.unit.allocation.support import (
    DEVICES,
    LEDGER,
    FakeStep,
    Node,
    claim,
    full_disk,
    grant,
    node,
    opened,
    uid_of,
)

CLAIM = claim("a", "gpu-0", "gpu-1")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(module, "ENTER_SECONDS", 0.005)


@asynccontextmanager
async def agent(folder: Path) -> AsyncIterator[Ledger]:
    """An agent's ledger at work; the first of a folder is told of all holders."""
    first = not (folder / LEDGER).exists()
    async with opened(folder, told=False) as ledger, running(ledger.run()):
        for door in FRONT_DOORS if first else ():
            await ledger.reconcile(door, [])
        yield ledger


@asynccontextmanager
async def two(folder: Path) -> AsyncIterator[tuple[Ledger, Ledger]]:
    async with agent(folder) as one, agent(folder) as other:
        yield one, other


async def until(ledger: Ledger, *names: str) -> None:
    """Wait until the ledger's watchers were told that exactly these hold something."""
    async with asyncio.timeout(30):
        async for grants in ledger.grants.watch():
            if {one.holder.name for one in grants.values()} == set(names):
                return


def on_disk(folder: Path) -> set[str]:
    return {one.holder.name for one in decode((folder / LEDGER).read_bytes()).grants.values()}


async def test_a_second_agent_gets_in_while_the_first_is_at_work_and_knows_all_that_is_held(tmp_path: Path) -> None:
    async with agent(tmp_path) as one:
        await one.reserve(grant("written", 0))
        await one.reserve(grant("unwritten", 1, door=Door.LIMIT), durable=False)
        assert on_disk(tmp_path) == {"written"}
        async with agent(tmp_path) as other:
            assert other.held_gpus(Door.CLAIM) | other.held_gpus(Door.LIMIT) == {uuid(0), uuid(1)}
            assert other.trouble is None
            with pytest.raises(DeviceHeld, match="held by limit unwritten"):
                await other.reserve(grant("thief", 1))


async def test_whoever_comes_is_let_in_by_a_first_one_that_only_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "SELDOM_SECONDS", 3600.0)
    monkeypatch.setattr(hints, "OFTEN_SECONDS", 3600.0)
    async with agent(tmp_path) as one, asyncio.timeout(20), agent(tmp_path) as other:
        assert (one.is_alone, other.is_alone) == (False, False)


async def test_whoever_comes_is_let_in_where_nothing_can_be_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "OFTEN_SECONDS", 0.02)
    monkeypatch.setattr(hints.Hints, "_watch_all", lambda self: None)
    async with agent(tmp_path) as one, asyncio.timeout(20), agent(tmp_path) as other:
        assert (one.is_alone, other.is_alone) == (False, False)


async def test_what_one_agent_gives_out_the_other_cannot_even_before_it_has_heard(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        await one.reserve(grant("a", 0))
        with pytest.raises(DeviceHeld):
            await other.reserve(grant("b", 0))
        await other.reserve(grant("limit", 1, door=Door.LIMIT), durable=False)
        with pytest.raises(DeviceHeld, match="held by limit limit"):
            await one.reserve(grant("b", 1), durable=False)
        await other.release(uid_of("a"))
        await one.reserve(grant("b", 0))


async def test_while_two_share_it_everything_is_written_before_it_is_answered(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        await one.reserve(grant("a", 0), durable=False)
        assert on_disk(tmp_path) == {"a"}
        await other.release(uid_of("a"), durable=False)
        assert on_disk(tmp_path) == set()


async def test_each_hears_of_what_the_other_does(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        made = await one.reserve(grant("a", 0))
        await until(other, "a")
        await other.commit(made, made.holds)
        await until(one, "a")
        async with asyncio.timeout(30):
            async for grants in one.grants.watch():
                if grants[uid_of("a")].state is State.PREPARED:
                    break
        await other.release(uid_of("a"))
        await until(one)


async def test_whoever_looks_knows_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two(tmp_path) as (one, other):
        monkeypatch.setattr(module, "LOOK_SECONDS", 60.0)
        await asyncio.sleep(0.05)
        await one.reserve(grant("a", 0))
        assert other.grant_of(uid_of("a")) is None
        await other.look()
        assert other.grant_of(uid_of("a")) == one.grant_of(uid_of("a"))


async def test_nothing_is_written_by_looking(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        await one.reserve(grant("a", 0))
        before = identity(tmp_path / LEDGER)
        for _ in range(5):
            await asyncio.sleep(0.03)
            await other.look()
        assert identity(tmp_path / LEDGER) == before


@pytest.mark.parametrize("first_ends", [True, False])
async def test_whoever_is_left_is_alone_again_with_all_that_both_have_written(tmp_path: Path, first_ends: bool) -> None:
    async with AsyncExitStack() as ends, AsyncExitStack() as stays:
        first, second = (ends, stays) if first_ends else (stays, ends)
        ledgers = [await stack.enter_async_context(agent(tmp_path)) for stack in (first, second)]
        ending, left = ledgers if first_ends else reversed(ledgers)
        await left.reserve(grant("a", 0))
        await ending.reserve(grant("b", 1))
        await ends.aclose()
        async with asyncio.timeout(30):
            while not left._view.alone:
                await asyncio.sleep(0.01)
        assert {one.holder.name for one in left.grants.value.values()} == {"a", "b"}
        await left.reserve(grant("c", 2), durable=False)
        assert on_disk(tmp_path) == {"a", "b"}


async def test_an_agent_that_comes_and_goes_before_it_is_let_in_leaves_the_first_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as one:
        waiting = asyncio.create_task(agent(tmp_path).__aenter__())
        await asyncio.sleep(0.03)
        assert one._custody.asked
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not one._custody.asked


async def test_an_agent_that_waits_gets_in_when_the_first_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="node_agent")
    async with AsyncExitStack() as second:
        async with opened(tmp_path) as one:
            waiting = asyncio.create_task(second.enter_async_context(agent(tmp_path)))
            await asyncio.sleep(0.05)
            await one.reserve(grant("a", 0))
            assert not waiting.done()
        other = await asyncio.wait_for(waiting, 30)
        assert {grant.holder.name for grant in other.grants.value.values()} == {"a"}
        assert caplog.text.count("waiting for another agent of this node to share the ledger") == 1


async def test_nobody_is_let_in_while_the_disk_is_full_and_that_is_said(tmp_path: Path) -> None:
    async with opened(tmp_path) as one:
        await one.reserve(grant("a", 0), durable=False)
        async with AsyncExitStack() as second:
            with full_disk():
                waiting = asyncio.create_task(second.enter_async_context(agent(tmp_path)))
                with pytest.raises(StateError, match="cannot write"):
                    await one.run()
                assert not waiting.done()
            async with running(one.run()):
                other = await asyncio.wait_for(waiting, 30)
                assert other.grant_of(uid_of("a")) is not None


async def test_on_a_full_disk_two_agents_give_nothing_out_and_take_nothing_back(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        await one.reserve(grant("a", 0))
        with full_disk():
            with pytest.raises(StateError, match="cannot write"):
                await other.reserve(grant("b", 1), durable=False)
            with pytest.raises(StateError, match="cannot write"):
                await other.release(uid_of("a"))
        await until(one, "a")
        await until(other, "a")
        await other.reserve(grant("b", 1))
        await until(one, "a", "b")


@pytest.mark.parametrize("content", [b"what?", b"", None])
async def test_a_file_that_is_damaged_meanwhile_keeps_new_holders_out_until_both_doors_have_told(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with two(tmp_path) as (one, other):
        await one.reserve(grant("live", 0))
        await until(other, "live")
        (tmp_path / LEDGER).unlink()
        if content is not None:
            (tmp_path / LEDGER).write_bytes(content)
        with pytest.raises(HoldersUnknown):
            await other.reserve(grant("new", 1))
        with pytest.raises(DeviceHeld):
            await other.reserve(grant("thief", 0))
        assert "the record of who holds which gpu is lost" in caplog.text
        assert len(list(tmp_path.glob(f"{LEDGER}.damaged-*"))) == (content is not None)
        with pytest.raises(HoldersUnknown):
            await one.reserve(grant("new", 1))
        await one.reconcile(Door.LIMIT, [])
        await other.reconcile(Door.CLAIM, [])
        await one.look()
        assert one.trouble is None
        await one.reserve(grant("new", 1))
        with pytest.raises(DeviceHeld):
            await other.reserve(grant("thief", 0))


async def test_a_file_that_cannot_be_read_stops_changes_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path) as (one, other):
        monkeypatch.setattr(module, "LOOK_SECONDS", 60.0)
        await asyncio.sleep(0.05)
        made = await one.reserve(grant("a", 0))
        content = (tmp_path / LEDGER).read_bytes()
        (tmp_path / LEDGER).unlink()
        (tmp_path / LEDGER).mkdir()
        with pytest.raises(StateError, match="cannot read"):
            await one.release(uid_of("a"))
        (tmp_path / LEDGER).rmdir()
        (tmp_path / LEDGER).write_bytes(content)
        assert await other.reserve(grant("a", 0)) == made


async def test_a_loss_is_heard_of_by_whoever_can_tell_the_holders(tmp_path: Path) -> None:
    async with two(tmp_path) as (_, other):
        (tmp_path / LEDGER).write_bytes(b"what?")
        async with asyncio.timeout(30):
            async for doors in other.unreconciled.watch():
                if doors == FRONT_DOORS:
                    return


async def test_agents_meet_again_after_the_lock_was_removed(tmp_path: Path) -> None:
    async with agent(tmp_path) as one:
        await one.reserve(grant("a", 0))
        (tmp_path / f"{LEDGER}.lock").unlink()
        async with asyncio.timeout(30):
            while one._custody.adrift:
                await asyncio.sleep(0.01)
        async with agent(tmp_path) as other:
            with pytest.raises(DeviceHeld):
                await other.reserve(grant("thief", 0))


async def test_a_change_that_nobody_waits_for_any_more_is_made_and_both_hear_of_it(tmp_path: Path) -> None:
    async with two(tmp_path) as (one, other):
        with one._custody.turn():
            call = asyncio.create_task(other.reserve(grant("a", 0)))
            await asyncio.sleep(0.03)
            call.cancel()
            await asyncio.sleep(0.03)
        await until(other, "a")
        await until(one, "a")


async def test_after_a_reboot_both_agents_find_claims_that_are_to_be_prepared_again(tmp_path: Path) -> None:
    async with agent(tmp_path) as ledger:
        made = await ledger.reserve(grant("a", 0))
        await ledger.commit(made, [replace(made.holds[0], cdi_ids=("vendor/claim=a",))])
    async with (
        opened(tmp_path, boot_id="boot-2", told=False) as one,
        running(one.run()),
        opened(tmp_path, boot_id="boot-2", told=False) as other,
    ):
        assert {ledger.grants.value[uid_of("a")].state for ledger in (one, other)} == {State.PREPARING}
        await other.commit(other.grants.value[uid_of("a")], made.holds)
        await one.look()
        assert one.grants.value[uid_of("a")].state is State.PREPARED


@asynccontextmanager
async def two_nodes(folder: Path) -> AsyncIterator[tuple[Node, Node]]:
    """All parts of two agents on one folder, that hear of each other only when they look."""
    async with node(folder) as one, running(one.ledger.run()), node(folder, told=False) as other:
        yield one, other


async def test_what_one_agent_has_prepared_the_other_gives_the_same_answer_for(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, other):
        made = await one.preparer.prepare(CLAIM, DEVICES)
        assert await other.preparer.prepare(CLAIM, DEVICES) == made


async def test_what_one_agent_has_prepared_the_other_unprepares(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, other):
        await one.preparer.prepare(CLAIM, DEVICES)
        await other.preparer.unprepare(CLAIM.uid)
        assert (other.spec_names, on_disk(tmp_path)) == (set(), set())
        await one.preparer.prepare(claim("next", "gpu-0"), DEVICES)


async def test_a_sweep_leaves_the_specs_of_what_the_other_agent_has_just_prepared(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as (one, other):
        for number in range(20):
            name = f"c{number}"
            await asyncio.gather(
                other.upkeep.sweep(), one.preparer.prepare(claim(name, "gpu-0"), DEVICES), other.upkeep.sweep()
            )
            assert one.spec_of(name).exists()
            await one.preparer.unprepare(uid_of(name))


async def test_nothing_is_swept_once_the_other_agent_has_lost_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_nodes(tmp_path) as (one, other):
        monkeypatch.setattr(module, "LOOK_SECONDS", 60.0)
        await asyncio.sleep(0.05)
        await one.preparer.prepare(CLAIM, DEVICES)
        one.spec_of("of-a-live-claim").write_text("{}")
        (tmp_path / LEDGER).write_bytes(b"what?")
        await one.ledger.reconcile(Door.LIMIT, [])
        await other.upkeep.sweep()
        assert one.spec_of("of-a-live-claim").exists()


async def test_a_claim_that_the_other_agent_has_taken_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    step = FakeStep(tmp_path)
    async with two_nodes(tmp_path) as (one, _), node(tmp_path, step, told=False) as third:
        await one.preparer.prepare(CLAIM, DEVICES)
        with pytest.raises(DeviceHeld):
            await third.preparer.prepare(claim("thief", "gpu-0"), DEVICES)
        assert step.calls == []


HANG = """
import asyncio, sys, time
from pathlib import Path
from node_agent.allocation.checkpoint import Checkpoint
from tests.unit.allocation.support import grant, opened

class Hanging(Checkpoint):
    def save(self, books):
        print("in its turn", flush=True)
        time.sleep(1000)

async def main():
    async with opened(Path(sys.argv[1]), told=False) as ledger:
        ledger._record._checkpoint.__class__ = Hanging
        await ledger.reserve(grant("killed", 0))

asyncio.run(main())
"""


async def test_an_agent_that_is_killed_while_it_writes_holds_nobody_up(tmp_path: Path) -> None:
    async with agent(tmp_path) as one:
        second = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HANG, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert second.stdout is not None and await second.stdout.readline() == b"in its turn\n"
        call = asyncio.create_task(one.reserve(grant("a", 0)))
        await asyncio.sleep(0.1)
        assert not call.done()
        second.kill()
        assert (await asyncio.wait_for(call, 30)).holder.name == "a"
        await second.wait()
        assert on_disk(tmp_path) == {"a"}
