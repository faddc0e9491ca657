"""The running agent: its services, and the one status that they add up to."""

import time
from collections.abc import Mapping
from functools import cached_property

from msgspec import Struct, field
from msgspec.structs import asdict

from node_agent import __version__
from node_agent.agent.dra import DraDriver
from node_agent.agent.layouts import NodeLayouts
from node_agent.agent.live import Live
from node_agent.agent.reload import Configuration, Reloader
from node_agent.agent.supervisor import Supervisor
from node_agent.allocation.ledger import Ledger
from node_agent.cdi.names import file_name
from node_agent.cdi.publisher import SpecPublisher
from node_agent.deviceplugin.holding import LimitDoor
from node_agent.deviceplugin.plugin import DevicePlugin
from node_agent.hardware.inventory import InventoryKeeper
from node_agent.health.board import HealthBoard
from node_agent.health.looks import LastLooks
from node_agent.kit.latest import Latest
from node_agent.model.partition import DeviceUuid
from node_agent.reporting.health_view import HealthView
from node_agent.reporting.holders import Holders
from node_agent.reporting.node_reporter import Reports
from node_agent.reporting.overview import Overview, overview
from node_agent.reporting.page import Setting
from node_agent.reporting.parts import CdiStatus, ClaimsStatus, ResourceStatus, ServiceStatus
from node_agent.reporting.readiness import Facts
from node_agent.reporting.readiness_watch import ReadinessWatch
from node_agent.reporting.status import ConfigStatus, LayoutStatus, Status, status
from node_agent.sharing.mps.daemons import MpsDaemons
from node_agent.sharing.time_slices import TimeSlices


class Agent(Struct, frozen=True, kw_only=True, dict=True):
    """What ``build`` put together. ``run`` works until cancelled; ``status`` may be asked at any time."""

    live: Live
    keeper: InventoryKeeper
    board: HealthBoard
    health: HealthView
    looks: LastLooks
    holders: Holders
    publisher: SpecPublisher
    ledger: Ledger
    limits: LimitDoor
    slices: TimeSlices
    mps: MpsDaemons
    served: Latest[Mapping[DeviceUuid, str | None]]
    plugins: Mapping[str, DevicePlugin]
    layouts: NodeLayouts
    supervisor: Supervisor
    reloader: Reloader | None = None
    configuration: Configuration | None = None
    reports: Reports = field(default_factory=lambda: Latest({}))
    claims: Latest[DraDriver | None] = field(default_factory=lambda: Latest(None))
    started: float = field(default_factory=time.time)

    @cached_property
    def readiness(self) -> ReadinessWatch:
        """Whether the agent can do its work, and why not."""
        return ReadinessWatch(
            self._facts,
            (self.keeper.inventory, self.board.report, self.publisher.published, self.supervisor.states, self.served),
        )

    async def run(self) -> None:
        await self.supervisor.run()

    def status(self) -> Status:
        return status(
            self._facts(),
            self.readiness.look(),
            version=__version__,
            node=self.live.settings.value.node_name,
            started=self.started,
            config=self._config(),
            reports=[one for one in self.reports.value.values() if one.standing or one.trouble],
            layout=self._layout(),
            notices=(
                *self.live.selection.value.notes(self.keeper.inventory.value),
                *self.slices.troubles.value.values(),
                *self.layouts.room.notes.value,
            ),
        )

    async def overview(self) -> Overview:
        """What page and ``top`` show of GPUs and pods."""
        inventory = self.keeper.inventory.value
        # Only of MIG devices figures are shown that a look does not have anyway.
        looks = await self.looks.with_figures() if inventory.partitions else self.looks.last.value
        return overview(
            node=self.live.settings.value.node_name,
            inventory=inventory,
            health=self.board.report.value,
            looks=looks,
            holdings=self.holders.value,
        )

    def settings(self) -> list[Setting]:
        """Every value in force, and where it came from; nothing where the agent was given settings only."""
        found = self.reloader.resolved if self.reloader else self.configuration.first if self.configuration else None
        if found is None:
            return []
        return [Setting(key=key, value=str(value), source=found.origin[key]) for key, value in found.values.items()]

    def _facts(self) -> Facts:
        inventory, stalled = self.keeper.inventory.value, self.keeper.stalled
        served, layout = self.served.value, self._layout()
        return Facts(
            inventory=inventory,
            health=self.board.report.value,
            resources=[_resource(one) for one in self.plugins.values()]
            if self.live.settings.value.device_plugin
            else None,
            claims=self._claims(),
            cdi=self._cdi(),
            services=self._services(),
            stalled=f"the driver hangs in {stalled.call} for {stalled.seconds:.0f} s" if stalled else None,
            mps={gpu.name: served[gpu.uuid] for gpu in inventory.gpus if gpu.uuid in served},
            layout=layout.reasons if layout is not None and layout.phase != "success" else (),
        )

    def _claims(self) -> ClaimsStatus | None:
        driver = self.claims.value
        if driver is None:
            return None
        registration, published = driver.server.registration.value, driver.publisher.state.value
        return ClaimsStatus(
            driver=self.live.settings.value.vendor.driver,
            phase=registration.phase,
            detail=registration.detail,
            registrations=registration.count,
            generation=published.generation,
            slices=published.slices,
            devices=published.devices,
            required=self.live.settings.value.dra is True,
            trouble=published.trouble,
        )

    def offered(self) -> dict[str, dict[str, int | None]]:
        """The NUMA node of each device that is offered by limits, by resource and id, whatever its health."""
        offers = [plugin.offer.value for plugin in self.plugins.values()]
        return {one.resource: {each.id: each.numa_node for each in one.devices if not each.gone} for one in offers}

    def _config(self) -> ConfigStatus | None:
        if self.reloader is None:
            return None
        waits = [f"{name}: {device}" for name, plugin in self.plugins.items() for device in plugin.draining]
        return ConfigStatus(**asdict(self.reloader.state.value), waits=tuple(waits))

    def _layout(self) -> LayoutStatus | None:
        state = self.layouts.layouts.state.value
        if state is None:
            return None
        return LayoutStatus(name=state.name, source=state.source, phase=state.phase, reasons=tuple(state.reasons))

    def _cdi(self) -> CdiStatus:
        published, settings = self.publisher.published.value, self.live.settings.value
        kind = settings.vendor.cdi_kind
        return CdiStatus(
            path=str(settings.paths.cdi_dir / file_name(kind)),
            kind=kind,
            devices=len(published.gpus),
            notes=tuple(str(one) for one in published.left_out),
            trouble=published.trouble,
        )

    def _services(self) -> list[ServiceStatus]:
        return [
            ServiceStatus(name=name, condition=state.condition, restarts=state.restarts, trouble=state.trouble)
            for name, state in self.supervisor.states.value.items()
        ]


def _resource(plugin: DevicePlugin) -> ResourceStatus:
    offer, registration = plugin.offer.value, plugin.server.registration.value
    return ResourceStatus(
        name=offer.resource,
        phase=registration.phase,
        detail=registration.detail,
        registrations=registration.count,
        devices=len(offer.devices),
        healthy=sum(device.healthy for device in offer.devices),
        withheld=tuple(dict.fromkeys(f"{one.gpu}: {one.trouble}" for one in offer.devices if one.trouble)),
        trouble=plugin.trouble.value,
    )
