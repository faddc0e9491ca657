"""NVML behind the hardware Protocols: a thread for all calls, and one more that waits for events.

What is called on those threads lives in the modules beside this one; here is only which thread it runs on.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from node_agent.errors import HardwareError
from node_agent.hardware.nvml import links, modes, partitions, profiles, scan
from node_agent.hardware.nvml.events import EventSet
from node_agent.hardware.nvml.readings import Reader
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.nvml.translate import Calls
from node_agent.hardware.provider import ComputeMode, GpuReadings, HardwareEvent, Scan
from node_agent.kit.lane import Busy, Lane
from node_agent.kit.logs import Log
from node_agent.model.gpu import GpuUuid, PartitionMode
from node_agent.model.links import LinkGraph
from node_agent.model.partition import Instance, PartitionProfile, PartitionUuid, Piece

log = Log(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# How long an orderly end may take; a call that hangs is left to end with the process.
_END_SECONDS = 3.0


class _Jobs:
    """Base of what asks the library: each method is one job on the thread of the calls."""

    def __init__(self, lane: Lane, session: Session) -> None:
        self._lane = lane
        self._session = session

    async def _run(self, job: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._lane.run(job.__name__, lambda: job(self._session, *args, **kwargs))


class NvmlDiscovery(_Jobs):
    """Discovery over NVML; ``waits`` are the calls of the thread that waits for events, which may hang, too."""

    def __init__(self, lane: Lane, session: Session, waits: Calls) -> None:
        super().__init__(lane, session)
        self._waits = waits

    @property
    def busy(self) -> Busy | None:
        """The NVML function that has not returned for the longest time."""
        running = [busy for busy in (self._session.calls.busy, self._waits.busy) if busy]
        return min(running, key=lambda busy: busy.since, default=None)

    async def scan(self) -> Scan:
        return await self._run(scan.scan)


class NvmlTopology(_Jobs):
    """Topology over NVML."""

    async def links(self, gpus: Collection[GpuUuid]) -> LinkGraph:
        return await self._run(links.links, gpus)


class NvmlPartitioning(_Jobs):
    """Partitioning over NVML: MIG."""

    async def profiles(self, gpu: GpuUuid) -> tuple[PartitionProfile, ...]:
        return await self._run(profiles.profiles, gpu)

    async def instances(self, gpu: GpuUuid) -> tuple[Instance, ...]:
        return await self._run(partitions.instances, gpu)

    async def set_mode(self, gpu: GpuUuid, enabled: bool) -> PartitionMode:
        return await self._run(partitions.set_mode, gpu, enabled)

    async def create(self, gpu: GpuUuid, piece: Piece) -> Instance:
        return await self._run(partitions.create, gpu, piece)

    async def destroy(self, gpu: GpuUuid, piece: Piece) -> None:
        await self._run(partitions.destroy, gpu, piece)


class NvmlReadings:
    """Readings over NVML."""

    def __init__(self, lane: Lane, reader: Reader) -> None:
        self._lane = lane
        self._reader = reader

    async def read(self, gpu: GpuUuid, *, figures: bool = False) -> GpuReadings:
        return await self._lane.run("read", partial(self._reader.read, gpu, figures=figures))


class NvmlModes(_Jobs):
    """Compute modes over NVML."""

    async def compute_mode(self, device: GpuUuid | PartitionUuid) -> ComputeMode:
        return await self._run(modes.compute_mode, device)

    async def set_compute_mode(self, device: GpuUuid | PartitionUuid, mode: ComputeMode) -> None:
        await self._run(modes.set_compute_mode, device, mode)


class NvmlEvents:
    """Events over NVML, on a thread of their own. What was reported outlives a wait that was cancelled.

    ``on_event`` is called on that thread, before an event is told to anyone.
    """

    def __init__(self, lane: Lane, session: Session, calls: Calls, on_event: Callable[[], None]) -> None:
        self._lane = lane
        self._session = session
        self._calls = calls
        self._on_event = on_event
        self._reported: deque[HardwareEvent] = deque()
        self._events: EventSet | None = None

    async def subscribe(self, gpus: Collection[GpuUuid]) -> Mapping[GpuUuid, Exception]:
        return await self._lane.run("subscribe", lambda: self._subscribe(gpus))

    async def next(self) -> HardwareEvent:
        while not self._reported:
            await self._lane.run("wait for events", self._wait)
        return self._reported.popleft()

    async def close(self) -> None:
        await self._lane.run("unsubscribe", self._close)

    def _subscribe(self, gpus: Collection[GpuUuid]) -> Mapping[GpuUuid, Exception]:
        """The new set is there before the old one goes: an event may come twice then, but never falls between."""
        events = EventSet(self._session, self._calls)
        unwatched = events.open(gpus)
        self._close()
        self._events = events
        return unwatched

    def _wait(self) -> None:
        if self._events is None:
            raise HardwareError("nobody has subscribed to the driver's events")
        # A wait before this one, whose caller has gone, may have got something: nobody is to wait a second for that.
        if not self._reported:
            self._report(self._events.wait())

    def _close(self) -> None:
        if self._events is not None:
            self._report(self._events.close())
        self._events = None

    def _report(self, events: Collection[HardwareEvent]) -> None:
        if events:
            self._on_event()
        self._reported.extend(events)


class NvmlProvider:
    """NVIDIA's GPUs on this node; an async context manager that owns the threads. ``sysfs`` is /sys of the host."""

    def __init__(self, sysfs: Path = Path("/sys")) -> None:
        self._asking, self._waiting = Lane("nvml", grace=0), Lane("nvml-events", grace=0)
        self._session, waits = Session(sysfs), Calls()
        reader = Reader(self._session)
        self._threads = ExitStack()
        self.discovery = NvmlDiscovery(self._asking, self._session, waits)
        self.topology = NvmlTopology(self._asking, self._session)
        self.events = NvmlEvents(self._waiting, self._session, waits, on_event=reader.forget)
        self.partitioning = NvmlPartitioning(self._asking, self._session)
        self.readings = NvmlReadings(self._asking, reader)
        self.modes = NvmlModes(self._asking, self._session)

    async def __aenter__(self) -> "NvmlProvider":
        self._threads.enter_context(self._asking)
        self._threads.enter_context(self._waiting)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self.events.close()
                await self._asking.run("shut down", self._session.close)
        except TimeoutError:
            log.warning("NVML is not shut down: a call hangs", call=self.discovery.busy)
        finally:
            self._threads.close()
