"""How the GPUs reach each other: NVLinks from GPU to GPU or into a switch, and the nearest common point on PCIe."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

import pynvml
from msgspec import Struct

from node_agent.errors import DriverUnavailable, HardwareError
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.nvml.translate import Calls, Handle, text
from node_agent.model.gpu import GpuUuid
from node_agent.model.links import NO_LINK, Link, LinkGraph, PciePath, pair
from node_agent.model.pci import PciAddress, pci_address

Bundle = tuple[int, ...]
"""Active NVLinks of one GPU that lead the same way, each with its MB/s in one direction."""

# For drivers that do not tell the speed of a link: by NVLink version, in MB/s.
_SPEEDS = {
    pynvml.NVML_NVLINK_VERSION_1_0: 20000,
    pynvml.NVML_NVLINK_VERSION_2_0: 25781,
    pynvml.NVML_NVLINK_VERSION_2_2: 25781,
    pynvml.NVML_NVLINK_VERSION_3_0: 25000,
    pynvml.NVML_NVLINK_VERSION_3_1: 25000,
    pynvml.NVML_NVLINK_VERSION_4_0: 26562,
    pynvml.NVML_NVLINK_VERSION_5_0: 53125,
}

SWITCH = "switch"

# The platform, the operator or MIG may forbid what is plugged in; an answer of "unknown" forbids nothing.
_USABLE = (None, pynvml.NVML_P2P_STATUS_OK, pynvml.NVML_P2P_STATUS_UNKNOWN)


class _End(Struct, frozen=True, kw_only=True):
    """One GPU and its NVLinks by where they lead: another GPU's PCI address, or ``SWITCH``."""

    handle: Handle
    pci: PciAddress
    bundles: Mapping[str, Bundle]


def links(session: Session, gpus: Collection[GpuUuid]) -> LinkGraph:
    """The links among the given GPUs. A GPU that does not answer has none; only DriverUnavailable is raised."""
    ends = {gpu: end for gpu in gpus if (end := _end(session, gpu))}
    found = {pair(a, b): _link(session.calls, ends[a], ends[b]) for a, b in combinations(ends, 2)}
    return LinkGraph(links={both: link for both, link in found.items() if link != NO_LINK})


def _end(session: Session, gpu: GpuUuid) -> _End | None:
    calls = session.calls
    try:
        handle = session.handle(gpu)
        pci = pci_address(text(calls(pynvml.nvmlDeviceGetPciInfo, handle).busId))
    except DriverUnavailable:
        raise
    except HardwareError:
        return None  # the scan says what is wrong with it; here it only has no links
    # Boards number their links without a word for the last one, and some have gaps: all are tried.
    active = [link for link in range(pynvml.NVML_NVLINK_MAX_LINKS) if _is_active(calls, handle, link)]
    speeds = _speeds(calls, handle, active)
    far = {link: far_end(calls, handle, link) for link in active}
    bundles = {end: tuple(speeds[link] for link in active if far[link] == end) for end in far.values() if end}
    return _End(handle=handle, pci=pci, bundles=bundles)


def _is_active(calls: Calls, handle: Handle, link: int) -> bool:
    """False also for a link that the board lacks."""
    return bool(_answer(calls, pynvml.nvmlDeviceGetNvLinkState, handle, link) == pynvml.NVML_FEATURE_ENABLED)


def far_end(calls: Calls, handle: Handle, link: int) -> str | None:
    """The address of the GPU at the far end, ``SWITCH``, or None where it cannot be told."""
    kind = _answer(calls, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return SWITCH
    remote = _answer(calls, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
    try:
        return pci_address(text(remote.busId)) if remote else None
    except ValueError:
        return None


def _speeds(calls: Calls, handle: Handle, active: Sequence[int]) -> Mapping[int, int]:
    """MB/s of each link in one direction: its own figure, else the one for all, else by version; 0 where unknown."""
    if not active:
        return {}
    wanted = [(pynvml.NVML_FI_DEV_NVLINK_GET_SPEED, link) for link in active]
    wanted.append((pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 0))
    try:
        answers = calls.fields(handle, wanted)
    except DriverUnavailable:
        raise
    except HardwareError:
        answers = [0] * len(wanted)
    *own, common = (0 if isinstance(answer, HardwareError) else answer for answer in answers)
    known = {link: speed or common for link, speed in zip(active, own, strict=True)}
    return {link: speed or _speed_of_version(calls, handle, link) for link, speed in known.items()}


def _speed_of_version(calls: Calls, handle: Handle, link: int) -> int:
    return _SPEEDS.get(_answer(calls, pynvml.nvmlDeviceGetNvLinkVersion, handle, link), 0)


def _link(calls: Calls, a: _End, b: _End) -> Link:
    """What joins two GPUs. NVLinks count as far as both ends have them; through switches any GPU reaches any other."""
    direct = a.bundles.get(b.pci, ()), b.bundles.get(a.pci, ())
    through = a.bundles.get(SWITCH, ()), b.bundles.get(SWITCH, ())
    one, other = direct if all(direct) else through
    nvlinks = min(len(one), len(other))
    if nvlinks and not _usable(calls, a, b):
        nvlinks = 0
    return Link(
        nvlinks=nvlinks,
        bandwidth=min(sum(one), sum(other)) if nvlinks else 0,
        switched=bool(nvlinks) and not all(direct),
        path=_path(_answer(calls, pynvml.nvmlDeviceGetTopologyCommonAncestor, a.handle, b.handle)),
    )


def _usable(calls: Calls, a: _End, b: _End) -> bool:
    nvlink = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
    return _answer(calls, pynvml.nvmlDeviceGetP2PStatus, a.handle, b.handle, nvlink) in _USABLE


def _path(ancestor: int | None) -> PciePath | None:
    return PciePath(ancestor) if ancestor in set(PciePath) else None


def _answer(calls: Calls, function: Callable[..., Any], *args: Any) -> Any | None:
    """The answer, or None: a call that fails costs its own link or pair. Raises only DriverUnavailable."""
    try:
        return calls(function, *args)
    except DriverUnavailable:
        raise
    except HardwareError:
        return None
