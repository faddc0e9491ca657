"""What was given out is in a file, whole, and two agents of a node never write over each other."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.computedomain.names import Kind
from node_agent.computedomain.record import Entry, Record
from node_agent.errors import StateError
from node_agent.kit.lane import Lane


def entry(uid: str, kind: Kind = Kind.CHANNEL) -> Entry:
    return Entry(uid=uid, namespace="a", name=uid, domain="d", kind=kind)


@pytest.fixture
def lane() -> Iterator[Lane]:
    with Lane("files") as lane:
        yield lane


async def test_what_is_put_is_there_for_the_next_one_until_it_is_removed(tmp_path: Path, lane: Lane) -> None:
    one = Record(tmp_path / "r.json", lane)
    async with one.turn() as entries:
        await entries.put(entry("x"))
        await entries.put(entry("y", Kind.DAEMON))
    other = Record(tmp_path / "r.json", lane)
    assert await other.all() == [entry("x"), entry("y", Kind.DAEMON)]
    async with other.turn() as entries:
        assert entries.get("x") == entry("x")
        assert entries.others("x") == [entry("y", Kind.DAEMON)]
        await entries.remove("x")
        await entries.remove("never there")
    assert await one.all() == [entry("y", Kind.DAEMON)]


async def test_turns_of_two_agents_follow_each_other(tmp_path: Path, lane: Lane) -> None:
    async def add(record: Record, uid: str) -> None:
        async with record.turn() as entries:
            await asyncio.sleep(0)
            await entries.put(entry(uid))

    one, other = Record(tmp_path / "r.json", lane), Record(tmp_path / "r.json", lane)
    await asyncio.gather(*(add(record, f"{name}{i}") for i in range(5) for name, record in (("a", one), ("b", other))))
    assert len(await one.all()) == 10


async def test_a_damaged_file_is_kept_for_people_and_stops_nobody(tmp_path: Path, lane: Lane) -> None:
    file = tmp_path / "r.json"
    record = Record(file, lane)
    async with record.turn() as entries:
        await entries.put(entry("x"))
    file.write_bytes(file.read_bytes()[:-20])
    assert await record.all() == []
    assert (tmp_path / "r.json.damaged-1").exists()
    async with record.turn() as entries:
        await entries.put(entry("y"))
    assert await record.all() == [entry("y")]


async def test_a_file_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path, lane: Lane) -> None:
    record = Record(tmp_path / "r.json", lane)
    with pytest.raises(StateError, match=r"r\.json cannot be"):
        async with record.turn() as entries:
            (tmp_path / "r.json").mkdir()
            await entries.put(entry("x"))


async def test_a_folder_that_is_gone_is_an_error_that_names_the_file(tmp_path: Path, lane: Lane) -> None:
    with pytest.raises(StateError, match=r"gone/r\.json cannot be used: No such file"):
        await Record(tmp_path / "gone" / "r.json", lane).all()
