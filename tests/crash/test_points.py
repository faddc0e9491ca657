"""The short form of ``make crash``: half of the operations, killed in their midst; and walks whose seeds are kept."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.crash.nursery import Nursery
from tests.crash.operations import OPERATIONS, PAIRS
from tests.crash.points import at_rest, kill_in, kill_in_start, wander
from tests.crash.site import Site

# The others are in the long form; these have the most steps of each kind.
SHORT = (
    "unprepare",
    "allocate",
    "cut for a claim",
    "remove the piece of a claim",
    "start MPS for a claim",
    "reload to MPS shares",
    "end a layout",
)
# Walks that have found something stay here.
SEEDS = (1,)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as found:
        yield found


@pytest.fixture
async def here(nursery: Nursery) -> AsyncIterator[Site]:
    async with at_rest(nursery) as found:
        yield found


def middle(number: int, count: int) -> bool:
    """In the midst of it: that is where most is half done."""
    return number == count // 2


async def test_a_killed_agent_leaves_nothing_double_nothing_forgotten_and_nothing_behind(here: Site) -> None:
    for operation in (one for one in OPERATIONS if one.name in SHORT):
        report = await kill_in(operation, here, middle)
        assert report.killed, f"{operation.name} was not killed at {report.crossed}"


async def test_an_agent_that_is_killed_as_it_starts_is_followed_by_one_that_works(here: Site) -> None:
    report = await kill_in_start(here, lambda number, count: number in (count // 3, 2 * count // 3))
    assert len(report.killed) == 2


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_is_done_and_whenever_the_agents_die_the_node_comes_to_rest(here: Site, seed: int) -> None:
    assert len(await wander(here, seed, PAIRS, 4)) == 4
