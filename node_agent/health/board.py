"""The health of all GPUs, as one report; the one place that says how healthy a device is.

``verdicts`` decides, ``watcher`` brings what the hardware says, ``record`` keeps what a later agent has to know. Any
other part of the agent that finds a GPU unfit says so by ``open``, and by ``close`` once that is over.
"""

import time
from collections.abc import Callable, Collection, Mapping

from msgspec.structs import replace

from node_agent.errors import HardwareError
from node_agent.hardware.provider import GpuReadings
from node_agent.health.chart import Chart
from node_agent.health.findings import Finding
from node_agent.health.verdicts import NOT_PROBED, Verdicts
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Reason

FORGET_SECONDS = 7 * 24 * 3600.0
"""A GPU that has been away for so long does not come back: it was replaced."""

# No driver knows more; whatever it makes up beyond that is not counted.
_MOST_CODES = 512

log = Log(__name__)


class HealthBoard:
    """``report`` is what all others watch. A GPU that was never looked at is not fit for work.

    ``before`` are the charts of an earlier agent; ``record`` has those that a later one is to get.
    """

    def __init__(
        self,
        verdicts: Verdicts | None = None,
        before: Mapping[GpuUuid, Chart] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.verdicts = verdicts or Verdicts()
        self._clock = clock
        now = clock()
        self._new = self.verdicts.found(Chart(), NOT_PROBED, now)
        self._charts = {gpu: self.verdicts.remembered(chart, now) for gpu, chart in (before or {}).items()}
        devices = {gpu: DeviceHealth(causes=chart.causes) for gpu, chart in self._charts.items()}
        self.report = Latest(HealthReport(devices=devices, others=DeviceHealth(causes=self._new.causes)))
        self.record: Latest[Mapping[GpuUuid, Chart]] = Latest(before or {})
        self.last_codes: Mapping[GpuUuid, int] = {}
        """The last Xid that each GPU has reported to this agent."""

    @property
    def counts(self) -> Mapping[tuple[GpuUuid, int], int]:
        """How often each GPU has reported each Xid, whatever it meant, since the agent's state was made."""
        return {(gpu, code): number for gpu, chart in self._charts.items() for code, number in chart.counts.items()}

    def count(self, gpu: GpuUuid, code: int) -> None:
        """Count an Xid that a GPU has reported."""
        self.last_codes = {**self.last_codes, gpu: code}
        chart = self._chart(gpu)
        if code in chart.counts or len(chart.counts) < _MOST_CODES:
            self._set(gpu, replace(chart, counts={**chart.counts, code: chart.counts.get(code, 0) + 1}))

    def open(self, gpu: GpuUuid, finding: Finding) -> None:
        """Say what is wrong with a GPU; the policy says what that costs. Seen again it keeps its time."""
        self._set(gpu, self.verdicts.found(self._chart(gpu), finding, self._clock()))

    def close(self, gpu: GpuUuid, *reasons: Reason) -> None:
        """Say that what was found outside of probes is over; an operator's word may be wanted all the same."""
        self._set(gpu, self.verdicts.over(self._chart(gpu), reasons, self._clock()))

    def probed(self, gpu: GpuUuid, outcome: GpuReadings | HardwareError) -> bool:
        """Take in a look at a GPU; answers whether it found anything new."""
        before = self._chart(gpu)
        after = self.verdicts.probed(before, outcome, self._clock())
        self._set(gpu, after)
        return bool({cause.key for cause in after.causes} - {cause.key for cause in before.causes})

    def clear(self, gpu: GpuUuid, reason: Reason | None = None, code: int | None = None) -> tuple[Cause, ...]:
        """Close what an operator takes for over: all causes of a GPU, or those of a reason or a code; answers them.

        One that is still there is found again by the next probe. A GPU that is gone is forgotten with all its causes:
        it was replaced, or taken out for good.
        """
        before = self._chart(gpu)
        after = self.verdicts.cleared(before, reason, code)
        cleared = tuple(cause for cause in before.causes if cause not in after.causes)
        if before.gone is not None and reason is None and code is None:
            self._forget(gpu, "an operator has cleared it, and it is gone")
        elif cleared:
            self._set(gpu, after)
        return cleared

    def removed(self, gpu: GpuUuid, instance: int) -> None:
        """Say that an instance of a GPU is no more, and what was wrong with it neither: its number is used again."""
        self._set(gpu, self._chart(gpu).without(instance))

    def judge_by(self, verdicts: Verdicts) -> None:
        """Go by other rules from now on: what is open is judged anew, and what they let pass before is for a probe."""
        now, self.verdicts = self._clock(), verdicts
        self._new = verdicts.found(Chart(), NOT_PROBED, now)
        for gpu, chart in tuple(self._charts.items()):
            self._set(gpu, verdicts.judged(chart, now))

    def present(self, gpus: Collection[GpuUuid]) -> None:
        """Say which GPUs there are. One that is away is to be looked at when it comes back; at last it is forgotten."""
        now = self._clock()
        for gpu, chart in tuple(self._charts.items()):
            if gpu in gpus:
                self._set(gpu, replace(chart, gone=None))
            elif chart.gone is None:
                self._set(gpu, self.verdicts.found(replace(chart, gone=now), NOT_PROBED, now))
            elif now - chart.gone > FORGET_SECONDS:
                self._forget(gpu, "it has been away for too long")

    def _chart(self, gpu: GpuUuid) -> Chart:
        return self._charts.get(gpu, self._new)

    def _set(self, gpu: GpuUuid, chart: Chart) -> None:
        if self._charts.get(gpu) == chart:
            return
        _say_what_changed(gpu, self._chart(gpu).causes, chart.causes)
        self._charts[gpu] = chart
        report = self.report.value
        self.report.set(replace(report, devices={**report.devices, gpu: DeviceHealth(causes=chart.causes)}))
        lasting, kept = chart.lasting, self.record.value.get(gpu)
        if kept is None or kept.outline != lasting.outline:
            self.record.set({**self.record.value, gpu: lasting})

    def _forget(self, gpu: GpuUuid, why: str) -> None:
        log.info("gpu forgotten", gpu=gpu, reason=why)
        del self._charts[gpu]
        report = self.report.value
        self.report.set(replace(report, devices={each: one for each, one in report.devices.items() if each != gpu}))
        self.record.set({each: chart for each, chart in self.record.value.items() if each != gpu})


def _say_what_changed(gpu: GpuUuid, before: tuple[Cause, ...], after: tuple[Cause, ...]) -> None:
    known, still = {cause.key for cause in before}, {cause.key for cause in after}
    for cause in after:
        if cause.key not in known:
            say, severity = log.debug if cause.reason is Reason.NOT_PROBED else log.warning, cause.severity.name.lower()
            say("health cause opened", gpu=gpu, reason=cause.reason, severity=severity, message=cause.text)
    for cause in before:
        if cause.key not in still:
            say = log.debug if cause.reason is Reason.NOT_PROBED else log.info
            say("health cause closed", gpu=gpu, reason=cause.reason, message=cause.message)
