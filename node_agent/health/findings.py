"""What is wrong with a GPU by its own readings. Pure, and without a word on what it costs: that is the policy's.

What a GPU does not support says nothing about it; a query that went wrong is a finding of its own.
"""

from collections.abc import Callable, Collection, Iterator

from msgspec import Struct

from node_agent.hardware.provider import GpuReadings, RecoveryAction, Throttle
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import CauseKey, Instance, Reason

# What it means that a query went wrong: the trouble that it would have told of may be there. Whatever else a GPU cannot
# tell is a gap in the metrics.
_UNREADABLE = {
    "recovery_action": Reason.QUERY_FAILED,
    "uncorrected_ecc_errors": Reason.QUERY_FAILED,
    "row_remap_pending": Reason.QUERY_FAILED,
    "row_remap_failed": Reason.QUERY_FAILED,
    "pages_retired_for_single_bits": Reason.QUERY_FAILED,
    "pages_retired_for_double_bits": Reason.QUERY_FAILED,
    "page_retirement_pending": Reason.QUERY_FAILED,
    "links": Reason.NVLINK,
    "fabric": Reason.FABRIC,
    "pcie": Reason.PCIE,
    "throttles": Reason.THERMAL,
}

# From so many retired pages on NVIDIA replaces a board.
_MOST_PAGES, _MOST_FOR_DOUBLE_BITS = 63, 15


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that is wrong; the fields mean what they mean in ``Cause``, which a policy makes of it."""

    reason: Reason
    message: str
    code: int | None = None
    instance: Instance | None = None
    peers: frozenset[GpuUuid] | None = None

    @property
    def key(self) -> CauseKey:
        """That of the cause."""
        return (self.reason, self.code, self.instance)


def findings(readings: GpuReadings) -> tuple[Finding, ...]:
    """What is wrong, by one look at a GPU; at most one finding for a reason."""
    found = [finding for finds in _FINDS for finding in finds(readings)]
    return tuple({finding.reason: finding for finding in found}.values())


def _unreadable(readings: GpuReadings) -> Iterator[Finding]:
    for reason in dict.fromkeys(_UNREADABLE.values()):
        failed = [f"{name}: {why}" for name, why in readings.failed.items() if _UNREADABLE.get(name) is reason]
        if failed:
            # Links that do not tell how they are may well work: that is shown, and takes nothing out of service.
            peers = frozenset[GpuUuid]() if reason is Reason.NVLINK else None
            message = f"what tells of its health cannot be read: {'; '.join(failed)}"
            yield Finding(reason=reason, message=message, peers=peers)


def _recovery(readings: GpuReadings) -> Iterator[Finding]:
    if readings.recovery_action not in (None, RecoveryAction.NONE):
        yield Finding(reason=Reason.RECOVERY, message=f"the driver asks for recovery: {readings.recovery_action}")


def _memory(readings: GpuReadings) -> Iterator[Finding]:
    if readings.row_remap_failed:
        yield Finding(reason=Reason.ROW_REMAP, message="row remapping failed: the board needs replacement")
    double = readings.pages_retired_for_double_bits or 0
    pages = double + (readings.pages_retired_for_single_bits or 0)
    if pages >= _MOST_PAGES or double > _MOST_FOR_DOUBLE_BITS:
        message = f"{pages} memory pages are retired, {double} for double-bit errors: the board needs replacement"
        yield Finding(reason=Reason.RETIRED_PAGES, message=message)
    if count := readings.uncorrected_ecc_errors:
        yield Finding(reason=Reason.ECC, message=f"{count} uncorrected ECC errors since the last reset")
    if readings.row_remap_pending:
        yield Finding(reason=Reason.RESET_NEEDED, message="a row waits to be remapped: reset it when idle")
    if readings.page_retirement_pending:
        yield Finding(reason=Reason.RESET_NEEDED, message="a memory page waits to be retired: reset it when idle")


def _links(readings: GpuReadings) -> Iterator[Finding]:
    links = readings.links
    if links is None or not (links.down or links.noisy):
        return
    every = len(links.down) + links.up
    bad = {"are down": links.down, "make too many errors": links.noisy}
    said = [f"{len(which)} of {every} NVLinks {what}: {_numbers(which)}" for what, which in bad.items() if which]
    peers = frozenset[GpuUuid]().union(*links.down.values(), *links.noisy.values())
    yield Finding(reason=Reason.NVLINK, message="; ".join(said), peers=peers)


def _numbers(links: Collection[int]) -> str:
    return ", ".join(str(number) for number in sorted(links))


def _fabric(readings: GpuReadings) -> Iterator[Finding]:
    if readings.fabric is None:
        return
    if readings.fabric.troubles:
        yield Finding(reason=Reason.FABRIC, message=f"its NVLink fabric: {', '.join(readings.fabric.troubles)}")
    elif not readings.fabric.joined:
        yield Finding(reason=Reason.FABRIC_JOINING, message="it has not joined its NVLink fabric yet")


def _pcie(readings: GpuReadings) -> Iterator[Finding]:
    link = readings.pcie
    if link is None:
        return
    narrow = link.width < link.max_width
    slow = link.generation < link.max_generation and link.at_work
    if narrow or slow:
        runs, could = f"{link.generation} x{link.width}", f"{link.max_generation} x{link.max_width}"
        message = f"its PCIe link runs at generation {runs} and could at {could}: see to the slot, riser and cables"
        yield Finding(reason=Reason.PCIE, message=message)


def _throttling(readings: GpuReadings) -> Iterator[Finding]:
    throttles = readings.throttles or frozenset()
    heat = throttles & {Throttle.HARDWARE_THERMAL, Throttle.SOFTWARE_THERMAL}
    if heat:
        at = "" if readings.temperature is None else f" at {readings.temperature} °C"
        yield Finding(
            reason=Reason.THERMAL, message=f"heat slows it down{at} ({', '.join(sorted(heat))}): see to its cooling"
        )
    # The hardware slows down for heat or for want of power, and says of heat that it is.
    if Throttle.POWER_BRAKE in throttles or (
        Throttle.SLOWDOWN in throttles and Throttle.HARDWARE_THERMAL not in throttles
    ):
        yield Finding(reason=Reason.POWER, message="want of power slows it down: see to its power supply and cables")


_FINDS: tuple[Callable[[GpuReadings], Iterator[Finding]], ...] = (
    _unreadable,
    _recovery,
    _memory,
    _links,
    _fabric,
    _pcie,
    _throttling,
)
