"""NodePrepareResources and NodeUnprepareResources, as the kubelet calls them: rested, and one after the other.

The floor is what cannot be left out: an empty call, a look at the claim at the API server, and two writes that are on
the disk when it is answered, as many as a ledger needs that is replaced as a whole. To unprepare no claim is looked at.
Where a MIG device is made for the claim, most of the time goes to the simulated driver, which writes its files anew at
each of the four changes. And how long after its start the agent has its slices published.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from grpc import aio

from benchmarks.cluster import Cluster, served
from benchmarks.floors import INTERPRETER, fsynced_write
from benchmarks.measure import Effort, Figure, Of, Step, Target, Turn, figure, timed
from benchmarks.process import PROFILE, Process, Stand, growth, stand
from node_agent.cdi.names import file_name
from node_agent.kube.resources import RESOURCE_CLAIMS
from node_agent.model.vendor import NVIDIA
from node_agent.wire import deviceplugin_v1beta1_pb2 as plugin_wire
from node_agent.wire import dra_v1_pb2 as wire
from node_agent.wire import dra_v1_pb2_grpc as rpc

PREPARE_FLOOR, UNPREPARE_FLOOR = "a call, a look, two fsynced writes", "a call, two fsynced writes"
CUT, PART = "gpu-7", "gpu-7-mig-1g-18gb-6"
"""The GPU that claims cut, and what is made of it: MIG is turned on for it and off again each time."""
CUT_FOR = "1 MIG device made for it, rested"
REST_SECONDS = 0.1
ROW = 50


TARGET, PUBLISHED_TARGET = Target(limit=1.5, of=Of.RATIO), Target(limit=0.9)


async def measure(effort: Effort) -> Sequence[Figure]:
    rested, rows = effort.pick(full=100, quick=10), effort.pick(full=4, quick=1)
    cuts = effort.pick(full=20, quick=2)
    async with at_work() as (place, agent, cluster, driver):
        one, four = [await cluster.allocated(NVIDIA.driver, f"of-{n}", [f"gpu-{i}" for i in range(n)]) for n in (1, 4)]
        part = await cluster.allocated(NVIDIA.driver, "of-a-part", [PART])
        async with floor(place, cluster, driver, four) as least:
            figures = [
                *await _figures(driver, one, least, "1 of 8 GPUs, rested", rounds=rested, rest=REST_SECONDS),
                *await _figures(driver, four, least, "4 of 8 GPUs, rested", rounds=rested, rest=REST_SECONDS),
                *await _figures(driver, one, least, f"1 of 8 GPUs, {ROW} in a row", rounds=rows, calls=ROW),
                *await _figures(driver, part, least, CUT_FOR, rounds=cuts, rest=REST_SECONDS, target=None),
            ]
        grown = await growth(agent, partial(_there_and_back, driver, one), effort, "claims prepared and unprepared")
    return [*figures, *grown, await _published(effort)]


async def _there_and_back(driver: rpc.DRAPluginStub, claim: wire.Claim) -> None:
    await prepare(driver, claim)
    await unprepare(driver, claim)


@asynccontextmanager
async def at_work() -> AsyncIterator[tuple[Stand, Process, Cluster, rpc.DRAPluginStub]]:
    """The agent on a simulated node of a cluster, with its claims' driver as the kubelet calls it."""
    async with stand() as place, served(place.folder) as cluster:
        (place.folder / "kubelet" / "plugins_registry").mkdir(exist_ok=True)
        settings = {**cluster.settings, "mig": {"onDemand": [CUT]}}
        async with place.agent_on(PROFILE, settings) as agent:
            while not (agent.tells("slices published") and agent.tells("registered resource")):
                await asyncio.sleep(0.05)
            (socket,) = (place.folder / "kubelet" / "plugins" / NVIDIA.driver).glob("dra-*.sock")
            async with aio.insecure_channel(f"unix:{socket}") as channel:
                yield place, agent, cluster, rpc.DRAPluginStub(channel)


@asynccontextmanager
async def floor(
    place: Stand, cluster: Cluster, driver: rpc.DRAPluginStub, claim: wire.Claim
) -> AsyncIterator[tuple[Step, Step]]:
    """An empty call and two writes, of as many bytes as a claim's spec and the ledger with that claim in it.

    And, as a step of its own, a look at the claim.
    """
    await prepare(driver, claim)
    written = [
        place.folder / "cdi" / file_name(NVIDIA.cdi_claim_kind, claim.uid),
        place.folder / "state" / "ledger.json",
    ]
    contents = [file.read_bytes() for file in written]
    await unprepare(driver, claim)
    files = [place.folder / "floor-1", place.folder / "floor-2"]
    async with place.parrot(plugin_wire.AllocateResponse()) as stub:

        async def least() -> None:
            await stub.Allocate(plugin_wire.AllocateRequest())
            for file, content in zip(files, contents, strict=True):
                await asyncio.to_thread(fsynced_write, file, content)

        yield least, lambda: cluster.client.get(RESOURCE_CLAIMS, claim.name, claim.namespace)


async def prepare(driver: rpc.DRAPluginStub, claim: wire.Claim) -> None:
    """Raises RuntimeError where that fails: a failure is no figure."""
    answer = await driver.NodePrepareResources(wire.NodePrepareResourcesRequest(claims=[claim]))
    if error := answer.claims[claim.uid].error:
        raise RuntimeError(error)


async def unprepare(driver: rpc.DRAPluginStub, claim: wire.Claim) -> None:
    """Raises RuntimeError where that fails."""
    answer = await driver.NodeUnprepareResources(wire.NodeUnprepareResourcesRequest(claims=[claim]))
    if error := answer.claims[claim.uid].error:
        raise RuntimeError(error)


async def _figures(
    driver: rpc.DRAPluginStub,
    claim: wire.Claim,
    least: tuple[Step, Step],
    name: str,
    *,
    rounds: int,
    calls: int = 1,
    rest: float = 0.0,
    target: Target | None = TARGET,
) -> list[Figure]:
    """Both calls' figures: ``calls`` of each in turn in a round, after as many of the floor and a rest."""
    call, look = least
    prepared, unprepared = [], []
    for _ in range(1 + rounds):
        await asyncio.sleep(rest)
        before = [await timed(call) for _ in range(calls)]
        looked = [seconds + await timed(look) for seconds in before]
        pairs = []
        for _ in range(calls):
            await asyncio.sleep(rest)
            there = await timed(lambda: prepare(driver, claim))
            await asyncio.sleep(rest)
            pairs.append((there, await timed(lambda: unprepare(driver, claim))))
        prepared.append(Turn(subject=[there for there, _ in pairs], floor=looked))
        unprepared.append(Turn(subject=[back for _, back in pairs], floor=before))
    return [
        figure(f"prepare {name}", prepared[1:], PREPARE_FLOOR, target),
        figure(f"unprepare {name}", unprepared[1:], UNPREPARE_FLOOR, target),
    ]


async def _published(effort: Effort) -> Figure:
    turns = []
    async with stand() as place:
        (place.folder / "kubelet" / "plugins_registry").mkdir()
        for _ in range(1 + effort.pick(full=5, quick=1)):
            bare = await place.python("")
            # A new one each time, which has no slices yet.
            async with served(place.folder) as cluster, place.agent(cluster.settings) as agent:
                while not agent.tells("slices published"):
                    await asyncio.sleep(0.02)
                turns.append(Turn(subject=[agent.first("slices published")], floor=[bare.seconds]))
    return figure("start → slices published", turns[1:], INTERPRETER, PUBLISHED_TARGET)
