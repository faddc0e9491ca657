"""Cutting GPUs by MIG: what lies on them, and making and removing it; ``profiles`` beside knows the shapes.

A GPU instance and its compute instances are made and removed together: what fails on the way is undone.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pynvml
from msgspec import Struct

from node_agent.errors import HardwareError, NotSupported
from node_agent.hardware.nvml.profiles import Known, engines, kinds, known_profiles
from node_agent.hardware.nvml.scan import partition_mode
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.nvml.translate import Calls, Handle
from node_agent.model.gpu import GpuUuid, PartitionMode
from node_agent.model.partition import Instance, Partition, PartitionUuid, Piece, Placement

_MIB = 1 << 20

# Each lists the processes of one kind that run on a GPU or a MIG device.
_PROCESSES = (
    pynvml.nvmlDeviceGetComputeRunningProcesses,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses,
)


class _Asked(Struct, frozen=True, kw_only=True):
    """One GPU that is asked: its handle of the moment, and the profiles that it has by the driver's id."""

    calls: Calls
    uuid: GpuUuid
    handle: Handle
    known: Mapping[int, Known]

    def instance(self, number: int) -> Handle:
        return self.calls(pynvml.nvmlDeviceGetGpuInstanceById, self.handle, number)


def instances(session: Session, gpu: GpuUuid) -> tuple[Instance, ...]:
    """What lies on a GPU, in the order of the placements; nothing where MIG is off or not to be had."""
    calls, handle = session.calls, session.handle(gpu)
    if not is_cut(calls, handle):
        return ()
    asked = _Asked(calls=calls, uuid=gpu, handle=handle, known=known_profiles(calls, handle))
    devices: dict[int, dict[int, Handle]] = {}
    for slot, device in live_devices(calls, handle).items():
        devices.setdefault(calls(pynvml.nvmlDeviceGetGpuInstanceId, device), {})[slot] = device
    # The lists by profile have what is half made; what has a device is found even if its profile is one too new.
    made = {calls(pynvml.nvmlGpuInstanceGetInfo, each).id for one in asked.known.values() for each in _made(asked, one)}
    found = [_instance(asked, number, devices.get(number, {})) for number in made | devices.keys()]
    return tuple(sorted(found, key=lambda instance: instance.placement))


def live_devices(calls: Calls, handle: Handle) -> dict[int, Handle]:
    """Handles of the MIG devices of a GPU, by their index."""
    slots = range(calls(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) if is_cut(calls, handle) else 0)
    return {slot: device for slot in slots if (device := _in_slot(calls, handle, slot))}


def set_mode(session: Session, gpu: GpuUuid, enabled: bool) -> PartitionMode:
    """Turn MIG on or off; the answer says what the change still waits for."""
    session.calls(pynvml.nvmlDeviceSetMigMode, session.handle(gpu), int(enabled))
    # The driver may have attached the GPU anew for this: the old handle is void then.
    session.refresh()
    return partition_mode(session.calls, session.handle(gpu))


def create(session: Session, gpu: GpuUuid, piece: Piece) -> Instance:
    """Make an instance exactly there, with its compute instances; a half-made one is undone before the error."""
    calls = session.calls
    profile = _named(known_profiles(calls, session.handle(gpu)), piece.profile)
    instance = _create_instance(session, gpu, profile, piece.placement)
    computes: list[Handle] = []
    with _undone(lambda: _destroy(calls, instance, computes)):
        for profile_id in _compute_profiles(calls, instance, piece.computes):
            compute = calls(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, profile_id)
            computes.append(compute)
    # The new one has no other sure mark: ids are the driver's to choose, and used again.
    for made in instances(session, gpu):
        if made.piece == piece:
            return made
    raise HardwareError(f"{gpu}: the driver made {piece}, but does not list it")


def destroy(session: Session, gpu: GpuUuid, piece: Piece) -> None:
    """Remove the instance of that profile at that placement, whatever its compute instances.

    Raises:
        InUse: something uses it, or a part of it; then all of it is as before.
        HardwareError: there is none, or the driver refuses.
    """
    calls, handle = session.calls, session.handle(gpu)
    lying = instances(session, gpu)
    found = next((one for one in lying if (one.profile, one.placement) == (piece.profile, piece.placement)), None)
    if found is None:
        others = ", ".join(str(one.piece) for one in lying)
        raise HardwareError(f"{gpu} has no {piece.profile} at {piece.placement.start}; there is {others or 'nothing'}")
    instance = calls(pynvml.nvmlDeviceGetGpuInstanceById, handle, found.id)
    removed: list[Partition] = []
    with _undone(lambda: _restore(calls, instance, removed)):
        for partition in found.partitions:
            by_id = pynvml.nvmlGpuInstanceGetComputeInstanceById
            calls(pynvml.nvmlComputeInstanceDestroy, calls(by_id, instance, partition.compute_instance))
            removed.append(partition)
        calls(pynvml.nvmlGpuInstanceDestroy, instance)


def is_cut(calls: Calls, handle: Handle) -> bool:
    try:
        return partition_mode(calls, handle).active
    except NotSupported:
        return False


