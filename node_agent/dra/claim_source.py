"""Where claims are known from: each is asked for by its name, as the kubelet itself does before it calls.

The API has no selector for the claims of one node. A watch would bring every agent every change of every claim of the
cluster, and each agent that starts the list of them all.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from node_agent.allocation.grants import Grant
from node_agent.dra.claims import claim_of
from node_agent.dra.operations import ClaimRef
from node_agent.errors import ClaimUnreadable, KubeError
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log
from node_agent.kube.client import KubeClient
from node_agent.kube.resources import RESOURCE_CLAIMS, Object
from node_agent.model.claim import Claim, ClaimUid

# So long the API server is asked for a claim that is known anyway; the kubelet waits for 45 seconds.
AWAY_SECONDS = 5.0

log = Log(__name__)


def allocated(found: Object | None, ref: ClaimRef) -> Claim:
    """The claim that was found under the name of ``ref``. Raises ClaimUnreadable unless it is the one."""
    if found is None:
        raise ClaimUnreadable(f"claim {ref.full_name} is gone: its pod will be, too")
    if (uid := found["metadata"]["uid"]) != ref.uid:
        raise ClaimUnreadable(f"claim {ref.full_name} was replaced: {ref.uid} was asked for, {uid} is there")
    claim = claim_of(found)
    if claim.results is None:
        raise ClaimUnreadable(f"claim {ref.full_name} is not allocated")
    return claim


class NodeClaims:
    """The claims with devices of ``driver`` on this node, whose devices are in ``pool``; some have ``grants`` by now.

    All methods raise KubeError where the API server does not answer.
    """

    def __init__(self, client: KubeClient, *, driver: str, pool: str, grants: Latest[Mapping[str, Grant]]) -> None:
        self._client = client
        self._grants = grants
        self._driver = driver
        self._pool = pool
        self._known: dict[str, Object] = {}

    async def claim(self, ref: ClaimRef) -> Claim:
        """The allocated claim with this uid, as it is now; one that is held is known while the API server is away.

        Raises:
            ClaimUnreadable: it is gone, was replaced by another of its name, or is not allocated.
        """
        found = await self._now_or_known(ref)
        claim = allocated(found, ref)
        assert found is not None, "or there was no claim"
        self._known[ref.uid] = found
        return claim

    async def held(self, grant: Grant) -> Object | None:
        """The claim that has a grant, as it was when it was asked for last; None where it is gone."""
        ref = _ref(grant)
        if ref.uid not in self._known:
            found = await self._asked(ref)
            if found is None or found["metadata"]["uid"] != ref.uid:
                return None
            self._known[ref.uid] = found
        return self._known[ref.uid]

    def forget_but(self, uids: Iterable[str]) -> None:
        """Only these claims are still of interest."""
        self._known = {uid: self._known[uid] for uid in uids if uid in self._known}

    async def live(self, grants: Iterable[Grant]) -> list[Claim]:
        """Those claims of the grants that are there and allocated here."""
        asked = [(ref, await self._asked(ref)) for ref in map(_ref, grants)]
        return list(self._read(found for ref, found in asked if found and found["metadata"]["uid"] == ref.uid))

    async def all(self) -> list[Claim]:
        """All claims of this node. Costs the API server a list of all claims of the cluster."""
        return list(self._read((await self._client.list(RESOURCE_CLAIMS)).items))

    def _read(self, found: Iterable[Object]) -> Iterator[Claim]:
        """What is not understood is left out."""
        for item in found:
            if not any(one.get("driver") == self._driver and one.get("pool") == self._pool for one in _results(item)):
                continue
            try:
                yield claim_of(item)
            except ClaimUnreadable as error:
                log.error("claim left out", reason=error)

    async def _now_or_known(self, ref: ClaimRef) -> Object | None:
        """A claim that is held keeps its allocation, so what was seen of it will do; a freed one may have another."""
        known = self._known.get(ref.uid) if ref.uid in self._grants.value else None
        if known is None:
            return await self._asked(ref)
        try:
            async with asyncio.timeout(AWAY_SECONDS):
                return await self._asked(ref)
        except (KubeError, TimeoutError):
            return known

    async def _asked(self, ref: ClaimRef) -> Object | None:
        return await self._client.find(RESOURCE_CLAIMS, ref.name, ref.namespace)


def _results(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    allocation = item.get("status", {}).get("allocation") or {}
    yield from allocation.get("devices", {}).get("results") or ()


def _ref(grant: Grant) -> ClaimRef:
    namespace, _, name = grant.holder.name.partition("/")
    return ClaimRef(uid=ClaimUid(grant.holder.id), namespace=namespace, name=name)
