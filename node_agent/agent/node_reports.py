"""Puts together what tells Kubernetes of the node and its GPUs' health, for ``build``."""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Protocol

from msgspec import Struct

from node_agent.agent.access import access_of
from node_agent.agent.label_place import ONLINE, label_place
from node_agent.agent.live import Live
from node_agent.agent.node_labels import node_labels
from node_agent.agent.node_topology import topology_writer
from node_agent.agent.reload import ConfigState
from node_agent.agent.supervisor import Run
from node_agent.allocation.grants import Grant
from node_agent.config.settings import Settings
from node_agent.errors import KubeAccessError
from node_agent.hardware.machine import Machine, machine_of
from node_agent.hardware.sysfs import Sysfs
from node_agent.kit.alone import alone
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log
from node_agent.kube.access import Access
from node_agent.kube.calls import Patience
from node_agent.kube.client import KubeClient
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory
from node_agent.reporting.agent_condition import READY, agent_condition
from node_agent.reporting.health_view import HealthView
from node_agent.reporting.label_writer import LabelWriter
from node_agent.reporting.node_condition import HEALTHY, node_condition
from node_agent.reporting.node_events import LONGEST_NOTE, Notice
from node_agent.reporting.node_reporter import ConditionWriter, EventWriter, NodeReporter, Reports, Writer
from node_agent.reporting.readiness import Readiness
from node_agent.reporting.topology_object import Devices

# Nobody waits for what is told, and the reporter has pauses of its own.
PATIENCE = Patience(attempt=10.0, budget=10.0)

log = Log(__name__)


class News(Protocol):
    """Something besides health that Events tell of, whenever its ``source`` changes."""

    @property
    def source(self) -> Latest[Any]: ...

    def notices(self) -> Iterator[Notice]:
        """What is new since this was called last."""


class Told(Struct, frozen=True, kw_only=True):
    """What is there to be told, and ``reports``, which shows how that fares."""

    live: Live
    inventory: Latest[Inventory]
    health: Latest[HealthReport]
    view: HealthView
    news: Sequence[News]
    readiness: Latest[Readiness]
    grants: Latest[Mapping[str, Grant]]
    offered: Callable[[], Devices]
    reports: Reports


@asynccontextmanager
async def node_reports(told: Told) -> AsyncIterator[Mapping[str, Run]]:
    """The services to run by name, with their connections, which end with the block; none where there is nothing to
    tell, or nobody to be told. Events tell of the ``news``, too.
    """
    settings = told.live.settings.value
    async with AsyncExitStack() as opened:
        access = _access(settings)
        client = await opened.enter_async_context(KubeClient(access, patience=PATIENCE)) if access else None
        writers = _writers(told, client, access.namespace if access else "")

        async def run() -> None:
            more: list[Latest[Any]] = [told.live.selection, told.readiness, *(one.source for one in told.news)]
            more += [told.grants] if settings.node_topology else []
            # Of two agents one tells: both would find the same news.
            async with alone(settings.paths.state_dir / "node-reports.lock"):
                await NodeReporter(told.view, writers, more=more, reports=told.reports).run()

        yield {"node reports": run} if writers else {}


def _access(settings: Settings) -> Access | None:
    """The way to the API server, where something is to be told there and there is one."""
    asked = (settings.node_condition, settings.node_events, settings.node_topology, settings.labels.writer in ONLINE)
    if not any(asked):
        return None
    try:
        return access_of(settings)
    except KubeAccessError as error:
        log.info("nothing is told of the node", reason=error)
        return None


def _writers(told: Told, client: KubeClient | None, namespace: str) -> list[Writer]:
    settings = told.live.settings.value
    writers: list[Writer] = []
    if settings.node_condition and client is not None:
        writers.append(ConditionWriter(client, settings.node_name, HEALTHY, node_condition))
        readiness = told.readiness
        writers.append(
            ConditionWriter(client, settings.node_name, READY, lambda document: agent_condition(readiness.value))
        )
    if settings.node_events and client is not None:

        def others() -> Iterator[Notice]:
            return chain.from_iterable(one.notices() for one in told.news)

        writers.append(EventWriter(client, settings.node_name, time.time(), others))
    if (place := label_place(settings, client, namespace)) is not None:
        chosen = settings.labels
        stamped = chosen.stamped and settings.vendor.cuda
        writers.append(LabelWriter(place, _labels(told), take_over=chosen.take_over, stamped=stamped))
    if settings.node_topology and client is not None:
        writers.append(topology_writer(settings, client, told.offered, partial(_signs, told)))
    return writers


def _signs(told: Told) -> tuple[Any, ...]:
    """What differs when pods may have got or lost devices."""
    return told.inventory.value.generation, told.health.value, told.grants.value


def _labels(told: Told) -> Callable[[], Mapping[str, str] | None]:
    settings = told.live.settings.value
    sysfs = Sysfs(root=settings.paths.sysfs_root)

    @lru_cache(maxsize=1)
    def machine(_generation: int) -> Machine:
        return machine_of(sysfs, told.inventory.value.gpus, settings.labels.machine_file)

    def wanted() -> Mapping[str, str] | None:
        inventory = told.inventory.value
        return node_labels(told.live.selection.value, inventory, machine(inventory.generation), told.health.value)

    return wanted


class ConfigNews:
    """What is worth an Event in a configuration that changes: one that was refused, and that all is well again."""

    def __init__(self, state: Latest[ConfigState]) -> None:
        self.source = state
        self._refused, self._trouble = 0, False

    def notices(self) -> Iterator[Notice]:
        """What is new since this was called last."""
        found = self.source.value
        if found.trouble and found.refused > self._refused:
            yield _config_notice(
                "Warning", "GPUConfigurationRefused", f"{found.trouble}; {found.source} stays in force"
            )
        elif self._trouble and not found.trouble:
            yield _config_notice("Normal", "GPUConfigurationInForce", found.source)
        self._refused, self._trouble = found.refused, bool(found.trouble)


def _config_notice(kind: str, reason: str, note: str) -> Notice:
    return Notice(key=(reason, note), type=kind, reason=reason, note=note[:LONGEST_NOTE], action="ConfigurationChanged")
