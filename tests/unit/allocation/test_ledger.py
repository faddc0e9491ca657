"""What the ledger answers is on disk; what it refuses has changed nothing."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent.allocation.checkpoint import Checkpoint, decode
from node_agent.allocation.custody import Custody
from node_agent.allocation.grants import FRONT_DOORS, Books, Door, Grant, State
from node_agent.allocation.ledger import Ledger
from node_agent.errors import DeviceHeld, HoldersUnknown, StateError
from node_agent.kit.lane import Lane
from tests.fakes.builders import uuid
from tests.unit.allocation.support import BOOT, LEDGER, full_disk, grant, holder, opened, uid_of


class FakeCheckpoint(Checkpoint):
    """Counts the writes. While ``gate`` is not set the disk hangs; with ``failure`` it fails once the file is there."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.saves = 0
        self.gate = threading.Event()
        self.gate.set()
        self.failure: StateError | None = None

    def save(self, books: Books) -> bytes:
        self.saves += 1
        self.gate.wait()
        content = super().save(books)
        if self.failure is not None:
            raise self.failure
        return content


@pytest.fixture
def checkpoint(tmp_path: Path) -> FakeCheckpoint:
    return FakeCheckpoint(tmp_path / LEDGER)


@asynccontextmanager
async def ledger_of(checkpoint: FakeCheckpoint) -> AsyncIterator[Ledger]:
    with Lane("ledger") as lane:
        async with Ledger(checkpoint=checkpoint, lane=lane, boot_id=BOOT) as ledger:
            for door in FRONT_DOORS:
                await ledger.reconcile(door, [])
            checkpoint.saves = 0
            yield ledger


def trouble_of(ledger: Ledger) -> str:
    return ledger.trouble or "none"


def on_disk(folder: Path) -> dict[str, State]:
    """What another agent would find: the names of the holders, and how far their grants are."""
    content = Checkpoint(folder / LEDGER).read()
    return {one.holder.name: one.state for one in decode(content).grants.values()} if content is not None else {}


