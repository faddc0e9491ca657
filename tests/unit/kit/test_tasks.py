"""Tasks end with the block that started them, and what they raise is heard."""

import asyncio
import gc
import logging

import pytest

from node_agent.kit.tasks import LoopTrouble, Whole, cancel, running


async def forever() -> None:
    await asyncio.Event().wait()


async def fails(error: Exception) -> None:
    raise error


async def refuses_once(ended: list[str]) -> None:
    """Needs a second cancel while it cleans up."""
    try:
        await forever()
    finally:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("ended")


async def test_the_work_ends_with_the_block() -> None:
    async with running(forever(), name="work") as task:
        await asyncio.sleep(0)
        assert not task.done()
        assert task.get_name() == "work"
    assert task.cancelled()


async def test_a_failure_of_the_work_is_raised_when_the_block_ends() -> None:
    with pytest.raises(ValueError, match="broken"):
        async with running(fails(ValueError("broken"))):
            await asyncio.sleep(0)


async def test_a_failure_of_the_block_is_raised_and_ends_the_work() -> None:
    tasks = []
    with pytest.raises(KeyError):
        async with running(forever()) as task:
            tasks.append(task)
            raise KeyError("block")
    assert tasks[0].cancelled()


async def test_when_both_fail_the_work_is_raised_and_shows_the_block() -> None:
    with pytest.raises(ValueError, match="work") as caught:
        async with running(fails(ValueError("work"))):
            await asyncio.sleep(0)
            raise KeyError("block")
    assert isinstance(caught.value.__context__, KeyError)


async def test_work_that_ended_by_itself_is_fine() -> None:
    async with running(asyncio.sleep(0, "answer")) as task:
        assert await task == "answer"


async def test_cancel_waits_until_the_task_has_cleaned_up() -> None:
    cleaned = []

    async def tidies() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(True)

    task = asyncio.create_task(tidies())
    await asyncio.sleep(0)
    await cancel(task)
    assert cleaned == [True]


async def test_cancel_raises_what_the_task_raised_on_its_way_out() -> None:
    async def breaks() -> None:
        try:
            await forever()
        finally:
            raise OSError("cannot tidy up")

    task = asyncio.create_task(breaks())
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="cannot tidy up"):
        await cancel(task)


async def test_cancelling_a_finished_task_raises_its_failure_and_nothing_else() -> None:
    good, bad = asyncio.create_task(asyncio.sleep(0)), asyncio.create_task(fails(ValueError("broken")))
    await asyncio.wait([good, bad])
    await cancel(good)
    with pytest.raises(ValueError, match="broken"):
        await cancel(bad)


async def test_a_second_cancel_hurries_the_task_and_still_waits_for_it() -> None:
    ended: list[str] = []

    async def block() -> None:
        async with running(refuses_once(ended)):
            await asyncio.sleep(0)

    outer = asyncio.create_task(block())
    await asyncio.sleep(0.01)
    assert not outer.done()
    outer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outer
    assert ended == ["ended"]


async def test_a_time_limit_around_the_block_still_counts() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), running(forever()):
            await forever()


async def test_whole_work_goes_on_when_the_one_who_waits_for_it_is_gone() -> None:
    whole, go, done = Whole(KeyError), asyncio.Event(), asyncio.Event()

    async def work() -> str:
        await go.wait()
        done.set()
        return "result"

    gone, stays = (asyncio.create_task(whole.done(work())) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    go.set()
    assert await stays == "result"
    await asyncio.wait_for(done.wait(), 30)


async def test_whole_work_raises_its_failure_to_the_one_who_waits() -> None:
    with pytest.raises(ValueError, match="broken"):
        await Whole(KeyError).done(fails(ValueError("broken")))


async def test_whole_work_that_fails_when_nobody_waits_any_more_says_why_and_only_a_mistake_in_full(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    whole = Whole(KeyError)
    for error in (KeyError("expected"), ValueError("a mistake")):
        goes_on = asyncio.Event()

        async def work(error: Exception = error, goes_on: asyncio.Event = goes_on) -> None:
            await goes_on.wait()
            raise error

        waiting = asyncio.create_task(whole.done(work()))
        await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            waiting.cancel()
            await waiting
        goes_on.set()
        await asyncio.sleep(0.01)
    gc.collect()
    expected, mistake = caplog.records
    assert (expected.levelname, expected.exc_info) == ("INFO", None)
    assert mistake.levelname == "ERROR" and mistake.exc_info
    assert "a mistake" in caplog.text


async def test_the_end_waits_for_work_that_is_under_way_and_cancels_what_takes_longer() -> None:
    whole = Whole(KeyError)
    short, long = whole.start(asyncio.sleep(0.02, "result")), whole.start(forever(), name="long")
    await whole.end(grace=0.1)
    assert short.result() == "result"
    assert long.cancelled() and long.get_name() == "long"


async def test_the_end_of_nothing_is_at_once() -> None:
    await asyncio.wait_for(Whole(KeyError).end(grace=60), 30)


async def test_what_the_system_denies_a_loop_is_said_once_and_not_for_each_of_its_tries(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = LoopTrouble()
    for _ in range(100):
        said(asyncio.get_running_loop(), {"message": "accept()", "exception": OSError(24, "Too many open files")})
    said(asyncio.get_running_loop(), {"message": "accept()", "exception": OSError(12, "Cannot allocate memory")})
    assert [record.getMessage() for record in caplog.records] == ["accept()", "accept()"]


async def test_a_mistake_of_ours_is_told_by_the_loop_in_full(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        LoopTrouble()(asyncio.get_running_loop(), {"message": "never retrieved", "exception": ValueError("broken")})
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
