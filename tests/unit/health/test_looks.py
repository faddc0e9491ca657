"""The last look at each GPU, with figures only while somebody wants them."""

import asyncio

import pytest

from node_agent.errors import HardwareError
from node_agent.hardware.figures import Figures
from node_agent.hardware.provider import GpuReadings
from node_agent.health import looks
from node_agent.health.looks import OLDEST_SECONDS, LastLooks
from node_agent.kit.tasks import running
from tests.unit.deviceplugin.conftest import node
from tests.unit.health.test_watcher import A, B, C, Ward


def moved(kibibytes: int) -> GpuReadings:
    return GpuReadings(figures=Figures(nvlink_sent=kibibytes, nvlink_received=kibibytes))


async def until_looked(ward: Ward, count: int) -> None:
    async with asyncio.timeout(30):
        while ward.readings.looks < count:
            await asyncio.sleep(0.01)


async def test_an_agent_that_nobody_looks_at_asks_for_no_figures() -> None:
    ward = Ward()
    async with running(ward.watcher.run()):
        await until_looked(ward, 9)
    assert ward.readings.with_figures == 0
    assert set(ward.looks.last.value) == {A, B, C}
    assert all(look.readings.figures is None and look.at > 0 for look in ward.looks.last.value.values())


async def test_who_wants_figures_gets_them_at_once_however_seldom_gpus_are_probed() -> None:
    ward = Ward(probe_seconds=3600)
    ward.readings.set(B, moved(1))
    async with running(ward.watcher.run()):
        await until_looked(ward, 3)
        found = await ward.looks.with_figures()
    assert found[B].readings.figures == Figures(nvlink_sent=1, nvlink_received=1)
    assert all(look.readings.figures is not None for look in found.values())


async def test_many_who_ask_cost_one_look_at_each_gpu() -> None:
    ward = Ward(probe_seconds=3600)
    async with running(ward.watcher.run()):
        await until_looked(ward, 3)
        await asyncio.gather(*(ward.looks.with_figures() for _ in range(50)))
        for _ in range(50):
            await ward.looks.with_figures()
    assert ward.readings.with_figures == 3


async def test_figures_are_asked_for_as_long_as_somebody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "WANTED_SECONDS", 0.2)
    ward = Ward()
    async with running(ward.watcher.run()):
        await ward.looks.with_figures()
        await asyncio.sleep(0.3)
        asked, looked = ward.readings.with_figures, ward.readings.looks
        await until_looked(ward, looked + 6)
    assert ward.readings.with_figures == asked


async def test_a_driver_that_hangs_costs_those_who_ask_a_moment_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "FIRST_SECONDS", 0.2)
    ward = Ward(probe_seconds=3600)
    async with running(ward.watcher.run()):
        await until_looked(ward, 3)
        ward.readings.hanging = A
        async with asyncio.timeout(30):
            found = await ward.looks.with_figures()
        async with asyncio.timeout(0.1):
            await ward.looks.with_figures()
    assert found[A].readings.figures is None


async def test_a_gpu_that_cannot_be_read_has_no_look_and_neither_has_one_that_is_gone() -> None:
    ward = Ward()
    async with running(ward.watcher.run()):
        await until_looked(ward, 3)
        ward.readings.set(A, HardwareError("Unknown Error"))
        ward.inventory.set(node(2, generation=2))
        async with asyncio.timeout(30):
            async for found in ward.looks.last.watch():
                if set(found) == {B}:
                    break


def test_while_figures_are_wanted_looks_are_never_far_apart() -> None:
    last = LastLooks()
    assert last.pause(3600) == 3600
    last.keep(A, moved(0))
    asyncio.run(last.with_figures())
    assert (last.pause(3600), last.pause(1)) == (OLDEST_SECONDS, 1)


async def test_throughput_is_what_the_links_moved_between_two_looks() -> None:
    last = LastLooks()
    last.keep(A, moved(1000))
    assert last.last.value[A].nvlink_throughput is None
    await asyncio.sleep(0.1)
    last.keep(A, moved(2000))
    found = last.last.value[A].nvlink_throughput
    assert found is not None
    assert 0 < found <= 2 * 1000 * 1024 / 0.1


async def test_a_counter_that_began_anew_gives_no_throughput() -> None:
    last = LastLooks()
    for kibibytes in (1000, 10):
        last.keep(A, moved(kibibytes))
    assert last.last.value[A].nvlink_throughput is None


async def test_a_gpu_without_links_has_no_throughput() -> None:
    last = LastLooks()
    for _ in range(2):
        last.keep(A, GpuReadings(figures=Figures()))
    assert last.last.value[A].nvlink_throughput is None