async def test_a_reservation_is_on_disk_when_it_is_answered(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        await ledger.reserve(grant("a", 0))
        assert on_disk(tmp_path) == {"a": State.PREPARING}


async def test_the_ledger_says_when_and_in_which_boot_a_grant_was_made(tmp_path: Path) -> None:
    with Lane("ledger") as lane:
        async with Ledger(
            checkpoint=Checkpoint(tmp_path / LEDGER), lane=lane, boot_id="boot-9", clock=lambda: 1234.5
        ) as ledger:
            for door in FRONT_DOORS:
                await ledger.reconcile(door, [])
            made = await ledger.reserve(grant("a", 0))
    assert (made.boot_id, made.since) == ("boot-9", 1234.5)


async def test_a_committed_grant_is_prepared_with_its_ids_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        one = await ledger.reserve(grant("a", 0))
        made = await ledger.commit(one, [replace(one.holds[0], cdi_ids=("vendor/claim=a",))])
    async with opened(tmp_path, told=False) as ledger:
        assert ledger.grant_of(uid_of("a")) == made
        assert (made.state, made.holds[0].cdi_ids) == (State.PREPARED, ("vendor/claim=a",))


async def test_a_released_gpu_is_free_for_the_next_holder(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        await ledger.reserve(grant("a", 0))
        with pytest.raises(DeviceHeld):
            await ledger.reserve(grant("b", 0))
        await ledger.release(uid_of("a"))
        await ledger.reserve(grant("b", 0))
        assert on_disk(tmp_path) == {"b": State.PREPARING}


async def test_releasing_a_holder_that_is_unknown_is_fine_and_writes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        before = (tmp_path / LEDGER).stat().st_ino
        await ledger.release("nobody")
        assert (tmp_path / LEDGER).stat().st_ino == before


async def test_both_doors_see_each_others_gpus(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        await ledger.reserve(grant("claim", 0, 1))
        await ledger.reserve(grant("limit", 2, door=Door.LIMIT))
        await ledger.reserve(grant("watcher", 0, 2, admin=True))
        assert ledger.held_gpus(Door.CLAIM) == {uuid(0), uuid(1)}
        assert ledger.held_gpus(Door.LIMIT) == {uuid(2)}
        assert ledger.holders_of(uuid(0)) == (holder("claim"), holder("watcher"))
        assert [one.holder.name for one in ledger.grants_of(Door.CLAIM)] == ["claim", "watcher"]


async def test_whoever_watches_the_grants_hears_of_each_change(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        heard: list[list[str]] = []

        async def listen() -> None:
            async for grants in ledger.grants.watch():
                heard.append([one.holder.name for one in grants.values()])
                if len(heard) == 3:
                    return

        listener = asyncio.create_task(listen())
        await asyncio.sleep(0)
        await ledger.reserve(grant("a", 0))
        await ledger.release(uid_of("a"))
        await asyncio.wait_for(listener, 30)
        assert heard == [[], ["a"], []]


async def test_one_of_many_who_ask_for_a_gpu_at_once_gets_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        asked = (ledger.reserve(grant(f"c{i}", 0)) for i in range(20))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(answer) for answer in answers].count(Grant) == 1
        assert [type(answer) for answer in answers].count(DeviceHeld) == 19


async def test_changes_that_come_in_while_the_disk_is_busy_share_one_write(
    checkpoint: FakeCheckpoint, tmp_path: Path
) -> None:
    async with ledger_of(checkpoint) as ledger:
        checkpoint.gate.clear()
        first = asyncio.create_task(ledger.reserve(grant("first", 0, share_id="first")))
        await asyncio.sleep(0.01)
        rest = [asyncio.create_task(ledger.reserve(grant(f"c{i}", 0, share_id=f"{i}"))) for i in range(50)]
        await asyncio.sleep(0.01)
        assert not first.done()
        assert not ledger.grants.value
        checkpoint.gate.set()
        await asyncio.gather(first, *rest)
        assert checkpoint.saves == 2
        assert len(on_disk(tmp_path)) == 51


async def test_a_caller_that_is_gone_takes_nobody_elses_change_with_it(checkpoint: FakeCheckpoint) -> None:
    async with ledger_of(checkpoint) as ledger:
        checkpoint.gate.clear()
        gone = asyncio.create_task(ledger.reserve(grant("gone", 0)))
        await asyncio.sleep(0.01)
        never_began = asyncio.create_task(ledger.reserve(grant("never-began", 1)))
        stays = asyncio.create_task(ledger.reserve(grant("stays", 2)))
        await asyncio.sleep(0.01)
        gone.cancel()
        never_began.cancel()
        checkpoint.gate.set()
        await stays
        assert set(ledger.grants.value) == {uid_of("gone"), uid_of("stays")}


async def test_the_end_of_the_ledger_waits_for_the_write_that_is_under_way(checkpoint: FakeCheckpoint) -> None:
    async with ledger_of(checkpoint) as ledger:
        checkpoint.gate.clear()
        call = asyncio.create_task(ledger.reserve(grant("a", 0)))
        await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_later(0.05, checkpoint.gate.set)
    assert (await call).holder == holder("a")
    custody = Custody(checkpoint.path.with_name(f"{LEDGER}.lock"))
    assert custody.enter() and custody.be_alone()
    custody.leave()


async def test_a_disk_that_hangs_does_not_keep_the_ledger_from_ending(
    checkpoint: FakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node_agent.allocation.ledger.GRACE_SECONDS", 0.02)
    async with ledger_of(checkpoint) as ledger:
        checkpoint.gate.clear()
        call = asyncio.create_task(ledger.reserve(grant("a", 0)))
        await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_later(0.1, checkpoint.gate.set)
    with pytest.raises(StateError, match="closed"):
        await asyncio.wait_for(call, 30)


async def test_what_is_not_worth_a_write_is_held_at_once_and_written_with_the_next_change(
    checkpoint: FakeCheckpoint, tmp_path: Path
) -> None:
    async with ledger_of(checkpoint) as ledger:
        await ledger.reserve(grant("a", 0), durable=False)
        with pytest.raises(DeviceHeld):
            await ledger.reserve(grant("b", 0))
        assert (checkpoint.saves, on_disk(tmp_path)) == (0, {})
        await ledger.reserve(grant("c", 1))
        assert (checkpoint.saves, set(on_disk(tmp_path))) == (1, {"a", "c"})


async def test_what_is_not_worth_a_write_waits_for_nobody_while_nothing_is_written(checkpoint: FakeCheckpoint) -> None:
    async with ledger_of(checkpoint) as ledger:
        with pytest.raises(StopIteration) as answered:
            ledger.reserve(grant("a", 0), durable=False).send(None)
        assert answered.value.value == ledger.grant_of(uid_of("a"))


async def test_what_is_not_worth_a_write_waits_for_a_change_that_is_being_written(checkpoint: FakeCheckpoint) -> None:
    async with ledger_of(checkpoint) as ledger:
        checkpoint.gate.clear()
        first = asyncio.create_task(ledger.reserve(grant("a", 0)))
        await asyncio.sleep(0.01)
        second = asyncio.create_task(ledger.reserve(grant("b", 0), durable=False))
        await asyncio.sleep(0.01)
        assert not second.done()
        checkpoint.gate.set()
        await first
        with pytest.raises(DeviceHeld):
            await second


async def test_what_is_not_worth_a_write_does_not_fail_with_a_write_that_it_waited_for(
    checkpoint: FakeCheckpoint, tmp_path: Path
) -> None:
    """A pod was refused on a full disk, since what others hold was to be written down just then."""
    async with ledger_of(checkpoint) as ledger:
        await ledger.reserve(grant("a", 0), durable=False)
        checkpoint.gate.clear()
        first = asyncio.create_task(ledger.store())
        await asyncio.sleep(0.01)
        checkpoint.failure = StateError("No space left on device")
        others = [
            asyncio.create_task(ledger.reserve(grant("b", 1))),
            asyncio.create_task(ledger.reserve(grant("c", 2), durable=False)),
            asyncio.create_task(ledger.reserve(grant("d", 0), durable=False)),
            asyncio.create_task(ledger.reserve(grant("e", 1), durable=False)),
            asyncio.create_task(ledger.reserve(grant("f", 0))),
        ]
        await asyncio.sleep(0.01)
        checkpoint.gate.set()
        with pytest.raises(StateError):
            await first
        durable, cheap, held, freed, refused = await asyncio.gather(*others, return_exceptions=True)
        assert [type(one) for one in (durable, held, refused)] == [StateError, DeviceHeld, DeviceHeld]
        assert isinstance(cheap, Grant) and isinstance(freed, Grant)
        assert {one.holder.name for one in ledger.grants.value.values()} == {"a", "c", "e"}
        checkpoint.failure = None
        await ledger.store()
        assert set(on_disk(tmp_path)) == {"a", "c", "e"}


async def test_several_holders_are_on_disk_with_one_write_or_none_of_them(
    checkpoint: FakeCheckpoint, tmp_path: Path
) -> None:
    async with ledger_of(checkpoint) as ledger:
        await ledger.reserve_all([grant("a", 0), grant("b", 1)])
        assert (checkpoint.saves, set(on_disk(tmp_path))) == (1, {"a", "b"})
        with pytest.raises(DeviceHeld):
            await ledger.reserve_all([grant("c", 2), grant("d", 1)])
        assert set(on_disk(tmp_path)) == {"a", "b"}


async def test_a_durable_reservation_of_what_was_not_yet_written_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        await ledger.reserve(grant("a", 0), durable=False)
        await ledger.reserve(grant("a", 0))
        assert set(on_disk(tmp_path)) == {"a"}


async def test_on_a_full_disk_nothing_is_given_out_and_nothing_taken_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        await ledger.reserve(grant("a", 0))
        with full_disk():
            with pytest.raises(StateError, match=f"cannot write who holds which GPU to {tmp_path}/{LEDGER}: File too"):
                await ledger.reserve(grant("b", 1))
            with pytest.raises(StateError):
                await ledger.release(uid_of("a"))
            assert "nothing was given or taken back" in trouble_of(ledger)
        assert set(ledger.grants.value) == {uid_of("a")}
        assert on_disk(tmp_path) == {"a": State.PREPARING}
        await ledger.reserve(grant("b", 1))
        assert trouble_of(ledger) == "none"
        assert set(on_disk(tmp_path)) == {"a", "b"}


async def test_after_a_failed_write_even_a_change_back_is_written(checkpoint: FakeCheckpoint, tmp_path: Path) -> None:
    """The file may have been replaced before the write failed: nobody knows then what is on disk."""
    async with ledger_of(checkpoint) as ledger:
        await ledger.reserve(grant("a", 0))
        checkpoint.failure = StateError("the folder cannot be synced")
        with pytest.raises(StateError, match="cannot be synced"):
            await ledger.release(uid_of("a"))
        assert on_disk(tmp_path) == {}
        checkpoint.failure = None
        await ledger.reserve(grant("a", 0))
        assert on_disk(tmp_path) == {"a": State.PREPARING}


async def test_who_is_told_what_it_knows_already_writes_nothing(checkpoint: FakeCheckpoint) -> None:
    """What pods hold is told before each claim of a young kubelet: on a full disk also a prepared one failed by it."""
    async with ledger_of(checkpoint) as ledger:
        await ledger.reserve(grant("a", 0))
        await ledger.reserve(grant("pod", 1, door=Door.LIMIT), durable=False)
        checkpoint.failure = StateError("No space left on device")
        with pytest.raises(StateError):
            await ledger.reserve(grant("b", 2))
        for door in FRONT_DOORS:
            await ledger.reconcile(door, [grant("pod", 1, door=Door.LIMIT)])
        assert (await ledger.reserve(grant("a", 0), durable=False)).holder.name == "a"


async def test_a_node_without_a_ledger_gives_nothing_out_before_both_doors_have_told(tmp_path: Path) -> None:
    async with opened(tmp_path, told=False) as ledger:
        assert ledger.unreconciled.value == FRONT_DOORS
        assert trouble_of(ledger) == (
            f"the ledger {tmp_path}/{LEDGER} is new: nobody new gets a device before every claim and every limit "
            "of this node is known"
        )
        await ledger.reconcile(Door.CLAIM, [])
        with pytest.raises(HoldersUnknown, match="every limit"):
            await ledger.reserve(grant("a", 0))
        await ledger.reconcile(Door.LIMIT, [grant("pod", 0, door=Door.LIMIT)])
        assert trouble_of(ledger) == "none"
        with pytest.raises(DeviceHeld, match="held by limit pod"):
            await ledger.reserve(grant("a", 0))
        await ledger.reserve(grant("a", 1))


async def test_that_holders_are_unknown_survives_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, told=False) as ledger:
        await ledger.reconcile(Door.CLAIM, [])
    async with opened(tmp_path, told=False) as ledger:
        assert ledger.unreconciled.value == {Door.LIMIT}


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


def of_the_future(content: bytes) -> bytes:
    return content.replace(b'"version":1', b'"version":2')


@pytest.mark.parametrize("damage", [cut, flipped, of_the_future, lambda _: b"", lambda _: b"\0" * 4096])
async def test_a_damaged_file_is_set_aside_and_said_and_no_live_holder_counts_as_free(
    tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as ledger:
        await ledger.reserve(grant("live", 0))
    broken = damage((tmp_path / LEDGER).read_bytes())
    (tmp_path / LEDGER).write_bytes(broken)
    async with opened(tmp_path, told=False) as ledger:
        assert "the record of who holds which gpu is lost" in caplog.text
        assert (tmp_path / f"{LEDGER}.damaged-1").read_bytes() == broken
        assert f"kept as {tmp_path}/{LEDGER}.damaged-1" in trouble_of(ledger)
        with pytest.raises(HoldersUnknown):
            await ledger.reserve(grant("thief", 0))
        await ledger.reconcile(Door.CLAIM, [grant("live", 0)])
        await ledger.reconcile(Door.LIMIT, [])
        assert trouble_of(ledger) == "none"
        with pytest.raises(DeviceHeld, match="held by claim live"):
            await ledger.reserve(grant("thief", 0))


async def test_an_agent_that_dies_right_after_it_found_the_damage_finds_it_again(tmp_path: Path) -> None:
    (tmp_path / LEDGER).write_text("what?")
    for _ in range(2):
        async with opened(tmp_path, told=False) as ledger:
            assert ledger.unreconciled.value == FRONT_DOORS
            assert "damaged" in trouble_of(ledger)
    assert {path.name for path in tmp_path.iterdir()} == {LEDGER, f"{LEDGER}.damaged-1", f"{LEDGER}.lock"}


async def test_a_file_that_can_be_neither_read_nor_set_aside_keeps_no_agent_from_starting(tmp_path: Path) -> None:
    (tmp_path / LEDGER).mkdir()
    async with opened(tmp_path, told=False) as ledger:
        assert "cannot read who holds which GPU" in trouble_of(ledger)
        with pytest.raises(StateError, match="cannot write"):
            await ledger.reconcile(Door.CLAIM, [])


async def test_where_nobody_serves_claims_none_is_waited_for(tmp_path: Path) -> None:
    limits = frozenset({Door.LIMIT})
    for _ in range(2):
        with Lane("ledger") as lane:
            checkpoint = Checkpoint(tmp_path / LEDGER)
            async with Ledger(checkpoint=checkpoint, lane=lane, boot_id=BOOT, doors=limits) as ledger:
                assert ledger.unreconciled.value == limits
                await ledger.reserve(grant("pod", 0, door=Door.LIMIT))
        # The same where an agent that served claims has left word that they are unknown.
        (tmp_path / LEDGER).unlink()
        async with opened(tmp_path, told=False) as ledger:
            await ledger.release("nobody")


async def test_what_a_killed_agent_has_left_of_a_write_is_cleared_away_at_the_start(tmp_path: Path) -> None:
    (tmp_path / f".{LEDGER}.x81h").write_text("part")
    async with opened(tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == {LEDGER, f"{LEDGER}.lock"}


async def test_after_a_reboot_claims_hold_their_gpus_but_are_not_prepared(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        one = await ledger.reserve(grant("a", 0))
        await ledger.commit(one, [replace(one.holds[0], cdi_ids=("vendor/claim=a",))])
    async with opened(tmp_path, boot_id="boot-2", told=False) as ledger:
        found = ledger.grant_of(uid_of("a"))
        assert found is not None
        assert (found.state, found.holds[0].cdi_ids) == (State.PREPARING, ())
        with pytest.raises(DeviceHeld):
            await ledger.reserve(grant("b", 0))


async def test_a_bug_in_a_change_hurts_only_the_one_who_asked(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        broken = asyncio.create_task(ledger.release([]))  # type: ignore[arg-type]
        good = asyncio.create_task(ledger.reserve(grant("a", 0)))
        with pytest.raises(TypeError):
            await broken
        assert (await good).holder == holder("a")
