"""Intervals that claims ask for: set, shared, taken back, and never in the way of a pod's end."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.cdi.edits import ContainerEdits
from node_agent.dra.time_slice_step import STEP, TIME_SLICES, TimeSliceStep, claimed_gpus
from node_agent.errors import DeviceLost, NotSupported
from node_agent.kit.latest import Latest
from node_agent.model.claim import Claim, ClaimUid
from node_agent.model.gpu import GpuUuid
from node_agent.sharing.shares import Interval

A, B = GpuUuid("GPU-0"), GpuUuid("GPU-1")
CLAIM = Claim(uid=ClaimUid("uid"), namespace="team", name="claim")
SHORT = "time slices of Short"


@dataclass
class Slices:
    calls: list[tuple[GpuUuid, Interval | None]] = field(default_factory=list)
    failure: Exception | None = None

    async def set(self, gpu: GpuUuid, interval: Interval) -> None:
        await self._call(gpu, interval)

    async def restore(self, gpu: GpuUuid) -> None:
        await self._call(gpu, None)

    async def _call(self, gpu: GpuUuid, interval: Interval | None) -> None:
        self.calls.append((gpu, interval))
        if self.failure is not None:
            raise self.failure


def grant(name: str, *holds: Hold, begun: bool = True) -> Grant:
    holder = Holder(door=Door.CLAIM, id=name, name=f"team/{name}")
    return Grant(holder=holder, holds=holds, steps={STEP: {}} if begun else {})


def hold(*gpus: GpuUuid, mode: str = SHORT, share: str | None = None, admin: bool = False) -> Hold:
    return Hold(device=f"device-{len(gpus)}", gpus=gpus, mode=mode, share_id=share, admin=admin)


def step(slices: Slices, *others: Grant) -> TimeSliceStep:
    grants: Latest[Mapping[str, Grant]] = Latest({one.holder.id: one for one in others})
    return TimeSliceStep(slices=slices, grants=grants)


@pytest.mark.parametrize(("mode", "applies"), [("", False), ("MPS", False), *((mode, True) for mode in TIME_SLICES)])
def test_only_a_claim_that_asks_for_an_interval_has_the_step(mode: str, applies: bool) -> None:
    assert step(Slices()).applies(CLAIM, grant("a", hold(A, mode=mode))) is applies


async def test_every_gpu_of_the_claim_is_set_and_no_other() -> None:
    slices = Slices()
    mine = grant("a", hold(A, B), hold(GpuUuid("GPU-2"), mode=""))
    assert await step(slices).do(CLAIM, mine) == {}
    assert slices.calls == [(A, Interval.SHORT), (B, Interval.SHORT)]
    assert step(slices).edits(mine, mine.holds[0]) == ContainerEdits()


async def test_a_gpu_without_time_slices_refuses_the_claim() -> None:
    with pytest.raises(NotSupported, match="it has none"):
        await step(Slices(failure=NotSupported("it has none"))).do(CLAIM, grant("a", hold(A)))


async def test_the_interval_goes_with_the_last_claim_that_shares_the_gpu() -> None:
    slices = Slices()
    one, other = grant("a", hold(A, share="1"), hold(B)), grant("b", hold(A, share="2"))
    await step(slices, one, other).undo(one)
    assert slices.calls == [(B, None)]
    await step(slices, other).undo(other)
    assert slices.calls == [(B, None), (A, None)]


async def test_a_neighbour_that_has_set_nothing_yet_keeps_nothing() -> None:
    slices = Slices()
    mine, waiting = grant("a", hold(A, share="1")), grant("b", hold(A, share="2"), begun=False)
    await step(slices, mine, waiting).undo(mine)
    assert slices.calls == [(A, None)]


async def test_a_gpu_that_does_not_answer_keeps_no_pod_from_ending(caplog: pytest.LogCaptureFixture) -> None:
    slices = Slices(failure=DeviceLost("it fell off the bus"))
    await step(slices).undo(grant("a", hold(A), hold(B)))
    assert [gpu for gpu, _ in slices.calls] == [A, B]
    assert caplog.messages == ["time slices of a claim stay set"] * 2


def test_the_gpus_that_claims_have_set_are_those_whose_step_has_begun() -> None:
    begun, waiting = grant("a", hold(A)), grant("b", hold(B), begun=False)
    assert claimed_gpus([begun, waiting]) == {A}
    assert claimed_gpus([replace(begun, holds=(hold(A, admin=True), hold(B, mode="MPS")))]) == frozenset()
