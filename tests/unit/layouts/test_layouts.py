"""The node is cut as is asked for, with whatever is in use left alone; and what cannot be is said and undone."""

import asyncio
from pathlib import Path

import pytest

from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.errors import DeviceHeld
from node_agent.layouts import layouts as layouts_module
from node_agent.layouts.reserved import Before
from node_agent.layouts.state import Phase
from node_agent.model.gpu import PartitionMode
from node_agent.model.partition import Part, Piece, Placement
from node_agent.partition.plan import Action, Step
from tests.unit.layouts.world import layouts, order, simulated, world

MIXED = layouts(
    mixed="""
    - devices: [0]
      mig-enabled: true
      mig-devices: {"1g.18gb": 2, "2g.35gb": 1, "3g.71gb": 1}
    - devices: [1]
      mig-enabled: true
      mig-devices: {"7g.141gb": 1}
""",
    impossible="""
    - devices: [0]
      mig-enabled: true
      mig-devices: {"4g.71gb": 2}
    - devices: [1]
      mig-enabled: true
      mig-devices: {}
""",
)

BALANCED = ["2g.35gb at 0", "1g.18gb at 2", "1g.18gb at 3", "3g.71gb at 4"]
QUARTERS = [f"1g.6gb at {start}" for start in range(4)]
A30_BALANCED = ["2g.12gb at 0", "1g.6gb at 2", "1g.6gb at 3"]
SMALL = [f"1g.18gb at {start}" for start in range(7)]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts_module, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(layouts_module, "FIRST_SECONDS", 0.2)


async def test_a_layout_of_a_file_is_made_on_the_gpus_that_it_names(tmp_path: Path) -> None:
    with simulated("h200-8") as node:
        async with world(node, tmp_path, order("mixed", layouts=MIXED)) as here:
            state = await here.done("mixed")
            assert here.lying(0) == BALANCED
            assert here.lying(1) == ["7g.141gb at 0"]
            assert [here.lying(index) for index in range(2, 8)] == [None] * 6
            assert [one.gpu for one in state.gpus] == [gpu.name for gpu in here.gpus[:2]]
            assert len(here.inventory.partitions) == 5, "the front doors see them before they may have the GPUs"


