"""Cutting GPUs by MIG: profiles, live partitions, and making and removing them.

A partition is a GPU instance with one compute instance as large as it. NVML counts kinds of profile (its enum) beside
the driver's own profile ids; the ids are what everything but the listing of profiles goes by.
"""

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import pynvml

from node_agent.errors import DriverUnavailable, HardwareError, NotSupported
from node_agent.hardware.nvml.scan import memory_total, partition_mode
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.nvml.translate import Calls, Handle, text
from node_agent.model.gpu import GpuUuid, PartitionMode
from node_agent.model.partition import Partition, PartitionProfile, PartitionUuid, Placement

_MIB = 1 << 20

# The driver says where its kinds of profile end; this only bounds the search.
_MOST_KINDS = 64

# What a profile's name carries beside slices and memory, by kind; the driver's own names are the same.
_SUFFIXES = {
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "+me.all",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: "+me.all",
}

# Ids before driver R470 say where the partition is, and are still taken by programs: MIG-GPU-<uuid>/<gi>/<ci>.
_OLD_UUID = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """A profile that the GPU has: NVML's structure about it, and its name."""

    info: Any
    name: str


def profiles(session: Session, gpu: GpuUuid) -> tuple[PartitionProfile, ...]:
    """The shapes that this GPU can be cut to. Raises NotSupported where it cannot be partitioned."""
    calls, handle = session.calls, session.handle(gpu)
    partition_mode(calls, handle)
    known = _known_profiles(calls, handle)
    if not known:
        raise NotSupported(f"{gpu} offers no MIG profile", call="nvmlDeviceGetGpuInstanceProfileInfo")
    return tuple(_profile(calls, handle, profile) for profile in known.values())


def partitions(session: Session, gpu: GpuUuid) -> tuple[Partition, ...]:
    """The live partitions in the order of their placements; none where MIG is off or not to be had."""
    calls, handle = session.calls, session.handle(gpu)
    devices = live_devices(calls, handle)
    known = _known_profiles(calls, handle) if devices else {}
    found = [_partition(calls, gpu, handle, device, known) for device in devices]
    return tuple(sorted(found, key=lambda partition: (partition.placement, partition.compute_instance)))


def live_devices(calls: Calls, handle: Handle) -> list[Handle]:
    """Handles of the MIG devices of a GPU."""
    try:
        active = partition_mode(calls, handle).active
    except NotSupported:
        return []
    slots = range(calls(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) if active else 0)
    return [device for slot in slots if (device := _in_slot(calls, handle, slot))]


def set_mode(session: Session, gpu: GpuUuid, enabled: bool) -> PartitionMode:
    """Turn MIG on or off; the answer says what the change still waits for."""
    session.calls(pynvml.nvmlDeviceSetMigMode, session.handle(gpu), int(enabled))
    # The driver may have attached the GPU anew for this: the old handle is void then.
    session.refresh()
    return partition_mode(session.calls, session.handle(gpu))


def create(session: Session, gpu: GpuUuid, profile: PartitionProfile, placement: Placement) -> Partition:
    """Make a partition exactly there; a half-made one is undone before the error is raised."""
    calls = session.calls
    instance = _create_instance(session, gpu, profile, placement)
    try:
        calls(pynvml.nvmlGpuInstanceCreateComputeInstance, instance, _whole_profile_id(calls, instance))
    except HardwareError as error:
        _undo(calls, instance, error)
        raise
    # The new device has no other sure mark: ids are the driver's to choose, and used again.
    for partition in partitions(session, gpu):
        if partition.placement == placement:
            return partition
    raise HardwareError(f"{gpu}: the driver made a {profile.name} at {placement.start}, but does not list it")


def destroy(session: Session, partition: PartitionUuid) -> None:
    """Remove a partition. Raises HardwareError while something uses it."""
    calls = session.calls
    gpu, instance_id, compute_id = _place(session, partition)
    instance = calls(pynvml.nvmlDeviceGetGpuInstanceById, session.handle(gpu), instance_id)
    compute = calls(pynvml.nvmlGpuInstanceGetComputeInstanceById, instance, compute_id)
    calls(pynvml.nvmlComputeInstanceDestroy, compute)
    calls(pynvml.nvmlGpuInstanceDestroy, instance)


def profile_name(slices: int, mib: int, total_mib: int, suffix: str = "") -> str:
    """The driver's name of a profile: its share of the memory, in eighths and GiB, rounded half away from zero."""
    eighths, total_gib = ceil(8 * mib / total_mib), ceil(total_mib / 1024)
    return f"{slices}g.{(2 * eighths * total_gib + 8) // 16}gb{suffix}"


def _known_profiles(calls: Calls, handle: Handle) -> dict[int, _Known]:
    """The profiles that the GPU has, by profile id."""
    infos = _kinds(
        lambda kind, version: calls.optional(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, kind, version)
    )
    return {info.id: _Known(info=info, name=_name(calls, handle, kind, info)) for kind, info in infos}


def _kinds(ask: Callable[[int, int], Any | None]) -> Iterator[tuple[int, Any]]:
    """Each kind of profile that the driver knows and the GPU has; newer drivers know more kinds than the binding."""
    for kind in range(_MOST_KINDS):
        try:
            # The second version has the name, but may want MIG to be on.
            info = ask(kind, 2) or ask(kind, 1)
        except HardwareError as error:
            if error.code == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                return
            raise
        if info is not None:
            yield kind, info


