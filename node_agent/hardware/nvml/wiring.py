"""Which NVLinks of a GPU are down. NVML shows a dead link as it shows one with nothing plugged into it.

So it is remembered which links were up once and where they lead. Where the driver names the far end of a dead link, or
the board's other links lead to switches, no memory is needed.
"""

from dataclasses import dataclass, field

import pynvml

from node_agent.errors import HardwareError, NotSupported
from node_agent.hardware.nvml.links import SWITCH, far_end
from node_agent.hardware.nvml.scan import partition_mode
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.nvml.translate import Calls, Handle, text
from node_agent.hardware.provider import GpuLinks
from node_agent.model.gpu import GpuUuid
from node_agent.model.pci import PciAddress, pci_address


@dataclass(kw_only=True, slots=True)
class _Ports:
    """The links of a board; ``far_ends`` has those with something in them: the GPU there, SWITCH, or None if untold."""

    numbers: tuple[int, ...]
    far_ends: dict[int, str | None] = field(default_factory=dict)
    empty: set[int] = field(default_factory=set)


class Wiring:
    """Belongs to the thread of the session's calls."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ports: dict[GpuUuid, _Ports] = {}
        self._gpus: dict[PciAddress, GpuUuid] = {}

    def links(self, gpu: GpuUuid) -> GpuLinks | None:
        """The links of a GPU; None where it has none, or may not use them for being in MIG mode.

        Raises:
            HardwareError: one of them does not tell its state.
        """
        calls, handle = self._session.calls, self._session.handle(gpu)
        if gpu not in self._ports:
            self._ports[gpu] = _Ports(numbers=_numbers(calls, handle))
        ports = self._ports[gpu]
        if not ports.numbers:
            return None
        up = _up(calls, handle, ports.numbers)
        for number in ports.numbers:
            self._learn(handle, ports, number, up=number in up)
        switched = SWITCH in ports.far_ends.values()
        down = [number for number in ports.numbers if number not in up and (switched or number in ports.far_ends)]
        # MIG mode switches links off on some boards.
        if down and _is_cut(calls, handle):
            return None
        return GpuLinks(up=len(up), down={number: self._peers(gpu, ports.far_ends.get(number)) for number in down})

    def _learn(self, handle: Handle, ports: _Ports, number: int, *, up: bool) -> None:
        """Find out where a link leads, once: what is plugged in does not change while the machine runs."""
        if number in ports.far_ends or (number in ports.empty and not up):
            return
        far = far_end(self._session.calls, handle, number)
        if not up and far is None:
            ports.empty.add(number)
        else:
            ports.far_ends[number] = far if far in (None, SWITCH) else self._gpu_at(PciAddress(far))

    def _gpu_at(self, address: PciAddress) -> GpuUuid | None:
        calls = self._session.calls
        for gpu in self._session.gpus if address not in self._gpus else ():
            info = calls(pynvml.nvmlDeviceGetPciInfo, self._session.handle(gpu))
            self._gpus[pci_address(text(info.busId))] = gpu
        return self._gpus.get(address)

    def _peers(self, gpu: GpuUuid, far: str | None) -> frozenset[GpuUuid]:
        """The GPUs that a link leads to. Through a switch, and for all one knows, these are all the others."""
        others = frozenset(self._session.gpus) - {gpu}
        return others if far in (None, SWITCH) else frozenset({GpuUuid(far)})


def _numbers(calls: Calls, handle: Handle) -> tuple[int, ...]:
    """The links that the board has. There is no word for the last one, and there may be gaps: all are tried."""
    return tuple(number for number in range(pynvml.NVML_NVLINK_MAX_LINKS) if _exists(calls, handle, number))


def _exists(calls: Calls, handle: Handle, number: int) -> bool:
    try:
        return calls.optional(pynvml.nvmlDeviceGetNvLinkState, handle, number) is not None
    except HardwareError as error:
        if error.code == pynvml.NVML_ERROR_INVALID_ARGUMENT:
            return False
        raise


def _up(calls: Calls, handle: Handle, numbers: tuple[int, ...]) -> frozenset[int]:
    told = calls.fields(handle, [(pynvml.NVML_FI_DEV_NVLINK_GET_STATE, number) for number in numbers])
    return frozenset(
        number for number, state in zip(numbers, told, strict=True) if _is_up(calls, handle, number, state)
    )


def _is_up(calls: Calls, handle: Handle, number: int, state: int | HardwareError) -> bool:
    # Older drivers know the call, but not the field.
    if isinstance(state, NotSupported):
        state = calls(pynvml.nvmlDeviceGetNvLinkState, handle, number)
    if isinstance(state, HardwareError):
        raise state
    return bool(state == pynvml.NVML_FEATURE_ENABLED)


def _is_cut(calls: Calls, handle: Handle) -> bool:
    try:
        return partition_mode(calls, handle).active
    except NotSupported:
        return False
