"""Which NVLinks of a GPU are down, or up and of little use for all the errors on them.

NVML shows a dead link as it shows one with nothing plugged into it, and errors as a count. So it is remembered
what each link was like before. Where the driver names the far end of a dead link, or the board's other links lead to
switches, the first look tells already.
"""

import time
from collections.abc import Callable, Iterable, Mapping

import pynvml
from msgspec import Struct, field

from node_agent.errors import DriverUnavailable, HardwareError, NotSupported
from node_agent.hardware.nvml.links import SWITCH, far_end
from node_agent.hardware.nvml.scan import partition_mode
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.nvml.translate import Calls, Handle, text
from node_agent.hardware.provider import GpuLinks
from node_agent.model.gpu import GpuUuid
from node_agent.model.pci import PciAddress, pci_address

# A link sends again what arrives broken. From so many times on it is as good as down.
MOST_ERRORS_PER_SECOND = 100
LEAST_SECONDS = 5.0


class _Ports(Struct, kw_only=True):
    """The links of a board; ``far_ends`` has those with something in them: the GPU there, SWITCH, or None if untold.

    ``errors`` were ``counted`` then, and made ``noisy`` out of their difference to those before.
    """

    numbers: tuple[int, ...]
    far_ends: dict[int, str | None] = field(default_factory=dict)
    empty: set[int] = field(default_factory=set)
    errors: Mapping[int, int] = field(default_factory=dict)
    counted: float = 0.0
    noisy: frozenset[int] = frozenset()


class Wiring:
    """Belongs to the thread of the session's calls. ``clock`` tells seconds that only grow."""

    def __init__(self, session: Session, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
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
        states, errors = _told(calls, handle, ports.numbers)
        up = {number for number, state in states.items() if state == pynvml.NVML_FEATURE_ENABLED}
        for number in ports.numbers:
            self._learn(handle, ports, number, up=number in up)
        switched = SWITCH in ports.far_ends.values()
        down = [number for number in ports.numbers if number not in up and (switched or number in ports.far_ends)]
        # MIG mode switches links off on some boards.
        if down and _is_cut(calls, handle):
            return None
        _count(ports, errors, self._clock())
        return GpuLinks(
            up=len(up),
            down=self._leading(gpu, ports, down),
            noisy=self._leading(gpu, ports, sorted(ports.noisy & up)),
        )

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
            try:
                info = calls(pynvml.nvmlDeviceGetPciInfo, self._session.handle(gpu))
            except DriverUnavailable:
                raise
            except HardwareError:
                continue  # a look at that GPU says what is wrong with it
            self._gpus[pci_address(text(info.busId))] = gpu
        return self._gpus.get(address)

    def _leading(self, gpu: GpuUuid, ports: _Ports, numbers: Iterable[int]) -> Mapping[int, frozenset[GpuUuid]]:
        """The GPUs that links lead to. Through a switch, and for all one knows, these are all the others."""
        others = frozenset(self._session.gpus) - {gpu}
        ends = {number: ports.far_ends.get(number) for number in numbers}
        return {n: others if end in (None, SWITCH) else frozenset({GpuUuid(end)}) for n, end in ends.items()}


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


def _told(calls: Calls, handle: Handle, numbers: tuple[int, ...]) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """The state of each link, and the transmission errors of those that count them in this way (up to NVLink 4)."""
    wanted = (pynvml.NVML_FI_DEV_NVLINK_GET_STATE, pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC)
    told = [
        None if isinstance(answer, NotSupported) else _answered(answer)
        for answer in calls.fields(handle, [(field, number) for field in wanted for number in numbers])
    ]
    states, errors = (dict(zip(numbers, part, strict=True)) for part in (told[: len(numbers)], told[len(numbers) :]))
    return (
        # Older drivers know the call, but not the field.
        {
            n: calls(pynvml.nvmlDeviceGetNvLinkState, handle, n) if state is None else state
            for n, state in states.items()
        },
        {n: count for n, count in errors.items() if count is not None},
    )


def _answered(answer: int | HardwareError) -> int:
    if isinstance(answer, HardwareError):
        raise answer
    return answer


def _count(ports: _Ports, errors: Mapping[int, int], now: float) -> None:
    """Take a new count of errors, which tells the links that make many; one that comes too soon tells nothing."""
    seconds = now - ports.counted
    if ports.errors and seconds < LEAST_SECONDS:
        return
    most = MOST_ERRORS_PER_SECOND * seconds
    ports.noisy = frozenset(n for n, count in errors.items() if n in ports.errors and count - ports.errors[n] >= most)
    ports.errors, ports.counted = errors, now


def _is_cut(calls: Calls, handle: Handle) -> bool:
    try:
        return partition_mode(calls, handle).active
    except NotSupported:
        return False
