"""What the facts mean: which causes they open, how far these reach, and what ends them."""

import pytest
from msgspec.structs import replace

from node_agent.errors import DeviceLost, HardwareError, NotSupported
from node_agent.hardware.provider import EventKind, GpuReadings, HardwareEvent, RecoveryAction
from node_agent.health import verdicts
from node_agent.health.chart import Chart
from node_agent.health.findings import Finding
from node_agent.health.policy import Action, ClearedBy
from node_agent.health.rules import Policy, Rule
from node_agent.health.verdicts import Verdicts
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Instance, Reason, Severity
from tests.fakes.hardware import FIT

OLD_DRIVER = GpuReadings(recovery_action=None)
DUE = GpuReadings(recovery_action=RecoveryAction.RESET)
PEER = GpuUuid("GPU-1")


def fault(code: int, instance: int | None = None, compute: int | None = None) -> HardwareEvent:
    return HardwareEvent(
        kind=EventKind.FAULT, gpu=GpuUuid("GPU-0"), code=code, instance=instance, compute_instance=compute
    )


class Patient:
    """One GPU in the course of time, under the rules of one boot."""

    def __init__(self, *rules: Rule, boot: str = "boot") -> None:
        self.verdicts = Verdicts(policy=Policy(rules=rules), boot=boot)
        self.chart = Chart()
        self.now = 1000.0

    def event(self, code: int, peers: frozenset[GpuUuid] = frozenset(), **instance: int) -> None:
        if finding := verdicts.of_event(fault(code, **instance), peers):
            self.find(finding)

    def find(self, finding: Finding) -> None:
        self.chart = self.verdicts.found(self.chart, finding, self.now)

    def probe(self, outcome: GpuReadings | HardwareError = FIT, after: float = 5.0) -> None:
        self.now += after
        self.chart = self.verdicts.probed(self.chart, outcome, self.now)

    def restart(self, boot: str | None = None) -> None:
        """An agent that was started anew knows what lasts."""
        self.verdicts = replace(self.verdicts, boot=boot or self.verdicts.boot)
        self.chart = self.verdicts.remembered(self.chart.lasting, self.now)

    @property
    def reasons(self) -> list[str]:
        return sorted(cause.reason for cause in self.chart.causes)

    @property
    def severity(self) -> Severity:
        return max((cause.severity for cause in self.chart.causes), default=Severity.NONE)


@pytest.fixture
def patient() -> Patient:
    return Patient()


# What a fact costs


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 109])
def test_an_applications_own_fault_says_nothing_of_the_gpu(patient: Patient, code: int) -> None:
    patient.event(code)
    assert patient.chart.causes == ()
    assert patient.verdicts.is_idle(fault(code))


@pytest.mark.parametrize("code", [48, 79, 95, 119, 120, 140])
def test_a_fatal_xid_withdraws_the_gpu_and_says_what_it_is_and_what_ends_it(patient: Patient, code: int) -> None:
    patient.event(code)
    (cause,) = patient.chart.causes
    assert (cause.code, cause.severity) == (code, Severity.WITHDRAWN)
    assert cause.message.startswith(f"Xid {code}: ")
    assert "no recovery" in cause.clears


def test_an_xid_that_costs_nothing_opens_nothing_and_is_worth_a_look(patient: Patient) -> None:
    patient.event(63)
    assert patient.chart.causes == ()
    assert not patient.verdicts.is_idle(fault(63))


def test_an_unknown_xid_withdraws_the_gpu(patient: Patient) -> None:
    patient.event(777)
    assert patient.severity is Severity.WITHDRAWN


def test_a_changed_recovery_action_is_worth_a_look_even_where_every_xid_is_ignored() -> None:
    patient = Patient(Rule(name="all", xids=range(1000), action=Action.IGNORE))
    patient.event(154)
    assert patient.chart.causes == ()
    assert not patient.verdicts.is_idle(fault(154))
    assert patient.verdicts.is_idle(fault(79))


@pytest.mark.parametrize(
    ("action", "severity"),
    [(Action.DEGRADE, Severity.DEGRADED), (Action.WITHDRAW, Severity.WITHDRAWN), (Action.EVICT, Severity.EVICTED)],
)
def test_a_rule_says_what_an_xid_costs(action: Action, severity: Severity) -> None:
    patient = Patient(Rule(name="mine", xids=[31], action=action))
    patient.event(31)
    assert patient.severity is severity


