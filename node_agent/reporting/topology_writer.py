"""Keeps the NodeResourceTopology that ``topology_object`` makes; where another program writes it, that one's stands."""

import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from node_agent.errors import NotFound
from node_agent.kit.backoff import spread
from node_agent.kit.logs import Log
from node_agent.kube.client import KubeClient, Patch
from node_agent.kube.resources import NODE_TOPOLOGIES, Object
from node_agent.reporting.health import HealthDocument
from node_agent.reporting.node_condition import REPORTER

# What pods hold of CPUs and memory changes without a word; the kubelet is asked so often.
LOOK_SECONDS = 60.0
# After a change too, once: a kubelet lists what a pod has got a moment after it was given, a busy one a while after.
AGAIN_SECONDS = 5.0

log = Log(__name__)


class TopologyWriter:
    """A ``Writer`` of the node reporter. ``wanted`` makes the object, and may raise NodeAgentError.

    ``signs`` are equal as long as nothing has changed that the agent knows of: then it is looked at in time only.
    """

    what = "topology object"

    def __init__(
        self,
        client: KubeClient,
        node: str,
        wanted: Callable[[], Awaitable[Object]],
        signs: Callable[[], Any],
        *,
        look_seconds: float = LOOK_SECONDS,
        again_seconds: float = AGAIN_SECONDS,
    ) -> None:
        self._client = client
        self._node = node
        self._wanted = wanted
        self._signs = signs
        self._look_seconds = look_seconds
        self._again_seconds = again_seconds
        self._seen: Any = None
        self._next = -math.inf
        self._owner: str | None = None

    @property
    def standing(self) -> str:
        if self._owner is not None:
            return f"written by {self._owner} and left alone"
        return f"NodeResourceTopology {self._node}" if self._next > -math.inf else ""

    def pause(self) -> float:
        return max(self._next - time.monotonic(), 0.0)

    async def write(self, _: HealthDocument) -> None:
        signs = self._signs()
        if signs == self._seen and self.pause():
            return
        stored = await self._stored()
        self._note(_other_owner(stored))
        if self._owner is None:
            wanted = await self._wanted()
            if wanted["zones"] and any(stored.get(part) != wanted[part] for part in ("zones", "attributes")):
                await self._client.patch(NODE_TOPOLOGIES, self._node, wanted, how=Patch.APPLY)
                log.info("topology object written", zones=len(wanted["zones"]))
        soon = self._look_seconds if signs == self._seen else min(self._again_seconds, self._look_seconds)
        self._seen, self._next = signs, time.monotonic() + spread(soon)

    async def _stored(self) -> Object:
        try:
            return await self._client.get(NODE_TOPOLOGIES, self._node)
        except NotFound:
            return {"metadata": {}}

    def _note(self, owner: str | None) -> None:
        if owner is not None and owner != self._owner:
            log.warning("the topology object is somebody else's and left alone", owner=owner)
        self._owner = owner


def _other_owner(stored: Object) -> str | None:
    """Who else has written it: by the record of who set which field."""
    for entry in stored["metadata"].get("managedFields") or ():
        if entry.get("manager") != REPORTER and "f:zones" in entry.get("fieldsV1", {}):
            return str(entry.get("manager"))
    return None
