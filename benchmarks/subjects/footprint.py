"""What the agent takes while it runs: memory, threads, open files, and processor time while nothing happens."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from benchmarks.floors import BARE_SERVER, NVML_PASS, nvml_pass, plugin_at
from benchmarks.inside import simulated
from benchmarks.measure import Effort, Figure, Floor, Target, Unit, single, timed
from benchmarks.process import PROFILE, Process, Stand, growth, stand
from node_agent.hardware import simulated as simulated_node
from node_agent.model.vendor import NVIDIA
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire

# What a start leaves to do, such as first probes, is done by then.
SETTLE_SECONDS = 3.0

PROFILES = Path(simulated_node.__file__).parent / "profiles"
# The smallest MIG device of the profile's GPUs, and how many of it fit on one.
INSTANCE, INSTANCES = "1g.18gb", 7

MEMORY_TARGET, MIG_MEMORY_TARGET = Target(limit=72 * 2**20), Target(limit=88 * 2**20)
IDLE_TARGET = Target(limit=0.15)


async def measure(effort: Effort) -> Sequence[Figure]:
    seconds = effort.pick(full=30, quick=6)
    async with stand() as place:
        async with _bare_server(place) as bare, place.agent() as agent:
            await asyncio.sleep(SETTLE_SECONDS)
            sizes = _sizes(agent, bare)
            idle = await _idle("processor time in an idle minute", agent, PROFILE, seconds, IDLE_TARGET)
            after_calls = await _after_calls(place, agent, effort)
        cut = partitioned(place.folder)
        async with place.agent_on(cut) as agent:
            await asyncio.sleep(2 * SETTLE_SECONDS)
            named = f"with {INSTANCES} MIG devices on each GPU"
            size_with_mig = single(f"  {named}", agent.memory, Unit.BYTES, target=MIG_MEMORY_TARGET)
            idle_with_mig = await _idle(f"  {named}, processor time", agent, cut, seconds)
    return [sizes[0], size_with_mig, *sizes[1:], idle, idle_with_mig, *after_calls]


def partitioned(folder: Path) -> str:
    """The profile of the same node with each of its GPUs cut to the smallest MIG devices."""
    profile = yaml.safe_load((PROFILES / f"{PROFILE}.yaml").read_text())
    for gpu in profile["gpus"]:
        gpu["mig"] = [f"{INSTANCE}@{place}" for place in range(INSTANCES)]
    file = folder / "partitioned.yaml"
    file.write_text(yaml.safe_dump(profile))
    return str(file)


@asynccontextmanager
async def _bare_server(place: Stand) -> AsyncIterator[Process]:
    socket = place.folder / "bare.sock"
    async with place.started([sys.executable, "-m", "benchmarks.bare_server", str(socket)]) as process:
        while not socket.exists():
            await asyncio.sleep(0.05)
        yield process


def _sizes(agent: Process, bare: Process) -> list[Figure]:
    def against(value: float) -> Floor:
        return Floor(name=BARE_SERVER, median=value)

    return [
        single("memory after the start", agent.memory, Unit.BYTES, against(bare.memory), MEMORY_TARGET),
        single("threads", agent.threads, Unit.COUNT, against(bare.threads)),
        single("open files", agent.descriptors, Unit.COUNT, against(bare.descriptors)),
    ]


async def _idle(name: str, agent: Process, profile: str, seconds: float, target: Target | None = None) -> Figure:
    """Processor time in a minute without calls and events; the floor is one look at all GPUs."""
    with simulated(profile) as node:
        async with nvml_pass(node.settings) as look:
            floor = Floor(name=NVML_PASS, median=min([await timed(look) for _ in range(20)]))
    before, began = agent.cpu_seconds, agent.age
    await asyncio.sleep(seconds)
    used = (agent.cpu_seconds - before) / (agent.age - began) * 60
    return single(name, used, Unit.SECONDS, floor, target)


async def _after_calls(place: Stand, agent: Process, effort: Effort) -> Sequence[Figure]:
    view = place.kubelet.view(NVIDIA.resource)
    request = wire.AllocateRequest(
        container_requests=[wire.ContainerAllocateRequest(devices_ids=sorted(view.healthy)[:4])]
    )
    async with plugin_at(view.endpoint) as plugin:
        return await growth(agent, lambda: plugin.Allocate(request), effort, "calls to Allocate")
