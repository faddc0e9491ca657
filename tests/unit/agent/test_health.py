"""From the configuration's words on health to the policy: what it says of Xids and of other causes."""

from collections.abc import Mapping

import pytest

from node_agent.agent.health import policy
from node_agent.config.resolve import resolve
from node_agent.health.policy import Action, ClearedBy
from node_agent.health.rules import Policy
from node_agent.model.health import Reason


def of(environment: Mapping[str, str] | None = None, **health: object) -> Policy:
    """The policy of an ``agent.health`` section."""
    flags = {f"agent.health.{key}": value for key, value in health.items() if value is not None}
    return policy(resolve(file=None, environment=environment or {}, flags=flags).settings)


@pytest.mark.parametrize(
    ("ignored", "enabled", "withdraws", "spares"),
    [
        (None, None, [48, 74, 79, 95], [13, 31, 43, 45, 68, 109]),
        ([79], None, [13, 48], [79]),
        ([], None, [13, 79], []),
        ("all", None, [], [13, 48, 79, 100_000]),
        ("all", [79, 48], [48, 79], [13, 100_000]),
        (None, [13], [13, 79], [31, 43]),
        ("all", "all", [13, 79], []),
        (None, "all", [13, 31, 79], []),
    ],
)
def test_xids_are_ignored_as_listed_except_the_enabled_ones(
    ignored: object, enabled: object, withdraws: list[int], spares: list[int]
) -> None:
    found = of(ignoredXids=ignored, enabledXids=enabled)
    assert {found.decide(Reason.XID, xid).action for xid in withdraws} <= {Action.WITHDRAW}
    assert {found.decide(Reason.XID, xid).action for xid in spares} <= {Action.IGNORE}


def test_the_variables_of_the_device_plugin_lie_over_what_is_shipped() -> None:
    found = of({"DP_DISABLE_HEALTHCHECKS": "79,94", "DP_ENABLE_HEALTHCHECKS": "31"})
    spared = [79, 94, 13]
    assert {found.decide(Reason.XID, xid).action for xid in spared} == {Action.IGNORE}
    assert found.decide(Reason.XID, 79).rule == "agent.health.ignoredXids"
    assert found.decide(Reason.XID, 31).action is Action.WITHDRAW
    assert found.decide(Reason.XID, 31).rule == "agent.health.enabledXids"


def test_the_last_rule_that_covers_an_xid_decides_and_says_which_one_it_is() -> None:
    rules = [
        {"xids": "all", "action": "degrade"},
        {"xids": [48, 63], "action": "withdraw", "after": 3, "within": "10m"},
        {"xids": [48], "clearedBy": "operator"},
        {"causes": ["thermal-throttling"], "action": "evict"},
    ]
    found = of(rules=rules)
    forty_eight = found.decide(Reason.XID, 48)
    assert (forty_eight.action, forty_eight.after, forty_eight.within) == (Action.WITHDRAW, 3, 600.0)
    assert (forty_eight.cleared_by, forty_eight.rule) == (ClearedBy.OPERATOR, "agent.health.rules[1]")
    assert found.decide(Reason.XID, 31).rule == "agent.health.rules[0]"
    assert found.decide(Reason.THERMAL).action is Action.EVICT
    assert found.decide(Reason.POWER).rule == "default"


def test_what_is_ignored_is_so_whatever_a_rule_says_and_a_usual_one_may_be_had_back_by_a_rule() -> None:
    rules = [{"xids": [31, 79], "action": "evict"}]
    found = of(rules=rules, ignoredXids=[13, 31, 43, 45, 68, 109, 79])
    assert found.decide(Reason.XID, 79).action is Action.IGNORE
    assert found.decide(Reason.XID, 31).action is Action.EVICT
