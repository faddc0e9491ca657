"""Puts the agent together from its settings: the one place that names concrete classes."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

from msgspec import Struct

from node_agent.agent.agent import Agent
from node_agent.agent.compute_domains import compute_domains
from node_agent.agent.dra import Surroundings, chosen_access, dra_driver
from node_agent.agent.hardware import VendorsProvider, driver_roots, host_of, provider_of
from node_agent.agent.health import health_services, remembering_board
from node_agent.agent.layouts import LayoutNews, NodeLayouts, layout_services, node_layouts
from node_agent.agent.listeners import status_services
from node_agent.agent.live import Live
from node_agent.agent.mps import MpsHealth, mps_daemons, what_mps_lacks
from node_agent.agent.mps_shares import MpsShares
from node_agent.agent.node_reports import ConfigNews, News, Told, node_reports
from node_agent.agent.plugins import DevicePlugins
from node_agent.agent.reload import Configuration, Reloader
from node_agent.agent.supervisor import Run, Supervisor
from node_agent.agent.time_slices import TimeSliceKeeper, time_slices
from node_agent.allocation.checkpoint import Checkpoint
from node_agent.allocation.grants import FRONT_DOORS, Door
from node_agent.allocation.ledger import Ledger
from node_agent.cdi.imex import channel_place
from node_agent.cdi.names import partition_device, qualified
from node_agent.cdi.nodes import Stat
from node_agent.cdi.publisher import SpecPublisher
from node_agent.cdi.writer import SpecWriter
from node_agent.config.settings import Settings
from node_agent.deviceplugin.answer import Answer, Naming, answer, as_client
from node_agent.deviceplugin.holding import LimitDoor
from node_agent.deviceplugin.offer import OfferedDevice
from node_agent.deviceplugin.plugin import DevicePlugin
from node_agent.deviceplugin.recheck import Recheck
from node_agent.deviceplugin.servicer import Give
from node_agent.errors import ConfigError
from node_agent.hardware.inventory import InventoryKeeper
from node_agent.hardware.names import NameFile
from node_agent.hardware.sysfs import Sysfs
from node_agent.hardware.validations import Validations
from node_agent.health.board import HealthBoard
from node_agent.health.looks import LastLooks
from node_agent.kit.boot import read_boot_id
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kubelet import podresources, written
from node_agent.kubelet.podresources import PodDevices, allocatable_devices
from node_agent.kubelet.routes import Route, SocketRoute, WatcherRoute
from node_agent.kubelet.written import WrittenDevices
from node_agent.model.inventory import Inventory
from node_agent.reporting.health_view import HealthView
from node_agent.reporting.holders import Holders
from node_agent.reporting.readiness_watch import ReadinessNews


class Ground(Struct, frozen=True, kw_only=True):
    """What is there before the agent's parts are put together; the lanes ``files`` and ``mps`` are for what blocks."""

    live: Live
    provider: VendorsProvider
    files: Lane
    mps: Lane
    ledger: Ledger
    board: HealthBoard
    pods: PodDevices
    stat: Stat
    configuration: Configuration | None


@asynccontextmanager
async def built(
    settings: Settings, stat: Stat = os.stat, configuration: Configuration | None = None
) -> AsyncIterator[Agent]:
    """The agent, with its threads started and nothing else: ``run`` it. The threads end with the block.

    ``stat`` looks at device nodes: another than the system's where a simulated node has only placeholders of them.
    ``configuration`` is where the settings are from, and followed while the agent runs.
    """
    _make_folders(settings)
    access = chosen_access(settings)
    async with AsyncExitStack() as opened:
        provider = provider_of(settings)
        await opened.enter_async_context(provider)
        files = opened.enter_context(Lane("files"))
        doors = FRONT_DOORS if access is not None else frozenset({Door.LIMIT})
        ledger = await opened.enter_async_context(_ledger(settings, opened.enter_context(Lane("ledger")), doors))
        ground = Ground(
            live=Live(settings),
            provider=provider,
            files=files,
            mps=opened.enter_context(Lane("mps")),
            ledger=ledger,
            board=await remembering_board(settings, files),
            pods=await opened.enter_async_context(
                PodDevices(settings.paths.kubelet_dir / podresources.SOCKET, settings.pod_name)
            ),
            stat=stat,
            configuration=configuration,
        )
        agent = _assemble(ground)
        if access is not None:
            driver = await opened.enter_async_context(dra_driver(access, _surroundings(ground, agent)))
            agent.claims.set(driver)
            for name, run in driver.services.items():
                agent.supervisor.add(name, run)
        followed = configuration is not None and configuration.labels is not None
        for services in (
            _node_reports(agent),
            layout_services(settings, agent.layouts, followed=followed),
            compute_domains(settings, driver_roots(settings), agent.keeper.inventory, files),
        ):
            for name, run in (await opened.enter_async_context(services)).items():
                agent.supervisor.add(name, run)
        yield agent


