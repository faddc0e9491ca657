"""What another agent of the node does to the GPUs by a layout: while two are there, one cuts and both offer."""

from collections.abc import Callable

from node_agent.allocation.grants import Door
from node_agent.allocation.ledger import Ledger


async def follow_others(ledger: Ledger, rescan: Callable[[], None]) -> None:
    """Have the GPUs looked at as another agent's changes go on and end, until cancelled.

    Else MIG devices that it has removed would be offered here until the next look, which may be half a minute away.
    """
    before = ledger.grants_of(Door.LAYOUT)
    async for _ in ledger.grants.watch():
        now = ledger.grants_of(Door.LAYOUT)
        if now != before and not ledger.is_alone:
            rescan()
        before = now
