"""One table says what everything costs; it has an entry for everything that can go wrong."""

import pytest

from node_agent.health.policy import Action, ClearedBy
from node_agent.health.rules import Policy, Rule
from node_agent.health.xids import catalogue
from node_agent.model.health import Reason, Severity


@pytest.mark.parametrize("reason", sorted(set(Reason) - {Reason.XID}))
def test_every_reason_has_a_cost_and_ends_when_it_is_found_no_more(reason: Reason) -> None:
    decision = Policy().decide(reason)
    assert decision.action in Action
    assert decision.cleared_by is ClearedBy.PROBE
    assert decision.rule == "default"


@pytest.mark.parametrize("code", catalogue)
def test_every_xid_has_the_cost_that_the_catalogue_gives_it(code: int) -> None:
    assert Policy().decide(Reason.XID, code).action is catalogue[code].action


def test_a_broken_fabric_leaves_the_gpus_in_service_and_a_dead_driver_does_not() -> None:
    assert Policy().decide(Reason.FABRIC).severity is Severity.DEGRADED
    assert Policy().decide(Reason.QUERY_FAILED).severity is Severity.WITHDRAWN


def test_an_xid_that_costs_nothing_by_itself_ends_with_the_drivers_word_where_a_rule_makes_it_cost_something() -> None:
    rule = Rule(name="mine", xids=[31], action=Action.WITHDRAW)
    assert Policy(rules=(rule,)).decide(Reason.XID, 31).cleared_by is ClearedBy.RECOVERY


def test_rules_are_for_xids_or_for_reasons_and_never_for_both_by_accident() -> None:
    rule = Rule(name="mine", xids=range(1000), action=Action.IGNORE)
    assert Policy(rules=(rule,)).decide(Reason.ECC).action is Action.WITHDRAW
    rule = Rule(name="mine", reasons=list(Reason), action=Action.IGNORE)
    assert Policy(rules=(rule,)).decide(Reason.XID, 79).action is Action.WITHDRAW


def test_a_later_rule_that_only_says_how_it_ends_leaves_the_cost_alone() -> None:
    rules = (
        Rule(name="first", xids=[31], action=Action.EVICT, after=3, within=60.0),
        Rule(name="second", xids=[31], cleared_by=ClearedBy.RESET),
    )
    decision = Policy(rules=rules).decide(Reason.XID, 31)
    assert (decision.action, decision.after, decision.within) == (Action.EVICT, 3, 60.0)
    assert (decision.cleared_by, decision.rule) == (ClearedBy.RESET, "first")