async def test_the_usual_layouts_need_no_file_and_follow_each_other(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        async with world(node, tmp_path, order("all-1g.6gb")) as here:
            await here.done("all-1g.6gb")
            assert here.lying(1) == QUARTERS
            here.order.set(order("all-balanced"))
            await here.done("all-balanced")
            assert here.lying(1) == A30_BALANCED
            here.order.set(order("all-disabled"))
            await here.done("all-disabled")
            assert [here.lying(index) for index in range(2)] == [None] * 2


async def test_an_unknown_layout_changes_nothing_and_names_those_that_there_are(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        async with world(node, tmp_path, order("all-1g.7gb")) as here:
            state = await here.done("all-1g.7gb", Phase.FAILED)
            assert state.trouble.startswith("no MIG layout is named 'all-1g.7gb'; there is all-1g.6gb")
            assert here.lying(0) is None


async def test_a_gpu_that_cannot_be_cut_so_fails_alone(tmp_path: Path) -> None:
    with simulated("h200-8") as node:
        async with world(node, tmp_path, order("impossible", layouts=MIXED)) as here:
            state = await here.done("impossible", Phase.FAILED)
            assert [str(one) for one in state.gpus if one.phase is Phase.FAILED] == [
                f"{here.gpus[0].name}: 2 × 4g.71gb: a GPU takes 1 at most"
            ]
            assert here.lying(0) is None
            assert here.lying(1) == []


async def test_what_claims_cut_is_left_to_them(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        async with world(node, tmp_path, order("all-enabled", leaves=("0",))) as here:
            await here.done("all-enabled")
            assert here.lying(0) is None
            assert here.lying(1) == []


async def test_nothing_is_changed_where_nothing_is_asked_for(tmp_path: Path) -> None:
    """Also what an administrator has made stays."""
    with simulated("a30-2") as node:
        async with world(node, tmp_path) as here:
            await asyncio.sleep(0.3)
            assert here.lying(1) == ["1g.6gb at 0", "1g.6gb at 1", "2g.12gb at 2"]
            assert here.layouts.state.value is None


async def test_what_is_made_by_hand_gives_way_to_the_layout(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        async with world(node, tmp_path, order("all-1g.6gb")) as here:
            await here.done("all-1g.6gb")
            mig = node.faults.gpu(1).mig
            assert mig is not None
            for instance in list(mig.instances.values())[:2]:
                instance.compute.clear()
                mig.destroy(instance)
            async with asyncio.timeout(30):
                while here.lying(1) != QUARTERS:
                    await asyncio.sleep(0.02)


# In use


async def test_what_is_held_is_waited_for_and_named_and_the_others_go_on(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        async with world(node, tmp_path, order("all-2g.12gb")) as here:
            await here.done("all-2g.12gb")
            holder = await here.give(0, here.part(0, 2))
            here.order.set(order("all-1g.6gb"))
            await here.done("all-1g.6gb", Phase.PENDING)
            async with asyncio.timeout(30):
                while here.lying(1) != QUARTERS:
                    await asyncio.sleep(0.02)
            await here.done("all-1g.6gb", Phase.PENDING)
            assert here.lying(0) == ["2g.12gb at 0", "2g.12gb at 2"]
            await here.until(
                lambda state: (
                    state is not None
                    and list(state.reasons)
                    == [f"{here.gpus[0].name}: waits: 2g.12gb at 2 is held by claim team/job (uid-0-2g.12gb at 2)"]
                )
            )
            await here.ledger.release(holder.id)
            await here.done("all-1g.6gb")
            assert here.lying(0) == QUARTERS


async def test_what_is_to_go_is_given_to_nobody_while_the_rest_is_waited_for(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        async with world(node, tmp_path, order("all-2g.12gb")) as here:
            await here.done("all-2g.12gb")
            await here.give(0, here.part(0, 2))
            idle = here.part(0, 0)
            here.order.set(order("all-1g.6gb"))
            await here.until(lambda state: state is not None and len(list(state.reasons)) == 1)
            with pytest.raises(DeviceHeld, match=r"held by layout all-1g\.6gb"):
                await here.give(0, idle)
            here.order.set(order("all-2g.12gb"))
            await here.done("all-2g.12gb")
            await here.give(0, idle)


async def test_what_stays_goes_on_being_given_out_while_its_gpu_is_changed(tmp_path: Path) -> None:
    with simulated("h200-8") as node:
        async with world(node, tmp_path, order("mixed", layouts=MIXED)) as here:
            await here.done("mixed")
            await here.give(0, here.part(0, 4))
            other = layouts(
                other="""
    - devices: [0]
      mig-enabled: true
      mig-devices: {"1g.18gb": 4, "3g.71gb": 1}
"""
            )
            here.order.set(order("other", layouts=other))
            await here.done("other")
            assert here.lying(0) == [*SMALL[:4], "3g.71gb at 4"]


async def test_processes_that_nobody_gave_the_gpu_to_are_waited_for_too(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        async with world(node, tmp_path) as here:
            mig = node.faults.gpu(1).mig
            assert mig is not None
            (used,) = [one.id for one in mig.instances.values() if one.start == 2]
            node.faults.start_process(1, 4711, instance=used, compute_instance=0)
            only = layouts(only='\n    - {devices: [1], mig-enabled: true, mig-devices: {"4g.24gb": 1}}\n')
            here.order.set(order("only", layouts=only))
            state = await here.done("only", Phase.PENDING)
            await here.until(lambda state: state is not None and bool(list(state.reasons)))
            state = await here.done("only", Phase.PENDING)
            assert list(state.reasons) == [
                f"{here.gpus[1].name}: waits: 2g.12gb at 2 is held by processes that run on it"
            ]
            with pytest.raises(DeviceHeld, match="held by layout only"):
                await here.give(1, here.part(1, 2))
            node.faults.stop_process(1, 4711)
            await here.done("only")
            assert here.lying(1) == ["4g.24gb at 0"]


async def test_refused_where_a_gpu_is_in_use_no_gpu_is_touched_until_it_is_free(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        async with world(node, tmp_path) as here:
            before = [here.lying(index) for index in range(2)]
            holder = await here.give(0, door=Door.LIMIT)
            here.order.set(order("all-1g.6gb", refuse=True))
            state = await here.done("all-1g.6gb", Phase.FAILED)
            await here.until(lambda state: state is not None and len(state.gpus) == 2)
            state = await here.done("all-1g.6gb", Phase.FAILED)
            assert f"{here.gpus[0].name}: the whole GPU is held by limit team/job (uid-0-None)" in list(state.reasons)
            assert [here.lying(index) for index in range(2)] == before
            await here.ledger.release(holder.id)
            await here.done("all-1g.6gb")
            assert here.lying(0) == QUARTERS


async def test_nobody_is_given_a_gpu_in_the_middle_of_a_change(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        async with world(node, tmp_path) as here:
            gpu, refused = here.gpus[0].uuid, 0
            pod = Grant(
                holder=Holder(door=Door.LIMIT, id="pod", name="nvidia.com/gpu"),
                holds=(Hold(device="gpu", gpus=(gpu,)),),
            )

            def is_known() -> bool:
                """Whether the doors see what the GPU has become: from then on nobody offers it as a whole."""
                mode = here.inventory.by_uuid[gpu].partition_mode
                return mode is PartitionMode.ENABLED and len(here.inventory.instances.get(gpu, ())) == 4

            here.order.set(order("all-1g.6gb"))
            async with asyncio.timeout(30):
                while not is_known():
                    try:
                        await here.ledger.reserve(pod)
                    except DeviceHeld:
                        refused += 1
                    else:
                        assert here.lying(0) is None or is_known(), "given out while it was being cut"
                        await here.ledger.release(pod.holder.id)
                    # Who takes it again in the same moment leaves no moment for the change to begin.
                    await asyncio.sleep(0.01)
            assert refused


# The mode

ONE_A100 = layouts(only='\n    - {devices: [0], mig-enabled: true, mig-devices: {"1g.5gb": 7}}\n')


async def test_a_mode_that_waits_for_a_reset_is_said_and_the_gpu_is_kept_free_for_it(tmp_path: Path) -> None:
    with simulated("a100-40gb-8") as node:
        async with world(node, tmp_path) as here:
            node.faults.start_process(0, 4711)
            here.order.set(order("only", layouts=ONE_A100))
            await here.until(lambda state: state is not None and "nvidia-smi --gpu-reset" in " ".join(state.reasons))
            with pytest.raises(DeviceHeld):
                await here.give(0)
            node.faults.gpu(0).reset()
            await here.done("only")
            assert here.lying(0) == [f"1g.5gb at {start}" for start in range(7)]


async def test_a_mode_that_waits_for_processes_is_tried_again_when_they_may_have_ended(tmp_path: Path) -> None:
    with simulated("a100-40gb-8") as node:
        async with world(node, tmp_path) as here:
            node.faults.start_process(0, 4711)
            here.order.set(order("only", layouts=ONE_A100))
            await here.until(lambda state: state is not None and "MIG is enable-pending" in " ".join(state.reasons))
            node.faults.stop_process(0, 4711)
            await here.done("only")
            assert here.lying(0) == [f"1g.5gb at {start}" for start in range(7)]


async def test_a_pending_mode_is_called_off_with_the_wish_for_it(tmp_path: Path) -> None:
    with simulated("a100-40gb-8") as node:
        async with world(node, tmp_path) as here:
            node.faults.start_process(0, 4711)
            here.order.set(order("only", layouts=ONE_A100))
            await here.until(lambda state: state is not None and "MIG is enable-pending" in " ".join(state.reasons))
            here.order.set(None)
            await here.until(lambda state: state is None)
            await here.give(0)
            mig = node.faults.gpu(0).mig
            assert mig is not None
            assert not mig.pending


# What fails


async def test_a_step_that_fails_leads_back_to_what_was_there_and_is_tried_again(tmp_path: Path) -> None:
    with simulated("h200-8") as node:
        async with world(node, tmp_path) as here:
            first = layouts(first='\n    - {devices: [0], mig-enabled: true, mig-devices: {"3g.71gb": 2}}\n')
            here.order.set(order("first", layouts=first))
            await here.done("first")
            node.faults.fail("nvmlGpuInstanceCreateComputeInstance", code="UNKNOWN", times=1)
            second = layouts(second='\n    - {devices: [0], mig-enabled: true, mig-devices: {"1g.18gb": 7}}\n')
            here.order.set(order("second", layouts=second))
            state = await here.done("second", Phase.FAILED)
            (change,) = state.gpus
            assert change.trouble.startswith("cannot make 1g.18gb at 0: ")
            assert change.done == ("remove 3g.71gb at 0", "remove 3g.71gb at 4")
            assert change.undone == ("make 3g.71gb at 0", "make 3g.71gb at 4")
            await here.done("second")
            assert here.lying(0) == SMALL


async def test_a_mode_that_fails_is_said_and_nothing_is_left_held(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        async with world(node, tmp_path) as here:
            node.faults.fail("nvmlDeviceSetMigMode", code="NO_PERMISSION")
            here.order.set(order("all-enabled"))
            state = await here.done("all-enabled", Phase.FAILED)
            await here.until(lambda state: state is not None and len(state.gpus) == 2)
            state = await here.done("all-enabled", Phase.FAILED)
            assert all("cannot turn MIG on: " in reason for reason in state.reasons)
            await here.give(0)


# Who else


async def test_another_who_cuts_the_gpus_goes_first(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        async with world(node, tmp_path) as here:
            here.owner.append("NVIDIA's MIG manager runs here")
            here.order.set(order("all-1g.6gb"))
            state = await here.done("all-1g.6gb", Phase.PENDING)
            assert (state.owner, here.lying(0)) == ("NVIDIA's MIG manager runs here", None)
            here.owner.clear()
            await here.done("all-1g.6gb")


async def test_the_last_of_several_wishes_wins(tmp_path: Path) -> None:
    with simulated("a30-2") as node:
        async with world(node, tmp_path) as here:
            for name in ("all-1g.6gb", "all-2g.12gb", "all-balanced", "all-4g.24gb") * 3:
                here.order.set(order(name))
                await asyncio.sleep(0.02)
            await here.done("all-4g.24gb")
            assert [here.lying(index) for index in range(2)] == [["4g.24gb at 0"]] * 2


async def test_what_lies_where_another_piece_was_kept_from_others_is_kept_in_its_place(tmp_path: Path) -> None:
    with simulated("h200-8") as node:
        async with world(node, tmp_path, runs=False) as here:
            for profile in ("1g.18gb", "1g.18gb+me"):
                piece = Piece(profile=profile, placement=Placement(start=0, length=1))
                await here.changer.reserved.drain(here.gpus[0], [piece], "any")
                (held,) = [hold for grant in here.ledger.grants_of(Door.LAYOUT) for hold in grant.holds]
                assert held.part == Part(profile=profile, placement=piece.placement)


async def test_what_a_change_has_removed_before_it_was_broken_off_is_offered_to_nobody(tmp_path: Path) -> None:
    """The next change begins from what lies there then, and holds nothing of what is gone."""
    with simulated("a30-2") as node:
        async with world(node, tmp_path, order("all-1g.6gb")) as here:
            await here.done("all-1g.6gb")
            gpu, goes_on = here.gpus[0], iter([True, False])
            pieces = [Piece(profile="1g.6gb", placement=Placement(start=start, length=1)) for start in range(2)]
            steps = [Step(action=Action.DESTROY, piece=piece) for piece in pieces]
            before = Before(enabled=True, pieces=tuple(pieces))
            async with here.turn:
                await here.changer.reserved.begin(gpu, steps, before, "first")
                change = await here.changer.carry_out(gpu, steps, before, lambda: next(goes_on))
                assert (change.phase, change.done) == (Phase.PENDING, ("remove 1g.6gb at 0",))
                assert [one.placement.start for one in here.inventory.instances[gpu.uuid]] == [1, 2, 3]
