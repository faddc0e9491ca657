"""Puts the driver for ComputeDomains together, for ``build``."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from node_agent.agent.access import access_of
from node_agent.agent.dra import RECONCILE_SECONDS, RETRY_SECONDS
from node_agent.agent.supervisor import Run
from node_agent.cdi.roots import DriverRoots
from node_agent.cdi.writer import SpecWriter
from node_agent.computedomain.claims import DomainClaims
from node_agent.computedomain.domains import Domains
from node_agent.computedomain.edits import DomainFiles
from node_agent.computedomain.names import DRIVER
from node_agent.computedomain.pool import DomainPool
from node_agent.computedomain.record import Record
from node_agent.config.settings import Settings
from node_agent.dra.publisher import SlicePublisher
from node_agent.dra.server import DraServer
from node_agent.errors import NodeAgentError
from node_agent.kit.alone import alone
from node_agent.kit.backoff import spread
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log
from node_agent.kube.client import KubeClient
from node_agent.model.inventory import Inventory

# Its own name: the label is nobody's who writes those that describe the GPUs.
AGENT = "gpu-node-agent-compute-domains"

log = Log(__name__)


@asynccontextmanager
async def compute_domains(
    settings: Settings, roots: DriverRoots, inventory: Latest[Inventory], files: Lane
) -> AsyncIterator[Mapping[str, Run]]:
    """The services to run by name, with their connections, which end with the block; none where it is off.

    Raises:
        KubeAccessError: it is on, and there is no way to the API server.
    """
    if not settings.compute_domains:
        yield {}
        return
    kubelet, state = settings.paths.kubelet_dir, settings.paths.state_dir
    folder = kubelet / "plugins" / DRIVER
    async with (
        KubeClient(access_of(settings), agent=AGENT) as client,
        DomainClaims(
            client=client,
            domains=Domains(client, settings.node_name),
            record=Record(state / "compute-domains.json", files),
            files=DomainFiles(
                roots=roots, writer=SpecWriter(settings.paths.cdi_dir), folder=folder / "domains", lane=files
            ),
            inventory=lambda: inventory.value,
            namespaces=settings.compute_domain_namespaces,
        ) as claims,
    ):
        pool = DomainPool(roots, inventory, files)
        publisher = SlicePublisher(client=client, node=settings.node_name, pool=pool.pool, driver=DRIVER)
        server = DraServer(driver=DRIVER, folder=folder, registry=kubelet / "plugins_registry", operations=claims)

        async def publish() -> None:
            await _there(pool)
            async with alone(state / "compute-domain-slices.lock"):
                await publisher.run()

        async def serve() -> None:
            await _there(pool)
            await server.run()

        yield {
            "compute domain pool": pool.run,
            "compute domain slices": publish,
            "compute domain server": serve,
            "compute domain sweep": partial(_sweep, claims),
        }


async def _there(pool: DomainPool) -> None:
    """Wait for the first channel: a node without any is none of this driver's."""
    async for found in pool.pool.watch():
        if found is not None:
            return


async def _sweep(claims: DomainClaims) -> None:
    """Now and then, and soon again where it failed."""
    while True:
        pause = spread(RECONCILE_SECONDS)
        try:
            await claims.sweep()
        except NodeAgentError as error:
            log.error("claims to domains cannot be reconciled", reason=error)
            pause = spread(RETRY_SECONDS)
        await asyncio.sleep(pause)