def test_a_rule_says_what_a_finding_costs() -> None:
    hot = Finding(reason=Reason.THERMAL, message="hot")
    for action, severities in (
        (Action.IGNORE, []),
        (Action.COUNT, [Severity.NONE]),
        (Action.EVICT, [Severity.EVICTED]),
    ):
        patient = Patient(Rule(name="mine", reasons=[Reason.THERMAL], action=action))
        patient.find(hot)
        assert [cause.severity for cause in patient.chart.causes] == severities


def test_a_fault_that_is_to_come_three_times_costs_nothing_before() -> None:
    patient = Patient(Rule(name="mine", xids=[31], action=Action.WITHDRAW, after=3, within=60.0))
    for _ in range(2):
        patient.event(31)
        patient.now += 25
    assert not patient.chart.causes
    patient.event(31)
    (cause,) = patient.chart.causes
    assert cause.severity is Severity.WITHDRAWN
    assert "3 times in 60 s" in cause.message


def test_faults_that_come_too_far_apart_do_not_add_up() -> None:
    patient = Patient(Rule(name="mine", xids=[31], action=Action.WITHDRAW, after=3, within=60.0))
    for _ in range(10):
        patient.event(31)
        patient.now += 31
    assert patient.chart.causes == ()


# How far it reaches


def test_a_fault_in_an_instance_is_confined_to_it(patient: Patient) -> None:
    patient.event(48, instance=3, compute=0)
    assert patient.chart.causes[0].instance == Instance(id=3, compute=0)


def test_a_fault_of_links_is_confined_to_them_where_there_are_any(patient: Patient) -> None:
    patient.event(74, frozenset({PEER}))
    patient.event(48, frozenset({PEER}))
    assert [cause.peers for cause in patient.chart.causes] == [frozenset({PEER}), None]

    alone = Patient()
    alone.event(74)
    assert alone.chart.causes[0].peers is None


# What ends it


def test_an_xid_ends_when_the_driver_asks_for_no_recovery_but_not_at_once(patient: Patient) -> None:
    patient.event(79)
    patient.probe(after=4.9)
    assert patient.reasons == ["xid"]
    patient.probe(after=0.1)
    assert patient.reasons == []


def test_an_xid_that_comes_again_is_fresh_again(patient: Patient) -> None:
    patient.event(79)
    patient.now += 4
    patient.event(79)
    patient.probe(after=4)
    assert patient.reasons == ["xid"]


@pytest.mark.parametrize("now", [1005.0, 999.0, -3600.0, 1e9])
def test_a_clock_that_is_set_keeps_no_gpu_out(patient: Patient, now: float) -> None:
    patient.event(79)
    patient.now = now
    patient.probe(after=0)
    assert patient.reasons == []


def test_while_recovery_is_due_or_the_gpu_does_not_answer_nothing_ends(patient: Patient) -> None:
    patient.event(79)
    patient.probe(DUE)
    assert patient.reasons == ["recovery-needed", "xid"]
    patient.probe(HardwareError("Unknown Error"))
    assert patient.reasons == ["query-failed", "recovery-needed", "xid"]
    patient.probe()
    assert patient.reasons == []


def test_what_a_look_could_not_see_does_not_end_since_it_was_not_seen(patient: Patient) -> None:
    patient.probe(GpuReadings(uncorrected_ecc_errors=3))
    patient.probe(GpuReadings(failed={"uncorrected_ecc_errors": "Unknown Error"}))
    assert patient.reasons == ["ecc", "query-failed"]
    patient.probe(GpuReadings(uncorrected_ecc_errors=0))
    assert patient.reasons == []


def test_a_driver_that_cannot_name_a_recovery_action_keeps_an_xid_until_a_reset_shows(patient: Patient) -> None:
    patient.event(79)
    for _ in range(100):
        patient.probe(OLD_DRIVER)
    assert patient.reasons == ["xid"]
    patient.probe(DeviceLost("gone"))
    patient.probe(OLD_DRIVER)
    assert patient.reasons == []


RESET_ONLY = Rule(name="mine", xids=[48], cleared_by=ClearedBy.RESET)


@pytest.mark.parametrize("before", [DUE, GpuReadings(uncorrected_ecc_errors=2), DeviceLost("gone")])
def test_a_reset_shows_by_what_is_gone_after_it(before: GpuReadings | HardwareError) -> None:
    patient = Patient(RESET_ONLY)
    patient.event(48)
    patient.probe()
    assert patient.reasons == ["xid"]
    patient.probe(before)
    patient.probe(GpuReadings(recovery_action=RecoveryAction.NONE, uncorrected_ecc_errors=0))
    assert patient.reasons == []


