"""Cutting GPUs anew. Users met: an agent that destroyed at its start what others had made, and turned MIG off (B33);
old and new resources that both counted after a change (B15); and what pods hold, taken from under them.
"""

import asyncio

from msgspec.structs import replace

from node_agent.agent.agent import Agent
from node_agent.allocation.grants import Door
from tests.fakes.names import GPU_RESOURCE
from tests.faults.conftest import PATIENCE, Place, Simulate, until


def lying(place: Place, gpu: int) -> int | None:
    """How many instances lie on a GPU; None with MIG off."""
    mig = place.node.faults.gpu(gpu).mig
    assert mig is not None
    return len(mig.instances) if mig.enabled else None


def ask_for(agent: Agent, layout: str) -> None:
    settings = agent.live.settings
    settings.set(replace(settings.value, mig_config=layout))


def reasons(agent: Agent) -> str:
    """Why the layout is not in force."""
    layout = agent.status().layout
    return "; ".join(layout.reasons) if layout is not None else ""


async def in_force(agent: Agent) -> None:
    async with asyncio.timeout(PATIENCE * 3):
        while (layout := agent.status().layout) is None or layout.phase != "success":
            await asyncio.sleep(0.02)


async def test_what_others_have_made_outlives_an_agent_that_knows_nothing_of_it(simulate: Simulate) -> None:
    place = simulate("a30-2")
    async with place.kubelet.running(), place.agent() as agent:
        await until(lambda: agent.limits.synced.is_set() and agent.keeper.inventory.value.instances)
        await asyncio.sleep(0.5)
        assert (lying(place, 0), lying(place, 1)) == (None, 3)
        assert agent.ledger.grants_of(Door.LAYOUT) == ()
        assert agent.status().layout is None


async def test_a_gpu_that_a_pod_holds_is_cut_when_the_pod_has_ended_and_the_others_at_once(h200: Place) -> None:
    async with h200.serving() as agent:
        ids, _ = await h200.kubelet.admit("trainer", GPU_RESOURCE, 1)
        ask_for(agent, "all-1g.18gb")
        held = h200.uuids.index(ids[0])
        async with asyncio.timeout(PATIENCE * 3):
            while [lying(h200, gpu) for gpu in range(8)] != [None if gpu == held else 7 for gpu in range(8)]:
                await asyncio.sleep(0.05)
        await until(lambda: "pod default/trainer" in reasons(agent))
        assert ids[0] in h200.view.healthy, "the pod keeps what it has"
        h200.kubelet.release("trainer")
        await in_force(agent)
        assert lying(h200, held) == 7
        await until(lambda: not h200.view.healthy)


async def test_a_gpu_is_out_of_service_before_the_first_step_and_whole_again_after_the_last(h200: Place) -> None:
    async with h200.serving() as agent:
        ask_for(agent, "all-enabled")
        await in_force(agent)
        await until(lambda: not h200.view.healthy)
        offered: list[tuple[int, int | None]] = []

        def watch(gpu: int) -> bool:
            """Note whenever the kubelet could give out a GPU that is not whole."""
            if h200.uuid(gpu) in h200.view.healthy and lying(h200, gpu) is not None:
                offered.append((gpu, lying(h200, gpu)))
            return h200.uuid(gpu) in h200.view.healthy

        ask_for(agent, "all-disabled")
        await until(lambda: all([watch(gpu) for gpu in range(8)]))
        await in_force(agent)
        assert offered == []
