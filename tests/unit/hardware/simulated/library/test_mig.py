"""MIG through the binding: modes, profiles, making and removing instances, and the handles of MIG devices."""

import ctypes
from collections.abc import Callable
from ctypes import byref, c_uint
from typing import Any

import pynvml
import pytest

from node_agent.hardware.simulated import SimulatedNode
from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import gpu

SUCCESS, IN_USE, RESET_REQUIRED = (
    pynvml.NVML_SUCCESS,
    pynvml.NVML_ERROR_IN_USE,
    pynvml.NVML_ERROR_RESET_REQUIRED,
)
ONE, ONE_ME, ONE_WIDE, TWO, THREE, FOUR, SEVEN = 19, 20, 15, 14, 9, 5, 0

# Profile enum, then id, slices, count, memory, SMs, copy, decode, JPEG and OFA engines, and name.
H200_PROFILES = [
    (0, 19, 1, 7, 16384, 16, 1, 1, 1, 0, "MIG 1g.18gb"),
    (1, 14, 2, 3, 33024, 32, 2, 2, 2, 0, "MIG 2g.35gb"),
    (2, 9, 3, 2, 71168, 60, 3, 3, 3, 0, "MIG 3g.71gb"),
    (3, 5, 4, 1, 71168, 64, 4, 4, 4, 0, "MIG 4g.71gb"),
    (4, 0, 7, 1, 143104, 132, 8, 7, 7, 1, "MIG 7g.141gb"),
    (7, 20, 1, 1, 16384, 16, 1, 1, 1, 1, "MIG 1g.18gb+me"),
    (9, 15, 1, 4, 33024, 26, 1, 1, 1, 0, "MIG 1g.35gb"),
]


@pytest.fixture
def cut(h200: SimulatedNode) -> SimulatedNode:
    """A node whose first GPU has MIG on."""
    assert pynvml.nvmlDeviceSetMigMode(gpu(0), 1) == SUCCESS
    return h200


def make(*profile_ids: int) -> list[Any]:
    """GPU instances with a compute instance that fills each."""
    return [fill(pynvml.nvmlDeviceCreateGpuInstance(gpu(0), profile_id)) for profile_id in profile_ids]


def fill(instance: Any) -> Any:
    profiles = {ONE: 0, ONE_ME: 0, ONE_WIDE: 0, TWO: 1, THREE: 2, FOUR: 3, SEVEN: 4}
    profile_id = pynvml.nvmlGpuInstanceGetInfo(instance).profileId
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profiles[profile_id])
    return instance


def device(slot: int) -> Any:
    return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), slot)


def slots() -> list[int]:
    """The slots that hold a MIG device."""
    found = []
    for slot in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu(0))):
        try:
            device(slot)
        except pynvml.NVMLError_NotFound:
            continue
        found.append(slot)
    return found


def placement(start: int, size: int) -> Any:
    place = pynvml.c_nvmlGpuInstancePlacement_t()
    place.start, place.size = start, size
    return byref(place)


def address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


# Mode


def test_mig_is_off_at_first(h200: SimulatedNode) -> None:
    assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [0, 0]


def test_mig_is_switched_on_for_one_gpu(h200: SimulatedNode) -> None:
    assert pynvml.nvmlDeviceSetMigMode(gpu(0), 1) == SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [1, 1]
    assert pynvml.nvmlDeviceGetMigMode(gpu(1)) == [0, 0]
    assert pynvml.nvmlDeviceSetMigMode(gpu(0), 0) == SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [0, 0]


def test_a_mode_that_does_not_exist_is_invalid(h200: SimulatedNode) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetMigMode(gpu(0), 2)


def test_a_gpu_in_use_changes_its_mode_later(h200: SimulatedNode) -> None:
    h200.faults.start_process(0, 4711)
    assert pynvml.nvmlDeviceSetMigMode(gpu(0), 1) == IN_USE
    assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [0, 1]
    h200.faults.stop_process(0, 4711)
    assert pynvml.nvmlDeviceSetMigMode(gpu(0), 1) == SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [1, 1]


def test_a_pending_mode_can_be_taken_back(h200: SimulatedNode) -> None:
    h200.faults.start_process(0, 4711)
    pynvml.nvmlDeviceSetMigMode(gpu(0), 1)
    assert pynvml.nvmlDeviceSetMigMode(gpu(0), 0) == SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [0, 0]


def test_a_pending_mode_comes_with_the_reset(h200: SimulatedNode) -> None:
    h200.faults.start_process(0, 4711)
    pynvml.nvmlDeviceSetMigMode(gpu(0), 1)
    h200.faults.restore(0)
    assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [1, 1]


