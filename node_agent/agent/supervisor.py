"""Runs the agent's services side by side, and starts one again that failed.

A service that fails takes no other with it: it is started again with growing pauses, and its trouble shows in
``states`` until it has run steadily.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from node_agent.kit.backoff import pauses
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log

# A service that ran this long before it failed starts its pauses from the shortest again.
STEADY_SECONDS = 60.0

log = Log(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """Something with a name that runs until it is cancelled."""

    name: str
    run: Callable[[], Awaitable[None]]


class Condition(StrEnum):
    RUNNING = "running"
    RESTARTING = "restarting"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceState:
    """How a service fares; ``trouble`` is its last failure, in words."""

    condition: Condition = Condition.RUNNING
    restarts: int = 0
    trouble: str | None = None


class Supervisor:
    """Runs the services that were added until it is cancelled."""

    def __init__(self) -> None:
        self._services: list[Service] = []
        self.states: Latest[Mapping[str, ServiceState]] = Latest({})

    def add(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Add a service; all must be added before ``run``."""
        service = Service(name=name, run=run)
        self._services.append(service)
        self._set(service, ServiceState())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for service in self._services:
                group.create_task(self._keep_running(service), name=service.name)

    async def _keep_running(self, service: Service) -> None:
        tries = pauses()
        while True:
            began = time.monotonic()
            try:
                await service.run()
                trouble = "it ended by itself"
            except Exception as error:
                trouble = f"{type(error).__name__}: {error}"
                log.exception("service failed", service=service.name, trouble=trouble)
            if time.monotonic() - began > STEADY_SECONDS:
                tries = pauses()
            await self._restart(service, trouble, next(tries))

    async def _restart(self, service: Service, trouble: str, pause: float) -> None:
        restarts = self.states.value[service.name].restarts + 1
        self._set(service, ServiceState(condition=Condition.RESTARTING, restarts=restarts, trouble=trouble))
        await asyncio.sleep(pause)
        self._set(service, replace(self.states.value[service.name], condition=Condition.RUNNING))

    def _set(self, service: Service, state: ServiceState) -> None:
        self.states.set({**self.states.value, service.name: state})
