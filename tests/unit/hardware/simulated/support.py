"""What the tests of the simulated node share: handles, and the C call itself where the binding is too kind."""

from typing import Any

import msgspec
import pynvml

from node_agent.hardware.simulated import load_profile
from node_agent.hardware.simulated.profile import NodeProfile, NvLinks

EVERY_PROFILE = (
    "a100-40gb-16",
    "a100-40gb-8",
    "a100-80gb-8",
    "a100-pcie-4",
    "a30-2",
    "b200-8",
    "gb10-1",
    "gb200-4",
    "h100-8",
    "h100-vm-8",
    "h200-8",
    "l40s-8",
    "l4-2",
    "mixed-5",
    "none",
    "t4-4",
    "v100-8",
    "vgpu-1",
)
WITH_GPUS = tuple(name for name in EVERY_PROFILE if name != "none")


def gpu(index: int) -> Any:
    """A GPU's handle."""
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def gpus() -> list[Any]:
    return [gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]


def c_call(name: str, *arguments: Any) -> int:
    """The return code of a C function, called as the binding calls it."""
    code: int = getattr(pynvml.nvmlLib, name)(*arguments)
    return code


def profile_of_one(board: str) -> NodeProfile:
    """A shipped profile cut down to the first GPU of the given board, on bare metal and without links."""
    for name in EVERY_PROFILE:
        profile = load_profile(name)
        for place in profile.gpus:
            if place.board == board:
                return _alone(profile, place)
    raise LookupError(board)


def _alone(profile: NodeProfile, place: Any) -> NodeProfile:
    return msgspec.structs.replace(profile, gpus=(place,), nvlink=NvLinks(), virtualization="none")