def test_instances_keep_mig_on(cut: SimulatedNode) -> None:
    (instance,) = make(ONE)
    assert pynvml.nvmlDeviceSetMigMode(gpu(0), 0) == IN_USE
    assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [1, 0]
    assert slots() == [0]
    assert pynvml.nvmlGpuInstanceGetInfo(instance).id == 13


@pytest.mark.parametrize(("profile", "outcome"), [("a100-40gb-16", RESET_REQUIRED), ("h100-vm-8", SUCCESS)])
def test_in_a_guest_a_board_that_needs_a_reset_stays_pending(simulate: Simulate, profile: str, outcome: int) -> None:
    simulate(profile)
    assert pynvml.nvmlDeviceSetMigMode(gpu(0), 1) == outcome
    assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [int(outcome == SUCCESS), 1]


@pytest.mark.parametrize(("profile", "mode"), [("h200-8", [0, 0]), ("a100-40gb-8", [1, 1])])
def test_only_older_boards_remember_the_mode(simulate: Simulate, profile: str, mode: list[int]) -> None:
    node = simulate(profile)
    pynvml.nvmlDeviceSetMigMode(gpu(0), 1)
    pynvml.nvmlDeviceCreateGpuInstance(gpu(0), ONE)
    node.faults.driver("loaded")
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == mode
    assert node.faults.gpu(0).mig_devices() == []


NEEDS_MIG: list[Callable[[Any], Any]] = [
    pynvml.nvmlDeviceGetMigMode,
    lambda handle: pynvml.nvmlDeviceSetMigMode(handle, 1),
    lambda handle: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0, version=1),
    lambda handle: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0),
    lambda handle: pynvml.nvmlDeviceCreateGpuInstance(handle, ONE),
    lambda handle: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, ONE),
]

NEEDS_MIG_ON: list[Callable[[Any], Any]] = [
    lambda handle: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0),
    lambda handle: pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(handle, ONE),
    lambda handle: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, ONE),
    lambda handle: pynvml.nvmlDeviceCreateGpuInstance(handle, ONE),
    lambda handle: pynvml.nvmlDeviceGetGpuInstanceById(handle, 7),
]


@pytest.mark.parametrize("profile", ["v100-8", "l40s-8", "t4-4", "gb10-1"])
@pytest.mark.parametrize("call", NEEDS_MIG)
def test_boards_without_mig_refuse_it_all(simulate: Simulate, profile: str, call: Callable[[Any], Any]) -> None:
    simulate(profile)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        call(gpu(0))
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu(0)) == 0


def test_a_vgpu_guest_may_look_but_not_touch(simulate: Simulate) -> None:
    simulate("vgpu-1")
    assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [0, 0]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu(0)) == 0
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceSetMigMode(gpu(0), 1)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceCreateGpuInstance(gpu(0), ONE)


# Profiles


@pytest.mark.parametrize("expected", H200_PROFILES, ids=lambda row: row[-1])
def test_a_profile_is_what_the_driver_says(cut: SimulatedNode, expected: tuple[Any, ...]) -> None:
    info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu(0), expected[0])
    found = (
        *(info.id, info.sliceCount, info.instanceCount, info.memorySizeMB, info.multiprocessorCount),
        *(info.copyEngineCount, info.decoderCount, info.jpegCount, info.ofaCount, info.name),
    )
    assert found == expected[1:]
    assert (info.isP2pSupported, info.encoderCount) == (0, 0)
    by_id = pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(gpu(0), info.id)
    assert bytes(by_id) == bytes(info)


def test_the_first_form_has_the_same_figures_but_no_name(cut: SimulatedNode) -> None:
    old = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu(0), 2, version=1)
    new = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu(0), 2)
    assert all(getattr(old, field) == getattr(new, field) for field, _ in old._fields_)


def test_enumerating_profiles_ends_with_an_invalid_argument(cut: SimulatedNode) -> None:
    outcomes = []
    for enum in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT + 1):
        try:
            pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu(0), enum)
            outcomes.append(SUCCESS)
        except pynvml.NVMLError as error:
            outcomes.append(error.value)
    known = {row[0] for row in H200_PROFILES}
    expected = [SUCCESS if enum in known else pynvml.NVML_ERROR_NOT_SUPPORTED for enum in range(18)]
    assert outcomes == [*expected, pynvml.NVML_ERROR_INVALID_ARGUMENT]


