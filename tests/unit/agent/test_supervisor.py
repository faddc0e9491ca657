"""Services that fail, end, hang on their way out, and the others that must not notice."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from node_agent.agent.supervisor import Condition, ServiceState, Supervisor, in_words
from node_agent.errors import ConfigError
from node_agent.kit.logs import FACTS
from node_agent.kit.tasks import running


@dataclass
class Worker:
    """A service that fails with ``failures`` one after another, then works; with None among them it just ends."""

    failures: list[BaseException | None] = field(default_factory=list)
    starts: int = 0
    ended: bool = False

    async def run(self) -> None:
        self.starts += 1
        if self.failures:
            failure = self.failures.pop(0)
            if failure is None:
                return
            raise failure
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


def quick() -> Iterator[float]:
    while True:
        yield 0.0


def supervisor(
    steady_seconds: float = 60.0, tries: Callable[[], Iterator[float]] = quick, **workers: Worker
) -> Supervisor:
    found = Supervisor(steady_seconds, tries)
    for name, worker in workers.items():
        found.add(name, worker.run)
    return found


async def until(wanted: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not wanted():
            await asyncio.sleep(0.005)


async def test_all_services_run_side_by_side_until_the_end() -> None:
    one, two = Worker(), Worker()
    async with running(supervisor(one=one, two=two).run()):
        await until(lambda: one.starts and two.starts)
        early = [one.ended, two.ended]
    assert early == [False, False]
    assert [one.ended, two.ended] == [True, True]


async def test_a_failed_service_is_started_again_and_the_others_never_notice() -> None:
    broken, sound = Worker([ValueError("no"), OSError("nor this")]), Worker()
    watched = supervisor(broken=broken, sound=sound)
    async with running(watched.run()):
        await until(lambda: broken.starts == 3)
        assert (sound.starts, sound.ended) == (1, False)
    assert watched.states.value["broken"].restarts == 2
    assert watched.states.value["sound"] == ServiceState()


async def test_a_service_that_ends_by_itself_is_started_again() -> None:
    worker = Worker([None])
    watched = supervisor(worker=worker)
    async with running(watched.run()):
        await until(lambda: worker.starts == 2)
    assert watched.states.value["worker"].trouble == "it ended by itself"


async def test_a_service_that_cancels_itself_is_started_again() -> None:
    worker = Worker([asyncio.CancelledError()])
    async with running(supervisor(worker=worker).run()):
        await until(lambda: worker.starts == 2)


async def test_before_anything_ran_all_services_count_as_running() -> None:
    assert supervisor(one=Worker(), two=Worker()).states.value == {"one": ServiceState(), "two": ServiceState()}


async def test_the_state_names_the_trouble_while_the_service_rests_and_after_it_has_started_again() -> None:
    worker = Worker([ValueError("the driver is gone")])
    watched = supervisor(tries=lambda: iter([0.1]), worker=worker)
    async with running(watched.run()):
        await until(lambda: watched.states.value["worker"].restarts)
        resting = watched.states.value["worker"]
        await until(lambda: worker.starts == 2)
        assert resting == ServiceState(
            condition=Condition.RESTARTING, restarts=1, trouble="ValueError: the driver is gone"
        )
        assert watched.states.value["worker"] == ServiceState(restarts=1, trouble="ValueError: the driver is gone")


async def test_a_service_that_has_run_steadily_is_forgiven_but_its_restarts_stay_counted() -> None:
    worker = Worker([ValueError("once")])
    watched = supervisor(steady_seconds=0.02, worker=worker)
    async with running(watched.run()):
        await until(lambda: worker.starts == 2 and watched.states.value["worker"].trouble is None)
    assert watched.states.value["worker"] == ServiceState(restarts=1)


@dataclass
class Pauses:
    """Makes rows of pauses and writes down the place in its row of each one that was taken."""

    taken: list[int] = field(default_factory=list)

    def row(self) -> Iterator[float]:
        for place in count():
            self.taken.append(place)
            yield 0.0


async def test_each_failure_in_a_row_is_followed_by_the_next_pause() -> None:
    pauses, worker = Pauses(), Worker([ValueError(), None, ValueError()])
    async with running(supervisor(tries=pauses.row, worker=worker).run()):
        await until(lambda: worker.starts == 4)
    assert pauses.taken == [0, 1, 2]


async def test_a_failure_after_a_steady_run_starts_with_the_shortest_pause_again() -> None:
    starts, pauses = list[str](), Pauses()

    async def steady() -> None:
        starts.append("again")
        await asyncio.sleep(0.05)
        raise ValueError

    watched = Supervisor(0.01, pauses.row)
    watched.add("steady", steady)
    async with running(watched.run()):
        await until(lambda: len(starts) == 3)
    assert pauses.taken == [0, 0]


async def test_the_end_waits_for_what_a_service_has_to_clear_away() -> None:
    cleared = []

    async def careful() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)
            cleared.append("socket")

    watched = Supervisor()
    watched.add("careful", careful)
    async with running(watched.run()):
        await asyncio.sleep(0.01)
    assert cleared == ["socket"]


async def test_a_service_that_fails_on_its_way_out_does_not_come_back() -> None:
    starts = []

    async def clumsy() -> None:
        starts.append("again")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if len(starts) > 1:
                raise  # a supervisor that brought it back can be ended by the loop
            raise OSError("cannot remove the socket") from None

    watched = Supervisor(tries=quick)
    watched.add("clumsy", clumsy)
    task = asyncio.create_task(watched.run())
    await until(lambda: starts)
    task.cancel()
    ended, _ = await asyncio.wait([task], timeout=30)
    assert ended
    assert starts == ["again"]


async def test_a_failure_is_logged_with_the_name_of_the_service_and_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Worker([ValueError("no"), None])
    async with running(supervisor(worker=worker).run()):
        await until(lambda: worker.starts == 3)
    failed, ended = (record for record in caplog.records if record.getMessage() == "service failed")
    assert (failed.levelno, ended.levelno) == (logging.ERROR, logging.ERROR)
    assert failed.__dict__[FACTS] == {"service": "worker", "trouble": "ValueError: no"}
    assert failed.exc_info
    assert ended.__dict__[FACTS] == {"service": "worker", "trouble": "it ended by itself"}
    assert not ended.exc_info


@pytest.mark.parametrize("depth", range(3))
async def test_a_trouble_that_the_agent_knows_is_logged_without_a_traceback(
    caplog: pytest.LogCaptureFixture, depth: int
) -> None:
    error: Exception = ConfigError("agent.http.address: taken")
    for _ in range(depth):
        error = ExceptionGroup("tasks", [error])
    worker = Worker([error, ExceptionGroup("tasks", [error, KeyError("a bug")])])
    async with running(supervisor(worker=worker).run()):
        await until(lambda: worker.starts == 3)
    failed, bug = (record for record in caplog.records if record.getMessage() == "service failed")
    assert failed.__dict__[FACTS] == {"service": "worker", "trouble": "ConfigError: agent.http.address: taken"}
    assert not failed.exc_info
    assert bug.exc_info


def test_a_group_of_errors_is_told_by_what_each_of_them_says() -> None:
    inner = ExceptionGroup("inside", [OSError("no space"), ValueError("no number")])
    assert in_words(ExceptionGroup("outside", [inner, KeyError("k")])) == (
        "OSError: no space; ValueError: no number; KeyError: 'k'"
    )


async def test_a_service_that_is_added_later_runs_with_the_others() -> None:
    first, later = Worker(), Worker([ValueError("not yet")])
    watched = supervisor(first=first)
    async with running(watched.run()):
        await until(lambda: first.starts)
        watched.add("later", later.run)
        await until(lambda: later.starts == 2)
        assert watched.states.value["later"].restarts == 1
    assert (first.starts, first.ended, later.ended) == (1, True, True)


async def test_a_service_that_is_removed_has_ended_and_the_others_go_on() -> None:
    one, two = Worker(), Worker()
    watched = supervisor(one=one, two=two)
    async with running(watched.run()):
        await until(lambda: one.starts and two.starts)
        await watched.remove("one")
        assert (one.ended, two.ended) == (True, False)
        assert watched.states.value.keys() == {"two"}
        watched.add("one", one.run)
        await until(lambda: one.starts == 2)


async def test_a_service_that_was_removed_before_the_start_never_runs() -> None:
    one, two = Worker(), Worker()
    watched = supervisor(one=one, two=two)
    await watched.remove("one")
    async with running(watched.run()):
        await until(lambda: two.starts)
    assert one.starts == 0


def test_two_services_of_one_name_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="there is a service one already"):
        supervisor(one=Worker()).add("one", Worker().run)
