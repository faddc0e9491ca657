"""Intervals of GPUs: set, undone, and undone by the next agent where one was killed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from node_agent.errors import HardwareError, NotSupported, StateError
from node_agent.kit.lane import Lane
from node_agent.model.gpu import GpuUuid
from node_agent.sharing.shares import Interval
from node_agent.sharing.time_slices import IntervalFile, TimeSlices

A, B = GpuUuid("GPU-0"), GpuUuid("GPU-1")
BOTH = (A, B)
DEFAULT, SHORT, LONG = Interval.DEFAULT, Interval.SHORT, Interval.LONG


@dataclass
class Driver:
    """A driver that keeps what it was told."""

    intervals: dict[GpuUuid, Interval] = field(default_factory=dict)
    calls: list[tuple[GpuUuid, Interval]] = field(default_factory=list)
    failures: dict[GpuUuid, Exception] = field(default_factory=dict)

    async def set_interval(self, gpu: GpuUuid, interval: Interval) -> None:
        self.calls.append((gpu, interval))
        await asyncio.sleep(0)
        if gpu in self.failures:
            raise self.failures[gpu]
        self.intervals[gpu] = interval


@pytest.fixture
def driver() -> Driver:
    return Driver()


@asynccontextmanager
async def slices(folder: Path, driver: Driver) -> AsyncIterator[TimeSlices]:
    with Lane("files") as lane:
        yield TimeSlices(set_interval=driver.set_interval, file=IntervalFile(folder / "slices.json"), lane=lane)


async def test_where_nobody_asks_for_an_interval_the_driver_is_not_called(tmp_path: Path, driver: Driver) -> None:
    async with slices(tmp_path, driver) as one:
        assert await one.keep({}, BOTH, ())
    assert driver.calls == []
    assert not list(tmp_path.iterdir())


async def test_what_is_configured_is_set_once_and_undone_when_it_ends(tmp_path: Path, driver: Driver) -> None:
    async with slices(tmp_path, driver) as one:
        for _ in range(3):
            await one.keep({A: SHORT}, BOTH, ())
        await one.keep({}, BOTH, ())
        await one.keep({}, BOTH, ())
    assert driver.calls == [(A, SHORT), (A, DEFAULT)]


async def test_what_a_killed_agent_has_set_is_undone_by_the_next_one(tmp_path: Path, driver: Driver) -> None:
    async with slices(tmp_path, driver) as killed:
        await killed.keep({A: SHORT, B: LONG}, BOTH, ())
    async with slices(tmp_path, driver) as following:
        await following.keep({B: LONG}, BOTH, ())
    assert driver.intervals == {A: DEFAULT, B: LONG}
    async with slices(tmp_path, driver) as third:
        await third.keep({}, BOTH, ())
    assert driver.intervals == {A: DEFAULT, B: DEFAULT}
    assert driver.calls[-1] == (B, DEFAULT)


async def test_it_is_written_down_before_the_driver_is_called(tmp_path: Path, driver: Driver) -> None:
    driver.failures[A] = HardwareError("killed in the middle of it")
    async with slices(tmp_path, driver) as killed:
        with pytest.raises(HardwareError):
            await killed.set(A, SHORT)
    driver.failures.clear()
    async with slices(tmp_path, driver) as following:
        await following.keep({}, BOTH, ())
    assert driver.calls[-1] == (A, DEFAULT)


async def test_what_cannot_be_written_down_is_not_set(tmp_path: Path, driver: Driver) -> None:
    async with slices(tmp_path / "missing", driver) as one:
        with pytest.raises(StateError, match="none is changed"):
            await one.set(A, SHORT)
    assert driver.calls == []


async def test_a_damaged_file_is_no_reason_to_stand_still(tmp_path: Path, driver: Driver) -> None:
    (tmp_path / "slices.json").write_text("{")
    async with slices(tmp_path, driver) as one:
        await one.keep({A: SHORT}, BOTH, ())
    assert driver.intervals[A] is SHORT


async def test_what_a_damaged_file_may_have_named_is_undone_once(tmp_path: Path, driver: Driver) -> None:
    async with slices(tmp_path, driver) as killed:
        await killed.keep({A: SHORT, B: LONG}, BOTH, ())
    (tmp_path / "slices.json").write_text("{")
    driver.calls.clear()
    async with slices(tmp_path, driver) as following:
        for _ in range(2):
            await following.keep({B: LONG}, BOTH, ())
    assert driver.calls == [(A, DEFAULT), (B, LONG)]


async def test_a_claim_goes_before_the_configuration_which_holds_again_afterwards(
    tmp_path: Path, driver: Driver
) -> None:
    async with slices(tmp_path, driver) as one:
        await one.keep({A: LONG}, BOTH, ())
        await one.set(A, SHORT)
        await one.keep({A: LONG}, BOTH, claimed=[A])
        assert driver.intervals == {A: SHORT}
        await one.restore(A)
    assert driver.calls == [(A, LONG), (A, SHORT), (A, LONG)]


async def test_a_gpu_that_was_away_is_set_again(tmp_path: Path, driver: Driver) -> None:
    async with slices(tmp_path, driver) as one:
        await one.keep({A: SHORT}, BOTH, ())
        await one.keep({A: SHORT}, [B], ())
        assert driver.calls == [(A, SHORT)]
        await one.keep({A: SHORT}, BOTH, ())
    assert driver.calls == [(A, SHORT), (A, SHORT)]


async def test_a_gpu_that_knows_only_the_default_is_refused_another_and_leaves_nothing_behind(
    tmp_path: Path, driver: Driver
) -> None:
    driver.failures[A] = NotSupported("it has none")
    async with slices(tmp_path, driver) as one:
        with pytest.raises(NotSupported):
            await one.set(A, SHORT)
        await one.set(A, DEFAULT)
        assert await one.keep({A: SHORT, B: SHORT}, BOTH, ())
        assert one.troubles.value == {A: "it has none"}
        assert IntervalFile(tmp_path / "slices.json").read() == {B: SHORT}
    assert driver.intervals == {B: SHORT}


async def test_a_failure_that_may_pass_is_worth_another_try(tmp_path: Path, driver: Driver) -> None:
    driver.failures[A] = HardwareError("busy")
    async with slices(tmp_path, driver) as one:
        assert not await one.keep({A: SHORT}, BOTH, ())
        assert one.troubles.value == {A: "busy"}
        driver.failures.clear()
        assert await one.keep({A: SHORT}, BOTH, ())
        assert one.troubles.value == {}
    assert driver.intervals == {A: SHORT}


async def test_two_gpus_that_are_set_at_once_are_both_written_down(tmp_path: Path, driver: Driver) -> None:
    async with slices(tmp_path, driver) as one:
        await asyncio.gather(one.set(A, SHORT), one.set(B, LONG))
    assert IntervalFile(tmp_path / "slices.json").read() == {A: SHORT, B: LONG}