def test_with_mig_off_the_first_form_and_placements_answer(h200: SimulatedNode) -> None:
    assert pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu(0), 0, version=1).id == ONE
    count = c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu(0), ONE, None, byref(count))
    assert count.value == 7


@pytest.mark.parametrize("call", NEEDS_MIG_ON)
def test_with_mig_off_everything_else_is_refused(h200: SimulatedNode, call: Callable[[Any], Any]) -> None:
    with pytest.raises(pynvml.NVMLError_NotSupported):
        call(gpu(0))


@pytest.mark.parametrize(
    ("profile", "profile_id", "size", "starts"),
    [
        ("h200-8", ONE, 1, [0, 1, 2, 3, 4, 5, 6]),
        ("h200-8", ONE_WIDE, 2, [0, 2, 4, 6]),
        ("a100-40gb-8", TWO, 2, [0, 2, 4]),
        ("b200-8", THREE, 4, [0, 4]),
        ("gb200-4", FOUR, 4, [0]),
        ("h100-8", SEVEN, 8, [0]),
        ("a30-2", 14, 1, [0, 1, 2, 3]),
        ("a30-2", 5, 2, [0, 2]),
    ],
)
def test_placements_are_listed_by_profile(
    simulate: Simulate, profile: str, profile_id: int, size: int, starts: list[int]
) -> None:
    simulate(profile)
    count = c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu(0), profile_id, None, byref(count))
    room = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu(0), profile_id, room, byref(count))
    assert [(place.start, place.size) for place in room] == [(start, size) for start in starts]


# Making and removing


def test_what_was_made_tells_its_place(cut: SimulatedNode) -> None:
    instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(0), THREE, placement(4, 4))
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    assert (info.id, info.profileId, info.placement.start, info.placement.size) == (1, THREE, 4, 4)
    assert address(info.device) == address(gpu(0))


@pytest.mark.parametrize(("start", "size"), [(7, 1), (0, 2), (1, 4)])
def test_a_wrong_placement_is_invalid(cut: SimulatedNode, start: int, size: int) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(0), ONE, placement(start, size))


def test_what_does_not_fit_is_refused(cut: SimulatedNode) -> None:
    make(FOUR, TWO, ONE)
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(0), ONE) == 0
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlDeviceCreateGpuInstance(gpu(0), ONE)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(0), ONE, placement(0, 1))


@pytest.mark.parametrize("call", [pynvml.nvmlDeviceCreateGpuInstance, pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity])
def test_an_unknown_profile_is_invalid(cut: SimulatedNode, call: Any) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        call(gpu(0), 42)


def test_remaining_capacity_counts_down(cut: SimulatedNode) -> None:
    left = []
    for _ in range(7):
        left.append(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(0), ONE))
        pynvml.nvmlDeviceCreateGpuInstance(gpu(0), ONE)
    assert left == [7, 6, 5, 4, 3, 2, 1]


def test_instances_are_listed_by_profile(cut: SimulatedNode) -> None:
    make(TWO, ONE, ONE)
    expected: list[tuple[int, set[int]]] = [(ONE, {7, 13}), (TWO, {5}), (SEVEN, set())]
    for profile_id, ids in expected:
        count, room = c_uint(0), (pynvml.c_nvmlGpuInstance_t * 7)()
        pynvml.nvmlDeviceGetGpuInstances(gpu(0), profile_id, room, byref(count))
        assert {pynvml.nvmlGpuInstanceGetInfo(room[index]).id for index in range(count.value)} == ids


def test_an_instance_is_found_by_its_id(cut: SimulatedNode) -> None:
    (instance,) = make(TWO)
    assert address(pynvml.nvmlDeviceGetGpuInstanceById(gpu(0), 5)) == address(instance)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetGpuInstanceById(gpu(0), 6)


def test_compute_instances_go_before_their_gpu_instance(cut: SimulatedNode) -> None:
    (instance,) = make(TWO)
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlGpuInstanceDestroy(instance)
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(0), SEVEN) == 1


def test_nothing_is_removed_under_a_process(cut: SimulatedNode) -> None:
    (instance,) = make(TWO)
    cut.faults.start_process(0, 4711, instance=5, compute_instance=0)
    compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
    for destroy, handle in ((pynvml.nvmlComputeInstanceDestroy, compute), (pynvml.nvmlGpuInstanceDestroy, instance)):
        with pytest.raises(pynvml.NVMLError_InUse):
            destroy(handle)
    cut.faults.stop_process(0, 4711)
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)


