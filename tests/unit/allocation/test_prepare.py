"""A claim is prepared as a whole or not at all, however often, in whatever order and however slowly."""

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from node_agent.allocation.checkpoint import Checkpoint
from node_agent.allocation.grants import Door, State
from node_agent.cdi.edits import ContainerEdits, DeviceNode, NodeEdits
from node_agent.errors import (
    AllocationError,
    CdiError,
    DeviceHeld,
    HoldersUnknown,
    Overtaken,
    StateError,
    UnknownDevice,
)
from node_agent.model.claim import ClaimUid
from node_agent.model.device import PublishedDevice
from tests.fakes.builders import uuid
from tests.unit.allocation.support import (
    DEVICES,
    EDITS,
    FakeStep,
    allocated,
    claim,
    device,
    full_disk,
    grant,
    node,
    uid_of,
)

CLAIM = claim("a", "gpu-0", "gpu-1")


async def test_a_prepared_claim_is_held_has_its_spec_and_names_its_ids(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        made = await n.preparer.prepare(CLAIM, DEVICES)
        assert made == n.held("a")
        assert made.state is State.PREPARED
        devices = json.loads(n.spec_of("a").read_bytes())["devices"]
        assert [hold.cdi_ids for hold in made.holds] == [
            (f"node-agent.gpu.nvidia.com/claim={each['name']}",) for each in devices
        ]
        assert [hold.request for hold in made.holds] == ["gpus", "gpus"]


async def test_the_answer_survives_a_restart(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        made = await n.preparer.prepare(CLAIM, DEVICES)
    async with node(tmp_path, told=False) as n:
        assert await n.preparer.prepare(CLAIM, DEVICES) == made


async def test_preparing_three_times_does_the_work_once_and_unpreparing_twice_succeeds(tmp_path: Path) -> None:
    step = FakeStep(tmp_path)
    async with node(tmp_path, step) as n:
        answers = [await n.preparer.prepare(CLAIM, DEVICES) for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
        assert step.calls == ["do setting"]
        for _ in range(2):
            await n.preparer.unprepare(CLAIM.uid)
        assert step.calls == ["do setting", "undo setting"]
        assert (n.spec_names, dict(n.ledger.grants.value)) == (set(), {})


async def test_a_prepare_that_was_asked_before_its_claim_was_unprepared_is_refused(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        asked = time.monotonic()
        await n.preparer.prepare(CLAIM, DEVICES, asked=asked)
        await n.preparer.unprepare(CLAIM.uid)
        with pytest.raises(Overtaken, match="unprepared after this prepare had been asked for"):
            await n.preparer.prepare(CLAIM, DEVICES, asked=asked)
        assert (n.spec_names, dict(n.ledger.grants.value)) == (set(), {})


async def test_a_prepare_that_waits_for_its_turn_is_refused_when_an_unprepare_came_after_it(tmp_path: Path) -> None:
    step = FakeStep(tmp_path, gate=asyncio.Event())
    async with node(tmp_path, step) as n:
        first = asyncio.create_task(n.preparer.prepare(CLAIM, DEVICES))
        await asyncio.sleep(0.02)
        twin = asyncio.create_task(n.preparer.prepare(CLAIM, DEVICES))
        await asyncio.sleep(0.02)
        undo = asyncio.create_task(n.preparer.unprepare(CLAIM.uid))
        await asyncio.sleep(0.02)
        assert step.gate is not None
        step.gate.set()
        await first
        with pytest.raises(Overtaken):
            await twin
        await undo
        assert dict(n.ledger.grants.value) == {}


async def test_a_claim_may_be_prepared_again_for_its_next_pod(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        first = await n.preparer.prepare(CLAIM, DEVICES)
        await n.preparer.unprepare(CLAIM.uid)
        again = await n.preparer.prepare(CLAIM, DEVICES)
        assert [hold.cdi_ids for hold in again.holds] == [hold.cdi_ids for hold in first.holds]


async def test_unpreparing_a_claim_that_nobody_knows_succeeds(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await n.preparer.unprepare(ClaimUid("never-seen"))


async def test_unpreparing_needs_neither_the_claim_nor_its_devices_nor_the_driver(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await n.preparer.prepare(CLAIM, DEVICES)
    async with node(tmp_path, told=False, edits=None) as n:
        await n.preparer.unprepare(CLAIM.uid)
        assert (n.spec_names, dict(n.ledger.grants.value)) == (set(), {})


async def test_a_spec_that_went_missing_is_there_again_before_prepare_answers(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        made = await n.preparer.prepare(CLAIM, DEVICES)
        content = n.spec_of("a").read_bytes()
        n.spec_of("a").unlink()
        assert await n.preparer.prepare(CLAIM, DEVICES) == made
        assert n.spec_of("a").read_bytes() == content


async def test_prepare_does_not_say_yes_where_a_missing_spec_cannot_be_written(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await n.preparer.prepare(CLAIM, DEVICES)
        n.spec_of("a").unlink()
        n.edits.set(None)
        with pytest.raises(CdiError):
            await n.preparer.prepare(CLAIM, DEVICES)
        assert n.held("a").state is State.PREPARED


async def test_after_a_reboot_a_claim_is_prepared_in_full_again(tmp_path: Path) -> None:
    step = FakeStep(tmp_path)
    async with node(tmp_path, step) as n:
        made = await n.preparer.prepare(CLAIM, DEVICES)
        n.spec_of("a").unlink()
    async with node(tmp_path, step, boot_id="boot-2", told=False) as n:
        assert n.held("a").state is State.PREPARING
        again = await n.preparer.prepare(CLAIM, DEVICES)
        assert step.calls == ["do setting", "undo setting", "do setting"]
        assert again.holds == made.holds
        assert again.boot_id == "boot-2"
        assert n.spec_of("a").exists()
    async with node(tmp_path, step, boot_id="boot-2", told=False) as n:
        assert n.held("a") == again


async def test_a_gpu_of_another_holder_is_refused_by_name(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await n.preparer.prepare(claim("other", "group-2-0"), DEVICES)
        with pytest.raises(
            DeviceHeld, match=rf"gpu-0: {uuid(0)} is held by claim default/other .* as part of group-2-0"
        ):
            await n.preparer.prepare(CLAIM, DEVICES)
        assert len(n.spec_names) == 1


async def test_a_gpu_that_a_pod_has_by_limit_is_refused_and_the_other_way_round(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await n.ledger.reserve(grant("pod", 0, door=Door.LIMIT, state=State.PREPARED))
        with pytest.raises(DeviceHeld, match="held by limit pod"):
            await n.preparer.prepare(CLAIM, DEVICES)
        await n.ledger.release(uid_of("pod"))
        await n.preparer.prepare(CLAIM, DEVICES)
        with pytest.raises(DeviceHeld, match="held by claim default/a"):
            await n.ledger.reserve(grant("pod", 0, door=Door.LIMIT, state=State.PREPARED))


async def test_a_device_that_is_not_published_is_refused_and_nothing_is_held(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        with pytest.raises(UnknownDevice, match="gpu-9"):
            await n.preparer.prepare(claim("a", "gpu-9"), DEVICES)
        assert dict(n.ledger.grants.value) == {}


@pytest.mark.parametrize("boot_id", ["boot-1", "boot-2"])
async def test_a_name_that_has_moved_to_another_gpu_is_refused_and_the_claim_keeps_what_it_has(
    tmp_path: Path, boot_id: str
) -> None:
    async with node(tmp_path) as n:
        await n.preparer.prepare(claim("a", "gpu-0"), DEVICES)
    moved: Mapping[str, PublishedDevice] = {**DEVICES, "gpu-0": device("gpu-0", 5)}
    async with node(tmp_path, boot_id=boot_id, told=False) as n:
        with pytest.raises(UnknownDevice, match=f"was {uuid(0)} when it was prepared and is {uuid(5)} now"):
            await n.preparer.prepare(claim("a", "gpu-0"), moved)
        assert n.held("a").holds[0].gpus == (uuid(0),)


async def test_a_claim_that_was_allocated_anew_gives_back_what_it_had(tmp_path: Path) -> None:
    step = FakeStep(tmp_path)
    async with node(tmp_path, step) as n:
        await n.preparer.prepare(CLAIM, DEVICES)
        made = await n.preparer.prepare(claim("a", "gpu-3"), DEVICES)
        assert [hold.gpus for hold in made.holds] == [(uuid(3),)]
        assert step.calls == ["do setting", "undo setting", "do setting"]
        assert {path.name for path in tmp_path.glob("setting-*")} == {f"setting-{uuid(3)}"}
        await n.preparer.prepare(claim("b", "gpu-0"), DEVICES)


async def test_two_shares_of_a_gpu_and_an_admin_go_together(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        for name, result in (
            ("one", allocated("gpu-0", share_id="s1")),
            ("two", allocated("gpu-0", share_id="s2")),
            ("admin", allocated("gpu-0", admin=True)),
        ):
            await n.preparer.prepare(claim(name, result), DEVICES)
        ids = [hold.cdi_ids[0] for one in n.ledger.grants.value.values() for hold in one.holds]
        assert len(set(ids)) == 3


async def test_admin_access_changes_nothing_on_a_gpu(tmp_path: Path) -> None:
    step = FakeStep(tmp_path)
    async with node(tmp_path, step) as n:
        await n.preparer.prepare(claim("admin", allocated("gpu-0", admin=True)), DEVICES)
        await n.preparer.unprepare(uid_of("admin"))
        assert step.calls == []


async def test_beside_admin_access_a_step_sees_only_what_the_claim_has_for_itself(tmp_path: Path) -> None:
    step = FakeStep(tmp_path)
    async with node(tmp_path, step) as n:
        await n.preparer.prepare(claim("mixed", allocated("gpu-0", admin=True), "gpu-1"), DEVICES)
        await n.preparer.unprepare(uid_of("mixed"))
        assert [[hold.device for hold in seen.holds] for seen in step.seen] == [["gpu-1"], ["gpu-1"]]


async def test_a_claim_without_an_allocation_is_refused(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        with pytest.raises(AllocationError, match="nothing to prepare"):
            await n.preparer.prepare(claim("a"), DEVICES)


async def test_while_holders_are_unknown_nobody_new_is_prepared(tmp_path: Path) -> None:
    async with node(tmp_path, told=False) as n:
        with pytest.raises(HoldersUnknown):
            await n.preparer.prepare(CLAIM, DEVICES)
        assert n.spec_names == set()


async def test_on_a_full_disk_a_prepare_leaves_nothing_behind(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        with full_disk(), pytest.raises((StateError, CdiError), match="File too large"):
            await n.preparer.prepare(CLAIM, DEVICES)
        assert (n.spec_names, dict(n.ledger.grants.value)) == (set(), {})
        await n.preparer.prepare(CLAIM, DEVICES)


async def test_a_ledger_that_cannot_be_written_leaves_neither_a_spec_nor_a_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node(tmp_path) as n:
        broken = StateError("cannot write")

        def save(*_: object) -> None:
            assert n.spec_of("a").exists()
            raise broken

        with monkeypatch.context() as patched, pytest.raises(StateError) as raised:
            patched.setattr(Checkpoint, "save", save)
            await n.preparer.prepare(CLAIM, DEVICES)
        assert raised.value is broken
        assert (n.spec_names, dict(n.ledger.grants.value)) == (set(), {})


async def test_a_gpu_out_of_reach_fails_its_claim_and_no_other(tmp_path: Path) -> None:
    reachable = NodeEdits(common=EDITS.common, gpus={uuid(1): EDITS.gpus[uuid(1)]})
    async with node(tmp_path, edits=reachable) as n:
        answers = await asyncio.gather(
            n.preparer.prepare(claim("a", "gpu-0"), DEVICES),
            n.preparer.prepare(claim("b", "gpu-1"), DEVICES),
            return_exceptions=True,
        )
        assert isinstance(answers[0], CdiError)
        assert set(n.ledger.grants.value) == {uid_of("b")}


async def test_a_slow_claim_holds_up_no_other(tmp_path: Path) -> None:
    class ForSlow(FakeStep):
        def applies(self, claim: object, grant: object) -> bool:
            return "slow" in str(claim)

    step = ForSlow(tmp_path, gate=asyncio.Event())
    async with node(tmp_path, step) as n:
        slow = asyncio.create_task(n.preparer.prepare(claim("slow", "gpu-0"), DEVICES))
        await asyncio.sleep(0.02)
        async with asyncio.timeout(30):
            await n.preparer.prepare(claim("quick", "gpu-1"), DEVICES)
            await n.preparer.unprepare(uid_of("quick"))
        assert not slow.done()
        assert step.gate is not None
        step.gate.set()
        await slow


async def test_a_twin_waits_and_gets_the_same_answer(tmp_path: Path) -> None:
    step = FakeStep(tmp_path, gate=asyncio.Event())
    async with node(tmp_path, step) as n:
        twins = [asyncio.create_task(n.preparer.prepare(CLAIM, DEVICES)) for _ in range(3)]
        await asyncio.sleep(0.02)
        assert step.gate is not None
        step.gate.set()
        first, *others = await asyncio.gather(*twins)
        assert others == [first, first]
        assert step.calls == ["do setting"]


async def test_what_was_begun_goes_on_when_its_caller_is_gone(tmp_path: Path) -> None:
    """The kubelet gives a call up after 45 seconds; the next one, a minute later, should find it done."""
    step = FakeStep(tmp_path, gate=asyncio.Event())
    async with node(tmp_path, step) as n:
        call = asyncio.create_task(n.preparer.prepare(CLAIM, DEVICES))
        await asyncio.sleep(0.02)
        call.cancel()
        await asyncio.wait([call])
        assert step.gate is not None
        step.gate.set()
        await n.preparer.prepare(CLAIM, DEVICES)
        assert step.calls == ["do setting"]


async def test_an_unprepare_waits_for_the_prepare_under_way_and_undoes_it(tmp_path: Path) -> None:
    step = FakeStep(tmp_path, gate=asyncio.Event())
    async with node(tmp_path, step) as n:
        prepare = asyncio.create_task(n.preparer.prepare(CLAIM, DEVICES))
        await asyncio.sleep(0.02)
        undo = asyncio.create_task(n.preparer.unprepare(CLAIM.uid))
        await asyncio.sleep(0.02)
        assert not undo.done()
        assert step.gate is not None
        step.gate.set()
        await asyncio.gather(prepare, undo)
        assert step.calls == ["do setting", "undo setting"]
        assert (n.spec_names, dict(n.ledger.grants.value)) == (set(), {})


async def test_a_step_that_hangs_is_given_up_and_undone(tmp_path: Path) -> None:
    step = FakeStep(tmp_path, gate=asyncio.Event())
    async with node(tmp_path, step, limit=1.0) as n:
        with pytest.raises(AllocationError, match=r"preparing claim default/a \(uid-of-a\) was not done within 1 s"):
            await asyncio.wait_for(n.preparer.prepare(CLAIM, DEVICES), 30)
        assert step.calls == ["do setting", "undo setting"]
        assert list(tmp_path.glob("setting-*")) == []
        assert dict(n.ledger.grants.value) == {}


async def test_the_end_of_the_agent_waits_for_what_is_under_way(tmp_path: Path) -> None:
    step = FakeStep(tmp_path, gate=asyncio.Event())
    async with node(tmp_path, step) as n:
        call = asyncio.create_task(n.preparer.prepare(CLAIM, DEVICES))
        await asyncio.sleep(0.02)
        assert step.gate is not None
        asyncio.get_running_loop().call_later(0.05, step.gate.set)
    assert (await call).state is State.PREPARED


async def test_what_hangs_at_the_end_of_the_agent_stays_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node_agent.allocation.calls.GRACE_SECONDS", 0.05)
    step = FakeStep(tmp_path, gate=asyncio.Event())
    async with node(tmp_path, step) as n:
        call = asyncio.create_task(n.preparer.prepare(CLAIM, DEVICES))
        async with asyncio.timeout(30):
            while not step.calls:
                await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await call
    async with node(tmp_path, step, told=False) as n:
        assert dict(n.held("a").steps) == {"setting": {}}
        await n.preparer.unprepare(CLAIM.uid)
    assert step.calls == ["do setting", "undo setting"]
    assert list(tmp_path.glob("setting-*")) == []


async def test_fifty_claims_at_once_are_all_prepared_and_all_unprepared(tmp_path: Path) -> None:
    claims = [claim(f"c{i}", allocated(f"gpu-{i % 8}", share_id=f"s{i}")) for i in range(50)]
    async with node(tmp_path) as n:
        await asyncio.gather(*(n.preparer.prepare(one, DEVICES) for one in claims))
        assert {one.state for one in n.ledger.grants.value.values()} == {State.PREPARED}
        assert len(n.spec_names) == 50
        await asyncio.gather(*(n.preparer.unprepare(one.uid) for one in claims))
        assert (n.spec_names, dict(n.ledger.grants.value)) == (set(), {})


async def test_the_spec_follows_the_edits_of_the_moment(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.edits.set(
            NodeEdits(
                common=EDITS.common, gpus={uuid(0): ContainerEdits(device_nodes=(DeviceNode(path="/dev/nvidia6"),))}
            )
        )
        await n.preparer.prepare(claim("a", "gpu-0"), DEVICES)
        assert b"/dev/nvidia6" in n.spec_of("a").read_bytes()
