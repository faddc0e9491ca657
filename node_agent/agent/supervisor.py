"""Runs the agent's services side by side, and starts one again that failed.

A service that fails takes no other with it: it is started again with growing pauses, and its trouble shows in
``states`` until it has run steadily.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from node_agent.errors import NodeAgentError
from node_agent.kit.backoff import pauses
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log
from node_agent.kit.tasks import cancel, running

# A service that has run this long is well again: its trouble is forgotten, and its pauses start from the shortest.
STEADY_SECONDS = 60.0

Run = Callable[[], Coroutine[Any, Any, None]]

log = Log(__name__)


class Service(Struct, frozen=True, kw_only=True):
    """Something with a name that runs until it is cancelled."""

    name: str
    run: Run


class Condition(StrEnum):
    RUNNING = "running"
    RESTARTING = "restarting"


class ServiceState(Struct, frozen=True, kw_only=True):
    """How a service fares; ``trouble`` is its last failure, in words, until it has run steadily since."""

    condition: Condition = Condition.RUNNING
    restarts: int = 0
    trouble: str | None = None


class Supervisor:
    """Runs services until it is cancelled; ``tries`` are the pauses before the next starts of one that failed."""

    def __init__(self, steady_seconds: float = STEADY_SECONDS, tries: Callable[[], Iterator[float]] = pauses) -> None:
        self._steady_seconds = steady_seconds
        self._tries = tries
        self._services: dict[str, Service] = {}
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.states: Latest[Mapping[str, ServiceState]] = Latest({})

    def add(self, name: str, run: Run) -> None:
        """Run a service from now on, or from when the others are. Raises ValueError where one has that name."""
        if name in self._services:
            raise ValueError(f"there is a service {name} already")
        service = self._services[name] = Service(name=name, run=run)
        self._set(service, ServiceState())
        if self._group is not None:
            self._start(self._group, service)

    async def remove(self, name: str) -> None:
        """End a service, and wait until it has ended."""
        del self._services[name]
        if task := self._tasks.pop(name, None):
            await cancel(task)
        self.states.set({other: state for other, state in self.states.value.items() if other != name})

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as self._group:
                for service in self._services.values():
                    self._start(self._group, service)
        finally:
            self._group = None

    def _start(self, group: asyncio.TaskGroup, service: Service) -> None:
        task = group.create_task(self._keep_running(service), name=f"keep {service.name}")
        self._tasks[service.name] = task

    async def _keep_running(self, service: Service) -> None:
        tries = self._tries()
        while True:
            trouble = await self._failure(service)
            if _being_cancelled():
                return  # it failed on its way out, and must not come back from there
            if self._state(service).trouble is None:
                tries = self._tries()
            await self._pause(service, trouble, next(tries))

    async def _failure(self, service: Service) -> str:
        """Run a service until it fails; answers why, in words."""
        try:
            async with running(service.run(), name=service.name) as task, running(self._forgive(service)):
                await asyncio.wait([task])
        except Exception as error:
            say = log.error if _is_told(error) else log.exception
            say("service failed", service=service.name, trouble=in_words(error))
            return in_words(error)
        log.error("service failed", service=service.name, trouble="it ended by itself")
        return "it ended by itself"

    async def _forgive(self, service: Service) -> None:
        await asyncio.sleep(self._steady_seconds)
        self._set(service, replace(self._state(service), trouble=None))

    async def _pause(self, service: Service, trouble: str, seconds: float) -> None:
        restarts = self._state(service).restarts + 1
        self._set(service, ServiceState(condition=Condition.RESTARTING, restarts=restarts, trouble=trouble))
        await asyncio.sleep(seconds)
        self._set(service, replace(self._state(service), condition=Condition.RUNNING))

    def _state(self, service: Service) -> ServiceState:
        return self.states.value[service.name]

    def _set(self, service: Service, state: ServiceState) -> None:
        self.states.set({**self.states.value, service.name: state})


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_told(error: BaseException) -> bool:
    """Whether it says what is wrong and what to do: where it came from is of no use to who reads it."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_told, error.exceptions))
    return isinstance(error, NodeAgentError)


def in_words(error: BaseException) -> str:
    """What an error says; of a group, what each of its errors says."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(in_words(one) for one in error.exceptions)
    return f"{type(error).__name__}: {error}"
