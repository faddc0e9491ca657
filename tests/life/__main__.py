"""``make life`` (``python -m tests.life --minutes 10``): the load, and what the agent's memory came to.

The agent is a process as in a pod, on a simulated node, beside a kubelet and an API server of the tests. A round is
pods by limits, a claim for whole GPUs, one for a MIG device that is cut for it, an Xid, and a scrape; every tenth one
has a GPU that is lost, one that is broken, another configuration, a kubelet that restarts and watches that end.
``--trace`` has Python's allocations traced, which makes all slower and larger, and prints where growth was allocated.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from node_agent.hardware.simulated import load_profile
from node_agent.hardware.simulated.control import send
from node_agent.kit.http_client import get
from node_agent.kubelet.embedded import EmbeddedKubelet
from node_agent.wire import dra_v1_pb2 as v1
from node_agent.wire import dra_v1_pb2_grpc as rpc
from tests.fakes.api_server import ApiServer
from tests.fakes.dra_kubelet import DraKubelet
from tests.fakes.names import GPU_RESOURCE
from tests.faults.claims import Cluster
from tests.faults.conftest import Place

PROFILE, SELDOM, STEPS, PATIENCE = "h200-8", 10, 10, 300.0
WHOLE, PIECE, KEPT = ("gpu-4", "gpu-5"), "gpu-6-mig-3g-71gb-4", ("gpu-4", "gpu-5", "gpu-6", "gpu-7")


class Kubelet(EmbeddedKubelet):
    """Gives to pods by their limits none of the GPUs that the claims are for."""

    kept: frozenset[str] = frozenset()

    def free(self, resource: str) -> list[str]:
        return [name for name in super().free(resource) if name not in self.kept]


@dataclass
class Life:
    """``rounds`` of load on one agent; ``memory`` is its resident memory in KiB after each."""

    place: Place
    cluster: Cluster
    kubelet: Kubelet
    dra: DraKubelet
    trace: bool
    pid: int = 0
    memory: list[int] = field(default_factory=list)
    _excluded: bool = False
    _told: int = 0

    # The agent

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[None]:
        self._configure()
        program = [sys.executable, *(["-X", "tracemalloc=12"] if self.trace else []), "-m", "tests.life.told"]
        arguments = [str(self.place.folder), "run", "--simulate", PROFILE, "--config", str(self._config)]
        with (self.place.folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *program, *arguments, stdout=log, stderr=log, env={**os.environ, "NODE_NAME": "node"}
            )
            self.pid = process.pid
            try:
                yield
            finally:
                process.terminate()
                await process.wait()

    @property
    def _config(self) -> Path:
        return self.place.folder / "config.yaml"

    def _configure(self) -> None:
        """Another configuration than before."""
        paths = {f"{name}Dir": str(self.place.folder / name) for name in ("kubelet", "cdi", "state", "run")}
        agent = {
            "paths": paths,
            "kubeconfig": str(self.cluster.settings.kubeconfig),
            "frontDoors": {"dra": True},
            "mig": {"onDemand": ["gpu-6", "gpu-7"]},
            "devices": {"exclude": ["gpu-3"] if self._excluded else []},
            "health": {"probeInterval": "1s"},
        }
        new = self._config.with_suffix(".new")
        new.write_text(yaml.safe_dump({"version": "v1", "agent": agent}))
        os.rename(new, self._config)

    # The load

    async def live(self, minutes: float) -> None:
        """Rounds for so long, the kubelet restarted before every tenth."""
        ends = time.monotonic() + minutes * 60
        while time.monotonic() < ends:
            async with self.place.kubelet.running(), self.dra.running():
                await self._allocatable(self._whole)
                await self._until(lambda: self.dra.instances.value and self.cluster.devices)
                devices = self.cluster.devices
                self.kubelet.kept = frozenset(devices[name]["attributes"]["uuid"]["string"] for name in KEPT)
                for _ in range(SELDOM):
                    await self._round(len(self.memory))
                    self.memory.append(self._memory())
                await self._seldom()

    async def _round(self, number: int) -> None:
        for pod in range(3):
            name = f"pod-{number}-{pod}"
            await self.place.kubelet.admit(name, GPU_RESOURCE, 1)
            self.place.kubelet.release(name)
        for name, devices in ((f"whole-{number}", WHOLE), (f"cut-{number}", (PIECE,))):
            await self._claim(name, *devices)
        await self._break("xid", gpu="gpu-0", code=31)
        for path in ("/metrics", "/status"):
            await asyncio.to_thread(get, self.place.settings.paths.run_dir / "agent.sock", path)

    async def _claim(self, name: str, *devices: str) -> None:
        claim = self.cluster.allocate(name, *devices)
        stub = rpc.DRAPluginStub(self.dra.newest.channel)
        answer = await stub.NodePrepareResources(v1.NodePrepareResourcesRequest(claims=[claim]))
        assert not answer.claims[claim.uid].error, answer.claims[claim.uid].error
        gone = await stub.NodeUnprepareResources(v1.NodeUnprepareResourcesRequest(claims=[claim]))
        assert not gone.claims[claim.uid].error, gone.claims[claim.uid].error
        self.cluster.forget(claim)

    async def _seldom(self) -> None:
        for command, gpu, more in (("lose-gpu", "gpu-1", {}), ("xid", "gpu-2", {"code": 79})):
            await self._allocatable(self._whole)
            await self._break(command, gpu=gpu, **more)
            await self._allocatable(self._whole - 1)
            await self._break("restore-gpu", gpu=gpu)
            await self._allocatable(self._whole)
        self._excluded = not self._excluded
        self._configure()
        await self._allocatable(self._whole)
        self.cluster.server.end_watches()

    @property
    def _whole(self) -> int:
        """How many GPUs are on offer while nothing is wrong."""
        return 8 - self._excluded

    async def _break(self, command: str, **more: Any) -> None:
        await asyncio.to_thread(send, self.place.folder / "run" / "simulate.sock", {"command": command, **more})

    async def _allocatable(self, count: int) -> None:
        await self._until(lambda: self.place.view.allocatable == count)

    async def _until(self, wanted: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while not wanted():
                await asyncio.sleep(0.01)

    # What it came to

    def _memory(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") // 1024

    async def told(self) -> Mapping[str, Any]:
        """What the agent says of its memory; ``trace`` is its file of traced allocations."""
        self._told += 1
        file = self.place.folder / f"{self._told}.json"
        os.kill(self.pid, signal.SIGUSR1)
        await self._until(file.exists)
        return {**json.loads(file.read_text()), "trace": file.with_suffix(".trace"), "memory": self._memory()}


@asynccontextmanager
async def life(*, trace: bool = False) -> AsyncIterator[Life]:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="life-", dir="/tmp"))
        place = Place(Path(folder), load_profile(PROFILE))
        place.kubelet = kubelet = Kubelet(place.kubelet.folder)
        cluster = Cluster(place, await stack.enter_async_context(ApiServer()))
        here = Life(place, cluster, kubelet, DraKubelet(place.settings.paths.kubelet_dir / "plugins_registry"), trace)
        try:
            await stack.enter_async_context(here.agent())
            yield here
        except BaseException as error:
            error.add_note("\n".join((place.folder / "log").read_text().splitlines()[-30:]))
            raise


def grown(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What grew between two answers."""
    told = [f"resident {before['memory']} -> {after['memory']} KiB"]
    told += [
        f"malloc {name}: {before['malloc'][name] >> 10} -> {after['malloc'][name] >> 10} KiB"
        for name in after["malloc"]
    ]
    told.append(f"Python's blocks: {before['blocks']} -> {after['blocks']}")
    more = {kind: count - before["objects"].get(kind, 0) for kind, count in after["objects"].items()}
    told += [f"  {count:+d} {kind}" for kind, count in sorted(more.items(), key=lambda one: -one[1])[:25] if count > 0]
    if after["trace"].exists():
        one, other = (tracemalloc.Snapshot.load(str(told["trace"])) for told in (before, after))
        for by in ("lineno", "traceback"):
            for found in other.compare_to(one, by)[:25]:
                told.append(f"{found.size_diff:+d} B in {found.count_diff:+d}: " + " | ".join(found.traceback.format()))
    return told


async def measured(minutes: float, warm: float, trace: bool) -> list[str]:
    async with life(trace=trace) as here:
        await here.live(warm)
        before, first = await here.told(), len(here.memory)
        await here.live(minutes)
        rounds, after = len(here.memory) - first, await here.told()
        marks = [here.memory[first + rounds * part // STEPS - (part == STEPS)] for part in range(STEPS + 1)]
        return [*grown(before, after), f"{rounds} rounds in {minutes:g} minutes; resident in KiB meanwhile: {marks}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--warm", type=float, default=1, help="minutes that do not count")
    parser.add_argument("--trace", action="store_true")
    wanted = parser.parse_args()
    print(*asyncio.run(measured(wanted.minutes, wanted.warm, wanted.trace)), sep="\n")


if __name__ == "__main__":
    main()