def test_a_reading_that_is_not_there_any_more_shows_no_reset() -> None:
    patient = Patient(RESET_ONLY)
    patient.event(48)
    patient.probe(GpuReadings(uncorrected_ecc_errors=2))
    patient.probe(GpuReadings(recovery_action=RecoveryAction.NONE))
    assert patient.reasons == ["xid"]


def test_what_only_an_operator_ends_is_ended_by_nothing_else() -> None:
    patient = Patient(Rule(name="mine", xids=[79], cleared_by=ClearedBy.OPERATOR))
    patient.event(79)
    patient.probe(DUE)
    patient.probe()
    patient.restart(boot="next")
    patient.probe()
    assert patient.reasons == ["xid"]
    assert "operator" in patient.chart.causes[0].clears

    patient.chart = patient.verdicts.cleared(patient.chart, Reason.XID, 79)
    assert patient.reasons == []


def test_what_was_cleared_and_is_still_there_is_found_again(patient: Patient) -> None:
    patient.probe(GpuReadings(row_remap_failed=True))
    patient.chart = patient.verdicts.cleared(patient.chart)
    assert patient.reasons == []
    patient.probe(GpuReadings(row_remap_failed=True))
    assert patient.reasons == ["row-remap-failed"]


def test_what_another_part_found_ends_by_its_word_alone(patient: Patient) -> None:
    patient.find(Finding(reason=Reason.MPS, message="the daemon has died"))
    patient.probe()
    assert patient.reasons == ["mps-daemon-dead"]
    patient.chart = patient.verdicts.over(patient.chart, [Reason.MPS], patient.now)
    assert patient.reasons == []


def test_the_word_that_it_is_over_is_not_enough_where_an_operators_is_wanted() -> None:
    patient = Patient(Rule(name="mine", reasons=[Reason.MPS], cleared_by=ClearedBy.OPERATOR))
    patient.find(Finding(reason=Reason.MPS, message="the daemon has died"))
    patient.chart = patient.verdicts.over(patient.chart, [Reason.MPS], patient.now)
    assert patient.reasons == ["mps-daemon-dead"]


# Restart and reboot


def test_a_fault_that_is_not_over_outlives_the_agent_and_keeps_its_time(patient: Patient) -> None:
    patient.event(79)
    since = patient.now
    patient.probe(OLD_DRIVER, after=60)
    patient.restart()
    assert patient.reasons == ["not-probed", "xid"]
    patient.probe(OLD_DRIVER)
    assert patient.reasons == ["xid"]
    assert patient.chart.causes[0].since == since


def test_a_reboot_ends_a_fault_once_the_gpu_answers_and_not_before(patient: Patient) -> None:
    patient.event(79)
    patient.restart(boot="next")
    patient.probe(DeviceLost("gone"))
    assert patient.reasons == ["gpu-lost", "xid"]
    # A second agent in the new boot, before the GPU has answered, must not take the fault for one of this boot.
    patient.restart()
    patient.probe(OLD_DRIVER)
    assert patient.reasons == []


def test_a_fault_of_this_boot_is_not_ended_by_the_last_one(patient: Patient) -> None:
    patient.event(79)
    patient.restart(boot="next")
    patient.event(79)
    patient.probe(OLD_DRIVER)
    assert patient.reasons == ["xid"]


def test_a_remembered_fault_has_the_cost_that_the_rules_give_it_now(patient: Patient) -> None:
    patient.event(79)
    patient.event(48)
    rules = (
        Rule(name="a", xids=[48], action=Action.IGNORE),
        Rule(name="b", xids=[79], action=Action.EVICT),
    )
    patient.verdicts = replace(patient.verdicts, policy=Policy(rules=rules))
    patient.restart()
    assert [(cause.code, cause.severity) for cause in patient.chart.causes if cause.code] == [(79, Severity.EVICTED)]


def test_what_every_agent_finds_out_anew_is_not_remembered(patient: Patient) -> None:
    for reason in (Reason.EVENTS_FAILED, Reason.NOT_MONITORED, Reason.DEVICE_NODE, Reason.MPS):
        patient.find(Finding(reason=reason, message=""))
    patient.restart()
    assert patient.reasons == ["not-probed"]


# A trouble that comes and goes


def flap(patient: Patient, times: int, reason: GpuReadings | HardwareError = DUE) -> None:
    """Out and back so often, as fast as it can; out at the end."""
    for number in range(times):
        if number:
            while patient.chart.causes:
                patient.probe()
        patient.probe(reason)


