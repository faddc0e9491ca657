"""MIG: profiles and their names, live partitions, and how making and removing them goes wrong."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from node_agent.errors import DeviceLost, HardwareError, NotSupported
from node_agent.hardware.nvml.partitions import (
    create,
    destroy,
    partitions,
    profile_name,
    profiles,
    set_mode,
)
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.gpu import Process
from node_agent.model.gpu import GpuUuid, PartitionMode
from node_agent.model.partition import Partition, PartitionProfile, PartitionUuid, Placement

MIB = 1 << 20

H200 = ["1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"]


@pytest.fixture
def gpu(session: Session) -> GpuUuid:
    """A GPU with MIG on."""
    set_mode(session, session.gpus[0], enabled=True)
    return session.gpus[0]


@pytest.fixture
def offered(session: Session, gpu: GpuUuid) -> dict[str, PartitionProfile]:
    return {profile.name: profile for profile in profiles(session, gpu)}


def at(start: int, length: int) -> Placement:
    return Placement(start=start, length=length)


def instances(node: SimulatedNode) -> int:
    """GPU instances on the first GPU, with or without compute instance."""
    mig = node.faults.gpu(0).mig
    assert mig is not None
    return len(mig.instances)


@pytest.mark.parametrize(
    ("slices", "mib", "total_mib", "suffix", "name"),
    [
        (1, 16384, 143771, "", "1g.18gb"),
        (1, 16384, 143771, "+me", "1g.18gb+me"),
        (1, 33024, 143771, "", "1g.35gb"),
        (3, 71168, 143771, "", "3g.71gb"),
        (7, 143104, 143771, "", "7g.141gb"),
        (1, 9984, 81559, "", "1g.10gb"),
        (2, 20096, 81559, "", "2g.20gb"),
        (1, 4864, 40960, "", "1g.5gb"),
        (7, 40192, 40960, "", "7g.40gb"),
        (1, 5952, 24576, "", "1g.6gb"),
        (4, 24064, 24576, "", "4g.24gb"),
        (1, 22528, 183359, "", "1g.23gb"),
        (2, 46592, 189471, "", "2g.47gb"),
        (3, 94000, 193000, "-me", "3g.95gb-me"),
    ],
)
def test_profile_names_follow_the_drivers_rule(slices: int, mib: int, total_mib: int, suffix: str, name: str) -> None:
    assert profile_name(slices, mib, total_mib, suffix) == name


def test_the_profiles_are_those_of_the_board(session: Session, gpu: GpuUuid) -> None:
    found = {profile.name: profile for profile in profiles(session, gpu)}
    assert sorted(found) == H200
    assert found["1g.18gb+me"] == PartitionProfile(
        name="1g.18gb+me",
        id=20,
        slices=1,
        memory=16384 * MIB,
        multiprocessors=16,
        limit=1,
        placements=tuple(at(start, 1) for start in range(7)),
        copy_engines=1,
        decoders=1,
        jpeg_engines=1,
        optical_flow_engines=1,
    )
    assert found["1g.35gb"].placements == (at(0, 2), at(2, 2), at(4, 2), at(6, 2))


def test_profiles_are_told_before_mig_is_on_and_are_the_same_then(session: Session) -> None:
    before = profiles(session, session.gpus[0])
    set_mode(session, session.gpus[0], enabled=True)
    assert profiles(session, session.gpus[0]) == before


def test_a_driver_without_profile_names_gives_profiles_their_usual_names(tmp_path: Path) -> None:
    profile = load_profile("h200-8")
    missing = ("nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlGpuInstanceGetComputeInstanceProfileInfoV")
    old = msgspec.structs.replace(profile.driver, missing_symbols=missing)
    with install(SimulatedNode(msgspec.structs.replace(profile, driver=old))):
        session = Session(sysfs=tmp_path)
        session.ensure_open()
        session.refresh()
        gpu = session.gpus[0]
        set_mode(session, gpu, enabled=True)
        offered = profiles(session, gpu)
        assert sorted(profile.name for profile in offered) == H200
        made = create(session, gpu, offered[0], offered[0].placements[0])
        assert made.profile == offered[0].name
        session.close()


def test_a_board_without_mig_is_not_supported_and_has_no_partitions(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetMigMode", "NOT_SUPPORTED", gpu=1)
    with pytest.raises(NotSupported):
        profiles(session, session.gpus[1])
    assert partitions(session, session.gpus[1]) == ()


def test_a_guest_that_can_read_the_mode_but_has_no_profiles_is_not_supported(
    session: Session, node: SimulatedNode
) -> None:
    for call in ("nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstanceProfileInfoV"):
        node.faults.fail(call, "NOT_SUPPORTED")
    with pytest.raises(NotSupported, match="offers no MIG profile"):
        profiles(session, session.gpus[1])


def test_profiles_that_cannot_be_asked_are_an_error_and_not_no_profiles(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetGpuInstanceProfileInfo", "UNKNOWN")
    with pytest.raises(HardwareError, match="NVML error 999") as caught:
        profiles(session, session.gpus[1])
    assert not isinstance(caught.value, NotSupported)


def test_with_mig_off_there_are_no_partitions(session: Session) -> None:
    assert partitions(session, session.gpus[0]) == ()


def test_turning_mig_on_and_off_answers_the_new_mode(session: Session) -> None:
    assert set_mode(session, session.gpus[0], enabled=True) is PartitionMode.ENABLED
    assert set_mode(session, session.gpus[0], enabled=False) is PartitionMode.DISABLED


def test_a_change_of_mode_that_waits_for_the_gpu_to_be_idle_says_so(session: Session, node: SimulatedNode) -> None:
    node.faults.gpu(0).processes.append(Process(pid=4711))
    assert set_mode(session, session.gpus[0], enabled=True) is PartitionMode.ENABLE_PENDING
    assert partitions(session, session.gpus[0]) == ()


def test_a_partition_is_made_exactly_where_it_was_asked_for(
    session: Session, gpu: GpuUuid, offered: dict[str, PartitionProfile]
) -> None:
    made = create(session, gpu, offered["3g.71gb"], at(4, 4))
    assert made == Partition(
        uuid=made.uuid,
        parent=gpu,
        profile="3g.71gb",
        placement=at(4, 4),
        instance=made.instance,
        compute_instance=0,
        memory=71168 * MIB,
        multiprocessors=60,
    )
    assert made.uuid.startswith("MIG-")
    assert partitions(session, gpu) == (made,)


def test_partitions_are_listed_in_the_order_of_their_placements(
    session: Session, gpu: GpuUuid, offered: dict[str, PartitionProfile]
) -> None:
    for name, placement in (("2g.35gb", at(4, 2)), ("1g.18gb", at(6, 1)), ("3g.71gb", at(0, 4))):
        create(session, gpu, offered[name], placement)
    listed = partitions(session, gpu)
    assert [(one.placement.start, one.profile) for one in listed] == [(0, "3g.71gb"), (4, "2g.35gb"), (6, "1g.18gb")]


def test_holes_between_the_slots_are_no_partitions(
    session: Session, gpu: GpuUuid, offered: dict[str, PartitionProfile]
) -> None:
    made = [create(session, gpu, offered["1g.18gb"], at(start, 1)) for start in range(6)]
    for one in (made[1], made[3], made[4]):
        destroy(session, one.uuid)
    assert partitions(session, gpu) == (made[0], made[2], made[5])


def test_a_slot_that_fails_is_an_error_and_no_hole(
    session: Session, gpu: GpuUuid, node: SimulatedNode, offered: dict[str, PartitionProfile]
) -> None:
    node.faults.fail("nvmlDeviceGetMigDeviceHandleByIndex", "NO_PERMISSION")
    with pytest.raises(HardwareError, match=r"nvmlDeviceGetMigDeviceHandleByIndex: .*\(NVML error 4\)"):
        partitions(session, gpu)


def test_attributes_that_a_driver_does_not_tell_are_absent(
    session: Session, gpu: GpuUuid, node: SimulatedNode, offered: dict[str, PartitionProfile]
) -> None:
    node.faults.fail("nvmlDeviceGetAttributes_v2", "NOT_SUPPORTED")
    made = create(session, gpu, offered["1g.18gb"], at(0, 1))
    assert (made.memory, made.multiprocessors) == (None, None)


def test_a_taken_place_is_refused_with_the_drivers_reason(
    session: Session, gpu: GpuUuid, offered: dict[str, PartitionProfile]
) -> None:
    made = create(session, gpu, offered["3g.71gb"], at(0, 4))
    with pytest.raises(HardwareError, match=r"\(NVML error 23\): there is no room left"):
        create(session, gpu, offered["1g.18gb"], at(2, 1))
    assert partitions(session, gpu) == (made,)


def test_a_place_that_the_profile_does_not_have_is_refused(
    session: Session, gpu: GpuUuid, offered: dict[str, PartitionProfile]
) -> None:
    with pytest.raises(HardwareError, match="nvmlDeviceCreateGpuInstanceWithPlacement"):
        create(session, gpu, offered["3g.71gb"], at(2, 4))


@pytest.mark.parametrize(
    "call", ["nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceGetComputeInstanceProfileInfoV"]
)
def test_a_half_made_partition_is_undone(
    session: Session, gpu: GpuUuid, node: SimulatedNode, offered: dict[str, PartitionProfile], call: str
) -> None:
    node.faults.fail(call, "UNKNOWN", times=1)
    with pytest.raises(HardwareError, match="NVML error 999"):
        create(session, gpu, offered["1g.18gb"], at(0, 1))
    assert instances(node) == 0
    assert create(session, gpu, offered["1g.18gb"], at(0, 1)).placement == at(0, 1)


def test_an_undo_that_fails_tells_of_both_failures(
    session: Session, gpu: GpuUuid, node: SimulatedNode, offered: dict[str, PartitionProfile]
) -> None:
    node.faults.fail("nvmlGpuInstanceCreateComputeInstance", "UNKNOWN", times=1)
    node.faults.fail("nvmlGpuInstanceDestroy", "IN_USE", times=1)
    with pytest.raises(HardwareError, match=r"nvmlGpuInstanceCreateComputeInstance.*nvmlGpuInstanceDestroy"):
        create(session, gpu, offered["1g.18gb"], at(0, 1))


def leave_half_made(session: Session, gpu: GpuUuid, profile: PartitionProfile, start: int) -> Any:
    """A GPU instance without compute instance, as a crash between the two calls leaves it."""
    place = pynvml.c_nvmlGpuInstancePlacement_t(start, profile.placements[0].length)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(session.handle(gpu), profile.id, place)


def test_what_a_crash_left_half_made_gives_way(
    session: Session, gpu: GpuUuid, node: SimulatedNode, offered: dict[str, PartitionProfile]
) -> None:
    leave_half_made(session, gpu, offered["2g.35gb"], start=0)
    leave_half_made(session, gpu, offered["1g.18gb"], start=6)
    assert partitions(session, gpu) == ()
    made = create(session, gpu, offered["3g.71gb"], at(0, 4))
    assert partitions(session, gpu) == (made,)
    assert instances(node) == 2, "what is not in the way is left alone"


def test_a_live_partition_never_gives_way(
    session: Session, gpu: GpuUuid, node: SimulatedNode, offered: dict[str, PartitionProfile]
) -> None:
    live = create(session, gpu, offered["1g.18gb"], at(0, 1))
    leave_half_made(session, gpu, offered["1g.18gb"], start=1)
    with pytest.raises(HardwareError, match="no room left"):
        create(session, gpu, offered["3g.71gb"], at(0, 4))
    assert partitions(session, gpu) == (live,)


def test_a_partition_that_the_driver_does_not_list_is_an_error(
    session: Session, gpu: GpuUuid, node: SimulatedNode, offered: dict[str, PartitionProfile]
) -> None:
    node.faults.fail("nvmlDeviceGetMigDeviceHandleByIndex", "NOT_FOUND")
    with pytest.raises(HardwareError, match="does not list it"):
        create(session, gpu, offered["1g.18gb"], at(0, 1))


def test_a_destroyed_partition_is_gone_with_both_its_instances(
    session: Session, gpu: GpuUuid, node: SimulatedNode, offered: dict[str, PartitionProfile]
) -> None:
    made = create(session, gpu, offered["1g.18gb"], at(3, 1))
    destroy(session, made.uuid)
    assert partitions(session, gpu) == ()
    assert instances(node) == 0


def test_a_partition_in_use_is_not_destroyed(
    session: Session, gpu: GpuUuid, node: SimulatedNode, offered: dict[str, PartitionProfile]
) -> None:
    made = create(session, gpu, offered["1g.18gb"], at(3, 1))
    node.faults.gpu(0).processes.append(Process(pid=1, instance=made.instance, compute_instance=0))
    with pytest.raises(HardwareError, match=r"\(NVML error 19\): something uses it"):
        destroy(session, made.uuid)
    assert partitions(session, gpu) == (made,)


def test_a_partition_is_found_by_the_id_that_older_drivers_gave_it(
    session: Session, gpu: GpuUuid, offered: dict[str, PartitionProfile]
) -> None:
    made = create(session, gpu, offered["1g.18gb"], at(3, 1))
    destroy(session, PartitionUuid(f"MIG-{gpu}/{made.instance}/{made.compute_instance}"))
    assert partitions(session, gpu) == ()


def test_an_old_id_of_a_gpu_that_is_not_here_is_lost(session: Session) -> None:
    with pytest.raises(DeviceLost):
        destroy(session, PartitionUuid("MIG-GPU-elsewhere/7/0"))


def test_a_partition_is_found_without_the_drivers_look_up_by_uuid(
    session: Session, gpu: GpuUuid, node: SimulatedNode, offered: dict[str, PartitionProfile]
) -> None:
    made = create(session, gpu, offered["1g.18gb"], at(3, 1))
    node.faults.fail("nvmlDeviceGetHandleByUUID", "NO_PERMISSION")
    destroy(session, made.uuid)
    assert partitions(session, gpu) == ()


def test_a_partition_that_nobody_has_is_an_error(session: Session, gpu: GpuUuid) -> None:
    with pytest.raises(HardwareError, match=r"no GPU has the partition MIG-elsewhere$"):
        destroy(session, PartitionUuid("MIG-elsewhere"))


def test_a_gpu_that_does_not_answer_does_not_hide_the_partition_of_another(
    session: Session, node: SimulatedNode
) -> None:
    gpu = session.gpus[4]
    set_mode(session, gpu, enabled=True)
    profile = profiles(session, gpu)[0]
    made = create(session, gpu, profile, profile.placements[0])
    node.faults.lose(1)
    destroy(session, made.uuid)
    with pytest.raises(HardwareError, match=f"{session.gpus[1]} does not answer: .*fallen off the bus"):
        destroy(session, made.uuid)


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


def test_partitions_made_by_others_are_listed(cut: tuple[SimulatedNode, Session]) -> None:
    _, session = cut
    listed = partitions(session, session.gpus[0])
    assert [(one.profile, one.placement) for one in listed] == [("1g.18gb", at(0, 1)), ("3g.71gb", at(4, 4))]


def test_partitions_are_gone_with_the_gpu(cut: tuple[SimulatedNode, Session]) -> None:
    node, session = cut
    node.faults.lose(0)
    with pytest.raises(DeviceLost):
        partitions(session, session.gpus[0])
