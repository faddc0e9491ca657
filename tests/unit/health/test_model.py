"""Whatever happens in whatever order: the board and a plain model of the rules agree on what is open, and since when.

The model keeps one row for each trouble of a GPU and says each rule in a line or two, without regard for speed, for
words or for what may be written to a file.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from node_agent.errors import DeviceLost, HardwareError
from node_agent.hardware.provider import EventKind, GpuReadings, HardwareEvent, RecoveryAction
from node_agent.health import verdicts
from node_agent.health.board import HealthBoard
from node_agent.health.findings import Finding
from node_agent.health.policy import Action, ClearedBy
from node_agent.health.record import decode, encode
from node_agent.health.rules import Policy, Rule
from node_agent.health.verdicts import Verdicts
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Reason, Severity

GPUS = (GpuUuid("GPU-A"), GpuUuid("GPU-B"))
PROBE_SECONDS = 5.0
WITHDRAWN, DEGRADED, EVICTED = Severity.WITHDRAWN, Severity.DEGRADED, Severity.EVICTED

POLICY = Policy(
    rules=(
        Rule(name="reset", xids=[48], cleared_by=ClearedBy.RESET),
        Rule(name="often", xids=[31], action=Action.WITHDRAW, after=3, within=60.0, cleared_by=ClearedBy.OPERATOR),
        Rule(name="evict", reasons=[Reason.ROW_REMAP], action=Action.EVICT),
        Rule(name="deaf", reasons=[Reason.RETIRED_PAGES], action=Action.IGNORE),
    )
)


@dataclass(frozen=True)
class Cost:
    """What the policy above and the defaults come to; ``costs`` is None where nothing is shown."""

    costs: Severity | None
    ends: str = "look"
    after: int = 1
    within: float = 0.0


Key = tuple[Reason, int | None]
COSTS: dict[Key, Cost] = {
    (Reason.XID, 79): Cost(WITHDRAWN, "recovery"),
    (Reason.XID, 48): Cost(WITHDRAWN, "reset"),
    (Reason.XID, 94): Cost(DEGRADED, "recovery"),
    (Reason.XID, 31): Cost(WITHDRAWN, "operator", after=3, within=60.0),
    (Reason.XID, 13): Cost(None),
    (Reason.XID, 63): Cost(None),
    (Reason.LOST, None): Cost(WITHDRAWN),
    (Reason.QUERY_FAILED, None): Cost(WITHDRAWN),
    (Reason.RECOVERY, None): Cost(WITHDRAWN),
    (Reason.ECC, None): Cost(WITHDRAWN),
    (Reason.ROW_REMAP, None): Cost(EVICTED),
    (Reason.RESET_NEEDED, None): Cost(DEGRADED),
    (Reason.MPS, None): Cost(WITHDRAWN, "word"),
    (Reason.NOT_PROBED, None): Cost(WITHDRAWN),
}
CODES = sorted(code for _, code in COSTS if code is not None)

GOOD = GpuReadings(recovery_action=RecoveryAction.NONE, uncorrected_ecc_errors=0)
LOOKS: dict[str, tuple[GpuReadings | HardwareError, tuple[Reason, ...]]] = {
    "good": (GOOD, ()),
    "old driver": (GpuReadings(uncorrected_ecc_errors=0), ()),
    "reset due": (replace(GOOD, recovery_action=RecoveryAction.RESET), (Reason.RECOVERY,)),
    "ecc": (replace(GOOD, uncorrected_ecc_errors=2), (Reason.ECC,)),
    "remap failed": (replace(GOOD, row_remap_failed=True), (Reason.ROW_REMAP,)),
    "remap pending": (replace(GOOD, row_remap_pending=True), (Reason.RESET_NEEDED,)),
    "lost": (DeviceLost("gone"), (Reason.LOST,)),
    "silent": (HardwareError("no answer"), (Reason.QUERY_FAILED,)),
}


@dataclass
class Row:
    """One trouble of one GPU in the model."""

    since: float | None = None
    last: float = 0.0
    seen: list[float] = field(default_factory=list)
    openings: list[float] = field(default_factory=list)
    past: bool = False
    word: bool = False


class Model:
    """One GPU."""

    def __init__(self) -> None:
        self.rows = {key: Row() for key in COSTS}
        self.rows[Reason.NOT_PROBED, None].since = 0.0

    def open_rows(self) -> Iterator[tuple[Key, Row]]:
        return ((key, row) for key, row in self.rows.items() if row.since is not None)

    def is_open(self, reason: Reason) -> bool:
        return self.rows[reason, None].since is not None

    def saw(self, key: Key, now: float) -> None:
        cost, row = COSTS[key], self.rows[key]
        if cost.costs is None:
            return
        row.last, row.past, row.word = now, False, False
        row.seen = [*(time for time in row.seen if now - time <= cost.within), now][-cost.after :]
        if row.since is None and len(row.seen) == cost.after:
            row.since = now
            if cost.costs >= WITHDRAWN and key[0] is not Reason.NOT_PROBED:
                row.openings = [*(time for time in row.openings if now - time <= 600), now]

    def look(self, readings: GpuReadings | HardwareError, found: tuple[Reason, ...], now: float) -> None:
        no_recovery = isinstance(readings, GpuReadings) and readings.recovery_action is RecoveryAction.NONE
        if isinstance(readings, GpuReadings) and (
            self.is_open(Reason.LOST)
            or (self.is_open(Reason.RECOVERY) and no_recovery)
            or (self.is_open(Reason.ECC) and readings.uncorrected_ecc_errors == 0)
        ):
            for row in self.rows.values():
                row.past = True
        for reason in found:
            self.saw((reason, None), now)
        answered = not {Reason.LOST, Reason.QUERY_FAILED} & set(found)
        for key, row in tuple(self.open_rows()):
            if key[0] in found or COSTS[key].ends in ("operator", "word"):
                continue
            if not answered and key[0] not in (Reason.QUERY_FAILED, Reason.NOT_PROBED):
                continue
            if key[0] is Reason.XID and now - row.last < PROBE_SECONDS:
                continue
            if COSTS[key].ends == "look" or row.past or (COSTS[key].ends == "recovery" and no_recovery):
                self.end(key, now)
        if self.rows[Reason.MPS, None].word:
            self.end((Reason.MPS, None), now)

    def end(self, key: Key, now: float) -> None:
        row = self.rows[key]
        hold = min(600.0, PROBE_SECONDS * 2 ** len(row.openings)) if len(row.openings) >= 3 else 0.0
        if now - row.last >= hold:
            row.since = None

    def over(self, reason: Reason, now: float) -> None:
        if self.is_open(reason):
            self.rows[reason, None].word = True
            self.end((reason, None), now)

    def clear(self, reason: Reason | None, code: int | None) -> None:
        for key, _ in tuple(self.open_rows()):
            if reason in (None, key[0]) and code in (None, key[1]):
                self.rows[key] = Row()

    def restart(self, now: float, reboot: bool) -> None:
        self.rows[Reason.MPS, None] = Row()
        self.rows[Reason.NOT_PROBED, None] = Row(since=now)
        for row in self.rows.values():
            row.seen, row.last = [], max(row.openings, default=0.0)
            row.past = row.past or reboot


class Histories(RuleBasedStateMachine):
    """Two GPUs and one agent after another."""

    def __init__(self) -> None:
        super().__init__()
        # Far from zero, which a time that nobody remembers stands for.
        self.now, self.boot = 100_000.0, 0
        self.board = HealthBoard(self.verdicts, clock=lambda: self.now)
        self.models = {gpu: Model() for gpu in GPUS}
        self.counts: dict[tuple[GpuUuid, int], int] = {}
        for gpu in GPUS:
            self.models[gpu].rows[Reason.NOT_PROBED, None].since = self.now

    @property
    def verdicts(self) -> Verdicts:
        return Verdicts(policy=POLICY, probe_seconds=PROBE_SECONDS, boot=f"boot-{self.boot}")

    @rule(seconds=st.sampled_from([1.0, 4.0, 5.0, 30.0, 130.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(gpu=st.sampled_from(GPUS), code=st.sampled_from(CODES))
    def an_xid_is_reported(self, gpu: GpuUuid, code: int) -> None:
        self.board.count(gpu, code)
        finding = verdicts.of_event(HardwareEvent(kind=EventKind.FAULT, gpu=gpu, code=code))
        assert finding is not None
        self.board.open(gpu, finding)
        self.models[gpu].saw((Reason.XID, code), self.now)
        self.counts[gpu, code] = self.counts.get((gpu, code), 0) + 1

    @rule(gpu=st.sampled_from(GPUS), what=st.sampled_from(sorted(LOOKS)))
    def a_gpu_is_looked_at(self, gpu: GpuUuid, what: str) -> None:
        readings, found = LOOKS[what]
        self.board.probed(gpu, readings)
        self.models[gpu].look(readings, found, self.now)

    @rule(gpu=st.sampled_from(GPUS), times=st.integers(2, 6))
    def a_gpu_flaps_and_is_well_again(self, gpu: GpuUuid, times: int) -> None:
        for _ in range(times):
            for what in ("reset due", "good"):
                self.a_gpu_is_looked_at(gpu, what)
                self.now += PROBE_SECONDS
        # Of one that had been well before, the hold ends between these two looks.
        for more in (PROBE_SECONDS * 2**times - 3 * PROBE_SECONDS, PROBE_SECONDS):
            self.now += more
            self.a_gpu_is_looked_at(gpu, "good")
            self.board_and_model_agree()

    @rule(
        gpu=st.sampled_from(GPUS),
        code=st.sampled_from(CODES),
        before=st.sampled_from(["lost", "silent", "reset due", "ecc", "good"]),
        after=st.sampled_from(["good", "old driver"]),
    )
    def a_gpu_fails_and_is_reset(self, gpu: GpuUuid, code: int, before: str, after: str) -> None:
        self.an_xid_is_reported(gpu, code)
        for what in (before, after):
            self.now += PROBE_SECONDS
            self.a_gpu_is_looked_at(gpu, what)

    @rule(gpu=st.sampled_from(GPUS), code=st.sampled_from(CODES), pause=st.sampled_from([0.0, 29.0, 31.0]))
    def an_xid_comes_three_times(self, gpu: GpuUuid, code: int, pause: float) -> None:
        for _ in range(3):
            self.an_xid_is_reported(gpu, code)
            self.now += pause

    @rule(gpu=st.sampled_from(GPUS))
    def a_daemon_dies(self, gpu: GpuUuid) -> None:
        self.board.open(gpu, Finding(reason=Reason.MPS, message="died"))
        self.models[gpu].saw((Reason.MPS, None), self.now)

    @rule(gpu=st.sampled_from(GPUS))
    def a_daemon_runs_again(self, gpu: GpuUuid) -> None:
        self.board.close(gpu, Reason.MPS)
        self.models[gpu].over(Reason.MPS, self.now)

    @rule(
        gpu=st.sampled_from(GPUS),
        reason=st.none() | st.sampled_from(sorted({reason for reason, _ in COSTS})),
        code=st.none() | st.sampled_from(CODES),
    )
    def an_operator_clears(self, gpu: GpuUuid, reason: Reason | None, code: int | None) -> None:
        self.board.clear(gpu, reason, code)
        self.models[gpu].clear(reason, code)

    @rule(reboot=st.booleans())
    def the_agent_is_started_anew(self, reboot: bool) -> None:
        self.boot += reboot
        self.board = HealthBoard(self.verdicts, decode(encode(self.board.record.value)), clock=lambda: self.now)
        for model in self.models.values():
            model.restart(self.now, reboot)

    @invariant()
    def board_and_model_agree(self) -> None:
        for gpu, model in self.models.items():
            causes = self.board.report.value.known_of(gpu).causes
            found = {(one.reason, one.code): (one.severity, one.since) for one in causes}
            wanted = {key: (COSTS[key].costs, row.since) for key, row in model.open_rows()}
            # A GPU of which nothing is remembered is that of the first agent: nobody has looked at it since then.
            if set(wanted) == {(Reason.NOT_PROBED, None)}:
                assert set(found) == set(wanted)
            else:
                assert found == wanted
        assert self.board.counts == self.counts


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
