"""Steps: what is done for a claim beside its CDI spec, such as a setting of its GPUs or a daemon, and its undo.

A step is written down in the ledger before it begins. So whatever dies, there is something that knows how to undo it.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from node_agent.allocation.grants import Grant, Hold, Notes
from node_agent.allocation.ledger import Ledger
from node_agent.cdi.edits import ContainerEdits
from node_agent.kit.logs import Log
from node_agent.model.claim import Claim

log = Log(__name__)


class Step(Protocol):
    """One thing to do for claims that need it. Holds with admin access are never shown to it: they change nothing."""

    @property
    def name(self) -> str:
        """How the ledger knows the step, over restarts and versions of the agent."""
        ...

    def applies(self, claim: Claim, grant: Grant) -> bool:
        """Whether this claim needs the step. Only then is it written down, done and undone."""
        ...

    async def do(self, claim: Claim, grant: Grant) -> Notes:
        """Do it, and tell what the undo has to know."""
        ...

    async def undo(self, grant: Grant) -> None:
        """Undo it, from the grant alone: it may have been done in full, in part or not at all, or be undone already.

        Its notes are in ``grant.steps``, empty where the process died before ``do`` had ended.
        """
        ...

    def edits(self, grant: Grant, hold: Hold) -> ContainerEdits:
        """What a container with this hold needs because of the step."""
        ...


class Steps:
    """All steps that there are, in their order, taken and undone with a line in the ledger for each."""

    def __init__(self, ledger: Ledger, steps: Sequence[Step] = ()) -> None:
        self._ledger = ledger
        self._steps = {step.name: step for step in steps}

    async def take(self, claim: Claim, grant: Grant) -> Grant:
        """Take the steps that the claim needs; the grant with what they noted. Raises what a step raises."""
        for step in self._steps.values():
            shown = _shown(grant)
            if shown is not None and step.applies(claim, shown):
                begun = await self._ledger.record(replace(grant, steps={**grant.steps, step.name: {}}))
                notes = await step.do(claim, replace(shown, steps=begun.steps))
                # The undo can do without notes, so these wait for the next write.
                noted = replace(begun, steps={**begun.steps, step.name: notes})
                grant = await self._ledger.record(noted, durable=False)
        return grant

    async def undo(self, grant: Grant) -> None:
        """Undo the steps of a grant that have begun, the last one first. Raises what a step raises; the rest stays."""
        if not grant.steps:
            return
        # From here on the claim is not usable, even if the process dies before it is released.
        grant = await self._ledger.record(grant.unprepared)
        for name in reversed(tuple(grant.steps)):
            await self._undo(name, grant)
            # What is undone twice does no harm, so this waits for the next write, too.
            rest = {key: notes for key, notes in grant.steps.items() if key != name}
            grant = await self._ledger.record(replace(grant, steps=rest), durable=False)

    def edits(self, grant: Grant) -> dict[Hold, tuple[ContainerEdits, ...]]:
        """What the containers of each hold need because of the steps that were taken."""
        taken = [self._steps[name] for name in grant.steps if name in self._steps]
        return {hold: tuple(step.edits(grant, hold) for step in taken if not hold.admin) for hold in grant.holds}

    async def _undo(self, name: str, grant: Grant) -> None:
        step, shown = self._steps.get(name), _shown(grant)
        if step is None:
            # A pod that can never end would be worse than a setting that stays.
            log.error("step of another version of the agent cannot be undone", step=name, holder=grant.holder)
        elif shown is not None:
            await step.undo(shown)


def _shown(grant: Grant) -> Grant | None:
    """What steps see of a grant; None where there is nothing but admin access."""
    holds = tuple(hold for hold in grant.holds if not hold.admin)
    return replace(grant, holds=holds) if holds else None
