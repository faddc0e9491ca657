"""The label of our own node that says how far its layout is, as NVIDIA's MIG manager writes it."""

import asyncio
import math
from collections.abc import Mapping

from node_agent.errors import KubeError
from node_agent.kit.backoff import pauses, spread
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log, Steady
from node_agent.kube.client import KubeClient, Patch
from node_agent.kube.resources import NODES
from node_agent.layouts.orders import STATE_LABEL
from node_agent.layouts.state import LayoutState

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0

# The owner of the label: what else the agent applies to the Node has another one, or each would take the other's away.
OWNER = "gpu-node-agent-mig"

log = Log(__name__)


class StateLabel:
    """A service: writes the phase of ``state``; the ``labels`` are those that the node has, None while nobody knows.

    Once nothing is asked for the label is taken away again, if it is the agent's. ``client`` is called ``OWNER``, and
    ``known`` is set once the state says something.
    """

    def __init__(
        self,
        client: KubeClient,
        node: str,
        state: Latest[LayoutState | None],
        labels: Latest[Mapping[str, str] | None],
        known: asyncio.Event,
    ) -> None:
        self._client = client
        self._node = node
        self._state = state
        self._labels = labels
        self._state_known = known
        self._known, self._written = False, ""
        self._tries = pauses(FIRST_PAUSE, 2.0, LONGEST_PAUSE)
        self._again = False
        self._trouble = Steady(period=math.inf)

    async def run(self) -> None:
        """Write until cancelled."""
        await self._state_known.wait()
        async for _ in changes(self._state, self._labels, every=lambda: 0.0 if self._again else math.inf):
            state, labels = self._state.value, self._labels.value
            if labels is None or (state is not None and state.owner):
                continue
            wanted = str(state.phase) if state is not None else ""
            # What an agent before has written needs no write, unless it is to go: that takes away only what is its own.
            if not self._known and wanted == labels.get(STATE_LABEL, ""):
                self._known, self._written = True, wanted or ""
            # What somebody else writes in its place is left, until there is something new to say.
            elif not self._known or wanted != self._written or (wanted and STATE_LABEL not in labels):
                await self._write(wanted)

    async def _write(self, wanted: str) -> None:
        labels = {STATE_LABEL: wanted} if wanted else {}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._node, "labels": labels}}
        try:
            await self._client.patch(NODES, self._node, body, how=Patch.APPLY)
        except KubeError as error:
            self._again = True
            if self._trouble.should_say(type(error).__name__):
                log.warning("how far the layout is cannot be told", label=STATE_LABEL, reason=error)
            await asyncio.sleep(spread(next(self._tries)))
            return
        self._known, self._written, self._again = True, wanted, False
        self._tries = pauses(FIRST_PAUSE, 2.0, LONGEST_PAUSE)
        self._trouble.clear()
