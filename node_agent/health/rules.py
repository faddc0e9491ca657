"""The policy on health as one table: what each Xid and each reason costs and what ends it. Pure.

The defaults are the catalogue of ``xids`` and the table below; the configuration's rules lie over them in their order,
and the last one that covers a trouble decides. ``verdicts`` asks, and ``Decision.rule`` says who decided.
"""

from collections.abc import Container, Mapping

from msgspec import Struct
from msgspec.structs import replace

from node_agent.health.policy import Action, ClearedBy
from node_agent.health.xids import xid
from node_agent.model.health import Reason, Severity

SEVERITIES: Mapping[Action, Severity] = {
    Action.IGNORE: Severity.NONE,
    Action.COUNT: Severity.NONE,
    Action.DEGRADE: Severity.DEGRADED,
    Action.WITHDRAW: Severity.WITHDRAWN,
    Action.EVICT: Severity.EVICTED,
}

_DEFAULTS: Mapping[Reason, Action] = {
    Reason.LOST: Action.WITHDRAW,
    Reason.QUERY_FAILED: Action.WITHDRAW,
    Reason.RECOVERY: Action.WITHDRAW,
    Reason.ECC: Action.WITHDRAW,
    Reason.ROW_REMAP: Action.WITHDRAW,
    Reason.RETIRED_PAGES: Action.DEGRADE,
    Reason.RESET_NEEDED: Action.DEGRADE,
    # Where it is confined to links, the GPU by itself is only degraded.
    Reason.NVLINK: Action.WITHDRAW,
    Reason.FABRIC: Action.DEGRADE,
    Reason.FABRIC_JOINING: Action.COUNT,
    Reason.PCIE: Action.DEGRADE,
    Reason.THERMAL: Action.DEGRADE,
    Reason.POWER: Action.DEGRADE,
    Reason.DEVICE_NODE: Action.WITHDRAW,
    Reason.MPS: Action.WITHDRAW,
    Reason.EVENTS_FAILED: Action.WITHDRAW,
    Reason.NOT_MONITORED: Action.COUNT,
    Reason.NOT_PROBED: Action.WITHDRAW,
}


class Decision(Struct, frozen=True, kw_only=True):
    """What a trouble costs once it was seen ``after`` times in ``within`` seconds, and what ends it.

    ``rule`` names the rule that decided on the action, as the operator finds it.
    """

    action: Action
    cleared_by: ClearedBy
    after: int = 1
    within: float = 0.0
    rule: str = "default"

    @property
    def severity(self) -> Severity:
        return SEVERITIES[self.action]


class Rule(Struct, frozen=True, kw_only=True):
    """What to do about some Xids or reasons. Without an action, or without an end, the rules before it stay in force.

    ``name`` is where it stands, such as ``agent.health.rules[2]``.
    """

    name: str
    xids: Container[int] = ()
    reasons: Container[Reason] = ()
    action: Action | None = None
    cleared_by: ClearedBy | None = None
    after: int = 1
    within: float = 0.0

    def covers(self, reason: Reason, code: int | None) -> bool:
        return code in self.xids if reason is Reason.XID else reason in self.reasons

    def over(self, before: Decision) -> Decision:
        """The decision with this rule lying over it."""
        after = replace(before, cleared_by=self.cleared_by or before.cleared_by)
        if self.action is None:
            return after
        return replace(after, action=self.action, after=self.after, within=self.within, rule=self.name)


class Policy(Struct, frozen=True, kw_only=True):
    """The rules of the configuration, the last one the strongest."""

    rules: tuple[Rule, ...] = ()

    def decide(self, reason: Reason, code: int | None = None) -> Decision:
        """What is to be done about a reason, or about the Xid ``code``."""
        decision = _default(reason, code)
        for rule in self.rules:
            if rule.covers(reason, code):
                decision = rule.over(decision)
        return decision


def _default(reason: Reason, code: int | None) -> Decision:
    if reason is Reason.XID and code is not None:
        known = xid(code)
        # What costs nothing needs no end; a rule that makes it cost something would else be over with the next look.
        ends = known.clears if SEVERITIES[known.action] else ClearedBy.RECOVERY
        return Decision(action=known.action, cleared_by=ends, rule="catalogue of Xids")
    return Decision(action=_DEFAULTS[reason], cleared_by=ClearedBy.PROBE)
