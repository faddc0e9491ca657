"""A configuration that changes is read once it is whole, and nothing else is."""

import asyncio
import os
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node_agent.config import watch
from node_agent.config.resolve import Resolved, sources
from node_agent.config.watch import readings
from node_agent.errors import ConfigError
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from tests.fakes.config_map import MountedConfigMap

QUIET, LOUD = "agent: {log: {level: error}}", "agent: {log: {level: debug}}"


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(watch, "STAND_SECONDS", 0.02)


class Reader:
    """Keeps what was read, in order."""

    def __init__(self) -> None:
        self.found: list[Resolved | ConfigError] = []

    async def read(self, of: AsyncIterator[Resolved | ConfigError]) -> None:
        async for one in of:
            self.found.append(one)

    async def until(self, count: int) -> Resolved | ConfigError:
        async with asyncio.timeout(30):
            while len(self.found) < count:
                await asyncio.sleep(0.01)
        return self.found[-1]

    async def level(self, count: int) -> str:
        found = await self.until(count)
        assert isinstance(found, Resolved)
        return found.settings.log.level


@asynccontextmanager
async def reading(
    folder: Path | None = None, file: Path | None = None, label: Latest[str | None] | None = None
) -> AsyncIterator[Reader]:
    reader = Reader()
    of = readings(sources(file, {}, {}, folder), label or Latest(None))
    async with running(reader.read(of)):
        yield reader


async def test_what_is_there_is_read_once_and_again_after_each_swap(tmp_path: Path) -> None:
    mounted = MountedConfigMap(tmp_path / "configs", {"a": LOUD})
    async with reading(mounted.folder) as reader:
        assert await reader.level(1) == "debug"
        mounted.write({"a": QUIET})
        assert await reader.level(2) == "error"
        await asyncio.sleep(0.2)
        assert len(reader.found) == 2


async def test_a_label_that_changes_has_another_entry_read(tmp_path: Path) -> None:
    mounted = MountedConfigMap(tmp_path / "configs", {"loud": LOUD, "quiet": QUIET})
    label: Latest[str | None] = Latest("loud")
    async with reading(mounted.folder, label=label) as reader:
        assert await reader.level(1) == "debug"
        label.set("quiet")
        assert await reader.level(2) == "error"
        label.set("nothing")
        found = await reader.until(3)
    assert "there is no such configuration; there is loud, quiet" in str(found)


async def test_a_file_that_goes_and_comes_back_is_told_each_time(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(LOUD)
    async with reading(file=file) as reader:
        await reader.until(1)
        file.unlink()
        assert "cannot be read: No such file" in str(await reader.until(2))
        file.write_text(LOUD)
        while isinstance(reader.found[-1], ConfigError):
            await reader.until(len(reader.found) + 1)
        assert await reader.level(len(reader.found)) == "debug"


async def test_a_path_that_leads_nowhere_is_told_and_read_once_it_leads_somewhere(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.symlink_to(file)
    async with reading(file=file) as reader:
        assert "cannot be read: Too many levels of symbolic links" in str(await reader.until(1))
        file.unlink()
        file.write_text(LOUD)
        while isinstance(reader.found[-1], ConfigError):
            await reader.until(len(reader.found) + 1)
        assert await reader.level(len(reader.found)) == "debug"


async def test_what_cannot_be_read_for_want_of_a_descriptor_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(QUIET)
    async with reading(file=file) as reader:
        await reader.until(1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        file.write_text(LOUD)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            assert "cannot be read: Too many open files" in str(await reader.until(2))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        while isinstance(reader.found[-1], ConfigError):
            await reader.until(len(reader.found) + 1)
        assert await reader.level(len(reader.found)) == "debug"


async def test_a_file_that_stays_away_is_tried_at_each_look_and_no_more_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.3)
    async with reading(file=tmp_path / "missing.yaml") as reader:
        await reader.until(1)
        await asyncio.sleep(1.0)
        assert 2 <= len(reader.found) <= 5


async def test_a_file_that_is_being_written_is_not_read_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STAND_SECONDS", 0.3)
    file = tmp_path / "config.yaml"
    file.write_text(QUIET)
    async with reading(file=file) as reader:
        await reader.until(1)
        with file.open("w") as writing:
            for line in ["agent:\n", "  log:\n", "    level: debug\n", *["# a comment\n"] * 30]:
                writing.write(line)
                writing.flush()
                await asyncio.sleep(0.01)
        assert await reader.level(2) == "debug"
        await asyncio.sleep(0.7)
    assert len(reader.found) == 2
