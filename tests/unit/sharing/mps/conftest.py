"""MPS daemons of a simulated node: its driver's files, its GPUs, and the service that keeps the daemons."""

import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pynvml
import pytest

from node_agent.errors import MpsImpossible
from node_agent.hardware.nvml.provider import NvmlProvider
from node_agent.hardware.provider import ComputeMode
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.mps import FAULTS
from node_agent.kit.lane import Lane
from node_agent.kit.tasks import running
from node_agent.model.gpu import GpuUuid
from node_agent.model.partition import DeviceUuid
from node_agent.sharing.mps import processes
from node_agent.sharing.mps.daemon import Host, Phase, Times
from node_agent.sharing.mps.daemons import MpsDaemons
from node_agent.sharing.mps.plan import CLIENT_PIPE, ClientEdits, Folders, Limits, Wanted, daemon_key
from node_agent.sharing.mps.records import Record, Records
from tests.fakes.mps_client import MpsClient

GIB = 1 << 30

QUICK = Times(ask=0.2, answer=5.0, pid=5.0, quit=0.5, steady=60.0, longest_pause=0.3)


NO_PROGRAM = "the driver has no nvidia-cuda-mps-control: install it, or set the driver root"


@dataclass(kw_only=True)
class MpsNode:
    """A node whose daemons a test starts and breaks. ``times`` are those of the agents that start from now on."""

    folder: Path
    simulated: SimulatedNode
    gpus: tuple[GpuUuid, ...] = ()
    times: Times = QUICK
    program: Path | None = field(init=False)

    def __post_init__(self) -> None:
        self.simulated.write_tree(self.folder / "root", devices="placeholder")
        self.program = self.folder / "root/usr/bin/nvidia-cuda-mps-control"

    def control(self) -> Path:
        if self.program is None:
            raise MpsImpossible(NO_PROGRAM)
        return self.program

    def lacks(self) -> str | None:
        return None if self.program is not None else NO_PROGRAM

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[MpsDaemons]:
        """An agent's daemons while it runs; what it started goes on after its end."""
        async with NvmlProvider(sysfs=self.folder / "root/sys") as provider:
            scan = await provider.discovery.scan()
            self.gpus = tuple(gpu.uuid for gpu in scan.gpus)
            sizes: dict[DeviceUuid, int] = {gpu.uuid: gpu.memory for gpu in scan.gpus if gpu.memory}
            with Lane("mps") as lane:
                host = Host(
                    folder=self.folder / "mps",
                    records=self.records,
                    program=self.control,
                    modes=provider.modes,
                    lane=lane,
                    sizes=lambda: sizes,
                    own_shm=False,
                    times=self.times,
                )
                daemons = MpsDaemons(host)
                async with running(daemons.run()):
                    yield daemons

    @property
    def records(self) -> Records:
        return Records(self.folder / "state")

    def wanted(self, *numbers: int, limits: Limits | None = None, multi_user: bool = False) -> Wanted:
        devices = tuple(self.gpus[number] for number in numbers)
        return Wanted(devices=devices, limits=limits or Limits(), multi_user=multi_user)

    def record(self, *numbers: int) -> Record:
        return self.records.all()[daemon_key([self.gpus[number] for number in numbers])]

    def folders(self, *numbers: int) -> Folders:
        key = daemon_key([self.gpus[number] for number in numbers])
        return Folders.below(self.folder / "mps" / key, own_shm=False)

    def mode(self, number: int) -> ComputeMode:
        exclusive = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
        mode = self.simulated.faults.gpu(number).compute_mode
        return {0: ComputeMode.DEFAULT, exclusive: ComputeMode.EXCLUSIVE_PROCESS}[mode]

    def pids(self, *numbers: int) -> set[int]:
        """The daemon of these GPUs and its servers, as the kernel has them; not the programs that just talk to them."""
        found = {process.pid for process in processes.of_pipe(self.folders(*numbers).pipe)}
        return {pid for pid in found if not _is_child(pid)}

    def break_daemons(self, **faults: object) -> None:
        """What goes wrong with every daemon from now on, in the words of the stand-in's ``Faults``."""
        (self.folder / "root" / FAULTS).write_text(json.dumps(faults))

    def client(self, edits: ClientEdits, uid: int = 0) -> MpsClient:
        """A program in a container that was given ``edits``, told by the host's paths."""
        (pipe,) = (host for host, inside in edits.mounts.items() if inside == CLIENT_PIPE)
        return MpsClient(Path(pipe), edits.environment, uid)

    def end_all(self) -> None:
        for pipe in (self.folder / "mps").glob("*/pipe"):
            for process in processes.of_pipe(pipe):
                os.kill(process.pid, 9)


def _is_child(pid: int) -> bool:
    with suppress(OSError):
        return f"PPid:\t{os.getpid()}\n" in Path(f"/proc/{pid}/status").read_text()
    return True


async def until(daemons: MpsDaemons, phase: Phase, count: int = 1) -> None:
    """Wait until so many daemons are in this phase."""
    async for states in daemons.states.watch():
        if sum(state.phase is phase for state in states.values()) == count:
            return


@pytest.fixture
def node() -> Iterator[MpsNode]:
    """Eight H200s. Its folder has a short name, since sockets' paths may not be long."""
    folder = Path(tempfile.mkdtemp(prefix="mps"))
    with install(SimulatedNode(load_profile("h200-8"))) as simulated:
        found = MpsNode(folder=folder, simulated=simulated)
        try:
            yield found
        finally:
            found.end_all()
            shutil.rmtree(folder)
