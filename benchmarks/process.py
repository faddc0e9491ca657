"""The agent, and its floors, as processes of their own; and what /proc tells of them."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.floors import plugin_at
from benchmarks.inside import folder
from benchmarks.measure import Effort, Figure, Floor, Step, Target, Unit, single
from node_agent.kit.tasks import running
from node_agent.kubelet.embedded import EmbeddedKubelet
from node_agent.model.vendor import NVIDIA
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from node_agent.wire import deviceplugin_v1beta1_pb2_grpc as rpc

PROFILE, GPUS = "h200-8", 8

# A machine at work may take that long to start an agent; what it took is in the figures.
PATIENCE_SECONDS = 120.0

# A leak of one small object a call is more than this, which the allocator's own steps are not.
GROWTH_TARGET = Target(limit=64 * 2**10)

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})

TELL_AND_END = "\nimport os, time\nos.write(1, str(time.process_time()).encode())\nos._exit(0)\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What a process took that has ended: seconds on the clock, and of processor time."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A running process, ``began`` by the performance counter, and what it wrote to standard error.

    Each line of ``said`` has the seconds from the start to when it was read.
    """

    pid: int
    began: float
    said: list[tuple[float, str]] = field(default_factory=list)

    def first(self, event: str) -> float:
        """The seconds from the start to the first line that tells of ``event``. Raises LookupError where none does."""
        for seconds, line in self.said:
            if event in line:
                return seconds
        raise LookupError(f"no line tells of {event!r}")

    def tells(self, event: str) -> bool:
        return any(event in line for _, line in self.said)

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.perf_counter() - self.began

    @property
    def memory(self) -> int:
        """Resident memory in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def cpu_seconds(self) -> float:
        """Processor time of the threads that there are, the kernel's work for them included."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    @property
    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Stand:
    """A place for agents to start at, and the kubelet that they register with."""

    folder: Path
    kubelet: EmbeddedKubelet

    @property
    def environment(self) -> dict[str, str]:
        """As in the image, where Python's code is compiled."""
        rest = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**rest, "PYTHONPYCACHEPREFIX": str(self.folder / "compiled")}

    async def python(self, code: str) -> Ran:
        """Run some code in an interpreter of its own, which knows the folder of the stand as its argument.

        It ends at once: taking an interpreter down takes a while, too, and is no part of a start. Raises RuntimeError
        where the code fails.
        """
        began = time.perf_counter()
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code + TELL_AND_END, str(self.folder)),
            stdout=asyncio.subprocess.PIPE,
            env=self.environment,
        )
        said, _ = await child.communicate()
        if child.returncode:
            raise RuntimeError(f"exit status {child.returncode} from {code!r}")
        return Ran(seconds=time.perf_counter() - began, cpu_seconds=float(said))

    @asynccontextmanager
    async def agent(self, settings: Mapping[str, Any] = NO_SETTINGS, *, heard: bool = True) -> AsyncIterator[Process]:
        """``node-agent run`` on a simulated node, from its registration on; afterwards the kubelet has forgotten it."""
        async with self.agent_on(PROFILE, settings, heard=heard) as process:
            await self.kubelet.until(NVIDIA.resource, allocatable=GPUS, timeout=PATIENCE_SECONDS)
            yield process
        await self.kubelet.until(NVIDIA.resource, allocatable=0, timeout=PATIENCE_SECONDS)

    def agent_on(
        self,
        profile: str,
        settings: Mapping[str, Any] = NO_SETTINGS,
        *,
        flags: Mapping[str, Any] = NO_SETTINGS,
        heard: bool = True,
    ) -> AbstractAsyncContextManager[Process]:
        """``node-agent run`` on a simulated node, a name or a file, from its first instruction on.

        ``settings`` are more of those under ``agent`` in its file, ``flags`` those of NVIDIA's.
        """
        file = self.folder / "config.yaml"
        folders = {f"{name}Dir": str(self.folder / name) for name in ("kubelet", "cdi", "state", "run")}
        file.write_text(json.dumps({"version": "v1", "flags": dict(flags), "agent": {"paths": folders, **settings}}))
        program = str(Path(sys.executable).with_name("node-agent"))
        return self.started([program, "run", "--simulate", profile, "--config", str(file)], heard=heard)

    @asynccontextmanager
    async def parrot(self, answer: wire.AllocateResponse) -> AsyncIterator[rpc.DevicePluginStub]:
        """A stub of a process that has this answer to Allocate ready: the least that a call can take."""
        socket = self.folder / "parrot.sock"
        command = sys.executable, "-m", "benchmarks.parrot", str(socket), answer.SerializeToString().hex()
        async with self.started(command, heard=False), plugin_at(socket) as stub:
            await stub.Allocate(wire.AllocateRequest(), wait_for_ready=True)
            yield stub

    @asynccontextmanager
    async def started(self, command: Sequence[str], *, heard: bool = True) -> AsyncIterator[Process]:
        """A process that is told to end with the block; whether it is ``heard``, which takes time as well."""
        began = time.perf_counter()
        stderr = asyncio.subprocess.PIPE if heard else asyncio.subprocess.DEVNULL
        child = await asyncio.create_subprocess_exec(*command, stderr=stderr, env=self.environment)
        process = Process(pid=child.pid, began=began)
        async with running(_listen(child.stderr, process)):
            try:
                yield process
            finally:
                child.terminate()
                await child.wait()


@asynccontextmanager
async def stand() -> AsyncIterator[Stand]:
    """A stand with a kubelet at work. One agent has been started already, so that its code is compiled."""
    with folder() as place:
        kubelet = EmbeddedKubelet(place / "kubelet" / "device-plugins")
        ready = Stand(folder=place, kubelet=kubelet)
        async with kubelet.running():
            async with ready.agent():
                pass
            yield ready


async def growth(agent: Process, step: Step, effort: Effort, name: str) -> Sequence[Figure]:
    """What is kept of a step that is done again and again: the memory after it, and how it grew in the second half."""
    calls = effort.pick(full=2_000, quick=200, long=10_000)
    start, memory = agent.memory, []
    for _ in range(2):
        for _ in range(calls // 2):
            await step()
        memory.append(agent.memory)
    half, end = memory
    slope = (end - half) / (calls / 2) * 1000
    return [
        single(f"memory after {calls} {name}", end, Unit.BYTES, Floor(name="before", median=start)),
        single("  growth in 1000, second half", slope, Unit.BYTES, target=GROWTH_TARGET),
    ]


async def _listen(stream: asyncio.StreamReader | None, process: Process) -> None:
    if stream is None:
        return
    async for line in stream:
        process.said.append((process.age, line.decode().rstrip()))
