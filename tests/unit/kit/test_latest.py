"""The newest value reaches every watcher; what was overtaken is skipped, and nobody holds up the one who sets."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.kit.latest import Latest, changes
from node_agent.kit.tasks import running


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def watch_into(latest: Latest[int], seen: list[int]) -> None:
    async for value in latest.watch():
        seen += [value]


def test_the_value_is_the_one_last_set() -> None:
    latest = Latest("old")
    latest.set("new")
    assert latest.value == "new"


async def test_a_watcher_gets_the_present_value_at_once() -> None:
    latest = Latest(1)
    latest.set(2)
    assert await anext(latest.watch()) == 2


async def test_a_watcher_gets_each_value_that_it_is_quick_enough_for() -> None:
    latest, seen = Latest(0), list[int]()
    async with running(watch_into(latest, seen)):
        for value in (1, 2, 3):
            await settle()
            latest.set(value)
        await settle()
    assert seen == [0, 1, 2, 3]


async def test_a_slow_watcher_skips_what_was_overtaken() -> None:
    latest, seen = Latest(0), list[int]()
    async with running(watch_into(latest, seen)):
        await settle()
        for value in range(1, 1000):
            latest.set(value)
        await settle()
    assert seen == [0, 999]


async def test_a_change_while_a_watcher_is_at_work_is_not_missed() -> None:
    latest, seen = Latest(0), list[int]()
    async for value in latest.watch():
        seen.append(value)
        if value == 3:
            break
        latest.set(value + 1)
    assert seen == [0, 1, 2, 3]


async def test_an_equal_value_wakes_nobody() -> None:
    latest, seen = Latest(frozenset({1})), list[frozenset[int]]()

    async def watch() -> None:
        async for value in latest.watch():
            seen.append(value)

    async with running(watch()):
        await settle()
        latest.set(frozenset({1}))
        await settle()
    assert seen == [frozenset({1})]


async def test_a_hundred_watchers_all_end_with_the_newest_value() -> None:
    latest = Latest(0)
    views: list[list[int]] = [[] for _ in range(100)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(watch_into(latest, view)) for view in views]
        await settle()
        latest.set(1)
        await settle()
        latest.set(2)
        latest.set(3)
        await settle()
        for task in tasks:
            task.cancel()
    assert views == [[0, 1, 3]] * 100


async def test_watchers_that_have_gone_are_forgotten() -> None:
    latest = Latest(0)
    async with running(watch_into(latest, [])), running(watch_into(latest, [])):
        await settle()
        assert len(latest._listeners) == 2
    await settle()
    assert not latest._listeners


async def test_a_watch_that_is_broken_off_is_forgotten() -> None:
    latest = Latest(0)
    async for _ in latest.watch():
        break
    await settle()
    assert not latest._listeners


async def test_one_watcher_that_fails_leaves_the_others_watching() -> None:
    latest, seen = Latest(0), list[int]()

    async def fails() -> None:
        async for value in latest.watch():
            if value == 1:
                raise ValueError("cannot use 1")

    async with running(watch_into(latest, seen)):
        with pytest.raises(ValueError, match="cannot use 1"):
            async with running(fails()):
                await settle()
                latest.set(1)
                await settle()
        latest.set(2)
        await settle()
    assert seen == [0, 1, 2]


async def test_changes_yields_at_once_and_for_each_source() -> None:
    one, other, count = Latest(0), Latest("a"), 0

    async def watch() -> None:
        nonlocal count
        async for _ in changes(one, other):
            count += 1

    async with running(watch()):
        await settle()
        assert count == 1
        one.set(1)
        await settle()
        assert count == 2
        other.set("b")
        one.set(2)
        await settle()
        assert count == 3


async def test_a_listener_is_set_only_until_it_is_ignored() -> None:
    latest, listener = Latest(0), asyncio.Event()
    latest.listen(listener)
    assert not listener.is_set()
    latest.set(1)
    assert listener.is_set()
    listener.clear()
    latest.ignore(listener)
    latest.set(2)
    assert not listener.is_set()


@given(steps=st.lists(st.one_of(st.integers(0, 3), st.none()), max_size=30))
async def test_whatever_is_set_a_watcher_sees_a_part_of_it_in_order_and_the_last_of_it(steps: list[int | None]) -> None:
    """A step is a value to set, or None for a moment in which the watcher may run."""
    latest, seen, written = Latest(0), list[int](), [0]
    async with running(watch_into(latest, seen)):
        for step in steps:
            if step is None:
                await settle()
            else:
                latest.set(step)
                written.append(step)
        await settle()
    rest = iter(written)
    assert all(value in rest for value in seen)
    assert seen[-1] == written[-1]


async def test_changes_also_yield_after_the_longest_pause() -> None:
    latest, yields = Latest(0), 0
    async with asyncio.timeout(30):
        async for _ in changes(latest, every=lambda: 0.01):
            yields += 1
            if yields == 3:
                break
    assert latest.value == 0


async def test_what_changes_while_it_settles_is_one_change_and_the_first_look_is_at_once() -> None:
    latest: Latest[int] = Latest(0)
    seen: list[int] = []

    async def follow(seen: list[int]) -> None:
        async for _ in changes(latest, settle=0.2):
            seen += [latest.value]

    async with running(follow(seen)), asyncio.timeout(30):
        await settle()
        assert seen == [0]
        for value in (1, 2, 3):
            latest.set(value)
            await settle()
        while len(seen) < 2:
            await asyncio.sleep(0.01)
    assert seen == [0, 3]
