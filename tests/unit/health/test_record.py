"""What is known survives the agent, whole or not at all, and is written only when it changed."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from node_agent.health import record as records
from node_agent.health.chart import Chart, Course
from node_agent.health.record import HealthFile, HealthRecorder, decode, encode
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.kit.sealed import seal
from node_agent.kit.tasks import running
from node_agent.kit.unix import identity
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Cause, Instance, Reason, Severity

A, B = GpuUuid("GPU-A"), GpuUuid("GPU-B")

times = st.floats(0, 2**40)
codes = st.none() | st.integers(0, 1000)
instances = st.none() | st.builds(Instance, id=st.integers(0, 14), compute=st.none() | st.integers(0, 7))
causes = st.builds(
    Cause,
    reason=st.sampled_from(Reason),
    severity=st.sampled_from(Severity),
    message=st.text(max_size=20),
    since=times,
    clears=st.text(max_size=20),
    code=codes,
    instance=instances,
)
charts = st.builds(
    Chart,
    causes=st.lists(causes | causes.map(lambda one: replace(one, instance=None, peers=frozenset({B}))), max_size=4).map(
        tuple
    ),
    courses=st.dictionaries(
        st.tuples(st.sampled_from(Reason), codes, instances),
        st.builds(Course, opened=st.lists(times, max_size=3).map(tuple), boot=st.none() | st.text(max_size=9)),
        max_size=4,
    ),
    counts=st.dictionaries(st.integers(0, 1000), st.integers(1, 2**40), max_size=4),
    gone=st.none() | times,
)
XID = Cause(reason=Reason.XID, severity=Severity.WITHDRAWN, message="Xid 79", since=5.0, code=79)
CHARTS = {A: Chart(causes=(XID,), courses={XID.key: Course(opened=(5.0,), boot="b")}, counts={79: 1, 31: 7})}


@given(found=st.dictionaries(st.sampled_from([A, B]), charts))
def test_what_is_read_is_what_was_written(found: dict[GpuUuid, Chart]) -> None:
    told = {gpu: chart for gpu, chart in found.items() if replace(chart, gone=None) != Chart()}
    assert decode(encode(found)) == told


def test_nothing_to_tell_is_told_as_nothing() -> None:
    assert decode(encode({A: Chart(), B: Chart(gone=3.0)})) == {}


@given(place=st.integers(0, 200), bit=st.integers(0, 7))
def test_a_bit_that_fell_over_is_noticed(place: int, bit: int) -> None:
    content = bytearray(encode(CHARTS))
    content[place % len(content)] ^= 1 << bit
    try:
        assert decode(bytes(content)) == CHARTS
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff\xfe", b"[]", encode(CHARTS)[:-9], seal(b'{"gpus": 3}', 1), seal(b"{}", 2)]
)
def test_a_damaged_file_is_kept_aside_and_said_and_starts_nothing(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = HealthFile(tmp_path / "health.json")
    file.path.write_bytes(content)
    assert file.load() == {}
    assert (tmp_path / "health.json.damaged-1").read_bytes() == content
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_file_that_is_not_there_is_no_trouble(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert HealthFile(tmp_path / "health.json").load() == {}
    assert not caplog.records


def test_what_a_killed_agent_has_left_of_a_write_is_cleared_away(tmp_path: Path) -> None:
    file = HealthFile(tmp_path / "health.json")
    file.save(CHARTS)
    left = tmp_path / ".health.json.x7"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    assert file.load() == CHARTS
    assert [one.name for one in tmp_path.iterdir()] == ["health.json"]


class Desk:
    """A recorder at work on what a test sets."""

    def __init__(self, folder: Path, lane: Lane) -> None:
        self.file = HealthFile(folder / "health.json")
        self.record: Latest[records.Charts] = Latest({})
        self.lane = lane
        self.recorder = HealthRecorder(file=self.file, record=self.record, lane=lane)

    async def until(self, wanted: records.Charts) -> None:
        async with asyncio.timeout(30):
            while not self.file.path.exists() or self.file.load() != wanted:
                await asyncio.sleep(0.01)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(records, "REST_SECONDS", 0.2)
    monkeypatch.setattr(records, "RETRY_SECONDS", 0.05)
    with Lane("files") as lane:
        yield Desk(tmp_path, lane)


async def test_what_changes_is_written_at_once_and_what_follows_together(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "REST_SECONDS", 2.0)
    async with running(desk.recorder.run()):
        await asyncio.sleep(0.05)
        assert not desk.file.path.exists()
        desk.record.set(CHARTS)
        await desk.until(CHARTS)
        first = identity(desk.file.path)
        for count in range(100):
            desk.record.set({A: Chart(counts={31: count + 1})})
            await asyncio.sleep(0)
        assert identity(desk.file.path) == first
        await desk.until({A: Chart(counts={31: 100})})


async def test_at_the_end_what_is_still_to_be_written_is_written(desk: Desk) -> None:
    async with running(desk.recorder.run()):
        desk.record.set({A: Chart(counts={31: 1})})
        await desk.until({A: Chart(counts={31: 1})})
        desk.record.set(CHARTS)
    assert desk.file.load() == CHARTS


async def test_a_disk_that_refuses_is_said_once_and_tried_again(
    desk: Desk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk.file.path = tmp_path / "missing" / "health.json"
    async with running(desk.recorder.run()):
        desk.record.set(CHARTS)
        await asyncio.sleep(0.3)
        assert [record.getMessage() for record in caplog.records] == ["faults are not kept over a restart"]
        (tmp_path / "missing").mkdir()
        await desk.until(CHARTS)


async def test_a_disk_that_hangs_does_not_hold_up_the_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "END_SECONDS", 0.1)
    released = threading.Event()
    with pytest.raises(TimeoutError):
        async with running(desk.recorder.run()):
            hanging = asyncio.create_task(desk.lane.run("hang", released.wait))
            await asyncio.sleep(0.05)
            desk.record.set(CHARTS)
            await asyncio.sleep(0.05)
    released.set()
    await hanging
