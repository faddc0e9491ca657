"""The node around an agent that is killed: hardware, kubelet and API server, which remember what they had of it."""

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from grpc import aio

from node_agent.config.resolve import Sources
from node_agent.errors import KubeletError, NodeAgentError, SimulationError
from node_agent.hardware.simulated import SimulatedNode, load_profile
from node_agent.hardware.simulated.control import send
from node_agent.kit.http_client import get
from node_agent.sharing.mps import processes
from node_agent.wire import dra_v1_pb2 as v1
from node_agent.wire import dra_v1_pb2_grpc as rpc
from tests.crash.boundaries import Fuse
from tests.crash.hardware import recall
from tests.crash.invariants import (
    Facts,
    Unit,
    contradictions,
    disorder,
    read_books,
    read_daemons,
    read_gpus,
    read_records,
    read_specs,
    torn,
)
from tests.crash.nursery import Nursery, Start
from tests.fakes.api_server import ApiServer
from tests.fakes.dra_kubelet import DraKubelet, Instance
from tests.faults.claims import Cluster
from tests.faults.conftest import Place

PATIENCE = 90.0
"""Seconds after which it is given up that something comes to be so; a machine may be busy."""

profile_named = cache(load_profile)

Document = dict[str, Any]


class Killed(Exception):
    """The agent died where it was to die."""


