"""Puts the DRA driver together, for ``build``: from the API server's address to the services that the agent runs."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from node_agent.agent.access import access_of
from node_agent.agent.mps import forget_gone_claims
from node_agent.agent.supervisor import Run
from node_agent.allocation.conflicts import taken_places
from node_agent.allocation.grants import Door
from node_agent.allocation.ledger import Ledger
from node_agent.allocation.prepare import Preparer
from node_agent.allocation.specs import ClaimSpecs
from node_agent.allocation.steps import Step, Steps
from node_agent.allocation.upkeep import Upkeep
from node_agent.cdi.edits import ContainerEdits, NodeEdits
from node_agent.cdi.writer import SpecWriter
from node_agent.config.settings import Settings
from node_agent.deviceplugin.holding import LimitDoor
from node_agent.dra.claim_source import NodeClaims
from node_agent.dra.health import HealthFeed
from node_agent.dra.metadata import Attributes
from node_agent.dra.metadata_step import MetadataStep
from node_agent.dra.mig_cutter import Cutter
from node_agent.dra.mig_step import MigStep
from node_agent.dra.mig_sweep import MigSweep
from node_agent.dra.mps_step import MpsStep
from node_agent.dra.operations import ClaimOperations
from node_agent.dra.partitions import LivePartitions
from node_agent.dra.pool import PoolKeeper
from node_agent.dra.publisher import SlicePublisher
from node_agent.dra.server import DraServer
from node_agent.dra.sharing import Sharers
from node_agent.dra.slices import PoolSettings, cut_on_demand
from node_agent.dra.status_writer import StatusWriter
from node_agent.dra.time_slice_step import TimeSliceStep
from node_agent.dra.withheld import Withholder
from node_agent.errors import KubeAccessError, NodeAgentError, PoolUnknown
from node_agent.hardware.provider import Partitioning
from node_agent.kit.alone import alone
from node_agent.kit.backoff import spread
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log
from node_agent.kube.access import Access
from node_agent.kube.client import KubeClient
from node_agent.model.claim import Claim
from node_agent.model.device import PublishedDevice
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory
from node_agent.model.partition import DeviceUuid, Partition, Place
from node_agent.sharing.mps.daemons import MpsDaemons
from node_agent.sharing.time_slices import TimeSlices

# How often claims that went without a word are looked for, and how soon again where that failed.
RECONCILE_SECONDS, RETRY_SECONDS = 3600.0, 30.0

log = Log(__name__)


class Surroundings(Struct, frozen=True, kw_only=True):
    """What the driver works with and does not own."""

    settings: Settings
    pool_settings: Latest[PoolSettings]
    inventory: Latest[Inventory]
    health: Latest[HealthReport]
    edits: Latest[NodeEdits | None]
    edits_of: Callable[[Partition], Awaitable[ContainerEdits]]
    partitioning: Partitioning
    rescan: Callable[[], None]
    removed: Callable[[GpuUuid, int], None]
    ledger: Ledger
    limits: LimitDoor
    files: Lane
    mps: MpsDaemons
    served: Latest[Mapping[DeviceUuid, str | None]]
    what_mps_lacks: Callable[[], str | None]
    slices: TimeSlices
    live: Latest[Settings]

    @property
    def driver(self) -> str:
        return self.settings.vendor.driver

    @property
    def plugin_folder(self) -> Path:
        """The driver's own, of those that the kubelet gives to plugins."""
        return self.settings.paths.kubelet_dir / "plugins" / self.driver


def chosen_access(settings: Settings) -> Access | None:
    """How the API server is reached; None where the driver is off, or ``auto`` and there is no way.

    Raises:
        KubeAccessError: the driver is on, and there is no way or no name of the node.
    """
    if settings.dra is False:
        return None
    try:
        return access_of(settings)
    except KubeAccessError as error:
        if settings.dra is True:
            raise
        log.info("no claims are served", reason=error)
        return None


class DraDriver(Struct, frozen=True, kw_only=True):
    """The driver's parts, and the services to run by name."""

    pool: PoolKeeper
    publisher: SlicePublisher
    server: DraServer
    services: Mapping[str, Run]


