"""Allocate, as the kubelet calls it: from another process, now and then, and one after the other.

The floor is a server of the same kind, in a process of its own as well, that has the answer ready. The devices are
free, as the agent knows it: of one whose last pod it has not seen end yet it asks the kubelet, a figure of its own.
"""

import asyncio
from collections.abc import Sequence
from itertools import cycle

from benchmarks.floors import EMPTY_CALL, plugin_at
from benchmarks.measure import Effort, Figure, Of, Step, Target, Turn, figure, in_turns
from benchmarks.process import Stand, stand
from node_agent.allocation.checkpoint import decode
from node_agent.model.vendor import NVIDIA
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire
from node_agent.wire import deviceplugin_v1beta1_pb2_grpc as rpc

REST_SECONDS, LOOK_SECONDS = 0.1, 0.05
SEEN_SECONDS, PATIENCE_SECONDS = 1.5, 60.0
TARGET = Target(limit=1.3, of=Of.RATIO)


async def measure(effort: Effort) -> Sequence[Figure]:
    async with (
        stand() as place,
        place.agent(heard=False),
        plugin_at(place.kubelet.view(NVIDIA.resource).endpoint) as agent,
    ):
        *ids, other = place.kubelet.free(NVIDIA.resource)
        # Of a pod that was given a device and is never admitted: as long as there is one, the agent looks every second.
        await agent.Allocate(_request([other]))
        pods = _Pods(place, agent)
        each, four, rounds = [[name] for name in ids], [ids[:4]], effort.pick(full=15, quick=3)
        of = f"of {len(ids) + 1} GPUs"
        return [
            figure(f"1 {of}", await pods.given(each, rounds), EMPTY_CALL, TARGET),
            figure(f"1 {of}, rested", await pods.given(each, rounds, rest=REST_SECONDS), EMPTY_CALL, TARGET),
            figure(f"4 {of}, rested", await pods.given(four, rounds, rest=REST_SECONDS), EMPTY_CALL, TARGET),
            figure(f"1 {of}, its last pod not seen to end", await pods.again(ids[:1], rounds), EMPTY_CALL),
        ]


def _request(ids: Sequence[str]) -> wire.AllocateRequest:
    return wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=ids)])


class _Pods:
    """Those that come and go on a stand."""

    def __init__(self, place: Stand, agent: rpc.DevicePluginStub) -> None:
        self._place, self._agent = place, agent

    async def given(self, wanted: Sequence[Sequence[str]], rounds: int, *, rest: float = 0.0) -> list[Turn]:
        """Rounds in which pods get these devices, one after the other and each a ``rest`` later, and then end."""
        ids, turns, left = frozenset(name for each in wanted for name in each), cycle(wanted), len(wanted)

        async def between() -> None:
            nonlocal left
            left -= 1
            if not rest or not left:
                await self._come_and_go(ids)
                left = len(wanted)
            await asyncio.sleep(rest)

        calls = {"rounds": rounds * len(wanted)} if rest else {"rounds": rounds, "calls": len(wanted)}
        return await self._timed(lambda: self._agent.Allocate(_request(next(turns))), wanted[0], between, **calls)

    async def again(self, ids: Sequence[str], rounds: int) -> list[Turn]:
        """Rounds in which a pod gets the devices of another that has just ended."""
        await self._agent.Allocate(_request(ids))
        return await self._timed(
            lambda: self._agent.Allocate(_request(ids)), ids, lambda: asyncio.sleep(REST_SECONDS), rounds=rounds
        )

    async def _timed(self, subject: Step, ids: Sequence[str], between: Step, **calls: int) -> list[Turn]:
        answer = await self._agent.Allocate(_request(ids))
        await self._come_and_go(frozenset(ids))
        async with self._place.parrot(answer) as floor:
            return await in_turns(subject, lambda: floor.Allocate(_request(ids)), between=between, **calls)

    async def _come_and_go(self, ids: frozenset[str]) -> None:
        """Have the kubelet tell of a pod with these devices, and then no more, until the agent has given them back."""
        self._place.kubelet.held["pod"] = (NVIDIA.resource, ids)
        await asyncio.sleep(SEEN_SECONDS)
        self._place.kubelet.release("pod")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while ids & self._held():
                await asyncio.sleep(LOOK_SECONDS)

    def _held(self) -> set[str]:
        """What the agent has in its ledger."""
        grants = decode((self._place.folder / "state" / "ledger.json").read_bytes()).grants.values()
        return {hold.device for grant in grants for hold in grant.holds}
