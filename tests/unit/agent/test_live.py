"""Other settings while the agent runs: what the kubelet sees of them, and what pods notice, which is nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from node_agent.agent.agent import Agent
from node_agent.agent.live import pool_of
from node_agent.agent.node_labels import node_labels
from node_agent.config.settings import Rename, Settings, Sharing, SharingRule
from node_agent.errors import ConfigError
from node_agent.hardware.machine import UNKNOWN
from node_agent.kit.tasks import running
from tests.fakes.nodes import inventory_of
from tests.unit.agent.conftest import Place

RESOURCE, RENAMED = "nvidia.com/gpu", "nvidia.com/h200"
RENAMES = (Rename(pattern="*", resource=RENAMED),)


@asynccontextmanager
async def at_work(place: Place) -> AsyncIterator[Agent]:
    """An agent that offers its eight GPUs under the usual name."""
    async with place.kubelet.running(), place.agent() as agent:
        await place.kubelet.until(RESOURCE, allocatable=8)
        await agent.limits.synced.wait()
        yield agent


async def put_in_force(agent: Agent, **changes: object) -> Settings:
    settings = replace(agent.live.settings.value, **changes)
    await agent.live.apply(settings, agent.keeper.inventory.value)
    return settings


async def keep_capacities(place: Place, seen: list[tuple[int, ...]]) -> None:
    """How many devices the kubelet lists at each moment under the old name and under the new one."""
    async for _ in place.kubelet.resources.watch():
        seen += [(place.kubelet.view(RESOURCE).capacity, place.kubelet.view(RENAMED).capacity)]


async def test_a_gpu_that_is_excluded_leaves_the_list_and_comes_back_over_the_same_socket(place: Place) -> None:
    async with at_work(place) as agent:
        before = place.kubelet.view(RESOURCE)
        await put_in_force(agent, exclude=("3",))
        without = await place.kubelet.until(RESOURCE, allocatable=7)
        await put_in_force(agent, exclude=())
        after = await place.kubelet.until(RESOURCE, allocatable=8)
    assert place.simulated.node.faults.gpu(3).uuid not in without.healthy
    assert before.healthy == after.healthy
    assert (after.endpoint, after.registrations) == (before.endpoint, 1)


async def test_gpus_that_are_left_to_others_leave_both_front_doors_and_the_labels_and_the_status_names_them(
    place: Place,
) -> None:
    async with at_work(place) as agent:
        inventory = agent.keeper.inventory.value
        gpu = next(one for one in inventory.gpus if one.index == 3)
        await put_in_force(agent, exclude=("3",))
        assert gpu.uuid not in agent.live.pool.value.offered(inventory)
        labels = node_labels(agent.live.selection.value, inventory, UNKNOWN) or {}
        assert labels["nvidia.com/gpu.count"] == "7"
        status = agent.status()
    assert f"{gpu.name}: left to others by agent.devices.exclude" in status.notices
    assert len(status.gpus) == 8


async def test_a_gpu_that_only_moves_to_another_name_is_in_the_labels_all_the_while(place: Place) -> None:
    async with at_work(place) as agent:
        inventory, seen = agent.keeper.inventory.value, set()

        async def look() -> None:
            async for selection in agent.live.selection.watch():
                seen.add((node_labels(selection, inventory, UNKNOWN) or {})["nvidia.com/gpu.count"])

        async with running(look()):
            rule = SharingRule(strategy="time-slicing", shares=2, devices=("0",), resource=RENAMED)
            await put_in_force(agent, sharing=Sharing(rules=(rule,)))
            await place.kubelet.until(RENAMED, allocatable=2)
    assert seen == {"8"}


async def test_a_gpu_that_a_pod_holds_is_excluded_at_once_and_waited_for(place: Place) -> None:
    async with at_work(place) as agent:
        (held,), _ = await place.kubelet.admit("pod", RESOURCE, 1)
        await put_in_force(agent, exclude=(held,))
        view = await place.kubelet.until(RESOURCE, allocatable=7)
        assert held in view.devices
        plugin = agent.plugins[RESOURCE]
        assert plugin.draining == (held,)
        await asyncio.sleep(0.2)
        assert held in place.kubelet.view(RESOURCE).devices
        await put_in_force(agent, exclude=())
        assert held in (await place.kubelet.until(RESOURCE, allocatable=8)).healthy
        assert not plugin.draining


async def test_a_name_that_is_used_no_more_ends_with_an_empty_list_before_the_new_one_has_any(place: Place) -> None:
    seen: list[tuple[int, ...]] = []
    async with at_work(place) as agent, running(keep_capacities(place, seen)):
        await put_in_force(agent, resources=RENAMES)
        await place.kubelet.until(RENAMED, allocatable=8)
        assert (old := place.kubelet.view(RESOURCE)).capacity == 0
        assert old.connected
        await asyncio.sleep(0.05)
    assert (seen[0], seen[-1]) == ((8, 0), (0, 8))
    assert all(0 in pair for pair in seen)


async def test_the_plugin_of_a_name_that_no_rule_gives_any_more_ends(place: Place) -> None:
    settings = replace(place.settings(), resources=RENAMES)
    async with place.kubelet.running(), place.agent(settings) as agent:
        await place.kubelet.until(RENAMED, allocatable=8)
        await put_in_force(agent, resources=())
        await place.kubelet.until(RESOURCE, allocatable=8)
        async with asyncio.timeout(30):
            while f"device-plugin {RENAMED}" in {service.name for service in agent.status().services}:
                await asyncio.sleep(0.02)
        assert {one.name for one in agent.status().resources} == {RESOURCE}
        assert not place.kubelet.view(RENAMED).connected
        sockets = list((place.folder / "kubelet" / "device-plugins").glob("node-agent-*"))
    assert len(sockets) == 1


async def test_a_gpu_that_moves_to_another_name_waits_for_the_pod_that_holds_it(place: Place) -> None:
    settings = replace(place.settings(), resources=RENAMES)
    async with place.kubelet.running(), place.agent(settings) as agent:
        await place.kubelet.until(RENAMED, allocatable=8)
        await agent.limits.synced.wait()
        (held,), _ = await place.kubelet.admit("pod", RENAMED, 1)
        await put_in_force(agent, resources=())
        view = await place.kubelet.until(RESOURCE, allocatable=7)
        assert held in view.devices
        trouble = agent.plugins[RESOURCE].offer.value.by_id[held].trouble
        assert trouble == f"waits until pods have given back {RENAMED}/{held}"
        assert agent.plugins[RENAMED].draining == (held,)
        assert set(place.kubelet.view(RENAMED).devices) == {held}
        place.kubelet.release("pod")
        await agent.ledger.release(f"{RENAMED}/{held}")
        await place.kubelet.until(RESOURCE, allocatable=8)


def test_claims_can_have_all_gpus_but_those_that_are_left_out_or_shared_by_mps(place: Place) -> None:
    node = inventory_of("h200-8")
    by_index = {gpu.index: gpu.uuid for gpu in node.gpus}
    two = SharingRule(strategy="mps", shares=4, first=2, of=RESOURCE)
    turns = SharingRule(strategy="time-slicing", shares=4, devices=("0",))
    settings = replace(place.settings(), exclude=("7",), sharing=Sharing(rules=(turns, two)))
    assert pool_of(settings).offered(node) == {by_index[number] for number in (0, 2, 3, 4, 5, 6)}
    claims_only = pool_of(replace(settings, device_plugin=False))
    assert claims_only.offered(node) == {by_index[number] for number in range(7)}


async def test_nothing_is_sent_where_nothing_changed(place: Place) -> None:
    async with at_work(place) as agent:
        messages = place.kubelet.view(RESOURCE).messages
        await put_in_force(agent, resources=())
        await put_in_force(agent, shareable=("*",))
        await asyncio.sleep(0.2)
        assert place.kubelet.view(RESOURCE).messages == messages


async def test_a_configuration_whose_list_the_kubelet_would_not_take_changes_nothing(place: Place) -> None:
    rule = SharingRule(strategy="time-slicing", shares=16384)
    async with at_work(place) as agent:
        before = agent.live.settings.value
        with pytest.raises(ConfigError, match=r"131072 devices, whose list takes \d+ bytes; the kubelet takes 4194304"):
            await put_in_force(agent, sharing=Sharing(rules=(rule,)))
        assert agent.live.settings.value is before
        await put_in_force(agent, sharing=Sharing(rules=(replace(rule, shares=4),)))
        await place.kubelet.until(RESOURCE, allocatable=32)


async def test_what_a_pod_holds_under_the_name_of_an_earlier_configuration_is_not_offered_under_another(
    place: Place,
) -> None:
    held = place.simulated.node.faults.gpu(2).uuid
    place.kubelet.held["pod"] = (RESOURCE, frozenset({held}))
    async with place.kubelet.running(), place.agent(replace(place.settings(), resources=RENAMES)):
        view = await place.kubelet.until(RENAMED, allocatable=7)
        await asyncio.sleep(0.2)
        assert place.kubelet.view(RENAMED).healthy == view.healthy
        assert held not in view.healthy


async def test_an_agent_with_both_front_doors_closed_watches_its_gpus_and_registers_nothing(place: Place) -> None:
    """As on a node whose GPUs another device plugin gives out."""
    closed = place.settings(agent_frontDoors_devicePlugin=False, agent_frontDoors_dra=False)
    async with place.kubelet.running(), place.agent(closed) as agent:
        async with asyncio.timeout(30):
            while not (status := agent.status()).ready or {gpu.health for gpu in status.gpus} != {"healthy"}:
                await asyncio.sleep(0.05)
        assert (len(status.gpus), status.resources, status.claims) == (8, (), None)
        assert place.kubelet.view(RESOURCE).registrations == 0
