"""What the API server says of ComputeDomains, and the label by which this node says that it serves one.

The objects are asked for when a claim needs them, and not watched: a node has a claim of a domain now and then.
"""

from collections.abc import Iterable

from msgspec import Struct

from node_agent.computedomain.names import CLIQUES, DOMAINS, LABEL
from node_agent.errors import DeviceHeld, DomainRefused, NotFound
from node_agent.kit.logs import Log
from node_agent.kube.client import KubeClient
from node_agent.kube.resources import NODES, Object

READY = "Ready"

log = Log(__name__)


class Domain(Struct, frozen=True, kw_only=True):
    """A ComputeDomain; ``ready`` are the nodes that its status calls ready."""

    uid: str
    namespace: str
    name: str
    ready: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"ComputeDomain {self.namespace}/{self.name}"


class Domains:
    """ComputeDomains as seen from ``node``; every method raises KubeError where the API server cannot be asked."""

    def __init__(self, client: KubeClient, node: str) -> None:
        self._client = client
        self.node = node

    async def find(self, uid: str, namespace: str = "") -> Domain:
        """The domain with this UID, in the given namespace where one is given. Raises DomainRefused."""
        try:
            items = (await self._client.list(DOMAINS, namespace)).items
        except NotFound as error:
            raise DomainRefused("the cluster knows no ComputeDomains: NVIDIA's controller brings that kind") from error
        for item in items:
            if item["metadata"]["uid"] == uid:
                return _domain(item)
        where = f"in the namespace {namespace}, which is the claim's" if namespace else "in the cluster"
        raise DomainRefused(f"there is no ComputeDomain with the UID {uid} {where}")

    async def is_ready(self, domain: Domain, clique: str | None) -> bool:
        """Whether this node's daemon of the domain is ready, by the domain's status or by the clique's own object."""
        if self.node in domain.ready:
            return True
        found = await self._client.list(CLIQUES, fields=f"metadata.name={domain.uid}.{clique or ''}")
        return any(self.node in _ready(one.get("daemons"), "nodeName") for one in found.items)

    async def serve(self, domain: Domain) -> None:
        """Label this node as one of the domain's. Raises DeviceHeld while it is another's."""
        metadata = (await self._client.get(NODES, self.node))["metadata"]
        current = (metadata.get("labels") or {}).get(LABEL)
        if current == domain.uid:
            return
        if current:
            raise DeviceHeld(
                f"node {self.node} serves the ComputeDomain {current}, and one at a time only; where that is gone, "
                f"take the label {LABEL} off the node"
            )
        await self._label(metadata, domain.uid)
        log.info("the node serves a domain", domain=f"{domain.namespace}/{domain.name}", uid=domain.uid)

    async def leave(self, uid: str) -> None:
        """Take the label off, where it is this domain's; a node that is gone has none."""
        node = await self._client.find(NODES, self.node)
        if node is not None and (node["metadata"].get("labels") or {}).get(LABEL) == uid:
            await self._label(node["metadata"], None)
            log.info("the node serves no domain any more", uid=uid)

    async def _label(self, metadata: Object, value: str | None) -> None:
        # Only if nobody has changed the node meanwhile: another label of ours may be among that.
        change = {"metadata": {"resourceVersion": metadata["resourceVersion"], "labels": {LABEL: value}}}
        await self._client.patch(NODES, self.node, change)


def _domain(item: Object) -> Domain:
    metadata = item["metadata"]
    return Domain(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        ready=_ready((item.get("status") or {}).get("nodes"), "name"),
    )


def _ready(items: Iterable[Object] | None, key: str) -> frozenset[str]:
    return frozenset(one[key] for one in items or () if one.get("status") == READY)
