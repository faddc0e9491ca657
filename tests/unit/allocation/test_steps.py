"""A step is written down before it begins, and undone whatever happens after that."""

import asyncio
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent.allocation.checkpoint import decode
from node_agent.allocation.grants import Grant, Notes, State
from node_agent.allocation.steps import Steps
from node_agent.errors import AllocationError
from node_agent.model.claim import Claim
from tests.fakes.builders import uuid
from tests.unit.allocation.support import (
    DEVICES,
    FAILURE,
    LEDGER,
    FakeStep,
    allocated,
    claim,
    grant,
    node,
    opened,
    uid_of,
)

CLAIM = claim("a", "gpu-0")


def stored(folder: Path) -> Grant:
    return decode((folder / LEDGER).read_bytes()).grants[uid_of("a")]


async def test_a_step_is_on_disk_before_it_begins(tmp_path: Path) -> None:
    found: list[Grant] = []

    class Looking(FakeStep):
        async def do(self, claim: Claim, grant: Grant) -> Notes:
            found.append(stored(tmp_path))
            return await super().do(claim, grant)

    async with node(tmp_path, Looking(tmp_path)) as n:
        await n.preparer.prepare(CLAIM, DEVICES)
        assert (found[0].state, dict(found[0].steps)) == (State.PREPARING, {"setting": {}})
        assert dict(stored(tmp_path).steps) == {"setting": {"was": "before a"}}


async def test_steps_are_taken_in_order_and_undone_the_other_way_round(tmp_path: Path) -> None:
    calls: list[str] = []
    steps = [FakeStep(tmp_path, name=name, calls=calls) for name in ("first", "second", "third")]
    async with node(tmp_path, *steps) as n:
        await n.preparer.prepare(CLAIM, DEVICES)
        await n.preparer.unprepare(CLAIM.uid)
    assert calls == ["do first", "do second", "do third", "undo third", "undo second", "undo first"]


async def test_a_step_that_fails_undoes_itself_and_those_before_it_and_its_error_is_the_answer(tmp_path: Path) -> None:
    calls: list[str] = []
    steps = [FakeStep(tmp_path, name=name, calls=calls) for name in ("first", "second", "third")]
    steps[1].failure = FAILURE
    async with node(tmp_path, *steps) as n:
        with pytest.raises(AllocationError) as raised:
            await n.preparer.prepare(CLAIM, DEVICES)
        assert raised.value is FAILURE
        assert calls == ["do first", "do second", "undo second", "undo first"]
        assert (n.spec_names, dict(n.ledger.grants.value), list(tmp_path.glob("first-*"))) == (set(), {}, [])


async def test_whatever_a_step_raises_is_undone(tmp_path: Path) -> None:
    step = FakeStep(tmp_path, failure=ZeroDivisionError("a bug"))
    async with node(tmp_path, step) as n:
        with pytest.raises(ZeroDivisionError):
            await n.preparer.prepare(CLAIM, DEVICES)
        assert step.calls == ["do setting", "undo setting"]
        assert dict(n.ledger.grants.value) == {}


async def test_a_step_that_a_claim_does_not_need_leaves_no_line(tmp_path: Path) -> None:
    step = FakeStep(tmp_path, for_all=False)
    async with node(tmp_path, step) as n:
        await n.preparer.prepare(CLAIM, DEVICES)
        await n.preparer.unprepare(CLAIM.uid)
        assert step.calls == []


async def test_what_a_step_adds_reaches_the_container_also_after_a_restart(tmp_path: Path) -> None:
    async with node(tmp_path, FakeStep(tmp_path)) as n:
        await n.preparer.prepare(CLAIM, DEVICES)
        n.spec_of("a").unlink()
    async with node(tmp_path, FakeStep(tmp_path), told=False) as n:
        await n.upkeep.restore()
        (device,) = json.loads(n.spec_of("a").read_bytes())["devices"]
        assert device["containerEdits"]["env"] == ["SETTING=before a"]


async def test_a_device_with_admin_access_gets_nothing_of_a_step(tmp_path: Path) -> None:
    async with node(tmp_path, FakeStep(tmp_path)) as n:
        await n.preparer.prepare(claim("a", allocated("gpu-0", admin=True), "gpu-1"), DEVICES)
        devices = json.loads(n.spec_of("a").read_bytes())["devices"]
        assert [each["containerEdits"].get("env") for each in devices] == [None, ["SETTING=before a"]]


