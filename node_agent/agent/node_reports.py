"""Puts together what tells Kubernetes of the GPUs' health, for ``build``."""

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

from node_agent.agent.access import access_of
from node_agent.agent.reload import ConfigState
from node_agent.agent.supervisor import Run
from node_agent.config.settings import Settings
from node_agent.errors import KubeAccessError
from node_agent.kit.alone import alone
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log
from node_agent.kube.calls import Patience
from node_agent.kube.client import KubeClient
from node_agent.reporting.health_view import HealthView
from node_agent.reporting.node_events import LONGEST_NOTE, Notice
from node_agent.reporting.node_reporter import ConditionWriter, EventWriter, NodeReporter, Writer

# Nobody waits for what is told, and the reporter has pauses of its own.
PATIENCE = Patience(attempt=10.0, budget=10.0)

log = Log(__name__)


@asynccontextmanager
async def node_reports(
    settings: Settings, view: HealthView, config: Latest[ConfigState] | None = None
) -> AsyncIterator[Mapping[str, Run]]:
    """The services to run by name, with their connections, which end with the block; none where there is nothing to
    tell, or nobody to be told. Of the ``config`` Events tell what was refused.
    """
    if not (settings.node_condition or settings.node_events):
        yield {}
        return
    try:
        access = access_of(settings)
    except KubeAccessError as error:
        log.info("nothing is told of the node's health", reason=error)
        yield {}
        return
    async with KubeClient(access, patience=PATIENCE) as client:

        async def run() -> None:
            # Of two agents one tells: both would find the same news.
            async with alone(settings.paths.state_dir / "node-reports.lock"):
                writers, more = _writers(settings, client, config), [config] if config is not None else []
                await NodeReporter(view, writers, more=more).run()

        yield {"node reports": run}


def _writers(settings: Settings, client: KubeClient, config: Latest[ConfigState] | None) -> list[Writer]:
    writers: list[Writer] = []
    if settings.node_condition:
        writers.append(ConditionWriter(client, settings.node_name))
    if settings.node_events:
        others = ConfigNews(config).notices if config is not None else tuple
        writers.append(EventWriter(client, settings.node_name, time.time(), others))
    return writers


class ConfigNews:
    """What is worth an Event in a configuration that changes: one that was refused, and that all is well again."""

    def __init__(self, state: Latest[ConfigState]) -> None:
        self._state = state
        self._refused, self._trouble = 0, False

    def notices(self) -> Iterator[Notice]:
        """What is new since this was called last."""
        found = self._state.value
        if found.trouble and found.refused > self._refused:
            yield _config_notice(
                "Warning", "GPUConfigurationRefused", f"{found.trouble}; {found.source} stays in force"
            )
        elif self._trouble and not found.trouble:
            yield _config_notice("Normal", "GPUConfigurationInForce", found.source)
        self._refused, self._trouble = found.refused, bool(found.trouble)


def _config_notice(kind: str, reason: str, note: str) -> Notice:
    return Notice(key=(reason, note), type=kind, reason=reason, note=note[:LONGEST_NOTE], action="ConfigurationChanged")