@asynccontextmanager
async def dra_driver(access: Access, around: Surroundings) -> AsyncIterator[DraDriver]:
    """The driver, with its connections; they end with the block."""
    settings = around.settings
    cutting = _cutting(around)
    withholder = Withholder(around.ledger.grants, around.served, cutting.sweep.strays, around.inventory)
    pool = _pool(around, withholder.places)
    async with KubeClient(access) as client:
        specs = ClaimSpecs(
            kind=settings.vendor.cdi_claim_kind,
            writer=SpecWriter(settings.paths.cdi_dir),
            lane=around.files,
            edits=around.edits,
            partition=cutting.live.edits_at,
        )
        sharers = _sharers(around, pool, cutting.live)
        steps = Steps(around.ledger, [cutting.step, *_steps(around, pool, sharers, cutting.live)])
        async with Preparer(driver=around.driver, ledger=around.ledger, specs=specs, steps=steps) as preparer:
            upkeep = Upkeep(ledger=around.ledger, specs=specs, preparer=preparer)
            claims = NodeClaims(client, driver=around.driver, pool=settings.node_name, grants=around.ledger.grants)
            driver = _assembled(around, client, claims, pool, sharers, preparer=preparer)
            yield replace(
                driver,
                services={
                    **driver.services,
                    "dra withheld": lambda: withholder.run(pool.pool),
                    "mig sweep": cutting.sweep.run,
                    "claim upkeep": upkeep.run,
                    "claim reconciliation": lambda: _reconcile(around.ledger, claims, upkeep, pool, sharers),
                    "mps of gone claims": lambda: forget_gone_claims(around.mps, around.ledger),
                },
            )


class Cutting(Struct, frozen=True, kw_only=True):
    """What cuts GPUs for claims."""

    step: MigStep
    sweep: MigSweep
    live: LivePartitions


def _cutting(around: Surroundings) -> Cutting:
    ledger, inventory = around.ledger, around.inventory

    async def held() -> frozenset[Place]:
        await ledger.look()
        return taken_places(ledger.grants.value.values())

    cutter = Cutter(
        around.partitioning,
        held=held,
        sweeps=lambda: around.live.value.mig_sweep,
        changed=around.rescan,
        removed=around.removed,
        locks=around.settings.paths.state_dir,
    )
    live = LivePartitions(
        inventory=inventory, edits=around.edits, partitioning=around.partitioning, edits_of=around.edits_of
    )

    def on_demand(gpu: Gpu) -> bool:
        """What claims cannot have, or not cut, is none of their business, however wide the words are."""
        settings = around.pool_settings.value
        can_be = cut_on_demand(gpu, inventory.value, settings) is not None
        return can_be and gpu.uuid in settings.offered(inventory.value)

    return Cutting(
        step=MigStep(cutter=cutter, live=live, inventory=inventory, on_demand=on_demand),
        sweep=MigSweep(
            cutter=cutter,
            ledger=ledger,
            inventory=inventory,
            settings=around.pool_settings,
            on_demand=on_demand,
        ),
        live=live,
    )


def _pool(around: Surroundings, withheld: Latest[frozenset[Place]]) -> PoolKeeper:
    return PoolKeeper(
        inventory=around.inventory, health=around.health, withheld=withheld, settings=around.pool_settings
    )


def _sharers(around: Surroundings, pool: PoolKeeper, live: LivePartitions) -> Sharers:
    return Sharers(
        driver=around.driver,
        published=lambda: _published(pool),
        gpus=lambda: around.inventory.value.by_uuid,
        lacks=around.what_mps_lacks,
        enforcement=lambda: around.live.value.dra_enforce_limits,
        partition=live.known,
    )


def _published(pool: PoolKeeper) -> dict[str, PublishedDevice]:
    found = pool.pool.value
    return {str(name): device for name, device in found.devices.items()} if found is not None else {}


def _known(pool: PoolKeeper, inventory: Inventory) -> dict[str, PublishedDevice]:
    """The same for claims that are to be prepared: nothing yet is not the same as nothing. Raises PoolUnknown."""
    found, problem = pool.pool.value, inventory.problem
    if found is None or (problem and not found.devices):
        raise PoolUnknown(f"which devices this node has is not known yet: {problem or 'they are being looked at'}")
    return _published(pool)