def test_handles_of_what_was_removed_are_invalid(cut: SimulatedNode) -> None:
    (instance,) = make(TWO)
    compute, mig_device = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0), device(0)
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
    for call, handle in (
        (pynvml.nvmlComputeInstanceGetInfo, compute),
        (pynvml.nvmlGpuInstanceGetInfo, instance),
        (pynvml.nvmlDeviceGetName, mig_device),
        (pynvml.nvmlComputeInstanceDestroy, compute),
    ):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call(handle)


def test_an_old_handle_may_name_a_new_instance(cut: SimulatedNode) -> None:
    (old,) = make(ONE)
    stale = device(0)
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(old, 0))
    pynvml.nvmlGpuInstanceDestroy(old)
    make(THREE)
    assert pynvml.nvmlDeviceGetName(stale) == "NVIDIA H200 MIG 3g.71gb"


# Compute instances


def test_a_compute_profile_is_a_part_of_the_instance(cut: SimulatedNode) -> None:
    instance = pynvml.nvmlDeviceCreateGpuInstance(gpu(0), THREE)
    for enum, slices, sms, name in (
        (0, 1, 20, "MIG 1c.3g.71gb"),
        (1, 2, 40, "MIG 2c.3g.71gb"),
        (2, 3, 60, "MIG 3g.71gb"),
    ):
        info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, enum, 0)
        assert (info.id, info.sliceCount, info.multiprocessorCount, info.name) == (enum, slices, sms, name)
        assert (info.sharedCopyEngineCount, info.sharedDecoderCount, info.sharedOfaCount) == (3, 3, 0)
        old = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, enum, 0, version=1)
        assert (old.id, old.multiprocessorCount) == (enum, sms)


@pytest.mark.parametrize(
    ("enum", "engines", "error"),
    [
        (3, 0, pynvml.NVMLError_NotSupported),
        (7, 0, pynvml.NVMLError_NotSupported),
        (9, 0, pynvml.NVMLError_InvalidArgument),
        (0, 1, pynvml.NVMLError_InvalidArgument),
    ],
)
def test_compute_profiles_that_the_instance_lacks(
    cut: SimulatedNode, enum: int, engines: int, error: type[Exception]
) -> None:
    instance = pynvml.nvmlDeviceCreateGpuInstance(gpu(0), THREE)
    with pytest.raises(error):
        pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, enum, engines)


def test_compute_instances_share_a_gpu_instance(cut: SimulatedNode) -> None:
    instance = pynvml.nvmlDeviceCreateGpuInstance(gpu(0), THREE)
    assert pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0) == 3
    one = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
    other = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    infos = [pynvml.nvmlComputeInstanceGetInfo(compute) for compute in (one, other)]
    assert [(info.id, info.profileId, info.placement.start, info.placement.size) for info in infos] == [
        (0, 1, 0, 2),
        (1, 0, 2, 1),
    ]
    assert {address(info.gpuInstance) for info in infos} == {address(instance)}
    assert pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0) == 0
    assert [pynvml.nvmlDeviceGetName(device(slot)) for slot in slots()] == [
        "NVIDIA H200 MIG 2c.3g.71gb",
        "NVIDIA H200 MIG 1c.3g.71gb",
    ]


def test_a_compute_instance_can_be_placed(cut: SimulatedNode) -> None:
    instance = pynvml.nvmlDeviceCreateGpuInstance(gpu(0), THREE)
    place = pynvml.c_nvmlComputeInstancePlacement_t()
    place.start, place.size = 2, 1
    compute = pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 0, byref(place))
    assert pynvml.nvmlComputeInstanceGetInfo(compute).placement.start == 2


def test_compute_instances_are_listed_by_profile_and_found_by_id(cut: SimulatedNode) -> None:
    instance = pynvml.nvmlDeviceCreateGpuInstance(gpu(0), THREE)
    made = [pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0) for _ in range(2)]
    count, room = c_uint(0), (pynvml.c_nvmlComputeInstance_t * 3)()
    pynvml.nvmlGpuInstanceGetComputeInstances(instance, 0, room, byref(count))
    assert [address(room[index]) for index in range(count.value)] == [address(compute) for compute in made]
    assert address(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 1)) == address(made[1])
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 2)


def test_placements_of_compute_instances_are_listed(cut: SimulatedNode) -> None:
    instance = pynvml.nvmlDeviceCreateGpuInstance(gpu(0), SEVEN)
    count, room = c_uint(0), (pynvml.c_nvmlComputeInstancePlacement_t * 7)()
    pynvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance, 2, room, byref(count))
    assert [(place.start, place.size) for place in room[: count.value]] == [(0, 3), (4, 3)]


