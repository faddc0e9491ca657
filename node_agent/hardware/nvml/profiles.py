"""What GPUs can be cut to by MIG: the profiles, their names and placements.

NVML counts kinds of profile (its enum) beside the driver's own profile ids; the ids are what everything but the listing
of profiles goes by. ``partitions`` beside cuts.
"""

import ctypes
from collections.abc import Callable, Iterator
from math import ceil
from typing import Any

import pynvml
from msgspec import Struct

from node_agent.errors import HardwareError, NotSupported
from node_agent.hardware.nvml.scan import memory_total, partition_mode
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.nvml.translate import Calls, Handle, text
from node_agent.model.gpu import GpuUuid
from node_agent.model.partition import PartitionProfile, Placement

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


class Known(Struct, frozen=True, kw_only=True):
    """A profile that the GPU has: NVML's structure about it, and its name."""

    info: Any
    name: str


def profiles(session: Session, gpu: GpuUuid) -> tuple[PartitionProfile, ...]:
    """The shapes that this GPU can be cut to. Raises NotSupported where it cannot be partitioned."""
    calls, handle = session.calls, session.handle(gpu)
    partition_mode(calls, handle)
    known = known_profiles(calls, handle)
    if not known:
        raise NotSupported(f"{gpu} offers no MIG profile", call="nvmlDeviceGetGpuInstanceProfileInfo")
    return tuple(_profile(calls, handle, profile) for profile in known.values())


def profile_name(slices: int, mib: int, total_mib: int, suffix: str = "") -> str:
    """The driver's name of a profile: its share of the memory, in eighths and GiB, rounded half away from zero."""
    eighths, total_gib = ceil(8 * mib / total_mib), ceil(total_mib / 1024)
    return f"{slices}g.{(2 * eighths * total_gib + 8) // 16}gb{suffix}"


def known_profiles(calls: Calls, handle: Handle) -> dict[int, Known]:
    """The profiles that the GPU has, by the driver's id."""
    infos = kinds(
        lambda kind, version: calls.optional(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, kind, version)
    )
    return {info.id: Known(info=info, name=_name(calls, handle, kind, info)) for kind, info in infos}


def kinds(ask: Callable[[int, int], Any | None]) -> Iterator[tuple[int, Any]]:
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


def _profile(calls: Calls, handle: Handle, profile: Known) -> PartitionProfile:
    info = profile.info
    return PartitionProfile(
        name=profile.name,
        id=info.id,
        slices=info.sliceCount,
        memory=info.memorySizeMB * _MIB,
        multiprocessors=info.multiprocessorCount,
        limit=info.instanceCount,
        placements=_placements(calls, handle, info.id),
        **engines(info),
    )


def engines(info: Any) -> dict[str, int]:
    """The fields of ``Engines`` from NVML's structure about a profile."""
    return {
        "copy_engines": info.copyEngineCount,
        "decoders": info.decoderCount,
        "encoders": info.encoderCount,
        "jpeg_engines": info.jpegCount,
        "optical_flow_engines": info.ofaCount,
    }


def _placements(calls: Calls, handle: Handle, profile_id: int) -> tuple[Placement, ...]:
    count = ctypes.c_uint()
    calls(pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, handle, profile_id, None, ctypes.byref(count))
    room = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    calls(pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, handle, profile_id, room, ctypes.byref(count))
    return tuple(Placement(start=place.start, length=place.size) for place in room)
