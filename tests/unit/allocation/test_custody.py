"""Who may write the ledger's file: nobody beside the one who is alone, and one at a time where two are inside."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node_agent.allocation.custody import Custody
from node_agent.errors import StateError

Agents = Callable[[], Custody]


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    """Makes agents that want the same file."""
    made: list[Custody] = []

    def make() -> Custody:
        made.append(Custody(tmp_path / "lock"))
        return made[-1]

    yield make
    for one in made:
        one.leave()


def both_inside(agents: Agents) -> tuple[Custody, Custody]:
    first, second = agents(), agents()
    assert first.enter() and not second.enter()
    first.share()
    assert second.enter()
    return first, second


def test_the_first_is_alone_and_nobody_asks(agents: Agents) -> None:
    first = agents()
    assert first.enter() and first.be_alone()
    assert not first.asked


def test_a_second_one_asks_until_it_is_let_in_and_then_nobody_is_alone(agents: Agents) -> None:
    first, second = agents(), agents()
    first.enter()
    assert not second.enter()
    assert first.asked
    assert not second.enter()
    first.share()
    assert second.enter()
    assert (first.asked, second.asked) == (False, False)
    assert (first.be_alone(), second.be_alone()) == (False, False)


def test_one_that_asked_and_went_away_asks_no_more(agents: Agents) -> None:
    first, second = agents(), agents()
    first.enter()
    second.enter()
    second.leave()
    assert not first.asked


def test_nobody_is_alone_while_another_one_is_inside_and_trying_does_not_put_it_outside(agents: Agents) -> None:
    first, second = both_inside(agents)
    assert not first.be_alone() and not second.be_alone()
    third = agents()
    assert third.enter(), "both share still"


@pytest.mark.parametrize("leaver", [0, 1])
def test_whoever_is_left_is_alone_again_and_keeps_others_out(agents: Agents, leaver: int) -> None:
    pair = both_inside(agents)
    pair[leaver].leave()
    assert pair[1 - leaver].be_alone()
    assert not agents().enter()


def test_one_that_comes_after_the_other_has_left_is_alone(agents: Agents) -> None:
    first, second = agents(), agents()
    first.enter()
    assert not second.enter()
    first.leave()
    assert second.enter() and second.be_alone()


async def test_a_turn_waits_for_the_other_ones_to_end(agents: Agents) -> None:
    first, second = both_inside(agents)
    order: list[str] = []

    def work() -> None:
        with second.turn():
            order.append("second")

    with first.turn():
        waiting = asyncio.create_task(asyncio.to_thread(work))
        await asyncio.sleep(0.05)
        order.append("first")
    await waiting
    assert order == ["first", "second"]


def test_a_turn_ends_also_when_its_work_fails(agents: Agents) -> None:
    first, second = both_inside(agents)
    with pytest.raises(StateError), first.turn():
        raise StateError("the disk is full")
    with second.turn():
        pass


HANG = """
import sys, time
from pathlib import Path
from node_agent.allocation.custody import Custody
custody = Custody(Path(sys.argv[1]))
while not custody.enter():
    time.sleep(0.01)
with custody.turn():
    print("inside", flush=True)
    time.sleep(1000)
"""


def test_an_agent_that_is_killed_in_its_turn_holds_nobody_up(agents: Agents, tmp_path: Path) -> None:
    first = agents()
    first.enter()
    with subprocess.Popen([sys.executable, "-c", HANG, str(tmp_path / "lock")], stdout=subprocess.PIPE) as second:
        while not first.asked:
            time.sleep(0.01)
        first.share()
        assert second.stdout is not None and second.stdout.readline() == b"inside\n"
        got = threading.Event()

        def work() -> None:
            with first.turn():
                got.set()

        worker = threading.Thread(target=work)
        worker.start()
        assert not got.wait(0.1)
        second.kill()
        assert got.wait(5)
        worker.join()
    assert first.be_alone()


def test_a_lock_file_that_was_removed_or_replaced_is_noticed(agents: Agents, tmp_path: Path) -> None:
    first, second = agents(), agents()
    found = [first.adrift]
    first.enter()
    found.append(first.adrift)
    (tmp_path / "lock").unlink()
    found.append(first.adrift)
    assert second.enter(), "nobody is found"
    found += [first.adrift, second.adrift]
    assert found == [True, False, True, True, False]


def test_without_a_folder_nobody_gets_in_and_it_is_said_where(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=rf"cannot open {tmp_path}/gone/lock: No such file"):
        Custody(tmp_path / "gone" / "lock").enter()


def test_whoever_is_not_inside_has_no_turn(agents: Agents) -> None:
    outside = agents().turn()
    with pytest.raises(StateError, match="nothing is given or taken back"):
        outside.__enter__()


def test_leaving_twice_is_fine(agents: Agents) -> None:
    first = agents()
    first.enter()
    first.leave()
    first.leave()
    assert agents().enter()