def _in_slot(calls: Calls, handle: Handle, slot: int) -> Handle | None:
    """The MIG device in a slot, if there is one."""
    # The slots are counted by what the GPU could hold; holes among them are normal.
    try:
        return calls(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
    except HardwareError as error:
        if error.code == pynvml.NVML_ERROR_NOT_FOUND:
            return None
        raise


def _made(gpu: _Asked, profile: Known) -> list[Handle]:
    """Handles of the live GPU instances of a profile."""
    count = ctypes.c_uint()
    room = (pynvml.c_nvmlGpuInstance_t * profile.info.instanceCount)()
    gpu.calls(pynvml.nvmlDeviceGetGpuInstances, gpu.handle, profile.info.id, room, ctypes.byref(count))
    return list(room[: count.value])


def _instance(gpu: _Asked, number: int, devices: Mapping[int, Handle]) -> Instance:
    info = gpu.calls(pynvml.nvmlGpuInstanceGetInfo, gpu.instance(number))
    profile = gpu.known.get(info.profileId)
    bare = Instance(
        gpu=gpu.uuid,
        id=number,
        profile=profile.name if profile else f"profile {info.profileId}",
        placement=Placement(start=info.placement.start, length=info.placement.size),
        slices=profile.info.sliceCount if profile else info.placement.size,
    )
    shared = engines(profile.info) if profile else {}
    partitions = [_partition(gpu, bare, slot, device, shared) for slot, device in devices.items()]
    busy = any(gpu.calls.optional(ask, device) for device in devices.values() for ask in _PROCESSES)
    return replace(bare, partitions=tuple(sorted(partitions, key=lambda one: one.compute_start)), busy=busy)


def _partition(gpu: _Asked, within: Instance, slot: int, device: Handle, shared: Mapping[str, int]) -> Partition:
    calls = gpu.calls
    number = calls(pynvml.nvmlDeviceGetComputeInstanceId, device)
    handle = calls(pynvml.nvmlGpuInstanceGetComputeInstanceById, gpu.instance(within.id), number)
    placement = calls(pynvml.nvmlComputeInstanceGetInfo, handle).placement
    attributes = calls.optional(pynvml.nvmlDeviceGetAttributes, device)
    return Partition(
        uuid=PartitionUuid(calls.text(pynvml.nvmlDeviceGetUUID, device)),
        parent=gpu.uuid,
        profile=within.profile if placement.size == within.slices else f"{placement.size}c.{within.profile}",
        placement=within.placement,
        instance=within.id,
        compute_instance=number,
        slices=within.slices,
        compute_slices=placement.size,
        compute_start=placement.start,
        index=slot,
        memory=attributes.memorySizeMB * _MIB if attributes else None,
        multiprocessors=attributes.multiprocessorCount if attributes else None,
        **shared,
    )


def _named(known: Mapping[int, Known], name: str) -> Known:
    for profile in known.values():
        if profile.name == name:
            return profile
    offered = ", ".join(profile.name for profile in known.values())
    raise HardwareError(f"the GPU has no MIG profile {name}; it offers {offered or 'none'}")


def _create_instance(session: Session, gpu: GpuUuid, profile: Known, placement: Placement) -> Handle:
    calls, handle = session.calls, session.handle(gpu)
    wanted = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.length)
    arguments = (pynvml.nvmlDeviceCreateGpuInstanceWithPlacement, handle, profile.info.id, ctypes.byref(wanted))
    try:
        return calls(*arguments)
    except HardwareError as error:
        no_room = error.code == pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
        if not (no_room and _clear_leftovers(session, gpu, placement)):
            raise
    return calls(*arguments)


def _clear_leftovers(session: Session, gpu: GpuUuid, placement: Placement) -> bool:
    """Remove what lies in the way half made, left by someone who died. The driver never lets one in use go."""
    leftovers = [one for one in instances(session, gpu) if not one.partitions and one.placement.overlaps(placement)]
    for one in leftovers:
        handle = session.calls(pynvml.nvmlDeviceGetGpuInstanceById, session.handle(gpu), one.id)
        session.calls(pynvml.nvmlGpuInstanceDestroy, handle)
    return bool(leftovers)


def _compute_profiles(calls: Calls, instance: Handle, sizes: tuple[int, ...] | None) -> list[int]:
    """The compute instance profiles of these sizes, or the one that takes all of the GPU instance."""
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    ask = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
    offered: dict[int, int] = {}
    for _, info in kinds(lambda kind, version: calls.optional(ask, instance, kind, shared, version)):
        offered.setdefault(info.sliceCount, info.id)
    if not offered:
        raise NotSupported("the GPU instance offers no compute instance", call=ask.__name__)
    wanted = (max(offered),) if sizes is None else sizes
    if strange := set(wanted) - offered.keys():
        raise HardwareError(f"the GPU instance cannot be divided into {strange}; it offers sizes {sorted(offered)}")
    return [offered[size] for size in wanted]


def _destroy(calls: Calls, instance: Handle, computes: list[Handle]) -> None:
    for compute in computes:
        calls(pynvml.nvmlComputeInstanceDestroy, compute)
    calls(pynvml.nvmlGpuInstanceDestroy, instance)


def _restore(calls: Calls, instance: Handle, removed: list[Partition]) -> None:
    """Make compute instances again where they were."""
    for partition in removed:
        (profile_id,) = _compute_profiles(calls, instance, (partition.compute_slices,))
        place = pynvml.c_nvmlComputeInstancePlacement_t(partition.compute_start, partition.compute_slices)
        create_at = pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement
        calls(create_at, instance, profile_id, ctypes.byref(place))


@contextmanager
def _undone(undo: Callable[[], None]) -> Iterator[None]:
    """Undo what is half done when the block fails; an undo that fails, too, is told with the error."""
    try:
        yield
    except HardwareError as because:
        try:
            undo()
        except HardwareError as error:
            message = f"{because}; what was half done could not be undone: {error}"
            raise type(because)(message, call=because.call, code=because.code) from because
        raise
