"""The disk tells the truth again after whatever happened to it, to the claims or to the agent."""

import asyncio
import time
from pathlib import Path

import pytest

from node_agent.allocation.checkpoint import decode
from node_agent.allocation.grants import FRONT_DOORS, Door, State
from node_agent.cdi.edits import ContainerEdits, NodeEdits
from node_agent.errors import AllocationError, DeviceHeld, HoldersUnknown, UnknownDevice
from node_agent.kit.tasks import running
from tests.fakes.builders import uuid
from tests.unit.allocation.support import (
    DEVICES,
    EDITS,
    FAILURE,
    LEDGER,
    FakeStep,
    Node,
    allocated,
    claim,
    device,
    grant,
    node,
    uid_of,
)

A, B = claim("a", "gpu-0"), claim("b", "gpu-1")


async def prepared(n: Node) -> None:
    for one in (A, B):
        await n.preparer.prepare(one, DEVICES)


async def settled(n: Node, *names: str) -> None:
    """Wait until exactly these claims have a spec."""
    async with asyncio.timeout(30):
        while n.spec_names != {n.spec_of(name).name for name in names}:
            await asyncio.sleep(0.01)


async def test_at_start_prepared_claims_get_their_specs_back_and_unknown_ones_lose_theirs(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await prepared(n)
        n.spec_of("unknown").write_bytes(n.spec_of("a").read_bytes())
        n.spec_of("a").unlink()
    async with node(tmp_path, told=False) as n, running(n.upkeep.run()):
        await settled(n, "a", "b")


async def test_files_that_are_not_specs_of_our_claims_are_left_alone(tmp_path: Path) -> None:
    others = {"node-agent.gpu.nvidia.com-gpu.json", "nvidia.yaml", "k8s.gpu.nvidia.com-claim_uid-of-x.yaml", ".hidden"}
    async with node(tmp_path) as n:
        await prepared(n)
        for name in others:
            (n.cdi / name).write_text("{}")
        await n.upkeep.sweep()
        assert others < n.spec_names


async def test_sweeps_come_again_and_again(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.upkeep._period = 0.02
        async with running(n.upkeep.run()):
            await prepared(n)
            n.spec_of("unknown").write_text("{}")
            await settled(n, "a", "b")
            n.spec_of("b").unlink()
            await settled(n, "a", "b")


async def test_new_edits_of_the_node_renew_the_specs_of_prepared_claims(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await prepared(n)
        async with running(n.upkeep.run()):
            n.edits.set(NodeEdits(common=ContainerEdits(env=("DRIVER=new",)), gpus=EDITS.gpus))
            async with asyncio.timeout(30):
                while not all(b"DRIVER=new" in n.spec_of(name).read_bytes() for name in "ab"):
                    await asyncio.sleep(0.01)


async def test_before_the_edits_are_known_nothing_is_renewed_and_nothing_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with node(tmp_path) as n:
        await prepared(n)
        n.spec_of("a").unlink()
        caplog.clear()
        n.edits.set(None)
        await n.upkeep.restore()
        assert not caplog.records
        n.edits.set(EDITS)
        await n.upkeep.restore()
        assert n.spec_of("a").exists()


async def test_a_claim_whose_gpu_is_out_of_reach_keeps_its_spec_and_the_others_are_renewed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with node(tmp_path) as n:
        await prepared(n)
        before = n.spec_of("a").read_bytes()
        n.edits.set(NodeEdits(common=ContainerEdits(env=("NEW=1",)), gpus={uuid(1): EDITS.gpus[uuid(1)]}))
        await n.upkeep.restore()
        assert n.spec_of("a").read_bytes() == before
        assert b"NEW=1" in n.spec_of("b").read_bytes()
        assert "spec of a prepared claim is out of date" in caplog.text


async def test_claims_that_must_be_prepared_again_are_not_restored(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await prepared(n)
        for name in "ab":
            n.spec_of(name).unlink()
    async with node(tmp_path, boot_id="boot-2", told=False) as n:
        await n.upkeep.restore()
        assert n.spec_names == set()


async def test_nothing_is_swept_while_it_is_not_known_who_holds_what(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await prepared(n)
    (tmp_path / LEDGER).unlink()
    async with node(tmp_path, told=False) as n:
        await n.upkeep.sweep()
        await settled(n, "a", "b")


async def test_a_claim_that_is_prepared_after_a_sweep_has_listed_its_spec_keeps_it(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await n.preparer.prepare(A, DEVICES)
        await n.preparer.sweep(A.uid)
        assert n.spec_of("a").exists()


async def test_a_half_prepared_claim_that_is_gone_leaves_nothing_after_one_pass(tmp_path: Path) -> None:
    step = FakeStep(tmp_path, failure=FAILURE, undo_failure=AllocationError("in use"))
    async with node(tmp_path, step) as n:
        with pytest.raises(AllocationError):
            await n.preparer.prepare(A, DEVICES)
        step.undo_failure = None
        assert list(tmp_path.glob("setting-*"))
        await n.upkeep.reconcile([], DEVICES, time.monotonic() + 1)
        assert (n.spec_names, dict(n.ledger.grants.value), list(tmp_path.glob("setting-*"))) == (set(), {}, [])


async def test_claims_that_are_gone_give_back_their_gpus_and_live_ones_keep_theirs(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await prepared(n)
        await n.ledger.reserve(grant("pod", 5, door=Door.LIMIT))
    async with node(tmp_path, told=False) as n:
        await n.upkeep.reconcile([B], DEVICES, time.monotonic())
        await settled(n, "b")
        assert set(n.ledger.grants.value) == {uid_of("b"), uid_of("pod")}


async def test_a_claim_of_that_name_with_another_uid_is_another_claim(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await prepared(n)
        successor = claim("a2", "gpu-0")
        await n.upkeep.reconcile([successor, B], DEVICES, time.monotonic() + 1)
        await n.preparer.prepare(successor, DEVICES)
        assert set(n.ledger.grants.value) == {uid_of("a2"), uid_of("b")}


async def test_a_claim_whose_devices_here_are_no_longer_allocated_is_gone(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await prepared(n)
        elsewhere = claim("a", allocated("nic-0", driver="net.example.com"))
        await n.upkeep.reconcile([elsewhere, B], DEVICES, time.monotonic() + 1)
        assert set(n.ledger.grants.value) == {uid_of("b")}


async def test_a_claim_that_was_called_for_since_the_list_is_let_be(tmp_path: Path) -> None:
    """The list may be older than the claim: the kubelet asks for it before a watch tells of it."""
    async with node(tmp_path, lag=60) as n:
        await prepared(n)
        await n.upkeep.reconcile([], DEVICES, time.monotonic())
        assert set(n.ledger.grants.value) == {A.uid, B.uid}
        await n.upkeep.reconcile([], DEVICES, time.monotonic() + 61)
        assert dict(n.ledger.grants.value) == {}


async def test_a_claim_that_another_agent_has_prepared_since_the_list_is_let_be(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await prepared(n)
    async with node(tmp_path, told=False, lag=60) as n:
        await n.upkeep.reconcile([], DEVICES, time.monotonic())
        assert set(n.ledger.grants.value) == {A.uid, B.uid}
        n.upkeep._clock = lambda: time.time() + 61
        await n.upkeep.reconcile([], DEVICES, time.monotonic())
        assert dict(n.ledger.grants.value) == {}


async def test_a_claim_from_the_future_of_a_clock_that_was_set_back_is_gone_like_others(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await prepared(n)
    async with node(tmp_path, told=False, lag=60) as n:
        n.upkeep._clock = lambda: time.time() - 3600
        await n.upkeep.reconcile([], DEVICES, time.monotonic())
        assert dict(n.ledger.grants.value) == {}


async def test_one_claim_that_cannot_be_undone_keeps_no_other_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(FakeStep):
        async def undo(self, grant: object) -> None:
            if "default/a" in str(grant):
                raise AllocationError("in use")

    async with node(tmp_path, Stuck(tmp_path)) as n:
        await prepared(n)
        await n.upkeep.reconcile([], DEVICES, time.monotonic() + 1)
        assert set(n.ledger.grants.value) == {uid_of("a")}
        assert "claim that is gone still holds its devices" in caplog.text


async def lose_ledger(folder: Path, how: str) -> None:
    if how == "gone":
        (folder / LEDGER).unlink()
    else:
        content = (folder / LEDGER).read_bytes()
        (folder / LEDGER).write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("how", ["gone", "cut"])
async def test_after_a_loss_of_the_ledger_no_live_claim_counts_as_free(tmp_path: Path, how: str) -> None:
    async with node(tmp_path) as n:
        await n.preparer.prepare(A, DEVICES)
        before = n.held("a")
        n.spec_of("dead").write_text("{}")
    await lose_ledger(tmp_path, how)
    thief = claim("thief", "group-2-0")
    async with node(tmp_path, told=False) as n:
        with pytest.raises(HoldersUnknown):
            await n.preparer.prepare(thief, DEVICES)
        allocated_but_not_prepared = claim("waiting", "gpu-4")
        await n.upkeep.reconcile([A, allocated_but_not_prepared], DEVICES, time.monotonic())
        await n.ledger.reconcile(Door.LIMIT, [])
        # What has a spec was prepared and is so again; what has none is held until the kubelet asks for it.
        assert n.held("a").holds == before.holds
        assert (n.held("a").state, n.held("waiting").state) == (State.PREPARED, State.PREPARING)
        await settled(n, "a")
        with pytest.raises(DeviceHeld, match="held by claim default/a"):
            await n.preparer.prepare(thief, DEVICES)
        with pytest.raises(DeviceHeld):
            await n.ledger.reserve(grant("pod", 4, door=Door.LIMIT))
        await n.preparer.prepare(allocated_but_not_prepared, DEVICES)


async def test_a_live_claim_with_a_device_that_nobody_knows_keeps_new_ones_out_until_it_is_gone(tmp_path: Path) -> None:
    async with node(tmp_path, told=False) as n:
        await n.ledger.reconcile(Door.LIMIT, [])
        stranger = claim("stranger", "gpu-vfio-0")
        with pytest.raises(UnknownDevice, match="default/stranger has gpu-vfio-0"):
            await n.upkeep.reconcile([A, stranger], DEVICES, time.monotonic())
        with pytest.raises(HoldersUnknown):
            await n.preparer.prepare(A, DEVICES)
        await n.upkeep.reconcile([A], DEVICES, time.monotonic())
        await n.preparer.prepare(A, DEVICES)


async def test_a_recovered_claim_that_cannot_be_prepared_now_is_held_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with node(tmp_path) as n:
        await prepared(n)
    (tmp_path / LEDGER).unlink()
    async with node(tmp_path, told=False, edits=None) as n:
        await n.upkeep.reconcile([A, B], DEVICES, time.monotonic())
        assert {one.state for one in n.ledger.grants.value.values()} == {State.PREPARING}
        assert "claim has to be prepared anew" in caplog.text
        await settled(n, "a", "b")
        n.edits.set(EDITS)
        await n.preparer.prepare(A, DEVICES)
        assert n.held("a").state is State.PREPARED


async def test_what_was_recovered_survives_the_next_restart(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await prepared(n)
    (tmp_path / LEDGER).unlink()
    async with node(tmp_path, told=False) as n:
        await n.upkeep.reconcile([A, B], DEVICES, time.monotonic())
    books = decode((tmp_path / LEDGER).read_bytes())
    assert {one.state for one in books.grants.values()} == {State.PREPARED}
    assert books.unreconciled == {Door.LIMIT}


async def test_devices_that_stand_for_other_gpus_by_now_are_recovered_as_they_are_now(tmp_path: Path) -> None:
    """After a loss nothing but the claim is left: the name means what it means now."""
    async with node(tmp_path, told=False) as n:
        await n.upkeep.reconcile([A], {**DEVICES, "gpu-0": device("gpu-0", 5)}, time.monotonic())
        assert n.held("a").holds[0].gpus == (uuid(5),)


async def test_a_node_with_neither_a_record_nor_a_spec_waits_for_no_list_of_claims(tmp_path: Path) -> None:
    async with node(tmp_path, told=False) as n:
        await n.upkeep.begin()
        assert n.ledger.unreconciled.value == {Door.LIMIT}
        await n.ledger.reserve(grant("pod", 0, door=Door.LIMIT))
    async with node(tmp_path, told=False) as n:
        assert n.ledger.unreconciled.value == {Door.LIMIT}


async def test_specs_of_claims_show_that_a_record_is_missing(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await n.preparer.prepare(A, DEVICES)
    (tmp_path / LEDGER).unlink()
    async with node(tmp_path, told=False) as n:
        await n.upkeep.begin()
        assert n.ledger.unreconciled.value == FRONT_DOORS
        with pytest.raises(HoldersUnknown, match="every claim"):
            await n.ledger.reserve(grant("pod", 0, door=Door.LIMIT))


@pytest.mark.parametrize("with_specs", [True, False])
async def test_a_damaged_record_waits_for_the_list_of_claims_with_or_without_specs(
    tmp_path: Path, with_specs: bool
) -> None:
    async with node(tmp_path) as n:
        await n.preparer.prepare(A, DEVICES)
        if not with_specs:
            n.spec_of("a").unlink()
    await lose_ledger(tmp_path, "cut")
    async with node(tmp_path, told=False) as n:
        await n.upkeep.begin()
        assert n.ledger.unreconciled.value == FRONT_DOORS


async def test_a_record_that_says_itself_that_holders_are_unknown_waits_for_them_after_a_restart_too(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, told=False) as n:
        await n.ledger.reconcile(Door.LIMIT, [])
    async with node(tmp_path, told=False) as n:
        await n.upkeep.begin()
        assert n.ledger.unreconciled.value == {Door.CLAIM}
