"""How long turns on each GPU are: what the configuration wants, or the claim that has the GPU, and else the default.

The driver tells nobody what is set and keeps it until it is loaded anew. So which GPUs have another interval than the
default is written down before it is set; an agent that comes after one that was killed undoes it, or goes on with it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path

import msgspec

from node_agent.errors import HardwareError, NotSupported, StateError
from node_agent.kit.files import write_atomic
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log
from node_agent.model.gpu import GpuUuid
from node_agent.sharing.shares import Interval

Intervals = Mapping[GpuUuid, Interval]

log = Log(__name__)


class IntervalFile:
    """The GPUs that may have another interval than the default, in a file. All calls block."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[GpuUuid, Interval] | None:
        """What was written; None where there is a file, and it says nothing that can be understood."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[GpuUuid, Interval])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            log.error("what an earlier agent has set is not known: all are set anew", file=self._path, reason=error)
            return None

    def write(self, intervals: Intervals) -> None:
        """Keep these. Raises StateError."""
        try:
            write_atomic(self._path, msgspec.json.encode(intervals), mode=0o600)
        except OSError as error:
            raise StateError(
                f"cannot write to {self._path} which time slices are set: {error.strerror}; none is changed"
            ) from error


class TimeSlices:
    """Has each GPU's interval be what is wanted; ``troubles`` say of which GPUs it is not what the configuration wants.

    ``set_interval`` sets one in the driver. What claims want goes before what is in ``keep``.
    """

    def __init__(
        self, *, set_interval: Callable[[GpuUuid, Interval], Awaitable[None]], file: IntervalFile, lane: Lane
    ) -> None:
        self._set_interval = set_interval
        self._file = file
        self._lane = lane
        self._noted: Intervals | None = None
        # Of a file that tells nothing any GPU may have been in.
        self._any = False
        self._configured: Intervals = {}
        self._in_force: dict[GpuUuid, Interval] = {}
        self._turns: defaultdict[GpuUuid, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._noting = asyncio.Lock()
        self.troubles: Latest[Mapping[GpuUuid, str]] = Latest({})

    async def keep(self, configured: Intervals, present: Collection[GpuUuid], claimed: Collection[GpuUuid]) -> bool:
        """Have the GPUs that are ``present`` set as configured, but for those that claims have set.

        One that was away has lost its setting. What cannot be set is in ``troubles``; False where another try may help.
        """
        self._configured = configured
        for gpu in self._in_force.keys() - set(present):
            del self._in_force[gpu]
        troubles, hopeless = {}, True
        noted = await self._notes()
        for gpu in sorted({*configured, *(present if self._any else noted)} & set(present) - set(claimed)):
            if self._in_force.get(gpu) is not configured.get(gpu, Interval.DEFAULT):
                try:
                    await self.restore(gpu)
                except (HardwareError, StateError) as error:
                    troubles[gpu] = str(error)
                    hopeless = hopeless and isinstance(error, NotSupported)
        if troubles != self.troubles.value:
            for gpu, trouble in troubles.items():
                log.warning("time slices are not as configured", gpu=gpu, reason=trouble)
        self.troubles.set(troubles)
        return hopeless

    async def restore(self, gpu: GpuUuid) -> None:
        """Set a GPU as it is configured, which is the default unless ``keep`` was told another. Raises as ``set``."""
        await self.set(gpu, self._configured.get(gpu, Interval.DEFAULT))

    async def set(self, gpu: GpuUuid, interval: Interval) -> None:
        """Set the interval of a GPU. The default is what one has that knows no other.

        Raises:
            NotSupported: the GPU has only the default.
            HardwareError: it could not be set.
            StateError: it could not be written down.
        """
        async with self._turns[gpu]:
            if interval is not Interval.DEFAULT:
                await self._note(gpu, interval)
            self._in_force.pop(gpu, None)
            try:
                await self._set_interval(gpu, interval)
            except NotSupported:
                # Nothing was set, so there is nothing to undo either.
                await self._note(gpu, Interval.DEFAULT)
                if interval is not Interval.DEFAULT:
                    raise
            self._in_force[gpu] = interval
            if interval is Interval.DEFAULT:
                await self._note(gpu, interval)
        log.info("time slices set", gpu=gpu, interval=interval)

    async def _notes(self) -> Intervals:
        async with self._noting:
            return await self._read()

    async def _read(self) -> Intervals:
        if self._noted is None:
            found = await self._lane.run("read which time slices are set", self._file.read)
            self._noted, self._any = found or {}, found is None
        return self._noted

    async def _note(self, gpu: GpuUuid, interval: Interval) -> None:
        async with self._noting:
            before = await self._read()
            after = {**before, gpu: interval}
            if interval is Interval.DEFAULT:
                del after[gpu]
            if after != before:
                await self._lane.run("note which time slices are set", partial(self._file.write, after))
                self._noted = after
