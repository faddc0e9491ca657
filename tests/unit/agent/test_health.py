"""From the configuration's words on health to the policy, and from what containers lack to the board."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from node_agent.agent.health import policy, report_device_nodes
from node_agent.cdi.left_out import LeftOut
from node_agent.cdi.publisher import Published
from node_agent.config.resolve import resolve
from node_agent.health.board import HealthBoard
from node_agent.health.policy import Action, ClearedBy
from node_agent.health.rules import Policy
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Reason
from tests.fakes.hardware import FIT


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


# Device nodes

A, B = GpuUuid("GPU-A"), GpuUuid("GPU-B")
MISSING = LeftOut(what="/dev/nvidia0", why="not there", gpu=A)


class Bench:
    """A board of two fit GPUs beside what is published."""

    def __init__(self) -> None:
        self.published, self.board = Latest(Published()), HealthBoard()
        for gpu in (A, B):
            self.board.probed(gpu, FIT)

    async def until(self, gpu: GpuUuid, *messages: str) -> None:
        async with asyncio.timeout(30):
            async for report in self.board.report.watch():
                if [cause.message for cause in report.of(gpu).causes] == list(messages):
                    return


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    async with running(report_device_nodes(bench.published, bench.board)):
        yield bench


async def test_a_gpu_without_its_device_node_is_out_until_it_is_there(bench: Bench) -> None:
    bench.published.set(Published(gpus=frozenset({B}), left_out=(MISSING,), trouble=str(MISSING)))
    await bench.until(A, "/dev/nvidia0: not there")
    assert bench.board.report.value.of(A).withdrawn
    await bench.until(B)
    bench.published.set(Published(gpus=frozenset({A, B})))
    await bench.until(A)


async def test_a_node_that_an_operator_takes_for_there_and_is_not_is_missed_again_at_once(bench: Bench) -> None:
    bench.published.set(Published(left_out=(MISSING,), trouble=str(MISSING)))
    await bench.until(A, "/dev/nvidia0: not there")
    assert bench.board.clear(A)
    await bench.until(A, "/dev/nvidia0: not there")


async def test_a_look_that_did_not_come_to_the_nodes_says_nothing_about_them(bench: Bench) -> None:
    bench.published.set(Published(left_out=(MISSING,), trouble=str(MISSING)))
    await bench.until(A, "/dev/nvidia0: not there")
    bench.published.set(Published(trouble="no driver files"))
    await asyncio.sleep(0.05)
    assert bench.board.report.value.of(A).withdrawn


async def test_what_is_optional_costs_no_gpu(bench: Bench) -> None:
    bench.published.set(Published(gpus=frozenset({A, B}), left_out=(LeftOut(what="/dev/dri/card0", why="not there"),)))
    await asyncio.sleep(0.05)
    await bench.until(A)
