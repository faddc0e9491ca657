"""Prepares claims to domains, and gives them back.

A workload's claim is written down, then the node is labelled, then it waits: the label brings the domain's daemon here,
whose own claim comes in meanwhile. What a prepare has begun stays while it waits, also over the kubelet's next try and
the agent's next start: only unprepare ends it.
"""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from node_agent.allocation.calls import Calls
from node_agent.computedomain.configs import Wish, wish_of
from node_agent.computedomain.domains import Domain, Domains
from node_agent.computedomain.edits import DomainFiles
from node_agent.computedomain.names import DRIVER, Kind
from node_agent.computedomain.record import Entries, Entry, Record
from node_agent.dra.claim_source import allocated
from node_agent.dra.claims import claim_of
from node_agent.dra.operations import PATIENCE_SECONDS, ClaimRef, Operations, Prepared, PreparedDevice
from node_agent.errors import DeviceHeld, DomainNotReady, DomainRefused, Overtaken, PoolUnknown
from node_agent.kit.logs import Log
from node_agent.kube.client import KubeClient
from node_agent.kube.resources import RESOURCE_CLAIMS
from node_agent.model.claim import Claim, ClaimUid
from node_agent.model.inventory import Inventory

log = Log(__name__)


class DomainClaims(Operations):
    """The kubelet's calls for claims to domains. As a context manager it lets what is under way end.

    ``namespaces`` are those of NVIDIA's controller, from which alone claims of daemons are let in.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        domains: Domains,
        record: Record,
        files: DomainFiles,
        inventory: Callable[[], Inventory],
        namespaces: Collection[str],
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__(patience)
        self._client = client
        self._domains = domains
        self._record = record
        self._files = files
        self._inventory = inventory
        self._namespaces = namespaces
        self._calls = Calls()

    async def __aenter__(self) -> "DomainClaims":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._calls.end()

    async def _prepare(self, ref: ClaimRef, asked: float) -> Prepared:
        self._calls.note(ref.uid)
        return await self._calls.whole(self._made_usable(ref, asked))

    async def _unprepare(self, ref: ClaimRef, asked: float) -> Prepared:
        self._calls.note(ref.uid, unprepare=True)
        await self._calls.whole(self._given_back(ref.uid))
        return ()

    async def sweep(self) -> None:
        """Give back what claims held that are gone without a word.

        Raises KubeError, StateError and CdiError; ClaimUnreadable for a claim that is there and not understood.
        """
        for entry in await self._record.all():
            ref = ClaimRef(uid=ClaimUid(entry.uid), namespace=entry.namespace, name=entry.name)
            # Asked in its turn: a claim that was free a moment ago may be somebody's by now.
            async with self._turn(ref.uid) as entries:
                if not await self._is_gone(ref):
                    continue
                await self._give_back(ref.uid, entries)
                log.info("what a claim held that is gone was given back", claim=ref.full_name, uid=ref.uid)

    async def _made_usable(self, ref: ClaimRef, asked: float) -> Prepared:
        async with self._calls.turn(ref.uid):
            self._calls.refuse_late(ref.uid, asked)
            claim = allocated(await self._client.find(RESOURCE_CLAIMS, ref.name, ref.namespace), ref)
            wish, clique = wish_of(claim), self._clique()
            domain = await self._domains.find(wish.domain, self._namespace_of_domain(claim, wish))
            entry = await self._held(claim, wish)
            if wish.kind is Kind.CHANNEL and not entry.prepared:
                await self._joined(domain, clique)
            names = await self._written(claim, wish, domain, clique)
            await self._kept(claim, wish)
        log.info("claim prepared", claim=claim.full_name, uid=claim.uid, domain=str(domain), device=wish.result.device)
        return (_prepared(wish, names),)

    def _namespace_of_domain(self, claim: Claim, wish: Wish) -> str:
        """The namespace in which the claim's domain is looked for, empty for all. Raises DomainRefused.

        A workload's claim is beside its domain, a daemon's beside NVIDIA's controller: whoever has one has all GPUs.
        """
        if wish.kind is Kind.CHANNEL:
            return claim.namespace
        if claim.namespace in self._namespaces:
            return ""
        raise DomainRefused(
            f"claim {claim.full_name} is for a ComputeDomain's daemon, which gets every GPU of the node: it has to be "
            "in a namespace of NVIDIA's controller, which by agent.frontDoors.computeDomainNamespaces is "
            f"{' or '.join(sorted(self._namespaces)) or 'none'}"
        )

    async def _held(self, claim: Claim, wish: Wish) -> Entry:
        """Hold the device for the claim. Raises DeviceHeld while another claim has it."""
        async with self._record.turn() as entries:
            for other in entries.others(claim.uid):
                if other.kind is wish.kind:
                    raise DeviceHeld(
                        f"{wish.result.device} is held by the claim {other.namespace}/{other.name} in the "
                        f"ComputeDomain {other.domain}: a node serves one at a time"
                    )
            entry = entries.get(claim.uid) or _entry(claim, wish)
            if (entry.domain, entry.kind) != (wish.domain, wish.kind):
                raise DeviceHeld(f"claim {claim.full_name} was allocated anew before it was given back here")
            await entries.put(entry)
            return entry

    async def _kept(self, claim: Claim, wish: Wish) -> None:
        """Write down that the pod may start. Raises Overtaken where another agent of the node was told it has ended."""
        async with self._record.turn() as entries:
            if entries.get(claim.uid) is None:
                await self._files.remove(claim.uid)
                raise Overtaken(f"claim {claim.full_name} was unprepared while it was prepared: nothing is left of it")
            await entries.put(_entry(claim, wish, prepared=True))

    async def _joined(self, domain: Domain, clique: str | None) -> None:
        await self._domains.serve(domain)
        if not await self._domains.is_ready(domain, clique):
            raise DomainNotReady(
                f"{domain} is not ready on this node: its daemon, which the node's label attracts, does not say so yet"
            )

    async def _written(self, claim: Claim, wish: Wish, domain: Domain, clique: str | None) -> tuple[str, ...]:
        device = wish.result.device
        if wish.kind is Kind.CHANNEL:
            return await self._files.channel(claim.uid, device, every=wish.every, clique=clique)
        return await self._files.daemon(claim.uid, device, domain, clique)

    @asynccontextmanager
    async def _turn(self, uid: ClaimUid) -> AsyncIterator[Entries]:
        async with self._calls.turn(uid), self._record.turn() as entries:
            yield entries

    async def _given_back(self, uid: ClaimUid) -> None:
        async with self._turn(uid) as entries:
            await self._give_back(uid, entries)

    async def _give_back(self, uid: ClaimUid, entries: Entries) -> None:
        """The label goes before the record: whoever has the device next finds the node free."""
        await self._files.remove(uid)
        if (entry := entries.get(uid)) is None:
            return
        if entry.kind is Kind.CHANNEL:
            await self._domains.leave(entry.domain)
        if not any(other.domain == entry.domain for other in entries.others(uid)):
            await self._files.forget(entry.domain)
        await entries.remove(uid)
        log.info("claim unprepared", claim=f"{entry.namespace}/{entry.name}", uid=uid)

    async def _is_gone(self, ref: ClaimRef) -> bool:
        """Whether the claim is deleted, or was freed or allocated elsewhere and the kubelet never said so."""
        found = await self._client.find(RESOURCE_CLAIMS, ref.name, ref.namespace)
        if found is None or found["metadata"]["uid"] != ref.uid:
            return True
        return not any(result.pool == self._domains.node for result in claim_of(found).of_driver(DRIVER))

    def _clique(self) -> str | None:
        inventory = self._inventory()
        if not inventory.generation or inventory.problem is not None:
            raise PoolUnknown(
                f"which clique this node is in is not known yet: {inventory.problem or 'its GPUs are being looked at'}"
            )
        return inventory.clique


def _entry(claim: Claim, wish: Wish, *, prepared: bool = False) -> Entry:
    return Entry(
        uid=claim.uid,
        namespace=claim.namespace,
        name=claim.name,
        domain=wish.domain,
        kind=wish.kind,
        prepared=prepared,
    )


def _prepared(wish: Wish, names: tuple[str, ...]) -> PreparedDevice:
    result = wish.result
    return PreparedDevice(
        requests=(result.base_request,),
        pool=result.pool,
        device=result.device,
        cdi_ids=names,
        share_id=result.share_id,
    )
