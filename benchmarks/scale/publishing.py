"""What the agents of many nodes cost API server and etcd: starts, an update, sick GPUs, claims, a server that ends.

All of them do everything at once, which is the worst that can happen; but for the update, a tenth of them at a time.
"""

import asyncio
import base64
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.scale.control_plane import ControlPlane, each
from benchmarks.scale.crowd import Crowd, crowd
from benchmarks.scale.model import Cost
from benchmarks.scale.requests import Request, peak, requests, watches, writes
from node_agent.kube.client import KubeClient
from node_agent.kube.find import find_access
from node_agent.kube.resources import RESOURCE_CLAIMS
from node_agent.model.vendor import NVIDIA

SLICES = "/registry/resourceslices/"
MIB = 1 << 20

START, OVER, UPDATE = "first start of all", "start over of all", "update, a tenth at a time"
WITHDRAWN, CLAIMS, BACK = "a GPU of each withdrawn", "a claim on each", "API server killed and started"


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """What went on while something happened once on each node.

    ``seconds`` until all of it was asked, ``refused`` by the status of the answer, ``sent`` the bytes that the API
    server sent to agents, ``cpu`` its processor time in seconds.
    """

    seconds: float
    requests: int
    writes: int
    refused: Mapping[int, int]
    peak_requests: int
    peak_writes: int
    sent: int
    cpu: float

    @property
    def cells(self) -> str:
        refused = ", ".join(f"{count} × {code}" for code, count in sorted(self.refused.items())) or "0"
        return (
            f"{self.requests} | {self.peak_requests} | {self.writes} | {self.peak_writes} | {refused} "
            f"| {self.sent / 1000:,.0f} kB | {self.seconds:.1f} s | {self.cpu:.1f} s"
        )


HEAD = (
    "| nodes | | requests | most in a second | writes | most in a second | refused | sent to agents | took "
    "| API server's processor |\n| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A cluster of so many nodes: bytes of a slice as JSON and in etcd, of etcd's data, and of the server's memory."""

    nodes: int
    slice_json: int
    slice_stored: int
    database: int
    api_server: int
    phases: Mapping[str, Phase]

    @property
    def rows(self) -> list[str]:
        return [f"| {self.nodes} | {name} | {phase.cells} |" for name, phase in self.phases.items()]

    @property
    def totals(self) -> Mapping[str, float]:
        """What grows with the nodes."""
        return {
            "slices in etcd, MiB": self.slice_stored * self.nodes / MIB,
            "etcd with its history, MiB": self.database / MIB,
            "API server's memory, MiB": self.api_server / MIB,
            **{f"writes: {name}": phase.writes for name, phase in self.phases.items()},
            **{f"requests: {name}": phase.requests for name, phase in self.phases.items()},
            **{f"MiB sent: {name}": phase.sent / MIB for name, phase in self.phases.items()},
            **{f"processor seconds: {name}": phase.cpu for name, phase in self.phases.items()},
        }

    @property
    def costs(self) -> Mapping[str, Cost]:
        """What each thing costs that happens on a node."""
        return {
            name: Cost(
                requests=phase.requests / self.nodes, writes=phase.writes / self.nodes, sent=phase.sent / self.nodes
            )
            for name, phase in self.phases.items()
        }


async def measured(plane: ControlPlane, nodes: Sequence[str], *, processes: int = 2) -> Size:
    """All of these nodes' agents, from their first start on."""
    await plane.make_nodes(nodes)
    tokens = await plane.tokens(nodes)
    claims = await _allocated(plane, nodes)
    async with crowd(plane.kubeconfig, tokens, processes=processes) as agents:
        await agents.do("nothing")
        phases = {
            START: await _phase(plane, lambda: agents.do("start"), agents),
            OVER: await _phase(plane, lambda: agents.do("restart"), agents),
            UPDATE: await _phase(plane, lambda: agents.do("restart", parts=10), agents),
            WITHDRAWN: await _phase(plane, lambda: agents.do("withdraw"), agents),
            CLAIMS: await _phase(plane, lambda: agents.do("prepare", claims=claims), agents),
        }
        memory = plane.usage("api-server").memory
        stored = _stored(plane)
        listed = plane.api.list("ResourceSlice", fieldSelector=f"spec.nodeName={nodes[0]}")
        phases[BACK] = await _killed(plane, agents)
    return Size(
        nodes=len(nodes),
        slice_json=len(json.dumps(listed[0])),
        slice_stored=stored,
        database=int(plane.etcd("maintenance/status", {})["dbSizeInUse"]),
        api_server=memory,
        phases=phases,
    )


async def _phase(plane: ControlPlane, work: Callable[[], Awaitable[object]], agents: Crowd) -> Phase:
    before, sent, began = plane.usage("api-server").cpu_seconds, plane.sent, time.time()
    await work()
    await agents.published()
    found = await _calm(plane, began)
    return _told(found, began, sent=plane.sent - sent, cpu=plane.usage("api-server").cpu_seconds - before)


async def _killed(plane: ControlPlane, agents: Crowd) -> Phase:
    """From the moment when the API server is started again."""
    nodes, sent = (await agents.do("nothing")).nodes, plane.sent
    await asyncio.to_thread(plane.restart_api_server)
    began = plane.api_server_started
    async with asyncio.timeout(300):
        while watches(requests(plane.audit_log, began)) < nodes:
            await asyncio.sleep(1)
    found = await _calm(plane, began)
    return _told(found, began, sent=plane.sent - sent, cpu=plane.usage("api-server").cpu_seconds)


def _told(found: Sequence[Request], began: float, *, sent: int, cpu: float) -> Phase:
    return Phase(
        seconds=max((one.at for one in found), default=began) - began,
        requests=len(found),
        writes=len(writes(found)),
        refused=Counter(one.code for one in found if one.code >= 400),
        peak_requests=peak(found),
        peak_writes=peak(writes(found)),
        sent=sent,
        cpu=cpu,
    )


async def _calm(plane: ControlPlane, since: float, seconds: float = 5.0) -> list[Request]:
    """What was asked since then, once nothing has been written for some seconds: looks now and then never end."""
    written = -1
    while written != (written := len(writes(found := requests(plane.audit_log, since)))):
        await asyncio.sleep(seconds)
    return found


async def _allocated(plane: ControlPlane, nodes: Sequence[str]) -> Mapping[str, str]:
    """A claim for each node, of its name and with its first GPU: their uids by their names."""

    async def make(node: str) -> str:
        result = {"request": "gpus", "driver": NVIDIA.driver, "pool": node, "device": "gpu-0"}
        exactly = {"deviceClassName": NVIDIA.driver, "allocationMode": "ExactCount", "count": 1}
        spec = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
        made = await client.create(RESOURCE_CLAIMS, {"metadata": {"name": node, "namespace": "default"}, "spec": spec})
        # Only an agent of the node that a claim is allocated on may write what it says of its devices.
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}}
        made["status"] = {"allocation": allocation}
        await client.update(RESOURCE_CLAIMS, made, subresource="status")
        return str(made["metadata"]["uid"])

    async with KubeClient(find_access(plane.kubeconfig), agent="benchmark") as client:
        return dict(zip(nodes, await each(make, nodes), strict=True))


def _stored(plane: ControlPlane) -> int:
    """Bytes of a slice as etcd has it."""
    key, end = (base64.b64encode(text.encode()).decode() for text in (SLICES, SLICES[:-1] + "0"))
    found = plane.etcd("kv/range", {"key": key, "range_end": end, "limit": 1})
    return len(base64.b64decode(found["kvs"][0]["value"]))
