"""What another agent of the node does to the GPUs: of two agents one cuts by layouts (``layouts``), and both offer."""

import math
from collections.abc import Callable

from node_agent.kit.latest import Latest, changes

# So often the GPUs are looked at while another agent is there; an update's two agents share a node for seconds.
LOOK_SECONDS = 2.0


async def follow_others(company: Latest[bool], rescan: Callable[[], None], every_seconds: float = LOOK_SECONDS) -> None:
    """Have the GPUs looked at again and again while there is ``company``, and once more at its end, until cancelled.

    Else MIG devices that another agent has removed would be offered here until the next look, half a minute later.
    """
    async for _ in changes(company, every=lambda: every_seconds if company.value else math.inf):
        rescan()
