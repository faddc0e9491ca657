"""What a look at a GPU finds wrong with it, before anyone has said what that costs."""

import pytest

from node_agent.hardware.provider import GpuReadings, RecoveryAction
from node_agent.health.findings import findings
from node_agent.model.health import Reason


def reasons(readings: GpuReadings) -> list[Reason]:
    return [finding.reason for finding in findings(readings)]


def test_a_gpu_that_supports_nothing_has_nothing_wrong() -> None:
    assert findings(GpuReadings()) == ()


@pytest.mark.parametrize(
    ("readings", "reason", "words"),
    [
        (GpuReadings(recovery_action=RecoveryAction.REBOOT), Reason.RECOVERY, "reboot"),
        (GpuReadings(row_remap_failed=True), Reason.ROW_REMAP, "replacement"),
        (GpuReadings(row_remap_pending=True), Reason.RESET_NEEDED, "waits to be remapped"),
        (GpuReadings(uncorrected_ecc_errors=3), Reason.ECC, "3 uncorrected ECC errors"),
        (GpuReadings(failed={"recovery_action": "Unknown Error"}), Reason.QUERY_FAILED, "Unknown Error"),
    ],
)
def test_each_trouble_is_found_by_itself(readings: GpuReadings, reason: Reason, words: str) -> None:
    (finding,) = findings(readings)

    assert (finding.reason, finding.peers) == (reason, None)
    assert words in finding.message


@pytest.mark.parametrize(
    "readings",
    [
        GpuReadings(recovery_action=RecoveryAction.NONE),
        GpuReadings(uncorrected_ecc_errors=0),
        GpuReadings(row_remap_pending=False, row_remap_failed=False),
        GpuReadings(failed={"temperature": "Unknown Error"}),
    ],
)
def test_what_is_in_order_or_only_a_gap_in_the_metrics_is_no_finding(readings: GpuReadings) -> None:
    assert findings(readings) == ()


def test_troubles_do_not_hide_each_other() -> None:
    readings = GpuReadings(
        recovery_action=RecoveryAction.RESET, uncorrected_ecc_errors=1, row_remap_pending=True, row_remap_failed=True
    )

    assert reasons(readings) == [Reason.RECOVERY, Reason.ROW_REMAP, Reason.ECC, Reason.RESET_NEEDED]
