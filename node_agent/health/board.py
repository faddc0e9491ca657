"""The open causes of every device; the one place that says how healthy a GPU is."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from node_agent.health.verdicts import not_probed
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Reason

log = Log(__name__)


class HealthBoard:
    """Opens and closes causes; ``report`` is what all others watch. A GPU that was never probed is not fit for work."""

    def __init__(self) -> None:
        unknown = DeviceHealth(causes=(not_probed(time.time()),))
        self.report: Latest[HealthReport] = Latest(HealthReport(others=unknown))
        self._counts: dict[tuple[GpuUuid, int], int] = {}

    @property
    def counts(self) -> Mapping[tuple[GpuUuid, int], int]:
        """How often each GPU has reported each Xid, whatever it meant."""
        return self._counts

    def count(self, gpu: GpuUuid, code: int) -> None:
        """Count an Xid that a GPU has reported."""
        self._counts[gpu, code] = self._counts.get((gpu, code), 0) + 1

    def clear(self, gpu: GpuUuid, reason: Reason | None = None, code: int | None = None) -> tuple[Cause, ...]:
        """Close what an operator takes for over: all causes of a GPU, or those of a reason or a code; answers them.

        One that is still there is found again by the next probe.
        """

        def meant(cause: Cause) -> bool:
            return reason in (None, cause.reason) and code in (None, cause.code)

        cleared = tuple(cause for cause in self.report.value.known_of(gpu).causes if meant(cause))
        if cleared:
            self.close(gpu, meant)
        return cleared

    def open(self, gpu: GpuUuid, cause: Cause) -> None:
        """Open a cause; one that is open already keeps its time and takes the new message."""
        before = self.report.value.known_of(gpu)
        known = {open_cause.key: open_cause for open_cause in before.causes}
        if cause.key not in known:
            say = log.debug if cause.reason is Reason.NOT_PROBED else log.warning
            say(
                "health cause opened",
                gpu=gpu,
                reason=cause.reason,
                severity=cause.severity.name.lower(),
                message=cause.text,
            )
        since = known[cause.key].since if cause.key in known else cause.since
        known[cause.key] = replace(cause, since=since)
        self._set(gpu, tuple(known.values()))

    def close(self, gpu: GpuUuid, which: Callable[[Cause], bool]) -> None:
        """Close the causes of a GPU that ``which`` picks."""
        before = self.report.value.known_of(gpu).causes
        for cause in before:
            if which(cause):
                say = log.debug if cause.reason is Reason.NOT_PROBED else log.info
                say("health cause closed", gpu=gpu, reason=cause.reason, message=cause.message)
        self._set(gpu, tuple(cause for cause in before if not which(cause)))

    def _set(self, gpu: GpuUuid, causes: tuple[Cause, ...]) -> None:
        report = self.report.value
        self.report.set(replace(report, devices={**report.devices, gpu: DeviceHealth(causes=causes)}))
