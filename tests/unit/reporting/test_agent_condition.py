"""What the Node is told of the agent itself."""

from node_agent.reporting.agent_condition import agent_condition
from node_agent.reporting.node_condition import LONGEST_MESSAGE, Truth
from node_agent.reporting.parts import PartState, PartStatus
from node_agent.reporting.readiness import Phase, Readiness

WELL = PartStatus(name="driver", state=PartState.READY, reason="Loaded")
DEGRADED = PartStatus(name="mig", state=PartState.DEGRADED, reason="LayoutWaits", messages=("gpu-0 waits",))
UNREGISTERED = PartStatus(
    name="registration", state=PartState.WAITING, reason="KubeletAway", messages=("the kubelet does not answer",)
)
BROKEN = PartStatus(name="cdi", state=PartState.FAILED, reason="NoSpec", messages=("disk full",))


def test_of_an_agent_that_has_not_been_ready_yet_nobody_knows() -> None:
    found = agent_condition(Readiness())
    assert (found.status, found.reason) == (Truth.UNKNOWN, "AgentStarting")


def test_one_that_does_its_work_is_ready_also_where_a_part_does_less_than_it_should() -> None:
    found = agent_condition(Readiness(phase=Phase.READY, parts=(WELL, DEGRADED)))
    assert (found.status, found.reason) == (Truth.TRUE, "AgentReady")


def test_one_that_cannot_names_the_first_reason_and_all_messages() -> None:
    found = agent_condition(Readiness(phase=Phase.NOT_READY, parts=(WELL, DEGRADED, UNREGISTERED, BROKEN)))
    assert (found.status, found.reason) == (Truth.FALSE, "KubeletAway")
    assert found.message == "the kubelet does not answer; disk full"


def test_a_long_message_is_cut_to_what_a_condition_is_to_have() -> None:
    part = PartStatus(name="cdi", state=PartState.FAILED, reason="NoSpec", messages=("x" * 5000,))
    assert len(agent_condition(Readiness(phase=Phase.NOT_READY, parts=(part,))).message) == LONGEST_MESSAGE
