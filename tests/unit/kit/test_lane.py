"""Blocking calls run one after another off the event loop, which can tell what they are in."""

import asyncio
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial

import pytest

from node_agent.kit.lane import Busy, Lane


class Stuck:
    """A call that does not return before it is released, like a driver's that hangs."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._released = threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        self._released.wait(timeout=10)
        return "released"

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    call = Stuck()
    yield call
    call.release()


async def entered(call: Stuck) -> None:
    assert await asyncio.to_thread(call.entered.wait, 5)


async def test_a_call_runs_on_the_lanes_own_thread() -> None:
    with Lane("nvml") as lane:
        assert await lane.run("name", lambda: threading.current_thread().name) == "nvml"


async def test_an_error_of_the_call_is_raised_where_it_was_awaited_and_the_lane_goes_on() -> None:
    def fails() -> None:
        raise OSError("driver said no")

    with Lane("nvml") as lane:
        with pytest.raises(OSError, match="driver said no"):
            await lane.run("fails", fails)
        assert await lane.run("works", lambda: 1) == 1


@pytest.mark.parametrize("error", [StopIteration("end"), SystemExit(3), asyncio.CancelledError()])
async def test_no_error_of_the_call_can_stop_the_lane_or_keep_its_waiter_waiting(error: BaseException) -> None:
    def fails() -> None:
        raise error

    with Lane("nvml") as lane:
        with pytest.raises((RuntimeError, SystemExit, asyncio.CancelledError)):
            async with asyncio.timeout(30):
                await lane.run("fails", fails)
        assert await lane.run("works", lambda: 1) == 1


async def test_calls_run_in_the_order_in_which_they_were_asked_for() -> None:
    order: list[int] = []
    with Lane("nvml") as lane:
        await asyncio.gather(*(lane.run("append", partial(order.append, n)) for n in range(50)))
    assert order == list(range(50))


async def test_the_loop_goes_on_while_a_call_hangs_and_sees_what_it_is_in(stuck: Stuck) -> None:
    with Lane("nvml") as lane:
        began = time.monotonic()
        waiting = asyncio.create_task(lane.run("nvmlDeviceGetCount_v2", stuck))
        await entered(stuck)
        busy = lane.busy
        assert busy is not None
        assert busy.call == "nvmlDeviceGetCount_v2"
        assert began <= busy.since <= time.monotonic()
        assert 0 <= busy.seconds < 5
        assert not waiting.done()
        stuck.release()
        assert await waiting == "released"


def test_an_idle_lane_is_in_nothing() -> None:
    with Lane("nvml") as lane:
        assert lane.busy is None


async def test_a_lane_is_free_again_when_its_waiter_wakes() -> None:
    with Lane("nvml") as lane:
        for _ in range(200):
            await lane.run("quick", int)
            assert lane.busy is None


async def test_cancelling_a_wait_does_not_stop_the_call_nor_the_lane(stuck: Stuck) -> None:
    with Lane("nvml") as lane:
        waiting = asyncio.create_task(lane.run("stuck", stuck))
        await entered(stuck)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert lane.busy is not None
        stuck.release()
        assert await lane.run("next", lambda: 2) == 2


async def test_a_call_whose_waiter_went_before_its_turn_is_never_made(stuck: Stuck) -> None:
    made: list[str] = []
    with Lane("nvml") as lane:
        first = asyncio.create_task(lane.run("stuck", stuck))
        await entered(stuck)
        second = asyncio.create_task(lane.run("second", lambda: made.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        stuck.release()
        await first
        await lane.run("third", lambda: made.append("third"))
    assert made == ["third"]


async def test_a_time_limit_ends_the_wait_for_a_call_that_hangs(stuck: Stuck) -> None:
    with Lane("nvml") as lane:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await lane.run("stuck", stuck)
        stuck.release()


async def test_the_end_of_the_block_lets_queued_calls_finish() -> None:
    done: list[int] = []
    with Lane("nvml") as lane:
        calls = [asyncio.create_task(lane.run("append", partial(done.append, n))) for n in range(3)]
        await asyncio.sleep(0)
    assert done == [0, 1, 2]
    await asyncio.gather(*calls)


async def test_a_call_that_hangs_does_not_hold_up_the_end_of_the_block(stuck: Stuck) -> None:
    began = time.monotonic()
    with Lane("nvml", grace=0.05) as lane:
        waiting = asyncio.create_task(lane.run("stuck", stuck))
        await entered(stuck)
    assert time.monotonic() - began < 20
    assert lane.busy is not None
    stuck.release()
    assert await waiting == "released"


async def test_the_thread_of_a_hanging_call_is_one_that_does_not_keep_the_process() -> None:
    with Lane("nvml") as lane:
        assert await lane.run("daemon", lambda: threading.current_thread().daemon)


async def test_a_closed_lane_refuses_calls_that_nobody_would_ever_make() -> None:
    with Lane("nvml") as lane:
        pass
    with pytest.raises(RuntimeError, match=r"lane nvml is closed: nvmlInit_v2 was not called"):
        await lane.run("nvmlInit_v2", int)


async def test_an_idle_lane_keeps_nothing_of_what_the_last_call_returned() -> None:
    class Answer:
        pass

    with Lane("nvml") as lane:
        answer = weakref.ref(await lane.run("answer", Answer))
        await lane.run("none", lambda: None)
        assert answer() is None
        answer = weakref.ref(await lane.run("answer", Answer))
        await asyncio.sleep(0.01)
        assert answer() is None


def test_busy_counts_from_when_the_call_began() -> None:
    assert Busy(call="c", since=time.monotonic() - 10).seconds == pytest.approx(10, abs=1)