# MIG devices


@pytest.mark.parametrize(("profile", "most"), [("h200-8", 7), ("a100-40gb-8", 7), ("a30-2", 4)])
def test_a_gpu_has_so_many_slots(simulate: Simulate, profile: str, most: int) -> None:
    simulate(profile)
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu(0)) == most
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), most)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), 0)


def test_slots_have_holes(cut: SimulatedNode) -> None:
    instances = make(ONE, ONE, ONE, ONE)
    for instance in (instances[0], instances[2]):
        pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
    assert slots() == [1, 3]


def test_an_instance_without_compute_instance_is_no_device(cut: SimulatedNode) -> None:
    pynvml.nvmlDeviceCreateGpuInstance(gpu(0), TWO)
    assert slots() == []


def test_a_mig_device_knows_where_it_belongs(cut: SimulatedNode) -> None:
    make(THREE, ONE)
    assert pynvml.nvmlDeviceIsMigDeviceHandle(device(1)).value == 1
    assert pynvml.nvmlDeviceIsMigDeviceHandle(gpu(0)).value == 0
    assert [pynvml.nvmlDeviceGetGpuInstanceId(device(slot)) for slot in slots()] == [1, 7]
    assert [pynvml.nvmlDeviceGetComputeInstanceId(device(slot)) for slot in slots()] == [0, 0]
    assert [pynvml.nvmlDeviceGetIndex(device(slot)) for slot in slots()] == [0, 1]
    assert address(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device(1))) == address(gpu(0))


@pytest.mark.parametrize(
    ("profile_id", "attributes"),
    [
        (ONE, (16, 1, 1, 0, 1, 0, 1, 1, 16384)),
        (ONE_ME, (16, 1, 1, 0, 1, 1, 1, 1, 16384)),
        (THREE, (60, 3, 3, 0, 3, 0, 3, 3, 71168)),
        (SEVEN, (132, 8, 7, 0, 7, 1, 7, 7, 143104)),
    ],
)
def test_attributes_of_a_mig_device(cut: SimulatedNode, profile_id: int, attributes: tuple[int, ...]) -> None:
    make(profile_id)
    found = pynvml.nvmlDeviceGetAttributes(device(0))
    assert tuple(getattr(found, field) for field, _ in found._fields_) == attributes


@pytest.mark.parametrize(
    "call",
    [
        pynvml.nvmlDeviceGetAttributes,
        pynvml.nvmlDeviceGetGpuInstanceId,
        pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle,
    ],
)
def test_a_whole_gpu_is_no_mig_device(cut: SimulatedNode, call: Any) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        call(gpu(0))


def test_uuids_come_back_with_the_same_instances(cut: SimulatedNode) -> None:
    (instance,) = make(TWO)
    before = pynvml.nvmlDeviceGetUUID(device(0))
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
    pynvml.nvmlGpuInstanceDestroy(instance)
    make(TWO)
    assert pynvml.nvmlDeviceGetUUID(device(0)) == before


def test_uuids_of_mig_devices_all_differ(cut: SimulatedNode) -> None:
    make(*(ONE,) * 7)
    assert len({pynvml.nvmlDeviceGetUUID(device(slot)) for slot in slots()}) == 7


def test_a_reset_removes_all_mig_devices(cut: SimulatedNode) -> None:
    make(THREE, THREE)
    cut.faults.restore(0)
    assert slots() == []
    assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [1, 1]


def test_a_lost_gpu_takes_its_mig_devices_along(cut: SimulatedNode) -> None:
    (instance,) = make(THREE)
    compute, mig_device = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0), device(0)
    uuid = pynvml.nvmlDeviceGetUUID(mig_device)
    cut.faults.lose(0)
    for call, argument in (
        (pynvml.nvmlDeviceGetName, mig_device),
        (pynvml.nvmlGpuInstanceGetInfo, instance),
        (pynvml.nvmlComputeInstanceGetInfo, compute),
        (pynvml.nvmlDeviceGetHandleByUUID, uuid),
    ):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            call(argument)


def test_a_profile_may_start_a_node_with_mig_devices(simulate: Simulate) -> None:
    simulate("a30-2")
    names = [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), index)) for index in range(3)]
    assert names == ["NVIDIA A30 MIG 1g.6gb", "NVIDIA A30 MIG 1g.6gb", "NVIDIA A30 MIG 2g.12gb"]
    assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [0, 0]
    assert pynvml.nvmlDeviceGetMigMode(gpu(1)) == [1, 1]
