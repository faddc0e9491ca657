"""A device is as bad as its worst open cause."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from node_agent.model.gpu import GpuUuid
from node_agent.model.health import HEALTHY, Cause, DeviceHealth, HealthReport, Instance, Reason, Severity

A, B, C = GpuUuid("GPU-1"), GpuUuid("GPU-2"), GpuUuid("GPU-3")


def cause(severity: Severity = Severity.WITHDRAWN, reason: Reason = Reason.XID, code: int | None = 79) -> Cause:
    return Cause(reason=reason, severity=severity, message="seen", since=0.0, code=code)


@given(st.lists(st.sampled_from(Severity)))
def test_a_device_is_as_bad_as_its_worst_cause_in_whatever_order(severities: list[Severity]) -> None:
    health = DeviceHealth(causes=tuple(cause(severity) for severity in severities))
    assert health.severity == max(severities, default=Severity.NONE)
    assert health.withdrawn == bool({Severity.WITHDRAWN, Severity.EVICTED} & set(severities))


@pytest.mark.parametrize(
    ("severity", "withdrawn"),
    [(Severity.NONE, False), (Severity.DEGRADED, False), (Severity.WITHDRAWN, True), (Severity.EVICTED, True)],
)
def test_what_is_worse_than_degraded_withdraws_a_device(severity: Severity, withdrawn: bool) -> None:
    assert DeviceHealth(causes=(cause(severity),)).withdrawn is withdrawn


def test_the_same_trouble_seen_again_has_the_same_key_and_another_code_is_another_trouble() -> None:
    assert cause().key == cause(Severity.DEGRADED).key
    assert cause(code=79).key != cause(code=48).key
    assert cause(code=None).key != cause(code=None, reason=Reason.LOST).key


def test_a_device_that_the_report_does_not_name_is_healthy() -> None:
    bad = DeviceHealth(causes=(cause(),))
    report = HealthReport(devices={A: bad})
    assert report.of(A) == bad
    assert report.of(B) == HEALTHY
    assert not HEALTHY.withdrawn


def test_broken_links_withdraw_only_what_holds_both_ends_of_them() -> None:
    links = replace(cause(reason=Reason.NVLINK, code=None), peers=frozenset({B}))
    report = HealthReport(devices={A: DeviceHealth(causes=(links,))})
    assert report.of(A).severity is Severity.DEGRADED
    assert report.of_group((A, C)).severity is Severity.DEGRADED
    assert report.of_group((C, B)).severity is Severity.NONE
    assert report.of_group((B, A)).severity is Severity.WITHDRAWN
    assert report.of_group((A, B, C)).severity is Severity.WITHDRAWN


def test_a_group_is_as_bad_as_the_worst_gpu_in_it() -> None:
    report = HealthReport(devices={B: DeviceHealth(causes=(cause(Severity.EVICTED),))})
    assert report.of_group((A, B)).severity is Severity.EVICTED


@pytest.mark.parametrize(
    ("confined_to", "withdrawn"),
    [
        (Instance(id=1), {Instance(id=1), Instance(id=1, compute=0), Instance(id=1, compute=1)}),
        (Instance(id=1, compute=0), {Instance(id=1, compute=0)}),
        (None, {Instance(id=1), Instance(id=1, compute=0), Instance(id=1, compute=1), Instance(id=2)}),
    ],
)
def test_a_fault_of_an_instance_withdraws_that_instance_alone(
    confined_to: Instance | None, withdrawn: set[Instance]
) -> None:
    report = HealthReport(devices={A: DeviceHealth(causes=(replace(cause(), instance=confined_to),))})
    instances = {Instance(id=1), Instance(id=1, compute=0), Instance(id=1, compute=1), Instance(id=2)}
    assert {one for one in instances if report.of_instance(A, one).withdrawn} == withdrawn
    assert report.of(A).severity is (Severity.DEGRADED if confined_to else Severity.WITHDRAWN)


def test_links_are_nothing_to_an_instance() -> None:
    links = replace(cause(reason=Reason.NVLINK, code=None), peers=frozenset({B}))
    report = HealthReport(devices={A: DeviceHealth(causes=(links,))})
    assert not report.of_instance(A, Instance(id=1)).withdrawn


def test_a_cause_is_confined_in_one_way_at_most() -> None:
    with pytest.raises(ValueError, match="not to both"):
        replace(cause(), instance=Instance(id=1), peers=frozenset({B}))


def test_a_cause_in_one_line_says_what_was_seen_and_what_ends_it() -> None:
    assert cause().text == "seen"
    assert replace(cause(), clears="back when it answers").text == "seen; back when it answers"


def test_reasons_keep_the_words_that_logs_and_metrics_publish() -> None:
    assert {"xid", "gpu-lost", "query-failed", "events-failed"} <= {str(reason) for reason in Reason}