def _recheck(settings: Settings, plugins: Mapping[str, DevicePlugin], ledger: Ledger) -> Recheck:
    listed = partial(allocatable_devices, settings.paths.kubelet_dir / podresources.SOCKET)
    return Recheck(plugins, listed=listed, alone=lambda: ledger.is_alone)


def _node_reports(agent: Agent) -> AbstractAsyncContextManager[Mapping[str, Run]]:
    news: list[News] = [ReadinessNews(agent.readiness.lasting), LayoutNews(agent.layouts.layouts.state)]
    if agent.reloader:
        news.append(ConfigNews(agent.reloader.state))
    return node_reports(
        Told(
            live=agent.live,
            inventory=agent.keeper.inventory,
            health=agent.board.report,
            view=agent.health,
            news=news,
            readiness=agent.readiness.lasting,
            grants=agent.ledger.grants,
            offered=agent.offered,
            reports=agent.reports,
        )
    )


def _surroundings(ground: Ground, agent: Agent) -> Surroundings:
    settings = ground.live.settings.value
    roots = driver_roots(settings)
    return Surroundings(
        settings=settings,
        pool_settings=agent.live.pool,
        inventory=agent.keeper.inventory,
        health=agent.board.report,
        edits=agent.publisher.edits,
        edits_of=agent.publisher.edits_of,
        partitioning=ground.provider.partitioning,
        rescan=agent.keeper.rescan,
        removed=agent.board.removed,
        ledger=agent.ledger,
        limits=agent.limits,
        files=ground.files,
        mps=agent.mps,
        served=agent.served,
        what_mps_lacks=lambda: what_mps_lacks(ground.live.settings.value, roots),
        slices=agent.slices,
        live=agent.live.settings,
    )


def _ledger(settings: Settings, lane: Lane, doors: frozenset[Door]) -> Ledger:
    checkpoint = Checkpoint(settings.paths.state_dir / "ledger.json")
    return Ledger(checkpoint=checkpoint, lane=lane, boot_id=read_boot_id(), doors=doors)


def _make_folders(settings: Settings) -> None:
    """The agent's own folders; the kubelet's and the runtime's are theirs to make."""
    for key, folder in (("stateDir", settings.paths.state_dir), ("runDir", settings.paths.run_dir)):
        try:
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"agent.paths.{key}: cannot make {folder}: {error.strerror}") from error


async def inventory_once(settings: Settings) -> Inventory:
    """One look at the GPUs, for commands that need no agent."""
    async with provider_of(settings) as provider:
        keeper = _keeper(settings, provider, read_only=True)
        async with running(keeper.run()) as looking, running(_looked(keeper.inventory)) as looked:
            # A keeper that failed says so at the end of the block, instead of keeping the one who asked for ever.
            await asyncio.wait([looking, looked], return_when=asyncio.FIRST_COMPLETED)
        return keeper.inventory.value


async def _looked(inventory: Latest[Inventory]) -> None:
    async for found in inventory.watch():
        if found.generation:
            return


def _keeper(settings: Settings, provider: VendorsProvider, *, read_only: bool = False) -> InventoryKeeper:
    return InventoryKeeper(
        provider=provider,
        sysfs=Sysfs(root=settings.paths.sysfs_root),
        names=NameFile(settings.paths.state_dir / "names.json", read_only=read_only),
        period=settings.rescan_interval,
        validations=Validations(folder=settings.operator_validations, wanted=settings.operator_wait_for),
        vendor=settings.vendor,
    )


def _assemble(ground: Ground) -> Agent:
    live, ledger, settings = ground.live, ground.ledger, ground.live.settings.value
    keeper = _keeper(settings, ground.provider)
    inventory, roots = keeper.inventory, driver_roots(settings)
    publisher, pods = _publisher(ground, inventory), ground.pods

    async def is_right() -> bool:
        return await recheck.is_right()

    kept = WrittenDevices(settings.paths.kubelet_dir / written.FILE, is_right)
    limits = LimitDoor(ledger=ledger, held=pods.held, inventory=inventory, written=kept.look, told_since=pods.since)
    slices = _slices(ground, inventory)
    mps = mps_daemons(settings, roots, ground.provider.modes, inventory, ground.mps)
    mps_shares = MpsShares(
        daemons=mps, selection=live.selection, inventory=inventory, grants=ledger.grants, known=limits.synced
    )
    supervisor = Supervisor()
    make = partial(_plugin, ground, inventory, publisher=publisher, limits=limits, mps=mps_shares, again=kept.wanted)
    plugins = DevicePlugins(live.selection, inventory, make, supervisor) if settings.device_plugin else None
    recheck = _recheck(settings, plugins.plugins if plugins else {}, ledger)
    holders = Holders(settings.vendor.driver, ledger.grants, pods.last)
    agent = Agent(
        live=live,
        keeper=keeper,
        board=ground.board,
        health=_health_view(ground, keeper),
        looks=LastLooks(),
        holders=holders,
        publisher=publisher,
        ledger=ledger,
        limits=limits,
        slices=slices.slices,
        mps=mps,
        served=mps_shares.troubles,
        plugins=plugins.plugins if plugins else {},
        layouts=_layouts(ground, keeper, limits, pods, holders),
        supervisor=supervisor,
        reloader=_reloader(ground, inventory),
        configuration=ground.configuration,
    )
    for name, run in {
        **_hardware_services(ground, agent),
        **status_services(settings, agent),
        "readiness": agent.readiness.run,
        "ledger": ledger.run,
        "mps": mps.run,
        "mps health": MpsHealth(mps.states, ground.board, inventory).run,
        "mps shares": mps_shares.run,
        "limits": limits.run,
        "time slices": slices.run,
        **({"resources": plugins.run} if plugins else {}),
        "kubelet's devices": recheck.run,
        **({"configuration": agent.reloader.run} if agent.reloader else {}),
    }.items():
        supervisor.add(name, run)
    return agent


