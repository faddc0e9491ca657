"""What the kubelet is answered for its claims: one slow or broken claim is no other's business, trouble that may pass
is tried again within the call, and what cannot be helped is said at once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from node_agent.allocation.prepare import Preparer
from node_agent.allocation.steps import Step
from node_agent.dra.operations import PATIENCE_SECONDS, ClaimOperations, ClaimRef, PreparedDevice
from node_agent.dra.sharing import Sharers
from node_agent.errors import (
    CdiError,
    CheckpointDamaged,
    ClaimConfigInvalid,
    ClaimUnreadable,
    DeviceHeld,
    DriverFilesUnknown,
    HoldersUnknown,
    KubeError,
    NodeAgentError,
    Overtaken,
    PoolUnknown,
    StateError,
    UnknownDevice,
)
from node_agent.model.claim import Claim, ClaimUid, OpaqueConfig
from node_agent.telemetry.catalogue import CLAIM_OPERATIONS
from tests.unit.allocation.support import DEVICES, DRIVER, POOL, FakeStep, allocated, claim, node, uid_of

SHARERS = Sharers(
    driver=DRIVER,
    published=lambda: DEVICES,
    gpus=dict,
    lacks=lambda: "no MPS",
    enforcement=lambda: "auto",
)

Arrival = Callable[[], Awaitable[None]]


@dataclass
class KnownClaims:
    """Claims as they are known; ``troubles`` are raised first, one for each question, ``arrival`` is waited for."""

    claims: dict[ClaimUid, Claim] = field(default_factory=dict)
    troubles: list[NodeAgentError] = field(default_factory=list)
    arrivals: dict[ClaimUid, Arrival] = field(default_factory=dict)

    async def claim(self, ref: ClaimRef) -> Claim:
        if ref.uid in self.arrivals:
            await self.arrivals[ref.uid]()
        if self.troubles:
            raise self.troubles.pop(0)
        if ref.uid not in self.claims:
            raise ClaimUnreadable(f"claim {ref.full_name} is not there")
        return self.claims[ref.uid]


@dataclass
class World:
    known: KnownClaims
    preparer: Preparer
    operations: ClaimOperations

    def knows(self, *claims: Claim) -> list[ClaimRef]:
        self.known.claims |= {each.uid: each for each in claims}
        return [ref(each) for each in claims]


def ref(one: Claim) -> ClaimRef:
    return ClaimRef(uid=one.uid, namespace=one.namespace, name=one.name)


async def wait_for(event: asyncio.Event) -> None:
    await event.wait()


async def known_at_once() -> None:
    """Nothing is held by limits."""


@asynccontextmanager
async def world(
    folder: Path, *steps: Step, patience: float = 5.0, holders_known: Callable[[], Awaitable[None]] = known_at_once
) -> AsyncIterator[World]:
    async with node(folder, *steps) as parts:
        known = KnownClaims()
        operations = ClaimOperations(
            driver=DRIVER,
            claims=known,
            preparer=parts.preparer,
            published=lambda: DEVICES,
            with_modes=SHARERS.with_modes,
            holders_known=holders_known,
            patience=patience,
        )
        yield World(known, parts.preparer, operations)


def prepared(answers: Mapping[ClaimUid, object], name: str) -> tuple[PreparedDevice, ...]:
    answer = answers[uid_of(name)]
    assert isinstance(answer, tuple), answer
    return answer


async def test_the_kubelet_gets_each_device_with_its_request_and_pool(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        refs = here.knows(claim("a", allocated("gpu-0", "first/large"), allocated("gpu-1", "second")))
        first, second = prepared(await here.operations.prepare(refs), "a")
    assert (first.device, first.requests, first.pool) == ("gpu-0", ("first",), POOL)
    assert (second.device, second.requests, second.pool) == ("gpu-1", ("second",), POOL)
    assert first.cdi_ids and second.cdi_ids
    assert first.cdi_ids[0] != second.cdi_ids[0]


async def test_a_share_keeps_its_id(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        refs = here.knows(claim("a", allocated("gpu-0", share_id="s1")), claim("b", allocated("gpu-0", share_id="s2")))
        answers = await here.operations.prepare(refs)
        assert [prepared(answers, name)[0].share_id for name in "ab"] == ["s1", "s2"]


async def test_a_broken_claim_costs_no_other(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        good, unknown = claim("good", "gpu-0"), claim("unknown", "gpu-99")
        refs = [*here.knows(good, unknown), ref(claim("gone"))]
        answers = await here.operations.prepare(refs)
    assert prepared(answers, "good")[0].device == "gpu-0"
    assert isinstance(answers[uid_of("unknown")], UnknownDevice)
    assert "gpu-99" in str(answers[uid_of("unknown")])
    assert isinstance(answers[uid_of("gone")], ClaimUnreadable)


async def test_each_claim_is_timed_with_what_came_of_it(tmp_path: Path) -> None:
    def timed() -> tuple[int, ...]:
        kinds = (("prepare", "ok"), ("prepare", "failed"), ("unprepare", "ok"))
        return tuple(CLAIM_OPERATIONS.values[kind].count for kind in kinds)

    before = timed()
    async with world(tmp_path) as here:
        refs = here.knows(claim("good", "gpu-0"), claim("unknown", "gpu-99"))
        await here.operations.prepare(refs)
        await here.operations.unprepare(refs)
    assert [after - once for after, once in zip(timed(), before, strict=True)] == [1, 1, 2]


async def test_a_slow_claim_holds_up_no_other(tmp_path: Path) -> None:
    async with world(tmp_path) as here, asyncio.TaskGroup() as group:
        slow, quick = here.knows(claim("slow", "gpu-0"), claim("quick", "gpu-1"))
        arrived = asyncio.Event()

        async def arrival() -> None:
            await arrived.wait()

        here.known.arrivals[slow.uid] = arrival
        waiting = group.create_task(here.operations.prepare([slow]))
        async with asyncio.timeout(30):
            assert prepared(await here.operations.prepare([quick]), "quick")
        assert not waiting.done()
        arrived.set()
        assert prepared(await waiting, "slow")


@pytest.mark.parametrize(
    "trouble",
    [
        KubeError("away"),
        DeviceHeld("given back soon"),
        PoolUnknown("not yet"),
        HoldersUnknown("not yet"),
        DriverFilesUnknown("not yet"),
    ],
)
async def test_trouble_that_may_pass_is_tried_again_within_the_call(tmp_path: Path, trouble: NodeAgentError) -> None:
    async with world(tmp_path) as here:
        refs = here.knows(claim("a", "gpu-0"))
        here.known.troubles = [trouble]
        assert prepared(await here.operations.prepare(refs), "a")
        assert not here.known.troubles


async def test_no_claim_gets_a_device_before_it_is_known_what_pods_hold_by_limits(tmp_path: Path) -> None:
    waits = asyncio.Event()
    async with world(tmp_path, holders_known=partial(wait_for, waits)) as here, asyncio.timeout(30):
        preparing = asyncio.create_task(here.operations.prepare(here.knows(claim("a", "gpu-0"))))
        await asyncio.sleep(0.05)
        assert not here.preparer.called_since(uid_of("a"), 0.0)
        waits.set()
        assert prepared(await preparing, "a")


async def test_trouble_that_does_not_pass_is_the_answer_in_time(tmp_path: Path) -> None:
    async with world(tmp_path, patience=0.3) as here:
        refs = here.knows(claim("a", "gpu-0"))
        here.known.troubles = [KubeError("away")] * 50
        async with asyncio.timeout(30):
            answers = await here.operations.prepare(refs)
        assert str(answers[uid_of("a")]) == "away"


async def test_a_claim_that_hangs_is_answered_before_the_kubelet_gives_up_and_done_all_the_same(tmp_path: Path) -> None:
    assert PATIENCE_SECONDS < 45, "the kubelet waits for so long"
    step = FakeStep(tmp_path, gate=asyncio.Event())
    async with world(tmp_path, step, patience=0.3) as here, asyncio.timeout(30):
        refs = here.knows(claim("slow", "gpu-0"))
        answers = await here.operations.prepare(refs)
        assert "claim default/slow is not done within 0.3 s" in str(answers[uid_of("slow")])

        assert step.gate is not None
        step.gate.set()
        while not isinstance((await here.operations.prepare(refs))[uid_of("slow")], tuple):
            await asyncio.sleep(0.01)
        assert step.calls == ["do setting"]


@pytest.mark.parametrize(
    "trouble", [StateError("disk full"), CheckpointDamaged("cut"), CdiError("no such gpu"), UnknownDevice("gpu-99")]
)
async def test_trouble_that_does_not_pass_by_itself_is_said_at_once(tmp_path: Path, trouble: NodeAgentError) -> None:
    """The kubelet comes back by itself, and a pod that waits for it should show why."""
    async with world(tmp_path) as here:
        refs = here.knows(claim("a", "gpu-0"))
        here.known.troubles = [trouble]
        assert await here.operations.prepare(refs) == {uid_of("a"): trouble}


async def test_a_mistaken_configuration_is_said_at_once_with_its_path_and_takes_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategi": "x"}}
        mistaken = Claim(
            uid=uid_of("a"),
            namespace="default",
            name="a",
            results=(allocated("gpu-0"),),
            configs=(OpaqueConfig(driver=DRIVER, parameters=parameters),),
        )
        answers = await here.operations.prepare(here.knows(mistaken))
        assert isinstance(answers[mistaken.uid], ClaimConfigInvalid)
        assert "sharing" in str(answers[mistaken.uid])
        assert prepared(await here.operations.prepare(here.knows(claim("b", "gpu-0"))), "b")


async def test_what_other_drivers_were_given_is_left_to_them(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        refs = here.knows(claim("a", allocated("nic-0", driver="nic.example"), "gpu-0"))
        assert [each.device for each in prepared(await here.operations.prepare(refs), "a")] == ["gpu-0"]


async def test_a_retry_is_as_old_as_its_call_and_loses_to_an_unprepare_in_between(tmp_path: Path) -> None:
    """A pod is deleted while its prepare waits for the API server: the claim must not come to hold its GPU again."""
    async with world(tmp_path) as here:
        (one,) = here.knows(claim("a", "gpu-0"))
        here.known.troubles = [KubeError("away")]
        asked = asyncio.create_task(here.operations.prepare([one]))
        async with asyncio.timeout(30):
            while here.known.troubles:
                await asyncio.sleep(0)
        await here.operations.unprepare([one])
        answers = await asked
        assert isinstance(answers[one.uid], Overtaken)
        assert prepared(await here.operations.prepare(here.knows(claim("b", "gpu-0"))), "b")


async def test_unpreparing_answers_every_claim_known_or_not_any_number_of_times(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        refs = [*here.knows(claim("a", "gpu-0")), ref(claim("unheard-of"))]
        await here.operations.prepare(refs[:1])
        for _ in range(2):
            assert await here.operations.unprepare(refs) == {each.uid: () for each in refs}
