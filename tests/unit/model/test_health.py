"""A device is as bad as its worst open cause."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.model.gpu import GpuUuid
from node_agent.model.health import HEALTHY, Cause, DeviceHealth, HealthReport, Reason, Severity


def cause(severity: Severity = Severity.WITHDRAWN, reason: Reason = Reason.XID, code: int | None = 79) -> Cause:
    return Cause(reason=reason, severity=severity, message="seen", since=0.0, code=code)


@given(st.lists(st.sampled_from(Severity)))
def test_a_device_is_as_bad_as_its_worst_cause_in_whatever_order(severities: list[Severity]) -> None:
    health = DeviceHealth(causes=tuple(cause(severity) for severity in severities))
    assert health.severity == max(severities, default=Severity.NONE)
    assert health.withdrawn == (Severity.WITHDRAWN in severities)


@pytest.mark.parametrize(
    ("severity", "withdrawn"), [(Severity.NONE, False), (Severity.DEGRADED, False), (Severity.WITHDRAWN, True)]
)
def test_only_the_worst_severity_withdraws_a_device(severity: Severity, withdrawn: bool) -> None:
    assert DeviceHealth(causes=(cause(severity),)).withdrawn is withdrawn


def test_the_same_trouble_seen_again_has_the_same_key_and_another_code_is_another_trouble() -> None:
    assert cause().key == cause(Severity.DEGRADED).key
    assert cause(code=79).key != cause(code=48).key
    assert cause(code=None).key != cause(code=None, reason=Reason.LOST).key


def test_a_device_that_the_report_does_not_name_is_healthy() -> None:
    bad = DeviceHealth(causes=(cause(),))
    report = HealthReport(devices={GpuUuid("GPU-1"): bad})
    assert report.of(GpuUuid("GPU-1")) is bad
    assert report.of(GpuUuid("GPU-2")) == HEALTHY
    assert not HEALTHY.withdrawn


def test_reasons_keep_the_words_that_logs_and_metrics_publish() -> None:
    assert {"xid", "gpu-lost", "query-failed", "events-failed"} <= {str(reason) for reason in Reason}