def _slices(ground: Ground, inventory: Latest[Inventory]) -> TimeSliceKeeper:
    settings = ground.live.settings.value
    return TimeSliceKeeper(
        slices=time_slices(settings, driver_roots(settings), ground.files),
        selection=ground.live.selection,
        inventory=inventory,
        grants=ground.ledger.grants,
    )


def _layouts(
    ground: Ground, keeper: InventoryKeeper, limits: LimitDoor, pods: PodDevices, holders: Holders
) -> NodeLayouts:
    configuration = ground.configuration
    return node_layouts(
        ground.live.settings,
        configuration.labels if configuration and configuration.labels else Latest(None),
        keeper=keeper,
        partitioning=ground.provider.partitioning,
        ledger=ground.ledger,
        limits=limits,
        pods=pods,
        holders=holders,
    )


def _reloader(ground: Ground, inventory: Latest[Inventory]) -> Reloader | None:
    """What follows the configuration, where it has documents that may change."""
    given = ground.configuration
    return Reloader(given, ground.live, inventory) if given is not None and given.sources.has_documents else None


def _publisher(ground: Ground, inventory: Latest[Inventory]) -> SpecPublisher:
    settings = ground.live.settings.value
    host, writer = host_of(settings, ground.stat), SpecWriter(settings.paths.cdi_dir)
    return SpecPublisher(inventory=inventory, host=host, writer=writer, lane=ground.files)


def _health_view(ground: Ground, keeper: InventoryKeeper) -> HealthView:
    return HealthView(
        node=ground.live.settings.value.node_name,
        inventory=keeper.inventory,
        report=ground.board.report,
        names=lambda: keeper.names,
        counts=lambda: ground.board.counts,
    )


def _hardware_services(ground: Ground, agent: Agent) -> Mapping[str, Run]:
    """What looks at the GPUs and says what they are."""
    watching = health_services(
        ground.live.settings,
        ground.board,
        keeper=agent.keeper,
        provider=ground.provider,
        published=agent.publisher.published,
        files=ground.files,
        looks=agent.looks,
    )
    return {"inventory": agent.keeper.run, **watching, "cdi": agent.publisher.run}


def _plugin(
    ground: Ground,
    inventory: Latest[Inventory],
    resource: str,
    *,
    publisher: SpecPublisher,
    limits: LimitDoor,
    mps: MpsShares,
    again: Latest[int],
) -> DevicePlugin:
    settings = ground.live.settings.value
    needs_cdi = any(strategy.startswith("cdi-") for strategy in settings.device_list_strategies)
    return DevicePlugin(
        resource=resource,
        route=_route(settings),
        selection=ground.live.selection,
        inventory=inventory,
        health=ground.board.report,
        cdi=publisher.published if needs_cdi else None,
        give=_giver(settings, resource, publisher, mps),
        held=limits.held,
        grants=ground.ledger.grants,
        take=limits.take,
        daemons=mps.troubles,
        again=again,
    )


def _route(settings: Settings) -> Route:
    kubelet = settings.paths.kubelet_dir
    if settings.registration == "watcher":
        return WatcherRoute(kubelet / "plugins_registry", kubelet / "plugins" / "gpu-node-agent")
    return SocketRoute(kubelet / "device-plugins")


def _giver(settings: Settings, resource: str, publisher: SpecPublisher, mps: MpsShares) -> Give:
    def channels() -> list[int]:
        """Those that are there; the toolkit would start no container with another."""
        edits = publisher.edits.value
        places = {node.path for node in edits.common.device_nodes} if edits is not None else set()
        return [number for number in settings.imex_channels if channel_place(number) in places]

    naming = Naming(
        qualified=lambda name: qualified(partition_device(name), settings.vendor.cdi_kind),
        by_index=settings.device_id_strategy == "index",
        annotation=f"{settings.cdi_annotation_prefix}node-agent_{resource.rpartition('/')[2]}",
        channels=channels,
    )

    def give(devices: Sequence[OfferedDevice]) -> Answer:
        found = answer(devices, settings.device_list_strategies, naming)
        client = mps.client_edits(devices)
        return found if client is None else as_client(found, client.environment, client.mounts)

    return give
