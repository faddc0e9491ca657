"""What a look at a GPU finds wrong with it, before anyone has said what that costs."""

import pytest

from node_agent.hardware.provider import Fabric, GpuLinks, GpuReadings, PcieLink, RecoveryAction, Throttle
from node_agent.health.findings import findings
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Reason

A, B, C = (GpuUuid(f"GPU-{number}") for number in range(3))


def pcie(generation: int = 5, width: int = 16, *, at_work: bool = False) -> GpuReadings:
    return GpuReadings(
        pcie=PcieLink(generation=generation, width=width, max_generation=5, max_width=16, at_work=at_work)
    )


def throttled(*throttles: Throttle, temperature: int | None = None) -> GpuReadings:
    return GpuReadings(throttles=frozenset(throttles), temperature=temperature)


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
        (GpuReadings(page_retirement_pending=True), Reason.RESET_NEEDED, "page waits to be retired"),
        (GpuReadings(pages_retired_for_double_bits=16), Reason.RETIRED_PAGES, "16 memory pages are retired, 16 for"),
        (
            GpuReadings(pages_retired_for_single_bits=60, pages_retired_for_double_bits=3),
            Reason.RETIRED_PAGES,
            "63 memory pages are retired, 3 for double-bit",
        ),
        (
            GpuReadings(fabric=Fabric(joined=True, troubles=("a route is unhealthy", "its bandwidth is degraded"))),
            Reason.FABRIC,
            "its NVLink fabric: a route is unhealthy, its bandwidth is degraded",
        ),
        (GpuReadings(fabric=Fabric(joined=False, troubles=("it broke",))), Reason.FABRIC, "it broke"),
        (GpuReadings(fabric=Fabric(joined=False)), Reason.FABRIC_JOINING, "not joined its NVLink fabric yet"),
        (pcie(width=8), Reason.PCIE, "runs at generation 5 x8 and could at 5 x16"),
        (pcie(generation=3, at_work=True), Reason.PCIE, "runs at generation 3 x16 and could at 5 x16"),
        (throttled(Throttle.HARDWARE_THERMAL, Throttle.SLOWDOWN, temperature=91), Reason.THERMAL, "at 91 °C"),
        (throttled(Throttle.SOFTWARE_THERMAL), Reason.THERMAL, "heat slows it down (software-thermal)"),
        (throttled(Throttle.POWER_BRAKE, Throttle.SLOWDOWN), Reason.POWER, "power supply"),
        (throttled(Throttle.SLOWDOWN), Reason.POWER, "power supply"),
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
        GpuReadings(page_retirement_pending=False, pages_retired_for_double_bits=15),
        GpuReadings(pages_retired_for_single_bits=47, pages_retired_for_double_bits=15),
        GpuReadings(links=GpuLinks(up=12)),
        GpuReadings(links=GpuLinks(up=0)),
        GpuReadings(fabric=Fabric(joined=True)),
        pcie(),
        pcie(at_work=True),
        pcie(generation=1),
        throttled(),
        throttled(Throttle.POWER_CAP),
    ],
)
def test_what_is_in_order_or_only_a_gap_in_the_metrics_is_no_finding(readings: GpuReadings) -> None:
    assert findings(readings) == ()


def test_troubles_do_not_hide_each_other() -> None:
    readings = GpuReadings(
        recovery_action=RecoveryAction.RESET, uncorrected_ecc_errors=1, row_remap_pending=True, row_remap_failed=True
    )

    assert reasons(readings) == [Reason.RECOVERY, Reason.ROW_REMAP, Reason.ECC, Reason.RESET_NEEDED]


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        ("recovery_action", Reason.QUERY_FAILED),
        ("uncorrected_ecc_errors", Reason.QUERY_FAILED),
        ("row_remap_pending", Reason.QUERY_FAILED),
        ("row_remap_failed", Reason.QUERY_FAILED),
        ("pages_retired_for_single_bits", Reason.QUERY_FAILED),
        ("pages_retired_for_double_bits", Reason.QUERY_FAILED),
        ("page_retirement_pending", Reason.QUERY_FAILED),
        ("links", Reason.NVLINK),
        ("fabric", Reason.FABRIC),
        ("pcie", Reason.PCIE),
        ("throttles", Reason.THERMAL),
    ],
)
def test_a_query_that_went_wrong_counts_as_the_trouble_that_it_would_have_told_of(reading: str, reason: Reason) -> None:
    (finding,) = findings(GpuReadings(failed={reading: "Unknown Error"}))

    assert finding.reason is reason
    assert finding.message == f"what tells of its health cannot be read: {reading}: Unknown Error"


def test_links_that_cannot_be_read_take_nothing_out_of_service() -> None:
    (finding,) = findings(GpuReadings(failed={"links": "Unknown Error"}))

    assert finding.peers == frozenset()


def test_queries_that_went_wrong_are_told_together() -> None:
    (finding,) = findings(GpuReadings(failed={"recovery_action": "one", "row_remap_failed": "two", "power": "three"}))

    assert finding.message.endswith("recovery_action: one; row_remap_failed: two")


def test_dead_links_concern_only_who_needs_them() -> None:
    (finding,) = findings(GpuReadings(links=GpuLinks(up=4, down={7: frozenset({A, B}), 2: frozenset({B, C})})))

    assert finding.reason is Reason.NVLINK
    assert finding.message == "2 of 6 NVLinks are down: 2, 7"
    assert finding.peers == frozenset({A, B, C})


def test_links_that_make_many_errors_are_as_bad_as_dead_ones() -> None:
    links = GpuLinks(up=5, down={7: frozenset({A})}, noisy={2: frozenset({B}), 1: frozenset({B})})
    (finding,) = findings(GpuReadings(links=links))

    assert finding.message == "1 of 6 NVLinks are down: 7; 2 of 6 NVLinks make too many errors: 1, 2"
    assert finding.peers == frozenset({A, B})


def test_a_slot_that_gives_less_is_not_the_same_as_a_link_that_rests() -> None:
    assert reasons(pcie(generation=1, width=16)) == []
    assert reasons(pcie(generation=1, width=1)) == [Reason.PCIE]


def test_heat_and_want_of_power_are_told_apart() -> None:
    both = throttled(Throttle.SLOWDOWN, Throttle.HARDWARE_THERMAL, Throttle.POWER_BRAKE)

    assert reasons(both) == [Reason.THERMAL, Reason.POWER]
