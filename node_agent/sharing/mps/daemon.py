"""Keeps the MPS daemon of one set of devices running as long as it has users, and puts all back afterwards.

Whatever is done outside is written down before: a mode that is set, a process that is started. So an agent that comes
after one that was killed goes on from there, and a daemon that runs is kept with all its clients.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from node_agent.errors import DeviceLost, MpsError, NodeAgentError, NotSupported, StateError
from node_agent.hardware.provider import ComputeMode, Modes
from node_agent.kit.alone import alone
from node_agent.kit.backoff import pauses
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log
from node_agent.kit.tasks import running
from node_agent.model.partition import DeviceUuid
from node_agent.sharing.mps import cgroups, place, processes
from node_agent.sharing.mps.control import PID_FILE, Control
from node_agent.sharing.mps.plan import (
    Folders,
    daemon_environment,
    default_commands,
    of_all,
    server_commands,
)
from node_agent.sharing.mps.processes import Process, ended, find_process
from node_agent.sharing.mps.records import Record, Records

T = TypeVar("T")

log = Log(__name__)


class Times(Struct, frozen=True, kw_only=True):
    """Seconds: between two looks whether a daemon answers, for its answer, for its pid, and to end once it was told to.

    One that was ready for ``steady`` seconds is well again: the pauses before the next starts are short again.
    """

    ask: float = 30.0
    answer: float = 5.0
    pid: float = 10.0
    quit: float = 5.0
    steady: float = 60.0
    longest_pause: float = 60.0


class Host(Struct, frozen=True, kw_only=True):
    """What all daemons of the node have in common.

    ``folder`` is on the host under this very path. ``program`` finds the control program, or raises MpsImpossible;
    ``sizes`` tells the memory of devices in bytes; ``lane`` is for what blocks.
    """

    folder: Path
    records: Records
    program: Callable[[], Path]
    modes: Modes
    lane: Lane
    sizes: Callable[[], Mapping[DeviceUuid, int]] = dict
    own_shm: bool = field(default_factory=place.may_mount)
    times: Times = field(default_factory=Times)

    def folders(self, key: str, record: Record) -> Folders:
        return Folders.below(self.folder / key, own_shm=record.own_shm)


class Phase(StrEnum):
    """STARTING until it has answered for the first time, READY while it answers, DOWN when it once did."""

    STARTING = "starting"
    READY = "ready"
    DOWN = "down"
    GONE = "gone"


class State(Struct, frozen=True, kw_only=True):
    """How a daemon fares; ``trouble`` is what keeps it from its work or from its end, in words."""

    phase: Phase = Phase.STARTING
    devices: tuple[DeviceUuid, ...] = ()
    trouble: str | None = None


class Daemon:
    """The daemon that goes by ``key``; ``state`` tells how it fares."""

    def __init__(self, key: str, host: Host) -> None:
        self.key = key
        self.state = Latest(State())
        self._host = host
        self._woken = asyncio.Event()
        self._waiting: set[asyncio.Future[Phase]] = set()
        self._tries = self._pauses()

    async def settled(self) -> Phase:
        """Say that its users have changed, and wait until that is done: READY with them, or GONE without any.

        Raises what keeps it from that, the first time; it goes on trying.
        """
        answer: asyncio.Future[Phase] = asyncio.get_running_loop().create_future()
        self._waiting.add(answer)
        self._woken.set()
        try:
            return await answer
        finally:
            self._waiting.discard(answer)

    async def run(self) -> None:
        """Keep it running until it has no user and is gone; failures are tried again, with growing pauses."""
        try:
            while self.state.value.phase is not Phase.GONE:
                waiting = tuple(self._waiting)
                try:
                    await self._tend(waiting)
                except NodeAgentError as error:
                    self._answer(waiting, error)
                    await self._pause(error)
            self._answer(tuple(self._waiting), Phase.GONE)
        finally:
            self._answer(
                tuple(self._waiting), MpsError("the agent ends; the MPS daemon does not, and is taken up again")
            )

    def _answer(self, waiting: Iterable["asyncio.Future[Phase]"], outcome: Phase | NodeAgentError) -> None:
        for answer in waiting:
            if answer.done():
                continue
            if isinstance(outcome, Phase):
                answer.set_result(outcome)
            else:
                answer.set_exception(outcome)

    async def _tend(self, waiting: Iterable["asyncio.Future[Phase]"]) -> None:
        """Bring it to what its record says, and keep it so until that changes."""
        self._woken.clear()
        record = await self._record(lambda record: record)
        if record is None or not record.users:
            await self._alone(self._end)
            return
        self.state.set(replace(self.state.value, devices=record.devices))
        process = record.process if record.process is not None and record.process.running else None
        if process is None and self.state.value.phase is Phase.READY:
            raise MpsError(f"the MPS daemon of {', '.join(record.devices)} has died, see {self._log}")
        if process is None:
            await self._alone(self._start)
            return
        async with running(ended(process)) as end:
            await self._serve(record, end, waiting)

    async def _alone(self, work: Callable[[Record], Awaitable[None]]) -> None:
        """Start or end the daemon while no other agent of the node does, by what is on record then."""
        try:
            async with alone(self._host.records.lock_of(self.key), every=0.1):
                record = await self._record(lambda record: record)
                if record is None:
                    self._say(Phase.GONE)
                else:
                    await work(record)
        except OSError as error:
            raise StateError(f"the MPS daemon {self.key} cannot be kept to one agent: {error}") from error

    async def _serve(
        self, record: Record, end: "asyncio.Task[None]", waiting: Iterable["asyncio.Future[Phase]"]
    ) -> None:
        """From the first answer to the end of the daemon or a change of its users."""
        control = self._control(record)
        if not await self._answers(control, end):
            return
        await self._limit(control, record)
        if self.state.value.phase is not Phase.READY:
            log.info("MPS daemon ready", daemon=self.key, devices=record.devices, users=sorted(record.users))
            self._say(Phase.READY)
        self._answer(waiting, Phase.READY)
        since = time.monotonic()
        async with running(self._woken.wait()) as woken:
            while not (woken.done() or end.done()):
                await asyncio.wait([end, woken], timeout=self._host.times.ask, return_when=asyncio.FIRST_COMPLETED)
                if not end.done():
                    await self._check(control)
                if time.monotonic() - since > self._host.times.steady:
                    self._tries = self._pauses()

    async def _check(self, control: Control) -> None:
        """Raise MpsError where it does not answer twice: on a busy node one answer may be late, and costs no pod."""
        try:
            await control.check()
        except MpsError as error:
            log.info("MPS daemon is asked once more", daemon=self.key, reason=error)
            await control.check()

    async def _answers(self, control: Control, end: "asyncio.Task[None]") -> bool:
        """Wait until the daemon answers: that it runs says nothing yet. False where nobody waits for it any more."""
        for pause in pauses(first=0.1, longest=5.0):
            try:
                await control.check()
            except MpsError as error:
                if end.done():
                    raise MpsError(f"the MPS daemon ended before it was ready, see {self._log}") from error
            else:
                return True
            await asyncio.wait([end], timeout=pause)
            if self._woken.is_set() and not await self._wanted():
                return False
        raise AssertionError("pauses never end")

    async def _wanted(self) -> bool:
        record = await self._record(lambda record: record)
        return record is not None and bool(record.users)

    async def _limit(self, control: Control, record: Record) -> None:
        """Hold all clients to the widest of the users' limits: those of a server that runs from their next start on."""
        limits = of_all(record.users.values(), record.devices, self._host.sizes())
        commands = default_commands(record.devices, limits)
        for server in await control.servers():
            commands += server_commands(server, record.devices, limits)
        await control.ask(*commands)

    async def _start(self, record: Record) -> None:
        if not record.users or (record.process is not None and record.process.running):
            return  # another agent was quicker
        folders, control = self._host.folders(self.key, record), self._control(record)
        await self._end_left_overs(folders)
        record = await self._exclusive(record)
        await self._blocking("make the folders of an MPS daemon", partial(place.make, folders))
        await control.start(multi_user=record.multi_user, shm=folders.shm)
        process = await self._started(folders)
        await self._record(partial(replace, process=process))
        await self._blocking("take an MPS daemon out of the agent's cgroup", partial(cgroups.leave, process.pid))
        log.info("MPS daemon started", daemon=self.key, devices=record.devices, pid=process.pid)

    async def _started(self, folders: Folders) -> Process:
        try:
            async with asyncio.timeout(self._host.times.pid):
                while True:
                    with suppress(OSError, ValueError):
                        if process := find_process(int((folders.pipe / PID_FILE).read_text())):
                            return process
                    await asyncio.sleep(0.02)
        except TimeoutError as error:
            raise MpsError(f"no daemon wrote {folders.pipe / PID_FILE}; see {folders.log}") from error

    async def _exclusive(self, record: Record) -> Record:
        """Let nobody but the daemon's servers open the devices. What they were set to is on disk before.

        Where there are folders of a daemon that no record tells of, that one has set what is found.
        """
        modes, lost = self._host.modes, self._host.folders(self.key, record).pipe.exists()
        for device in record.devices:
            with suppress(NotSupported):
                now = await modes.compute_mode(device)
                if device not in record.modes:
                    record = await self._noted(device, ComputeMode.DEFAULT if lost else now) or record
                if now is not ComputeMode.EXCLUSIVE_PROCESS:
                    await modes.set_compute_mode(device, ComputeMode.EXCLUSIVE_PROCESS)
        return record

    async def _noted(self, device: DeviceUuid, mode: ComputeMode) -> Record | None:
        return await self._record(lambda record: replace(record, modes={**record.modes, device: mode}))

    async def _end(self, record: Record) -> None:
        """End the daemon, put the modes back, remove the folders, and only then the record."""
        if record.users:
            return  # somebody came meanwhile
        await self._stop(record)
        for device, mode in record.modes.items():
            # One that is gone comes back as the driver makes it; a pod must not wait for that.
            with suppress(DeviceLost, NotSupported):
                await self._host.modes.set_compute_mode(device, mode)
        folders = self._host.folders(self.key, record)
        await self._blocking("remove the folders of an MPS daemon", partial(place.remove, folders))
        if await self._blocking("forget an MPS daemon", partial(self._host.records.forget, self.key)):
            log.info("MPS daemon ended", daemon=self.key, devices=record.devices)
            self._say(Phase.GONE)

    async def _stop(self, record: Record) -> None:
        """Tell it to quit, and end what does not."""
        process = record.process
        if process is not None and process.running:
            with suppress(MpsError):  # what does not quit is ended below
                await self._control(record).ask("quit")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._host.times.quit):
                    await ended(process)
        await self._end_left_overs(self._host.folders(self.key, record))

    async def _end_left_overs(self, folders: Folders) -> None:
        """End the processes of a daemon that died or does not quit: its servers would keep the GPU to themselves."""
        left = await self._blocking("look for processes of an MPS daemon", partial(processes.of_pipe, folders.pipe))
        if left:
            log.warning("ending what is left of an MPS daemon", daemon=self.key, pids=[one.pid for one in left])
        if still := await processes.end(left, self._host.times.quit):
            pids = ", ".join(str(process.pid) for process in still)
            raise MpsError(f"processes {pids} of an MPS daemon do not end, not even on {signal.SIGKILL.name}")

    def _control(self, record: Record) -> Control:
        environment = daemon_environment(record.devices, self._host.folders(self.key, record))
        return Control(program=self._host.program(), environment=environment, answer_seconds=self._host.times.answer)

    async def _record(self, change: Callable[[Record], Record]) -> Record | None:
        return await self._blocking("keep an MPS daemon's record", partial(self._host.records.change, self.key, change))

    async def _blocking(self, what: str, call: Callable[[], T]) -> T:
        return await self._host.lane.run(what, call)

    def _say(self, phase: Phase, trouble: str | None = None) -> None:
        self.state.set(replace(self.state.value, phase=phase, trouble=trouble))

    async def _pause(self, error: NodeAgentError) -> None:
        """Say what is wrong, and wait: for a while, or until users came or went."""
        phase = self.state.value.phase
        self._say(Phase.DOWN if phase is Phase.READY else phase, str(error))
        seconds = next(self._tries)
        log.error("MPS daemon in trouble", daemon=self.key, reason=error, again=f"{seconds:g} s")
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    @property
    def _log(self) -> Path:
        return self._host.folder / self.key / "log"

    def _pauses(self) -> Iterator[float]:
        return pauses(first=1.0, longest=self._host.times.longest_pause)