@pytest.mark.parametrize(("times", "hold"), [(1, 0), (2, 0), (3, 40), (4, 80), (5, 160), (6, 320)])
def test_each_time_that_a_trouble_comes_it_is_held_open_longer(patient: Patient, times: int, hold: float) -> None:
    flap(patient, times)
    began = patient.now
    while patient.chart.causes:
        patient.probe()
    assert patient.now - began == max(hold, 5.0)


def test_no_hold_is_longer_than_ten_minutes(patient: Patient) -> None:
    flap(patient, 3)
    for _ in range(20):
        patient.chart = replace(patient.chart, causes=())
        patient.probe(DUE)
    began = patient.now
    while patient.chart.causes:
        patient.probe()
    assert patient.now - began == 600.0


def test_a_held_device_says_why_and_until_when(patient: Patient) -> None:
    patient.now = 0.0
    flap(patient, 3)
    patient.probe()
    (cause,) = patient.chart.causes
    assert cause.severity is Severity.WITHDRAWN
    assert cause.clears == "over, but it came 3 times in 10 minutes: held until 00:01:05 UTC"
    patient.probe(DUE)
    assert "no recovery" in patient.chart.causes[0].clears


def test_a_trouble_that_comes_seldom_or_lasts_long_is_not_held(patient: Patient) -> None:
    for _ in range(5):
        patient.probe(DUE)
        patient.probe()
        assert not patient.chart.causes
        patient.now += 400
    for _ in range(100):
        patient.probe(DUE)
    patient.probe()
    assert not patient.chart.causes


def test_what_only_degrades_is_not_held(patient: Patient) -> None:
    for _ in range(10):
        patient.probe(GpuReadings(row_remap_pending=True))
        assert patient.reasons == ["reset-needed"]
        patient.probe()
        assert patient.reasons == []


def test_an_operator_ends_a_hold_and_its_past(patient: Patient) -> None:
    flap(patient, 5)
    patient.chart = patient.verdicts.cleared(patient.chart, Reason.RECOVERY)
    patient.probe(DUE)
    patient.probe()
    assert not patient.chart.causes


def test_a_hold_outlives_the_agent(patient: Patient) -> None:
    flap(patient, 4)
    patient.restart()
    patient.probe()
    assert patient.reasons == ["recovery-needed"]
    patient.probe(after=80)
    assert patient.reasons == []


# What a probe and a subscription come to


@pytest.mark.parametrize(
    ("readings", "reason", "severity"),
    [
        (GpuReadings(recovery_action=RecoveryAction.REBOOT), Reason.RECOVERY, Severity.WITHDRAWN),
        (GpuReadings(row_remap_failed=True), Reason.ROW_REMAP, Severity.WITHDRAWN),
        (GpuReadings(row_remap_pending=True), Reason.RESET_NEEDED, Severity.DEGRADED),
        (GpuReadings(uncorrected_ecc_errors=1), Reason.ECC, Severity.WITHDRAWN),
        (GpuReadings(failed={"uncorrected_ecc_errors": "Unknown Error"}), Reason.QUERY_FAILED, Severity.WITHDRAWN),
        (DeviceLost("gone"), Reason.LOST, Severity.WITHDRAWN),
        (HardwareError("Unknown Error"), Reason.QUERY_FAILED, Severity.WITHDRAWN),
    ],
)
def test_readings_that_tell_of_trouble_open_its_cause(
    patient: Patient, readings: GpuReadings | HardwareError, reason: Reason, severity: Severity
) -> None:
    patient.probe(readings)
    (cause,) = patient.chart.causes
    assert (cause.reason, cause.severity, cause.since) == (reason, severity, patient.now)


@pytest.mark.parametrize(
    "outcome",
    [
        FIT,
        GpuReadings(),
        GpuReadings(uncorrected_ecc_errors=0),
        GpuReadings(failed={"temperature": "Unknown Error"}),
        NotSupported("none"),
    ],
)
def test_what_cannot_be_read_is_no_trouble(patient: Patient, outcome: GpuReadings | HardwareError) -> None:
    patient.probe(outcome)
    assert not patient.chart.causes


@pytest.mark.parametrize(
    ("error", "reason", "severity"),
    [
        (NotSupported("none"), Reason.NOT_MONITORED, Severity.NONE),
        (HardwareError("Unknown Error"), Reason.EVENTS_FAILED, Severity.WITHDRAWN),
        (DeviceLost("gone"), Reason.LOST, Severity.WITHDRAWN),
    ],
)
def test_a_card_without_events_is_neutral_and_one_whose_events_fail_is_not(
    patient: Patient, error: Exception, reason: Reason, severity: Severity
) -> None:
    patient.find(verdicts.of_subscription(error))
    assert (patient.reasons, patient.severity) == ([reason], severity)
