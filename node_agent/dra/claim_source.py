"""Where claims are known from: a watch on those with devices of this node, and a question only where it lags."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from node_agent.dra.claims import claim_of
from node_agent.dra.operations import ClaimRef
from node_agent.errors import ClaimUnreadable, NotFound
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log
from node_agent.kube.client import KubeClient
from node_agent.kube.mirror import Mirror
from node_agent.kube.resources import RESOURCE_CLAIMS, Object
from node_agent.model.claim import Claim

log = Log(__name__)


def of_node(driver: str, pool: str) -> Callable[[Object], bool]:
    """Picks the claims that have devices of this driver on this node; of all others not even a copy is kept."""

    def picks(item: Object) -> bool:
        return any(result.get("driver") == driver and result.get("pool") == pool for result in _results(item))

    return picks


def _results(item: Object) -> Iterator[dict[str, Any]]:
    allocation = item.get("status", {}).get("allocation") or {}
    yield from allocation.get("devices", {}).get("results") or ()


class WatchedClaims:
    """The claims of ``mirror``; what it does not have (yet) is asked for."""

    def __init__(self, client: KubeClient, mirror: Mirror) -> None:
        self._client = client
        self._mirror = mirror

    async def claim(self, ref: ClaimRef) -> Claim:
        """The allocated claim with this uid.

        Raises:
            ClaimUnreadable: it is gone, was replaced by another of its name, or is not allocated.
            KubeError: the API server does not answer.
        """
        known = self._mirror.objects.value.get(ref.full_name)
        if known is not None and known["metadata"]["uid"] == ref.uid:
            return claim_of(known)
        return await self._asked(ref)

    @property
    def objects(self) -> Latest[Mapping[str, Object]]:
        """The claims with devices of this node, as the API server has them."""
        return self._mirror.objects

    def known(self) -> list[Claim]:
        """The same, read; those that are not understood are left out."""
        found = []
        for item in self._mirror.objects.value.values():
            try:
                found.append(claim_of(item))
            except ClaimUnreadable as error:
                log.error("claim left out", reason=error)
        return found

    async def live(self) -> list[Claim]:
        """All claims with devices of this node, once the watch has them."""
        async for synced in self._mirror.synced.watch():
            if synced:
                break
        return self.known()

    async def _asked(self, ref: ClaimRef) -> Claim:
        try:
            claim = claim_of(await self._client.get(RESOURCE_CLAIMS, ref.name, ref.namespace))
        except NotFound as error:
            raise ClaimUnreadable(f"claim {ref.full_name} is gone: its pod will be, too") from error
        if claim.uid != ref.uid:
            raise ClaimUnreadable(f"claim {ref.full_name} was replaced: {ref.uid} was asked for, {claim.uid} is there")
        if claim.results is None:
            raise ClaimUnreadable(f"claim {ref.full_name} is not allocated")
        return claim
