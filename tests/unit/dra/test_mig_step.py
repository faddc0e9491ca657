"""Claims cut GPUs, and leave them as they were: over the simulated driver, which enforces the rules of the real one."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from node_agent.allocation.grants import Door, Grant, Hold, State
from node_agent.dra.slices import PoolSettings
from node_agent.errors import DeviceHeld, HardwareError, InUse, PartitionGone
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.kit.alone import alone
from node_agent.kit.tasks import running
from node_agent.model.gpu import PartitionMode
from node_agent.model.partition import Part, Piece, Placement
from tests.unit.allocation.support import allocated, claim, holder, uid_of
from tests.unit.dra.cutting import agent, forget

LARGE = "gpu-0-mig-3g-71gb-4"
SMALL = "gpu-0-mig-1g-18gb-0"


@pytest.fixture
def node() -> Iterator[SimulatedNode]:
    with install(SimulatedNode(load_profile("h200-8"))) as made:
        yield made
        made.faults.clear()


def piece(name: str, start: int, length: int) -> Piece:
    return Piece(profile=name, placement=Placement(start=start, length=length))


async def test_a_claim_gets_its_partition_at_exactly_its_place_and_takes_it_along(
    node: SimulatedNode, tmp_path: Path
) -> None:
    async with agent(tmp_path, node) as here:
        assert not here.mig_is_on()
        grant = await here.prepare("a", LARGE)
        assert grant.state is State.PREPARED
        assert await here.lying() == ["3g.71gb at 4"]
        (instance,) = await here.instances()
        assert here.nodes("a") == {LARGE: [f"/dev/gi{instance.id}-ci0"]}
        await here.unprepare("a")
        assert (await here.lying(), here.mig_is_on()) == ([], False)
        assert not here.parts.spec_names


async def test_a_mix_of_partitions_shares_a_gpu_and_each_claim_sees_its_own(
    node: SimulatedNode, tmp_path: Path
) -> None:
    mix = {
        "a": "gpu-0-mig-3g-71gb-4",
        "b": "gpu-0-mig-2g-35gb-0",
        "c": "gpu-0-mig-1g-18gb-2",
        "d": "gpu-0-mig-1g-18gb-3",
    }
    async with agent(tmp_path, node) as here:
        await asyncio.gather(*(here.prepare(name, device) for name, device in mix.items()))
        assert await here.lying() == ["2g.35gb at 0", "1g.18gb at 2", "1g.18gb at 3", "3g.71gb at 4"]
        seen = [paths for name, device in mix.items() for paths in here.nodes(name)[device]]
        assert len(set(seen)) == 4
        assert not any(path.startswith("/dev/nvidia") for path in seen), "nothing of the whole GPU"
        await asyncio.gather(*(here.unprepare(name) for name in "abc"))
        assert (await here.lying(), here.mig_is_on()) == (["1g.18gb at 3"], True)
        await here.unprepare("d")
        assert (await here.lying(), here.mig_is_on()) == ([], False)


async def test_one_claim_may_have_partitions_of_several_gpus_and_a_whole_one(
    node: SimulatedNode, tmp_path: Path
) -> None:
    async with agent(tmp_path, node) as here:
        await here.prepare("a", SMALL, "gpu-1-mig-1g-18gb-0", "gpu-2")
        assert [await here.lying(number) for number in (0, 1)] == [["1g.18gb at 0"]] * 2
        assert not here.mig_is_on(2)
        assert here.nodes("a")["gpu-2"] == ["/dev/nvidia2"]
        await here.unprepare("a")
        assert not any(here.mig_is_on(number) for number in range(8))


async def test_prepared_again_it_is_the_same_partition(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node) as here:
        first = await here.prepare("a", LARGE)
        lying = await here.instances()
        assert await here.prepare("a", LARGE) == first
        assert await here.instances() == lying
    async with agent(tmp_path, node) as here:
        assert await here.prepare("a", LARGE) == first
        assert await here.instances() == lying


async def test_after_a_reboot_the_partition_is_made_again(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node) as here:
        await here.prepare("a", LARGE)
    forget(node)
    async with agent(tmp_path, node, boot_id="boot-2") as here:
        assert here.parts.held("a").state is State.PREPARING
        await here.prepare("a", LARGE)
        assert await here.lying() == ["3g.71gb at 4"]


async def test_after_the_driver_was_loaded_anew_the_partition_of_a_prepared_claim_is_made_again(
    node: SimulatedNode, tmp_path: Path
) -> None:
    async with agent(tmp_path, node) as here:
        await here.prepare("a", LARGE)
        forget(node)
        await here.keeper.look()
    async with agent(tmp_path, node) as here:
        assert here.parts.held("a").state is State.PREPARED
        await here.prepare("a", LARGE)
        assert await here.lying() == ["3g.71gb at 4"]
        await here.unprepare("a")
        assert not here.mig_is_on()


async def test_a_partition_that_is_gone_is_made_again_although_another_has_its_number_by_now(
    node: SimulatedNode, tmp_path: Path
) -> None:
    async with agent(tmp_path, node) as here:
        await here.prepare("a", LARGE)
        forget(node)
        await here.prepare("b", SMALL)
        await here.prepare("a", LARGE)
        assert await here.lying() == ["1g.18gb at 0", "3g.71gb at 4"]
        assert here.nodes("a")[LARGE] != here.nodes("b")[SMALL]


async def test_what_a_died_call_has_left_half_made_is_made_whole(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node) as here:
        mig = here.mig()
        profile = next(one for one in mig.table.profiles if one.name == "3g.71gb")
        mig.set_mode(True)
        mig.create(profile.id, 4)
        await here.keeper.look()
        await here.prepare("a", LARGE)
        assert await here.lying() == ["3g.71gb at 4"]


async def test_what_is_half_made_of_another_kind_gives_way(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node) as here:
        mig = here.mig()
        profile = next(one for one in mig.table.profiles if one.name == "1g.18gb")
        mig.set_mode(True)
        mig.create(profile.id, 5)
        await here.prepare("a", LARGE)
        assert await here.lying() == ["3g.71gb at 4"]


async def test_what_lies_at_the_claims_place_divided_is_made_whole(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node) as here:
        divided = Piece(profile="3g.71gb", placement=Placement(start=4, length=4), computes=(1, 1, 1))
        await here.provider.partitioning.set_mode(here.gpu().uuid, True)
        await here.provider.partitioning.create(here.gpu().uuid, divided)
        await here.prepare("a", LARGE)
        assert await here.lying() == ["3g.71gb at 4"]


async def test_a_partition_that_nobody_owns_gives_way_and_one_in_use_does_not(
    node: SimulatedNode, tmp_path: Path
) -> None:
    async with agent(tmp_path, node) as here:
        uuid = here.gpu().uuid
        await here.provider.partitioning.set_mode(uuid, True)
        await here.provider.partitioning.create(uuid, piece("1g.18gb", 5, 1))
        await here.prepare("a", LARGE)
        assert await here.lying() == ["3g.71gb at 4"]

        made = await here.provider.partitioning.create(uuid, piece("1g.18gb", 0, 1))
        here.use(made)
        with pytest.raises(DeviceHeld, match=r"gpu-0: there is 1g\.18gb at 0 where 1g\.18gb at 0 is to be|2g\.35gb"):
            await here.prepare("b", "gpu-0-mig-2g-35gb-0")
        assert here.parts.ledger.grant_of(claim("b", SMALL).uid) is None
        here.end_use()
        await here.prepare("b", "gpu-0-mig-2g-35gb-0")
        assert await here.lying() == ["2g.35gb at 0", "3g.71gb at 4"]


async def test_where_sweeping_is_off_what_lies_in_the_way_is_refused_by_name(
    node: SimulatedNode, tmp_path: Path
) -> None:
    async with agent(tmp_path, node) as here:
        here.sweeps = False
        await here.provider.partitioning.set_mode(here.gpu().uuid, True)
        await here.provider.partitioning.create(here.gpu().uuid, piece("1g.18gb", 5, 1))
        with pytest.raises(DeviceHeld, match=r"there is 1g\.18gb at 5 where 3g\.71gb at 4 is to be.*agent\.mig\.sweep"):
            await here.prepare("a", LARGE)
        await here.prepare("b", SMALL)
        assert await here.lying() == ["1g.18gb at 0", "1g.18gb at 5"]


async def test_a_partition_in_use_stays_until_its_processes_have_ended(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node) as here:
        await here.prepare("a", LARGE)
        (instance,) = await here.instances()
        here.use(instance)
        with pytest.raises(InUse):
            await here.unprepare("a")
        assert await here.lying() == ["3g.71gb at 4"]
        with pytest.raises(DeviceHeld):
            await here.prepare("b", LARGE)
        here.end_use()
        await here.unprepare("a")
        assert (await here.lying(), here.mig_is_on()) == ([], False)


async def test_unpreparing_twice_and_what_is_gone_already_is_fine(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node) as here:
        await here.prepare("a", LARGE)
        forget(node)
        await here.unprepare("a")
        await here.unprepare("a")
        assert (await here.lying(), here.mig_is_on()) == ([], False)


async def test_a_lost_gpu_keeps_no_claim_from_ending(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node) as here:
        await here.prepare("a", LARGE)
        node.faults.lose(here.gpu().uuid)
        await here.unprepare("a")
        assert here.parts.ledger.grant_of(claim("a", LARGE).uid) is None


async def test_who_wants_the_whole_gpu_is_refused_while_a_partition_lives_and_served_afterwards(
    node: SimulatedNode, tmp_path: Path
) -> None:
    async with agent(tmp_path, node) as here:
        await here.prepare("a", SMALL)
        with pytest.raises(DeviceHeld, match="gpu-0"):
            await here.prepare("whole", "gpu-0")
        await here.unprepare("a")
        await here.prepare("whole", "gpu-0")
        with pytest.raises(DeviceHeld):
            await here.prepare("b", SMALL)
        assert not here.mig_is_on()


async def test_a_whole_gpu_has_mig_off_whoever_left_it_on(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node) as here:
        await here.provider.partitioning.set_mode(here.gpu().uuid, True)
        await here.provider.partitioning.create(here.gpu().uuid, piece("1g.18gb", 5, 1))
        await here.keeper.look()
        await here.prepare("whole", "gpu-0")
        assert (await here.lying(), here.mig_is_on()) == ([], False)


async def test_while_something_uses_the_gpu_its_mode_is_left_alone_and_no_change_stays_pending(
    node: SimulatedNode, tmp_path: Path
) -> None:
    async with agent(tmp_path, node) as here:
        node.faults.start_process(here.gpu(0).uuid, 4711)
        with pytest.raises(InUse, match=r"gpu-0: MIG cannot be turned on while something uses the GPU"):
            await here.prepare("a", SMALL)
        found = await here.keeper.look()
        assert found.by_uuid[here.gpu().uuid].partition_mode is PartitionMode.DISABLED
        assert here.parts.ledger.grant_of(claim("a", SMALL).uid) is None


async def test_a_claim_whose_second_partition_fails_leaves_nothing(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node) as here:
        node.faults.start_process(here.gpu(1).uuid, 4711)
        with pytest.raises(InUse):
            await here.prepare("a", SMALL, "gpu-1-mig-1g-18gb-0")
        assert (await here.lying(), here.mig_is_on()) == ([], False)
        assert not here.parts.spec_names


async def test_a_partition_that_lies_there_is_given_out_without_a_step(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node, PoolSettings()) as here:
        await here.provider.partitioning.set_mode(here.gpu().uuid, True)
        made = await here.provider.partitioning.create(here.gpu().uuid, piece("3g.71gb", 4, 4))
        await here.keeper.look()
        grant = await here.prepare("a", LARGE)
        assert grant.steps == {}
        assert here.nodes("a") == {LARGE: [f"/dev/gi{made.id}-ci0"]}
        await here.unprepare("a")
        assert await here.lying() == ["3g.71gb at 4"]
        assert here.mig_is_on()


async def test_a_static_partition_that_is_gone_is_refused_by_its_place(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node, PoolSettings()) as here:
        await here.provider.partitioning.set_mode(here.gpu().uuid, True)
        await here.provider.partitioning.create(here.gpu().uuid, piece("3g.71gb", 4, 4))
        await here.keeper.look()
        devices = here.published
        await here.provider.partitioning.destroy(here.gpu().uuid, piece("3g.71gb", 4, 4))
        await here.keeper.look()
        with pytest.raises(PartitionGone, match=r"there is no 3g\.71gb at 4 on GPU-"):
            await here.parts.preparer.prepare(claim("a", LARGE), devices)


async def test_admin_access_sees_the_partition_that_another_claim_has_and_changes_nothing(
    node: SimulatedNode, tmp_path: Path
) -> None:
    async with agent(tmp_path, node) as here:
        looking = claim("admin", allocated(LARGE, admin=True))
        with pytest.raises(PartitionGone):
            await here.parts.preparer.prepare(looking, here.published)
        await here.prepare("a", LARGE)
        await here.parts.preparer.prepare(looking, here.published)
        assert here.nodes("admin") == here.nodes("a")
        await here.unprepare("admin")
        assert await here.lying() == ["3g.71gb at 4"]


async def test_a_driver_that_refuses_is_named_and_nothing_stays(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node) as here:
        node.faults.fail("nvmlGpuInstanceCreateComputeInstance", "UNKNOWN")
        with pytest.raises(HardwareError, match="nvmlGpuInstanceCreateComputeInstance"):
            await here.prepare("a", LARGE)
        node.faults.clear()
        assert (await here.lying(), here.mig_is_on()) == ([], False)


# Boards that need a reset


@pytest.fixture
def ampere() -> Iterator[SimulatedNode]:
    with install(SimulatedNode(load_profile("a100-40gb-8"))) as made:
        yield made
        made.faults.clear()


async def test_a_mode_that_needs_a_reset_is_never_changed(ampere: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, ampere) as here:
        mig = here.mig()
        mig.set_mode(True)
        await here.keeper.look()
        name = next(name for name in here.published if name.startswith("gpu-0-mig-1g-5gb-"))
        await here.prepare("a", name)
        assert len(await here.lying()) == 1
        await here.unprepare("a")
        assert (await here.lying(), here.mig_is_on()) == ([], True)
        await here.prepare("whole", "gpu-1")
        assert not here.mig_is_on(1)


# The sweep


async def test_what_no_claim_has_made_is_swept_and_the_gpu_is_whole_again(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node) as here:
        await here.prepare("a", "gpu-1-mig-1g-18gb-0")
        for number in (0, 1):
            await here.provider.partitioning.set_mode(here.gpu(number).uuid, True)
            await here.provider.partitioning.create(here.gpu(number).uuid, piece("1g.18gb", 5, 1))
        await here.keeper.look()
        await here.sweep.sweep()
        assert (await here.lying(0), here.mig_is_on(0)) == ([], False)
        assert (await here.lying(1), here.mig_is_on(1)) == (["1g.18gb at 0"], True)
        assert not here.sweep.strays.value


async def test_what_a_crash_has_left_on_is_turned_off(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node) as here:
        await here.provider.partitioning.set_mode(here.gpu().uuid, True)
        await here.keeper.look()
        await here.sweep.sweep()
        assert not here.mig_is_on()


@pytest.mark.parametrize("busy", [True, False])
async def test_what_stays_is_withheld_until_it_is_gone(node: SimulatedNode, tmp_path: Path, busy: bool) -> None:
    async with agent(tmp_path, node) as here:
        here.sweeps = busy
        await here.provider.partitioning.set_mode(here.gpu().uuid, True)
        made = await here.provider.partitioning.create(here.gpu().uuid, piece("1g.18gb", 5, 1))
        if busy:
            here.use(made)
        await here.keeper.look()
        await here.sweep.sweep()
        (place,) = here.sweep.strays.value
        assert (place.gpu, place.part) == (
            here.gpu().uuid,
            Part(profile="1g.18gb", placement=Placement(start=5, length=1)),
        )
        assert await here.lying() == ["1g.18gb at 5"]
        if busy:
            here.end_use()
        here.sweeps = True
        await here.sweep.sweep()
        assert (await here.lying(), here.mig_is_on()) == ([], False)
        await here.keeper.look()
        await here.sweep.sweep()
        assert not here.sweep.strays.value


async def test_nothing_is_swept_on_gpus_that_claims_do_not_cut(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node, PoolSettings()) as here:
        await here.provider.partitioning.set_mode(here.gpu().uuid, True)
        await here.provider.partitioning.create(here.gpu().uuid, piece("1g.18gb", 5, 1))
        await here.keeper.look()
        await here.sweep.sweep()
        assert await here.lying() == ["1g.18gb at 5"]


async def test_what_a_pod_has_by_its_limit_is_nobody_elses_to_sweep(node: SimulatedNode, tmp_path: Path) -> None:
    """Of a GPU that was not the claims' to cut when the pod got its partition."""
    async with agent(tmp_path, node) as here:
        place = Part(profile="1g.18gb", placement=Placement(start=5, length=1))
        await here.provider.partitioning.set_mode(here.gpu().uuid, True)
        await here.provider.partitioning.create(here.gpu().uuid, piece("1g.18gb", 5, 1))
        hold = Hold(device="MIG-1", gpus=(here.gpu().uuid,), part=place)
        await here.parts.ledger.reserve(Grant(holder=holder("pod", Door.LIMIT), holds=(hold,)))
        await here.keeper.look()
        await here.sweep.sweep()
        assert await here.lying() == ["1g.18gb at 5"]
        await here.parts.ledger.release(uid_of("pod"))
        await here.sweep.sweep()
        assert (await here.lying(), here.mig_is_on()) == ([], False)