def _name(calls: Calls, handle: Handle, kind: int, info: Any) -> str:
    if name := text(getattr(info, "name", "")):
        return name.removeprefix("MIG ")
    total = memory_total(calls, handle)
    if total is None:
        raise NotSupported("the driver neither names its MIG profiles nor tells how much memory they share")
    return profile_name(info.sliceCount, info.memorySizeMB, total // _MIB, _SUFFIXES.get(kind, ""))


def _profile(calls: Calls, handle: Handle, profile: _Known) -> PartitionProfile:
    info = profile.info
    return PartitionProfile(
        name=profile.name,
        id=info.id,
        slices=info.sliceCount,
        memory=info.memorySizeMB * _MIB,
        multiprocessors=info.multiprocessorCount,
        limit=info.instanceCount,
        placements=_placements(calls, handle, info.id),
        copy_engines=info.copyEngineCount,
        decoders=info.decoderCount,
        encoders=info.encoderCount,
        jpeg_engines=info.jpegCount,
        optical_flow_engines=info.ofaCount,
    )


def _placements(calls: Calls, handle: Handle, profile_id: int) -> tuple[Placement, ...]:
    count = ctypes.c_uint()
    calls(pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, handle, profile_id, None, ctypes.byref(count))
    room = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    calls(pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, handle, profile_id, room, ctypes.byref(count))
    return tuple(Placement(start=place.start, length=place.size) for place in room)


def _in_slot(calls: Calls, handle: Handle, slot: int) -> Handle | None:
    """The MIG device in a slot, if there is one."""
    # The slots are counted by what the GPU could hold; holes among them are normal.
    try:
        return calls(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
    except HardwareError as error:
        if error.code == pynvml.NVML_ERROR_NOT_FOUND:
            return None
        raise


def _partition(calls: Calls, gpu: GpuUuid, parent: Handle, device: Handle, known: Mapping[int, _Known]) -> Partition:
    instance_id = calls(pynvml.nvmlDeviceGetGpuInstanceId, device)
    info = calls(pynvml.nvmlGpuInstanceGetInfo, calls(pynvml.nvmlDeviceGetGpuInstanceById, parent, instance_id))
    attributes = calls.optional(pynvml.nvmlDeviceGetAttributes, device)
    return Partition(
        uuid=PartitionUuid(calls.text(pynvml.nvmlDeviceGetUUID, device)),
        parent=gpu,
        profile=known[info.profileId].name if info.profileId in known else f"profile {info.profileId}",
        placement=Placement(start=info.placement.start, length=info.placement.size),
        instance=instance_id,
        compute_instance=calls(pynvml.nvmlDeviceGetComputeInstanceId, device),
        memory=attributes.memorySizeMB * _MIB if attributes else None,
        multiprocessors=attributes.multiprocessorCount if attributes else None,
    )


def _create_instance(session: Session, gpu: GpuUuid, profile: PartitionProfile, placement: Placement) -> Handle:
    calls, handle = session.calls, session.handle(gpu)
    wanted = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.length)
    arguments = (pynvml.nvmlDeviceCreateGpuInstanceWithPlacement, handle, profile.id, ctypes.byref(wanted))
    try:
        return calls(*arguments)
    except HardwareError as error:
        no_room = error.code == pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
        if not (no_room and _clear_leftovers(session, gpu, placement)):
            raise
    return calls(*arguments)


def _undo(calls: Calls, instance: Handle, because: HardwareError) -> None:
    try:
        calls(pynvml.nvmlGpuInstanceDestroy, instance)
    except HardwareError as error:
        message = f"{because}; what was half made could not be removed: {error}"
        raise HardwareError(message, call=because.call, code=because.code) from because


def _clear_leftovers(session: Session, gpu: GpuUuid, placement: Placement) -> bool:
    """Remove what lies in the way without a compute instance: half-made by someone who died, and listed nowhere."""
    calls, handle = session.calls, session.handle(gpu)
    # A live one that is missed here is still safe: the driver destroys none that has compute instances.
    live = {partition.instance for partition in partitions(session, gpu)}
    cleared = False
    for known in _known_profiles(calls, handle).values():
        for instance in _instances(calls, handle, known):
            info = calls(pynvml.nvmlGpuInstanceGetInfo, instance)
            lies = Placement(start=info.placement.start, length=info.placement.size)
            if info.id not in live and lies.overlaps(placement):
                calls(pynvml.nvmlGpuInstanceDestroy, instance)
                cleared = True
    return cleared


def _instances(calls: Calls, handle: Handle, profile: _Known) -> list[Handle]:
    count = ctypes.c_uint()
    room = (pynvml.c_nvmlGpuInstance_t * profile.info.instanceCount)()
    calls(pynvml.nvmlDeviceGetGpuInstances, handle, profile.info.id, room, ctypes.byref(count))
    return list(room[: count.value])


def _whole_profile_id(calls: Calls, instance: Handle) -> int:
    """The compute instance profile that takes all of a GPU instance."""
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    ask = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
    infos = [info for _, info in _kinds(lambda kind, version: calls.optional(ask, instance, kind, shared, version))]
    if not infos:
        raise NotSupported("the GPU instance offers no compute instance", call=ask.__name__)
    profile_id: int = max(infos, key=lambda info: info.sliceCount).id
    return profile_id


def _place(session: Session, partition: PartitionUuid) -> tuple[GpuUuid, int, int]:
    """GPU, GPU instance and compute instance of a partition. A GPU that does not answer does not stop the search."""
    if old := _OLD_UUID.fullmatch(partition):
        return GpuUuid(old[1]), int(old[2]), int(old[3])
    troubles = []
    for gpu in session.gpus:
        try:
            live = partitions(session, gpu)
        except DriverUnavailable:
            raise
        except HardwareError as error:
            troubles.append(f"; {gpu} does not answer: {error}")
            continue
        for one in live:
            if one.uuid == partition:
                return gpu, one.instance, one.compute_instance
    raise HardwareError(f"no GPU has the partition {partition}{''.join(troubles)}")
