"""When something goes wrong: a kubelet that restarts, a wait for events that fails; and what is written of slices."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from benchmarks.cluster import served
from benchmarks.floors import EMPTY_CALL, parrot
from benchmarks.inside import at_work, folder
from benchmarks.measure import Effort, Figure, Target, Turn, Unit, figure, single, timed
from node_agent.kit.tasks import running
from node_agent.kube.mirror import Mirror
from node_agent.kube.resources import RESOURCE_SLICES
from node_agent.model.vendor import NVIDIA
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire

PROFILE = "h200-8"
# What breaks stays so, or it would be two changes.
XID = 48
RULES = {"agent.health.rules": [{"xids": [XID], "clearedBy": "operator"}]}
# How long a kubelet is away.
REST_SECONDS = 1.0
BACK_TARGET = Target(limit=0.45)
# Of a minute: a hundredth of a core, ten lines, and the list in which all GPUs are out.
FAILING_TARGETS = Target(limit=0.6), Target(limit=10), Target(limit=1)


async def measure(effort: Effort) -> Sequence[Figure]:
    return [await _back(effort), *await _failing(effort), *await _writes(effort)]


async def _back(effort: Effort) -> Figure:
    """From when the new kubelet answers on its socket to all devices in its list; the old one has wiped nothing."""
    turns = []
    async with at_work(PROFILE, kubelet_runs=False) as world, parrot(world.node.folder / "parrot.sock") as stub:
        for _ in range(1 + effort.pick(full=20, quick=3)):
            floor = [await timed(lambda: stub.Allocate(wire.AllocateRequest())) for _ in range(10)]
            async with world.kubelet.running():
                began = time.perf_counter()
                await world.kubelet.until(NVIDIA.resource, allocatable=8, timeout=30.0)
                turns.append(Turn(subject=[time.perf_counter() - began], floor=floor))
            await asyncio.sleep(REST_SECONDS)
    return figure("kubelet restarted → registered", turns[1:], EMPTY_CALL, BACK_TARGET)


async def _failing(effort: Effort) -> list[Figure]:
    """The driver answers each wait for events at once, with an error."""
    async with at_work(PROFILE, {"agent.health.probeInterval": "5s"}) as world:
        world.node.simulation.node.faults.fail("nvmlEventSetWait_v2", "UNKNOWN")
        await world.kubelet.until(NVIDIA.resource, allocatable=0, timeout=30.0)
        lists, began, used = world.kubelet.view(NVIDIA.resource).messages, time.perf_counter(), time.process_time()
        with _Lines() as lines:
            await asyncio.sleep(effort.pick(full=60, quick=5))
        a_minute = 60 / (time.perf_counter() - began)
        used = (time.process_time() - used) * a_minute
        lists = world.kubelet.view(NVIDIA.resource).messages - lists
    values = (used, Unit.SECONDS), (len(lines.told) * a_minute, Unit.COUNT), (lists, Unit.COUNT)
    names = "event wait fails: processor time in a minute", "  lines in a minute", "  lists after the first"
    return [
        single(name, value, unit, target=target)
        for name, (value, unit), target in zip(names, values, FAILING_TARGETS, strict=True)
    ]


class _Lines(logging.Handler):
    """Keeps the agent's lines while it is used as a context manager."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())

    def __enter__(self) -> "_Lines":
        logging.getLogger("node_agent").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("node_agent").removeHandler(self)


def _generations(mirror: Mirror) -> Mapping[str, int]:
    """How often the content of each slice was written so far."""
    return {name: one["metadata"]["generation"] for name, one in mirror.objects.value.items()}


def _written(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    return sum(count - before.get(name, 0) for name, count in after.items())


async def _until(mirror: Mirror, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        async for _ in mirror.objects.watch():
            if condition():
                return


async def _writes(effort: Effort) -> list[Figure]:
    """How often slices are written, as a watcher of the API server sees it."""
    seconds = effort.pick(full=20, quick=3)
    with folder() as place:
        async with served(place) as cluster:
            mirror = Mirror(cluster.client, RESOURCE_SLICES)
            reached = {f"agent.{key}": value for key, value in cluster.settings.items() if key != "frontDoors"}
            more = {**RULES, **reached, "agent.frontDoors.dra": True}
            async with running(mirror.run()), at_work(PROFILE, more) as world:
                await _until(mirror, lambda: bool(_generations(mirror)))
                first = _generations(mirror)
                await asyncio.sleep(seconds)
                still = _generations(mirror)
                world.node.simulation.node.faults.xid(0, XID, recovery=False)
                await _until(mirror, lambda: _generations(mirror) != still)
                await asyncio.sleep(seconds)
                sick = _generations(mirror)
    return [
        single("slice writes while nothing changes", _written(first, still), Unit.COUNT, target=Target(limit=0)),
        single("  for one health change", _written(still, sick), Unit.COUNT, target=Target(limit=1)),
    ]