@dataclass
class Site:
    """``prepared`` are the CDI ids of each claim as the kubelet has them, ``doubtful`` the claims of whose last call it
    knows no end: they may be prepared or not. Pods are in ``kubelet.held``. ``lost`` is a GPU off the bus, and
    ``losses`` counts them."""

    place: Place
    cluster: Cluster
    kubelet: DraKubelet
    nursery: Nursery
    fuse: Fuse
    pid: int = 0
    prepared: dict[str, frozenset[str]] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    claims: dict[str, v1.Claim] = field(default_factory=dict)
    out: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    lost: str = ""
    losses: int = 0
    shared: bool = False
    _known: tuple[Instance, ...] = ()

    @property
    def config_file(self) -> Path:
        return self.place.folder / "config.yaml"

    @property
    def log(self) -> Path:
        return self.place.folder / "agent.log"

    def configure(self, document: Document) -> None:
        """Put a configuration in its place as a ConfigMap's comes: all at once."""
        new = self.config_file.with_suffix(".new")
        new.write_text(yaml.safe_dump(document))
        os.rename(new, self.config_file)

    # The agent

    def start(self) -> None:
        """Start an agent, and wait for nothing."""
        settings = self.cluster.settings
        flags = {
            "agent.paths.sysfsRoot": str(self.place.tree / "sys"),
            "agent.paths.procRoot": str(self.place.tree / "proc"),
            "agent.paths.devRoot": str(self.place.tree),
            "flags.nvidiaDriverRoot": str(self.place.tree),
            "agent.paths.kubeletDir": str(settings.paths.kubelet_dir),
            "agent.paths.cdiDir": str(settings.paths.cdi_dir),
            "agent.paths.stateDir": str(settings.paths.state_dir),
            "agent.paths.runDir": str(settings.paths.run_dir),
            "agent.kubeconfig": str(settings.kubeconfig),
            "agent.nodeName": "node",
            "agent.frontDoors.dra": True,
            "agent.rescanInterval": "1s",
            "agent.health.probeInterval": "1s",
        }
        self._known = self.kubelet.instances.value
        self.pid = self.nursery.start(
            Start(
                sources=Sources(file=self.config_file, flags=flags),
                profile=self.place.node.profile,
                tree=self.place.tree,
                hardware=self.hardware_file,
                fuse=self.place.folder / "fuse",
                log=self.log,
                control=self.place.folder / "control",
            )
        )

    @property
    def hardware_file(self) -> Path:
        return self.place.folder / "hw" / "gpus"

    @property
    def alive(self) -> bool:
        return os.path.exists(f"/proc/{self.pid}")

    async def break_hardware(self, command: str, **arguments: Any) -> None:
        """Have something happen to the hardware of the agent that runs. Raises Killed where that dies of it."""
        try:
            await asyncio.to_thread(send, self.place.folder / "control", {"command": command, **arguments})
        except SimulationError as error:
            await self.dead()
            raise Killed from error

    async def dead(self) -> None:
        """Wait until the agent is dead."""
        await self.until(lambda: not self.alive)

    async def kill(self) -> None:
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
        await self.dead()

    async def until(self, wanted: Callable[[], object]) -> None:
        """Wait until it is so. Raises TimeoutError after ``PATIENCE`` seconds."""
        async with asyncio.timeout(PATIENCE):
            while not wanted():
                await asyncio.sleep(0.01)

    async def comes(self, wanted: Callable[[], object]) -> None:
        """Wait until it is so. Raises Killed where the agent dies before."""
        await self.until(lambda: wanted() or not self.alive)
        if not wanted():
            raise Killed

    async def ready(self) -> None:
        """Wait until the agent says that it is ready. Raises Killed where it dies before."""
        socket = self.place.settings.paths.run_dir / "agent.sock"
        async with asyncio.timeout(PATIENCE):
            while True:
                if not self.alive:
                    raise Killed
                try:
                    code, _ = await asyncio.to_thread(get, socket, "/readyz")
                except (OSError, NodeAgentError):
                    code = 0
                if code == 200 and set(self.kubelet.instances.value) - set(self._known):
                    return
                await asyncio.sleep(0.02)

    @property
    def hardware(self) -> SimulatedNode:
        """The hardware as it stands at this moment."""
        recall(self.place.node, self.hardware_file)
        return self.place.node

    # What the kubelet does

    async def prepare(self, *claims: v1.Claim) -> None:
        """Call for claims as the kubelet does. Raises Killed where there is no answer, AssertionError on an error."""
        uids = {claim.uid for claim in claims}
        self.doubtful |= uids
        answer = await self._call("NodePrepareResources", v1.NodePrepareResourcesRequest(claims=claims))
        for uid, one in answer.claims.items():
            assert not one.error, one.error
            self.prepared[uid] = frozenset(name for device in one.devices for name in device.cdi_device_ids)
        self.doubtful -= uids

    async def unprepare(self, *claims: v1.Claim) -> None:
        """As ``prepare``."""
        for claim in claims:
            self.prepared.pop(claim.uid, None)
            self.doubtful.add(claim.uid)
        answer = await self._call("NodeUnprepareResources", v1.NodeUnprepareResourcesRequest(claims=claims))
        assert not any(one.error for one in answer.claims.values()), answer
        self.doubtful -= {claim.uid for claim in claims}

    async def _call(self, method: str, request: Any) -> Any:
        stub = rpc.DRAPluginStub(self.kubelet.newest.channel)
        try:
            return await getattr(stub, method)(request, timeout=45)
        except aio.AioRpcError as error:
            await self.dead()
            raise Killed from error

    async def admit(self, pod: str, resource: str, count: int = 1) -> None:
        """Raises Killed where the agent died of it."""
        try:
            await self.place.kubelet.admit(pod, resource, count)
        except KubeletError as error:
            if "refused" in str(error) or "are free" in str(error):
                raise
            await self.dead()
            raise Killed from error

    # What is so

    def facts(self) -> Facts:
        paths = self.place.settings.paths
        held = self.place.kubelet.held
        return Facts(
            books=read_books(paths.state_dir / "ledger.json"),
            specs=read_specs(paths.cdi_dir),
            gpus=read_gpus(self.hardware, len(self.place.uuids)),
            daemons=read_daemons(self.place.folder),
            records=read_records(paths.state_dir),
            prepared=dict(self.prepared),
            doubtful=frozenset(self.doubtful),
            pods={pod: [self._unit(name) for name in ids] for pod, (_, ids) in held.items()},
            healthy=self._healthy(),
            tainted=self._tainted(),
            out=frozenset(self.out),
            cut=frozenset(self.cut),
            slices=self.cluster.slices,
            sockets={
                "the driver": len(self.cluster.sockets),
                "its registration": len([*(paths.kubelet_dir / "plugins_registry").glob("*.sock")]),
                **Counter(path.name[:-13] for path in (paths.kubelet_dir / "device-plugins").glob("node-agent-*.sock")),
            },
            torn=torn([paths.cdi_dir, paths.state_dir]),
        )

    def of_pods(self) -> set[str]:
        """The GPUs that pods have, as the kubelet knows it."""
        return {self._unit(name).gpu for _, ids in self.place.kubelet.held.values() for name in ids}

    def gpu_of(self, device: str) -> str:
        """The GPU of a published device: ``gpu-2``, or ``gpu-2-mig-3g-71gb-4``."""
        minor = int(device.split("-")[1])
        (index,) = [index for index, gpu in enumerate(self.place.node.profile.gpus) if gpu.minor == minor]
        return self.place.uuid(index)

    def _unit(self, device: str) -> Unit:
        gpu, _, share = device.partition("::")
        return Unit(gpu=gpu, shared="limits" if share else "")

    def _healthy(self) -> frozenset[str]:
        """The GPUs of which the kubelet would give out all that is listed."""
        views = [view for view in self.place.kubelet.resources.value.values() if view.connected]
        listed = {name.partition("::")[0] for view in views for name in view.devices}
        sick = {name.partition("::")[0] for view in views for name in view.devices.keys() - view.healthy}
        return frozenset(listed - sick)

    def _tainted(self) -> frozenset[str]:
        keeps = {"NoSchedule", "NoExecute"}
        return frozenset(
            one["attributes"]["uuid"]["string"]
            for one in self.cluster.devices.values()
            if one["attributes"]["type"]["string"] == "gpu"
            and keeps & {taint["effect"] for taint in one.get("taints", ())}
        )

    async def rest(self) -> None:
        """Wait until everything is in order. Raises AssertionError with what is not, Killed where the agent dies."""
        await self.ready()
        began = time.monotonic()
        while True:
            facts = self.facts()
            assert not contradictions(facts), "\n".join(contradictions(facts))
            if not (wrong := disorder(facts)):
                return
            if not self.alive:
                raise Killed
            assert time.monotonic() - began < PATIENCE, "\n".join(wrong)
            await asyncio.sleep(0.05)


@asynccontextmanager
async def site(profile: str, document: Document, nursery: Nursery) -> AsyncIterator[Site]:
    """A node with its cluster, and no agent yet; with the block the agent dies and every daemon that it started."""
    with tempfile.TemporaryDirectory(prefix="crash-", dir="/tmp") as name:
        place = Place(Path(name), profile_named(profile))
        async with ApiServer() as server:
            cluster = Cluster(place, server)
            kubelet = DraKubelet(place.settings.paths.kubelet_dir / "plugins_registry")
            (place.folder / "hw").mkdir()
            async with place.kubelet.running(), kubelet.running():
                here = Site(place, cluster, kubelet, nursery, Fuse(place.folder / "fuse"))
                here.configure(document)
                try:
                    yield here
                finally:
                    await here.kill()
                    _end_daemons(place.folder)


def _end_daemons(folder: Path) -> None:
    """What a test that failed has left of MPS: daemons, and what is mounted for them."""
    for pipe in folder.glob("run/mps/*/pipe"):
        for process in processes.of_pipe(pipe):
            processes.send(process, signal.SIGKILL)
    for shm in folder.glob("run/mps/*/shm"):
        if shm.is_mount():
            subprocess.run(["umount", "--lazy", shm], check=True)