async def test_an_undo_gets_the_notes_of_its_step(tmp_path: Path) -> None:
    step = FakeStep(tmp_path)
    async with node(tmp_path, step) as n:
        await n.preparer.prepare(CLAIM, DEVICES)
        await n.preparer.unprepare(CLAIM.uid)
    assert step.seen[-1].steps["setting"] == {"was": "before a"}


async def test_where_an_undo_fails_the_claim_keeps_its_gpus_and_the_next_call_goes_on_there(tmp_path: Path) -> None:
    calls: list[str] = []
    steps = [FakeStep(tmp_path, name=name, calls=calls) for name in ("first", "second")]
    async with node(tmp_path, *steps) as n:
        await n.preparer.prepare(CLAIM, DEVICES)
        steps[0].undo_failure = AllocationError("in use by another client")
        with pytest.raises(AllocationError, match="in use"):
            await n.preparer.unprepare(CLAIM.uid)
        assert n.spec_of("a").exists()
        assert (n.held("a").state, list(n.held("a").steps)) == (State.PREPARING, ["first"])
        steps[0].undo_failure = None
        await n.preparer.unprepare(CLAIM.uid)
        assert calls[2:] == ["undo second", "undo first", "undo first"]
        assert (n.spec_names, dict(n.ledger.grants.value)) == (set(), {})


async def test_a_claim_whose_undo_began_counts_as_prepared_no_more_even_after_a_crash(tmp_path: Path) -> None:
    step = FakeStep(tmp_path, undo_failure=AllocationError("in use"))
    async with node(tmp_path, step) as n:
        await n.preparer.prepare(CLAIM, DEVICES)
        with pytest.raises(AllocationError):
            await n.preparer.unprepare(CLAIM.uid)
    assert stored(tmp_path).state is State.PREPARING


async def test_a_failed_prepare_that_cannot_be_undone_says_so_and_is_undone_by_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step = FakeStep(tmp_path, failure=FAILURE, undo_failure=AllocationError("in use"))
    async with node(tmp_path, step) as n:
        with pytest.raises(AllocationError) as raised:
            await n.preparer.prepare(CLAIM, DEVICES)
        assert raised.value is FAILURE
        assert "cannot be undone yet" in caplog.text
        assert list(n.held("a").steps) == ["setting"]
        step.failure = step.undo_failure = None
        await n.preparer.prepare(CLAIM, DEVICES)
        assert step.calls == ["do setting", "undo setting", "undo setting", "do setting"]


async def test_while_a_claim_is_prepared_again_its_gpus_are_never_free(tmp_path: Path) -> None:
    """A half-done prepare is undone first; in between nobody else may take what the claim holds."""
    step = FakeStep(tmp_path)
    async with node(tmp_path, step) as n:
        await n.preparer.prepare(CLAIM, DEVICES)
        await n.ledger.record(n.held("a").unprepared)
        seen: list[bool] = []

        async def watch() -> None:
            async for grants in n.ledger.grants.watch():
                seen.append(uid_of("a") in grants)
                if grants[uid_of("a")].state is State.PREPARED:
                    return

        watcher = asyncio.create_task(watch())
        await n.preparer.prepare(CLAIM, DEVICES)
        await watcher
        assert all(seen)
        assert step.calls == ["do setting", "undo setting", "do setting"]


async def test_the_step_of_another_version_is_left_and_said_and_keeps_no_pod_from_ending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with node(tmp_path, FakeStep(tmp_path, name="of-the-future")) as n:
        await n.preparer.prepare(CLAIM, DEVICES)
    async with node(tmp_path, told=False) as n:
        await n.preparer.unprepare(CLAIM.uid)
        assert dict(n.ledger.grants.value) == {}
    assert "step of another version of the agent cannot be undone" in caplog.text


async def test_a_grant_without_steps_costs_no_write_to_undo(tmp_path: Path) -> None:
    async with opened(tmp_path) as ledger:
        one = await ledger.reserve(grant("a", 0))
        before = (tmp_path / LEDGER).stat().st_ino
        await Steps(ledger).undo(one)
        assert (tmp_path / LEDGER).stat().st_ino == before


async def test_two_steps_of_a_claim_each_have_their_own_line(tmp_path: Path) -> None:
    steps = [FakeStep(tmp_path, name=name) for name in ("first", "second")]
    async with opened(tmp_path) as ledger:
        one = await ledger.reserve(replace(grant("a", 0, 1)))
        taken = await Steps(ledger, steps).take(CLAIM, one)
        assert dict(taken.steps) == {"first": {"was": "before a"}, "second": {"was": "before a"}}
        assert {path.name for path in tmp_path.glob("*-GPU*")} == {
            f"{step}-{uuid(gpu)}" for step in ("first", "second") for gpu in (0, 1)
        }
