"""A hint comes for whatever may show another file at a path; where none can come, looks are frequent instead."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node_agent.kit import hints as module
from node_agent.kit.hints import OFTEN_SECONDS, SELDOM_SECONDS, Hints


@asynccontextmanager
async def hint(hints: Hints) -> AsyncIterator[None]:
    """Wait until what the block does is hinted at."""
    before = hints.changed.value
    yield
    async with asyncio.timeout(20):
        async for count in hints.changed.watch():
            if count != before:
                return


def made(folder: Path) -> None:
    (folder / "new").touch()


def removed(folder: Path) -> None:
    (folder / "old").unlink()


def moved_in(folder: Path) -> None:
    (folder.parent / "outside").rename(folder / "new")


def moved_out(folder: Path) -> None:
    (folder / "old").rename(folder.parent / "away")


def renamed(folder: Path) -> None:
    (folder / "old").rename(folder / "new")


def replaced(folder: Path) -> None:
    (folder.parent / "outside").replace(folder / "old")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").touch()
    (tmp_path / "outside").touch()
    return folder


@pytest.mark.parametrize("change", [made, removed, moved_in, moved_out, renamed, replaced])
async def test_what_happens_in_a_folder_is_hinted_at(folder: Path, change: Callable[[Path], None]) -> None:
    with Hints(folder) as hints:
        for _ in range(2):
            assert hints.pause() == SELDOM_SECONDS
        async with hint(hints):
            change(folder)
        assert hints.pause() == SELDOM_SECONDS


@pytest.mark.parametrize("change", [os.unlink, os.utime])
async def test_a_file_that_is_watched_is_hinted_at_when_it_is_touched_or_loses_its_name(
    folder: Path, change: Callable[[Path], None]
) -> None:
    # Held open, as a lock is: what has no name any more is still there.
    with Hints(folder / "old") as hints, (folder / "old").open():
        async with hint(hints):
            change(folder / "old")


async def test_what_is_only_read_or_written_is_not_hinted_at(folder: Path) -> None:
    with Hints(folder) as hints:
        (folder / "old").write_text("more")
        (folder / "old").read_text()
        async with hint(hints):
            made(folder)
        assert hints.changed.value == 1


async def test_a_folder_that_is_not_there_yet_is_looked_for_often_and_watched_from_then_on(tmp_path: Path) -> None:
    with Hints(tmp_path, tmp_path / "later") as hints:
        assert [hints.pause() for _ in range(2)] == [OFTEN_SECONDS] * 2
        (tmp_path / "later").mkdir()
        # It may have had something in it when the watch began: one more look soon.
        assert [hints.pause() for _ in range(2)] == [OFTEN_SECONDS, SELDOM_SECONDS]
        async with hint(hints):
            made(tmp_path / "later")


def deleted(folder: Path) -> None:
    (folder / "old").unlink()
    folder.rmdir()


def moved_away(folder: Path) -> None:
    folder.rename(folder.parent / "elsewhere")


@pytest.mark.parametrize("lose", [deleted, moved_away])
async def test_a_folder_that_was_made_anew_is_watched_again(folder: Path, lose: Callable[[Path], None]) -> None:
    with Hints(folder) as hints:
        lose(folder)
        async with asyncio.timeout(20):
            async for _ in hints.changed.watch():
                if hints.pause() == OFTEN_SECONDS:
                    break
        folder.mkdir()
        assert [hints.pause() for _ in range(2)] == [OFTEN_SECONDS, SELDOM_SECONDS]
        async with hint(hints):
            made(folder)


async def test_where_the_system_has_no_instance_left_looks_are_frequent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Exhausted:
        @staticmethod
        def inotify_init1(flags: int) -> int:
            return -1

    monkeypatch.setattr(module, "_libc", Exhausted)
    with Hints(folder) as hints:
        assert [hints.pause() for _ in range(3)] == [OFTEN_SECONDS] * 3


async def test_nothing_is_left_open_or_told_afterwards(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with Hints(folder) as hints:
        assert len(os.listdir("/proc/self/fd")) == before + 1
    made(folder)
    await asyncio.sleep(0)
    assert (len(os.listdir("/proc/self/fd")), hints.changed.value) == (before, 0)