def _steps(around: Surroundings, pool: PoolKeeper, sharers: Sharers, live: LivePartitions) -> list[Step]:
    inventory = around.inventory
    sharing: list[Step] = [
        TimeSliceStep(slices=around.slices, grants=around.ledger.grants),
        MpsStep(daemons=around.mps, uses=sharers.uses, cuda=lambda: inventory.value.driver.cuda),
    ]
    if not around.settings.dra_metadata:
        return sharing

    def attributes() -> dict[str, Attributes]:
        """As published, and the UUIDs of partitions that were made for claims."""
        found = pool.pool.value
        slices = found.slices if found is not None else ()
        told = {one["name"]: one["attributes"] for part in slices for one in part.content.get("devices", ())}
        for name, device in _published(pool).items():
            if device.part is not None and (made := live.known(device.places[0])) is not None:
                told[name] = {**told[name], "uuid": {"string": made.uuid}}
        return told

    metadata = MetadataStep(driver=around.driver, folder=around.plugin_folder, attributes=attributes, lane=around.files)
    return [*sharing, metadata]


def _assembled(
    around: Surroundings,
    client: KubeClient,
    claims: NodeClaims,
    pool: PoolKeeper,
    sharers: Sharers,
    *,
    preparer: Preparer,
) -> DraDriver:
    settings, driver, published = around.settings, around.driver, partial(_published, pool)
    operations = ClaimOperations(
        driver=driver,
        claims=claims,
        preparer=preparer,
        published=lambda: _known(pool, around.inventory.value),
        with_modes=sharers.with_modes,
        holders_known=around.limits.be_sure,
    )
    server = DraServer(
        driver=driver,
        folder=around.plugin_folder,
        registry=settings.paths.kubelet_dir / "plugins_registry",
        operations=operations,
        feed=lambda: HealthFeed(
            pool=settings.node_name, report=around.health, inventory=around.inventory, published=published
        ),
    )
    status = StatusWriter(
        driver=driver,
        client=client,
        claims=claims,
        grants=around.ledger.grants,
        inventory=around.inventory,
        health=around.health,
        published=published,
    )
    publisher = SlicePublisher(client=client, node=settings.node_name, pool=pool.pool, driver=driver)

    async def publish() -> None:
        # Of two agents one publishes: each hears in its own time of what the other has given out and what is sick, and
        # would undo what the other has written.
        async with alone(settings.paths.state_dir / "slices.lock"):
            await publisher.run()

    async def serve() -> None:
        # No claim is prepared before the ledger has what pods got by their limits.
        await around.limits.synced.wait()
        await server.run()

    return DraDriver(
        pool=pool,
        publisher=publisher,
        server=server,
        services={
            "dra pool": pool.run,
            "dra slices": publish,
            "dra server": serve,
            "claim status": status.run,
        },
    )


async def _reconcile(ledger: Ledger, claims: NodeClaims, upkeep: Upkeep, pool: PoolKeeper, sharers: Sharers) -> None:
    """At the start, every hour and when the ledger was lost: learn which claims there are, clean up after others."""
    async for _ in changes(ledger.unreconciled, every=lambda: spread(RECONCILE_SECONDS)):
        while not await _reconciled(ledger, claims, upkeep, pool, sharers):
            await asyncio.sleep(spread(RETRY_SECONDS))


async def _reconciled(ledger: Ledger, claims: NodeClaims, upkeep: Upkeep, pool: PoolKeeper, sharers: Sharers) -> bool:
    try:
        await upkeep.begin()
        as_of = time.monotonic()
        live = await (
            claims.all() if Door.CLAIM in ledger.unreconciled.value else claims.live(ledger.grants_of(Door.CLAIM))
        )
        devices = await _devices(pool)
        await upkeep.reconcile([_with_modes(claim, sharers) for claim in live], devices, as_of)
    except NodeAgentError as error:
        log.error("claims cannot be reconciled", reason=error)
        return False
    return True


def _with_modes(claim: Claim, sharers: Sharers) -> Claim:
    """The claim with its modes; without, where its configuration is none: then it was never prepared either."""
    try:
        return sharers.with_modes(claim)
    except NodeAgentError as error:
        log.info("how a claim shares its devices is not understood", claim=claim.full_name, reason=error)
        return claim


async def _devices(pool: PoolKeeper) -> dict[str, PublishedDevice]:
    """What is published from this node, as soon as that is known."""
    async for found in pool.pool.watch():
        if found is not None:
            break
    return _published(pool)
