"""Where the kubelet goes by another plugin's list, the agent offers its devices again: soon, and only then."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial

import pytest

from node_agent.deviceplugin.plugin import DevicePlugin
from node_agent.deviceplugin.recheck import Recheck
from node_agent.errors import KubeletError
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kubelet.embedded import EmbeddedKubelet
from node_agent.kubelet.podresources import allocatable_devices
from tests.unit.deviceplugin.conftest import RESOURCE, World, node, served

EVERY = 0.05
# Several looks at the kubelet.
QUIET = 0.5

ALL = frozenset(f"GPU-{number}" for number in range(8))


class Kubelet:
    """Tells what it is to tell; the last answer again and again."""

    def __init__(self, *answers: Collection[str] | KubeletError) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def listed(self) -> Mapping[str, Collection[str]]:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, KubeletError):
            raise answer
        return {RESOURCE: answer}


@asynccontextmanager
async def rechecked(plugin: DevicePlugin, kubelet: Kubelet, *, alone: bool = True) -> AsyncIterator[None]:
    recheck = Recheck(
        {RESOURCE: plugin}, listed=kubelet.listed, alone=lambda: alone, every_seconds=EVERY, again_seconds=EVERY
    )
    async with running(recheck.run()):
        yield


async def test_a_plugin_that_came_and_went_leaves_the_node_all_its_gpus(
    world: World, kubelet: EmbeddedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    rival = World(inventory=Latest(node(1)))
    async with kubelet.running(), served(world, kubelet) as plugin:
        await kubelet.until(RESOURCE, allocatable=8)
        async with running(rival.plugin(kubelet.folder).run()):
            await kubelet.until(RESOURCE, allocatable=1)
        await kubelet.until(RESOURCE, allocatable=0)

        listed = partial(allocatable_devices, kubelet.pod_resources_socket)
        recheck = Recheck(
            {RESOURCE: plugin}, listed=listed, alone=lambda: True, every_seconds=EVERY, again_seconds=EVERY
        )
        async with running(recheck.run()):
            await kubelet.until(RESOURCE, allocatable=8)
            await asyncio.sleep(QUIET)
        assert kubelet.view(RESOURCE).registrations == 3
        assert [record.getMessage() for record in caplog.records].count("another plugin has left its devices") == 1


async def test_while_the_kubelet_has_what_is_offered_nothing_is_registered_again(
    world: World, kubelet: EmbeddedKubelet
) -> None:
    async with kubelet.running(), served(world, kubelet) as plugin:
        await kubelet.until(RESOURCE, allocatable=8)
        answers = Kubelet(ALL)
        async with rechecked(plugin, answers):
            await asyncio.sleep(QUIET)
        assert answers.asked > 2
        assert kubelet.view(RESOURCE).registrations == 1


async def test_a_difference_that_is_gone_at_the_next_look_is_a_change_under_way(
    world: World, kubelet: EmbeddedKubelet
) -> None:
    async with kubelet.running(), served(world, kubelet) as plugin:
        await kubelet.until(RESOURCE, allocatable=8)
        async with rechecked(plugin, Kubelet({"GPU-0"}, ALL, ALL - {"GPU-3"}, ALL)):
            await asyncio.sleep(QUIET)
        assert kubelet.view(RESOURCE).registrations == 1


async def test_where_registering_again_does_not_help_it_is_done_seldom(world: World, kubelet: EmbeddedKubelet) -> None:
    async with kubelet.running(), served(world, kubelet) as plugin:
        await kubelet.until(RESOURCE, allocatable=8)
        answers = Kubelet({"GPU-0"})
        async with rechecked(plugin, answers):
            await asyncio.sleep(QUIET)
        assert kubelet.view(RESOURCE).registrations - 1 <= answers.asked / 2


async def test_beside_another_agent_nothing_is_compared(world: World, kubelet: EmbeddedKubelet) -> None:
    """Its list may differ, since it has another configuration, and it is to be the only one soon."""
    async with kubelet.running(), served(world, kubelet) as plugin:
        await kubelet.until(RESOURCE, allocatable=8)
        answers = Kubelet({"GPU-0"})
        async with rechecked(plugin, answers, alone=False):
            await asyncio.sleep(QUIET)
        assert (answers.asked, kubelet.view(RESOURCE).registrations) == (0, 1)


async def test_a_plugin_that_waits_for_the_kubelet_is_not_told_to_register(
    world: World, kubelet: EmbeddedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(world, kubelet) as plugin, rechecked(plugin, Kubelet(())):
        await asyncio.sleep(QUIET)
        assert "another plugin has left its devices" not in caplog.text
        async with kubelet.running():
            await kubelet.until(RESOURCE, allocatable=8)
            assert kubelet.view(RESOURCE).registrations == 1


async def test_a_kubelet_that_does_not_tell_is_said_once_and_taken_at_its_word_later(
    world: World, kubelet: EmbeddedKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    async with kubelet.running(), served(world, kubelet) as plugin:
        await kubelet.until(RESOURCE, allocatable=8)
        silent = [KubeletError("nobody tells")] * 4
        async with rechecked(plugin, Kubelet(*silent, {"GPU-0"}, {"GPU-0"}, ALL)):
            async with asyncio.timeout(30):
                while kubelet.view(RESOURCE).registrations < 2:
                    await asyncio.sleep(0.02)
            await asyncio.sleep(QUIET)
        assert kubelet.view(RESOURCE).registrations == 2
        assert [record.getMessage() for record in caplog.records].count("the kubelet's devices are not compared") == 1


@pytest.mark.parametrize(("told", "right"), [(8, True), (1, False)])
async def test_it_says_whether_the_kubelet_has_the_devices(
    world: World, kubelet: EmbeddedKubelet, told: int, right: bool
) -> None:
    ids = [f"GPU-{number}" for number in range(told)]
    async with kubelet.running(), served(world, kubelet) as plugin:
        await kubelet.until(RESOURCE, allocatable=8)
        recheck = Recheck({RESOURCE: plugin}, listed=Kubelet(ids).listed, alone=lambda: True)
        assert await recheck.is_right() is right
