"""A driver that does not answer. Users met: discovery that hung in a call while no probe answered, memory that crept up
to the limit, and a core that was busy for nothing (B68).
"""

import asyncio
import gc
import os
import resource
import threading
import time
from pathlib import Path

import pytest

from tests.fakes.names import GPU_RESOURCE
from tests.faults.conftest import Place

PROBE, SCAN, WAIT = "nvmlDeviceGetTemperature", "nvmlDeviceGetBrand", "nvmlEventSetWait_v2"


@pytest.mark.parametrize("call", [PROBE, SCAN, WAIT])
async def test_a_call_that_hangs_is_named_and_everything_else_is_answered(h200: Place, call: str) -> None:
    async with h200.serving() as agent:
        agent.keeper._stall_seconds = 0.2
        h200.node.faults.hang(call, seconds=120)
        await h200.trouble(f"the driver hangs in {call}")

        code, text = await h200.ask("/healthz")
        assert code == 200
        assert f"the driver hangs in {call}" in text
        async with asyncio.timeout(30):
            ids, _ = await h200.kubelet.admit("trainer", GPU_RESOURCE, 4)
            assert len(ids) == 4
            assert len((await h200.status()).gpus) == 8

        h200.node.faults.clear()
        await h200.ready()


async def test_a_kubelet_that_restarts_while_the_driver_hangs_gets_all_gpus_again(h200: Place) -> None:
    async with h200.agent() as agent:
        agent.keeper._stall_seconds = 0.2
        async with h200.kubelet.running():
            await h200.allocatable(8)
            h200.node.faults.hang(PROBE, seconds=120)
            await h200.trouble(PROBE)
        async with h200.kubelet.running():
            await h200.allocatable(8)
        h200.node.faults.clear()


async def test_an_agent_whose_driver_hangs_at_the_start_says_so_and_offers_nothing_unknown(h200: Place) -> None:
    h200.node.faults.hang("nvmlInitWithFlags", seconds=120)
    async with h200.kubelet.running(), h200.agent() as agent:
        agent.keeper._stall_seconds = 0.2
        await h200.trouble("the driver hangs in nvmlInit")
        assert h200.view.registrations == 0

        h200.node.faults.clear()
        await h200.allocatable(8)


async def test_an_agent_ends_within_seconds_while_a_call_hangs(h200: Place) -> None:
    async with h200.kubelet.running():
        async with h200.agent():
            await h200.allocatable(8)
            h200.node.faults.hang(PROBE, seconds=120)
            await asyncio.sleep(0.3)
            began = time.monotonic()
        assert time.monotonic() - began < 30
    h200.node.faults.clear()


async def test_a_thousand_allocations_and_scrapes_leave_memory_files_and_threads_as_they_were(h200: Place) -> None:
    async with h200.serving():
        await load(h200, 100)
        before = usage()
        await load(h200, 1000)
        after = usage()

    # The pool of the event loop may still have been growing.
    assert after["threads"] <= before["threads"] + 3
    assert after["files"] <= before["files"] + 3
    assert after["memory"] - before["memory"] < 4 << 20


async def load(place: Place, times: int) -> None:
    for number in range(times):
        await place.kubelet.admit(f"pod-{number}", GPU_RESOURCE, 4)
        place.kubelet.release(f"pod-{number}")
        if number % 10 == 0:
            await place.status()
            assert (await place.ask("/metrics"))[0] == 200
    gc.collect()


def usage() -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "memory": pages * resource.getpagesize(),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


async def test_an_idle_agent_hardly_works(h200: Place) -> None:
    async with h200.serving(h200.shipped()):
        await asyncio.sleep(1)
        calls = h200.count_calls()
        began, used = time.monotonic(), time.process_time()
        await asyncio.sleep(6)
        share = (time.process_time() - used) / (time.monotonic() - began)

    # A loop that never rests would take all of it; the figure itself is measured by the benchmarks.
    assert share < 0.5
    assert len(calls) < 8 * 40
