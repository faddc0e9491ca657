"""MIG on a GPU: the mode, what lies there, and how making and removing it goes wrong."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pynvml
import pytest

from node_agent.errors import DeviceLost, HardwareError, InUse
from node_agent.hardware.nvml.partitions import create, destroy, instances, set_mode
from node_agent.hardware.nvml.profiles import profiles
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.gpu import Process
from node_agent.hardware.simulated.mig import Mig
from node_agent.model.gpu import GpuUuid, PartitionMode
from node_agent.model.partition import Instance, Partition, Piece, Placement

MIB = 1 << 20
SIZES = {"1g.18gb": 1, "1g.18gb+me": 1, "1g.35gb": 2, "2g.35gb": 2, "3g.71gb": 4, "4g.71gb": 4, "7g.141gb": 8}


def piece(profile: str, start: int, *computes: int) -> Piece:
    placement = Placement(start=start, length=SIZES[profile])
    return Piece(profile=profile, placement=placement, computes=computes or None)


def half_made(profile: str, start: int) -> Piece:
    return Piece(profile=profile, placement=piece(profile, start).placement, computes=())


@pytest.fixture
def gpu(session: Session) -> GpuUuid:
    """A GPU with MIG on."""
    set_mode(session, session.gpus[0], enabled=True)
    return session.gpus[0]


@pytest.fixture
def mig(node: SimulatedNode) -> Mig:
    """The state of that GPU as the driver has it."""
    found = node.faults.gpu(0).mig
    assert found is not None
    return found


def lying(session: Session, gpu: GpuUuid) -> list[Piece]:
    return [instance.piece for instance in instances(session, gpu)]


def leave_half_made(session: Session, gpu: GpuUuid, left: Piece) -> None:
    """A GPU instance without compute instance, as a crash between the two calls leaves it."""
    place = pynvml.c_nvmlGpuInstancePlacement_t(left.placement.start, left.placement.length)
    (number,) = [profile.id for profile in profiles(session, gpu) if profile.name == left.profile]
    pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(session.handle(gpu), number, place)


def test_with_mig_off_nothing_lies_on_a_gpu(session: Session) -> None:
    assert instances(session, session.gpus[0]) == ()


def test_turning_mig_on_and_off_answers_the_new_mode(session: Session) -> None:
    assert set_mode(session, session.gpus[0], enabled=True) is PartitionMode.ENABLED
    assert set_mode(session, session.gpus[0], enabled=False) is PartitionMode.DISABLED


def test_a_change_of_mode_that_waits_for_the_gpu_to_be_idle_says_so(session: Session, node: SimulatedNode) -> None:
    node.faults.gpu(0).processes.append(Process(pid=4711))
    assert set_mode(session, session.gpus[0], enabled=True) is PartitionMode.ENABLE_PENDING
    assert instances(session, session.gpus[0]) == ()


def test_the_mode_is_not_turned_off_over_what_lies_there(session: Session, gpu: GpuUuid) -> None:
    made = create(session, gpu, piece("1g.18gb", 0))
    assert set_mode(session, gpu, enabled=False) is PartitionMode.DISABLE_PENDING
    assert instances(session, gpu) == (made,)


def test_an_instance_is_made_exactly_where_it_was_asked_for(session: Session, gpu: GpuUuid) -> None:
    made = create(session, gpu, piece("3g.71gb", 4))
    (partition,) = made.partitions
    assert partition == Partition(
        uuid=partition.uuid,
        parent=gpu,
        profile="3g.71gb",
        placement=Placement(start=4, length=4),
        instance=made.id,
        compute_instance=0,
        slices=3,
        compute_slices=3,
        memory=71168 * MIB,
        multiprocessors=60,
        copy_engines=3,
        decoders=3,
        jpeg_engines=3,
    )
    assert partition.uuid.startswith("MIG-")
    assert instances(session, gpu) == (made,)


def test_instances_are_listed_in_the_order_of_their_placements(session: Session, gpu: GpuUuid) -> None:
    for one in (piece("2g.35gb", 4), piece("1g.18gb", 6), piece("3g.71gb", 0)):
        create(session, gpu, one)
    assert lying(session, gpu) == [piece("3g.71gb", 0), piece("2g.35gb", 4), piece("1g.18gb", 6)]


def test_an_instance_is_divided_as_asked_and_each_part_is_a_partition(session: Session, gpu: GpuUuid) -> None:
    made = create(session, gpu, piece("3g.71gb", 0, 2, 1))
    assert made.piece == piece("3g.71gb", 0, 2, 1)
    shown = [(one.profile, one.compute_start, one.compute_slices, one.multiprocessors) for one in made.partitions]
    assert shown == [("2c.3g.71gb", 0, 2, 40), ("1c.3g.71gb", 2, 1, 20)]
    assert {(one.memory, one.slices, one.decoders) for one in made.partitions} == {(71168 * MIB, 3, 3)}
    assert len({one.uuid for one in made.partitions}) == 2


def test_a_part_that_leaves_the_rest_of_its_instance_free_is_no_whole(session: Session, gpu: GpuUuid) -> None:
    made = create(session, gpu, piece("2g.35gb", 2, 1))
    assert [one.profile for one in made.partitions] == ["1c.2g.35gb"]
    assert made.piece != piece("2g.35gb", 2)


@pytest.mark.parametrize("computes", [(5,), (2, 2), (3, 1)])
def test_what_an_instance_cannot_be_divided_into_is_refused_and_leaves_nothing(
    session: Session, gpu: GpuUuid, mig: Mig, computes: tuple[int, ...]
) -> None:
    with pytest.raises(HardwareError):
        create(session, gpu, piece("3g.71gb", 0, *computes))
    assert mig.instances == {}


def test_a_profile_that_the_gpu_does_not_have_is_answered_with_those_that_it_has(
    session: Session, gpu: GpuUuid
) -> None:
    stranger = Piece(profile="1g.10gb", placement=Placement(start=0, length=1))
    with pytest.raises(HardwareError, match=r"no MIG profile 1g.10gb; it offers 1g.18gb, 2g.35gb"):
        create(session, gpu, stranger)


def test_holes_between_the_slots_are_nothing(session: Session, gpu: GpuUuid) -> None:
    made = [create(session, gpu, piece("1g.18gb", start)) for start in range(6)]
    for start in (1, 3, 4):
        destroy(session, gpu, piece("1g.18gb", start))
    assert instances(session, gpu) == (made[0], made[2], made[5])


def test_a_slot_that_fails_is_an_error_and_no_hole(session: Session, gpu: GpuUuid, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetMigDeviceHandleByIndex", "NO_PERMISSION")
    with pytest.raises(HardwareError, match=r"nvmlDeviceGetMigDeviceHandleByIndex: .*\(NVML error 4\)"):
        instances(session, gpu)


def test_attributes_that_a_driver_does_not_tell_are_absent(session: Session, gpu: GpuUuid, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetAttributes_v2", "NOT_SUPPORTED")
    (partition,) = create(session, gpu, piece("1g.18gb", 0)).partitions
    assert (partition.memory, partition.multiprocessors) == (None, None)


@pytest.mark.parametrize("kind", ["compute", "mps", "graphics"])
def test_an_instance_is_busy_while_a_process_runs_on_a_part_of_it(
    session: Session, gpu: GpuUuid, node: SimulatedNode, kind: str
) -> None:
    made, idle = create(session, gpu, piece("2g.35gb", 0, 1, 1)), create(session, gpu, piece("1g.18gb", 4))
    node.faults.gpu(0).processes.append(Process(pid=1, kind=kind, instance=made.id, compute_instance=1))
    assert [one.busy for one in instances(session, gpu)] == [True, False]
    assert instances(session, gpu) == (made, idle), "what runs makes no other instance of it"
    node.faults.stop_process(0, 1)
    assert [one.busy for one in instances(session, gpu)] == [False, False]


def test_a_taken_place_is_refused_with_the_drivers_reason(session: Session, gpu: GpuUuid) -> None:
    made = create(session, gpu, piece("3g.71gb", 0))
    with pytest.raises(HardwareError, match=r"\(NVML error 23\): there is no room left"):
        create(session, gpu, piece("1g.18gb", 2))
    assert instances(session, gpu) == (made,)


def test_a_place_that_the_profile_does_not_have_is_refused(session: Session, gpu: GpuUuid) -> None:
    with pytest.raises(HardwareError, match="nvmlDeviceCreateGpuInstanceWithPlacement"):
        create(session, gpu, piece("3g.71gb", 2))


@pytest.mark.parametrize(
    "call", ["nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceGetComputeInstanceProfileInfoV"]
)
def test_a_half_made_instance_is_undone(
    session: Session, gpu: GpuUuid, node: SimulatedNode, mig: Mig, call: str
) -> None:
    node.faults.fail(call, "UNKNOWN", times=1)
    with pytest.raises(HardwareError, match="NVML error 999"):
        create(session, gpu, piece("3g.71gb", 0, 1, 1, 1))
    assert mig.instances == {}
    assert create(session, gpu, piece("3g.71gb", 0, 1, 1, 1)).piece == piece("3g.71gb", 0, 1, 1, 1)


def test_an_undo_that_fails_tells_of_both_failures(session: Session, gpu: GpuUuid, node: SimulatedNode) -> None:
    node.faults.fail("nvmlGpuInstanceCreateComputeInstance", "UNKNOWN", times=1)
    node.faults.fail("nvmlGpuInstanceDestroy", "IN_USE", times=1)
    with pytest.raises(HardwareError, match=r"nvmlGpuInstanceCreateComputeInstance.*nvmlGpuInstanceDestroy"):
        create(session, gpu, piece("1g.18gb", 0))
    assert lying(session, gpu) == [half_made("1g.18gb", 0)]


def test_what_is_half_made_is_listed_and_can_be_removed(session: Session, gpu: GpuUuid, mig: Mig) -> None:
    leave_half_made(session, gpu, piece("2g.35gb", 2))
    live = create(session, gpu, piece("1g.18gb", 6))
    (found, beside) = instances(session, gpu)
    assert (found.piece, found.partitions, beside) == (half_made("2g.35gb", 2), (), live)
    destroy(session, gpu, found.piece)
    assert instances(session, gpu) == (live,)


def test_what_a_crash_left_half_made_gives_way(session: Session, gpu: GpuUuid) -> None:
    leave_half_made(session, gpu, piece("2g.35gb", 0))
    leave_half_made(session, gpu, piece("1g.18gb", 6))
    create(session, gpu, piece("3g.71gb", 0))
    assert lying(session, gpu) == [piece("3g.71gb", 0), half_made("1g.18gb", 6)], "what is not in the way is left alone"


def test_a_live_instance_never_gives_way(session: Session, gpu: GpuUuid) -> None:
    live = create(session, gpu, piece("1g.18gb", 0))
    leave_half_made(session, gpu, piece("1g.18gb", 1))
    with pytest.raises(HardwareError, match="no room left"):
        create(session, gpu, piece("3g.71gb", 0))
    assert live in instances(session, gpu)


def test_an_instance_that_the_driver_does_not_list_is_an_error(
    session: Session, gpu: GpuUuid, node: SimulatedNode
) -> None:
    node.faults.fail("nvmlDeviceGetMigDeviceHandleByIndex", "NOT_FOUND")
    with pytest.raises(HardwareError, match=r"made 1g\.18gb at 0, but does not list it"):
        create(session, gpu, piece("1g.18gb", 0))


def test_an_instance_of_a_profile_that_is_not_told_is_listed_all_the_same(
    session: Session, gpu: GpuUuid, node: SimulatedNode
) -> None:
    create(session, gpu, piece("2g.35gb", 2))
    for call in ("nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstanceProfileInfoV"):
        node.faults.fail(call, "NOT_SUPPORTED")
    (found,) = instances(session, gpu)
    assert (found.profile, found.placement) == ("profile 14", Placement(start=2, length=2))
    assert [partition.profile for partition in found.partitions] == ["profile 14"]


def test_a_destroyed_instance_is_gone_with_its_compute_instances(session: Session, gpu: GpuUuid, mig: Mig) -> None:
    create(session, gpu, piece("3g.71gb", 4, 2, 1))
    destroy(session, gpu, piece("3g.71gb", 4))
    assert instances(session, gpu) == ()
    assert mig.instances == {}


@pytest.mark.parametrize("busy", [0, 1, 2])
def test_an_instance_of_which_a_part_is_in_use_stays_whole(
    session: Session, gpu: GpuUuid, node: SimulatedNode, busy: int
) -> None:
    made = create(session, gpu, piece("3g.71gb", 4, 1, 1, 1))
    node.faults.gpu(0).processes.append(Process(pid=1, instance=made.id, compute_instance=busy))
    with pytest.raises(InUse, match=r"\(NVML error 19\): something uses it"):
        destroy(session, gpu, made.piece)
    assert instances(session, gpu) == (made,)


def test_an_instance_that_cannot_be_made_whole_again_tells_of_both_failures(
    session: Session, gpu: GpuUuid, node: SimulatedNode
) -> None:
    made = create(session, gpu, piece("1g.18gb", 0))
    node.faults.fail("nvmlGpuInstanceDestroy", "IN_USE", times=1)
    node.faults.fail("nvmlGpuInstanceCreateComputeInstanceWithPlacement", "UNKNOWN", times=1)
    with pytest.raises(InUse, match=r"nvmlGpuInstanceDestroy.*could not be undone.*NVML error 999"):
        destroy(session, gpu, made.piece)
    assert lying(session, gpu) == [half_made("1g.18gb", 0)]


def test_only_what_is_of_that_profile_at_that_placement_is_destroyed(session: Session, gpu: GpuUuid) -> None:
    made = create(session, gpu, piece("2g.35gb", 2))
    for other in (piece("1g.35gb", 2), piece("2g.35gb", 0), piece("1g.18gb", 2)):
        with pytest.raises(HardwareError, match=r"has no .*; there is 2g.35gb at 2$"):
            destroy(session, gpu, other)
    assert instances(session, gpu) == (made,)


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[tuple[SimulatedNode, Session]]:
    """A node that was cut before the agent came."""
    profile = load_profile("h200-8")
    first = msgspec.structs.replace(profile.gpus[0], mig=("3g.71gb@4", "1g.18gb@0"))
    with install(SimulatedNode(msgspec.structs.replace(profile, gpus=(first, *profile.gpus[1:])))) as node:
        session = Session(sysfs=tmp_path)
        session.ensure_open()
        session.refresh()
        yield node, session
        session.close()


def test_instances_made_by_others_are_listed(cut: tuple[SimulatedNode, Session]) -> None:
    _, session = cut
    listed: tuple[Instance, ...] = instances(session, session.gpus[0])
    assert [one.piece for one in listed] == [piece("1g.18gb", 0), piece("3g.71gb", 4)]


def test_instances_are_gone_with_the_gpu(cut: tuple[SimulatedNode, Session]) -> None:
    node, session = cut
    node.faults.lose(0)
    with pytest.raises(DeviceLost):
        instances(session, session.gpus[0])
