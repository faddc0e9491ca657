"""The condition ``GPUAgentReady`` of the Node, from the agent's readiness. Pure; ``node_reporter`` writes it.

It is what the last agent said that was there: an agent that has ended cannot take it back.
"""

from node_agent.reporting.node_condition import REPORTER, ConditionKind, NodeCondition, Truth, said
from node_agent.reporting.readiness import Phase, Readiness

READY = ConditionKind(type="GPUAgentReady", owner=f"{REPORTER}-readiness")


def agent_condition(found: Readiness) -> NodeCondition:
    """What the readiness comes to; the reason is that of the first part that keeps the agent from its work."""
    if found.phase is Phase.STARTING:
        return said(Truth.UNKNOWN, "AgentStarting", ["the agent is starting"])
    blocked = [part for part in found.parts if part.state.blocks]
    if found.phase is Phase.NOT_READY and blocked:
        return said(Truth.FALSE, blocked[0].reason, found.trouble)
    return said(Truth.TRUE, "AgentReady", ["the agent does its work"])