async def test_what_a_pod_has_of_a_divided_instance_keeps_all_of_it(node: SimulatedNode, tmp_path: Path) -> None:
    async with agent(tmp_path, node) as here:
        divided = Piece(profile="3g.71gb", placement=Placement(start=4, length=4), computes=(2, 1))
        await here.provider.partitioning.set_mode(here.gpu().uuid, True)
        made = await here.provider.partitioning.create(here.gpu().uuid, divided)
        (*_, one) = made.partitions
        hold = Hold(device=one.uuid, gpus=(here.gpu().uuid,), part=one.part)
        await here.parts.ledger.reserve(Grant(holder=holder("pod", Door.LIMIT), holds=(hold,)))
        await here.keeper.look()
        await here.sweep.sweep()
        assert await here.instances() == (made,)
        await here.parts.ledger.release(uid_of("pod"))
        await here.sweep.sweep()
        assert await here.lying() == []


async def test_what_another_agent_has_just_made_is_not_swept_by_one_that_has_not_heard_of_it(
    node: SimulatedNode, tmp_path: Path
) -> None:
    """As in a rolling update: what it has made is in the file before it is on the GPU."""
    async with agent(tmp_path, node) as old, AsyncExitStack() as stack:
        async with running(old.parts.ledger.run()):
            new = await stack.enter_async_context(agent(tmp_path, node, told=False))
        await new.prepare("a", LARGE)
        assert not old.parts.ledger.grants.value, "it has not heard yet"
        assert not await old.cutter.sweep(old.gpu())
        assert await old.lying() == ["3g.71gb at 4"]


async def test_while_another_agent_cuts_the_gpu_it_is_left_alone(node: SimulatedNode, tmp_path: Path) -> None:
    """As in a rolling update: one would turn MIG off behind the last piece while the other makes the next one."""
    async with agent(tmp_path, node) as here:
        async with alone(tmp_path / "cut-gpu-0.lock"), asyncio.timeout(30):
            waiting = asyncio.create_task(here.prepare("a", LARGE))
            async for grants in here.parts.ledger.grants.watch():
                if grants:
                    break
            await asyncio.sleep(0.1)
            assert await here.lying() == []
        await waiting
        assert await here.lying() == ["3g.71gb at 4"]
