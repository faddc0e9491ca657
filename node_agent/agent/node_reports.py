"""Puts together what tells Kubernetes of the GPUs' health, for ``build``."""

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from node_agent.agent.access import access_of
from node_agent.config.settings import Settings
from node_agent.errors import KubeAccessError
from node_agent.kit.alone import alone
from node_agent.kit.logs import Log
from node_agent.kube.calls import Patience
from node_agent.kube.client import KubeClient
from node_agent.reporting.health_view import HealthView
from node_agent.reporting.node_reporter import ConditionWriter, EventWriter, NodeReporter, Writer

# Nobody waits for what is told, and the reporter has pauses of its own.
PATIENCE = Patience(attempt=10.0, budget=10.0)

Run = Callable[[], Coroutine[Any, Any, None]]

log = Log(__name__)


@asynccontextmanager
async def node_reports(settings: Settings, view: HealthView) -> AsyncIterator[Mapping[str, Run]]:
    """The services to run by name, with their connections, which end with the block; none where there is nothing to
    tell, or nobody to be told.
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
                await NodeReporter(view, _writers(settings, client)).run()

        yield {"node reports": run}


def _writers(settings: Settings, client: KubeClient) -> list[Writer]:
    writers: list[Writer] = []
    if settings.node_condition:
        writers.append(ConditionWriter(client, settings.node_name))
    if settings.node_events:
        writers.append(EventWriter(client, settings.node_name, time.time()))
    return writers
