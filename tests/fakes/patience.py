"""How long an agent of these tests tries to reach the API server, which is in the same process as everything else."""

from node_agent.kube.calls import Patience

PATIENT = Patience(attempt=10.0, budget=10.0, pause=0.01)
"""No call is tried twice because this machine is slow: how many there were can be counted."""

HASTY = Patience(attempt=0.3, budget=0.5, pause=0.01)
"""For servers that are away or silent."""
