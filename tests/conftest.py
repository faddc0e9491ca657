"""What holds for every test: nothing that it started outlives it.

An unclosed socket or file says so by a ResourceWarning when it is collected; pytest turns that into a failure of the
test that runs at that moment, so each test collects its own garbage. Tasks and threads are counted here.
"""

import asyncio
import gc
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator

import hypothesis
import pytest

# Libraries keep these for the life of the process: one poller of grpc's, however many channels there are.
LASTING_THREADS = ("_poll_wrapper",)
GRACE = 10.0

# `make fuzz` draws more, and by chance; without it the same is drawn each time, and slowly where the machine is busy.
hypothesis.settings.register_profile(
    "agent",
    deadline=None,
    max_examples=int(os.environ.get("EXAMPLES", "100")),
    derandomize="EXAMPLES" not in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("agent")


@pytest.fixture(autouse=True)
def threads_end_with_the_test() -> Iterator[None]:
    """Fail a test that leaves a thread; one that is just ending gets a moment."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + GRACE
    for thread in set(threading.enumerate()) - before:
        if not any(name in thread.name for name in LASTING_THREADS):
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), f"the test left the thread {thread.name!r} running"
    # Unreached sockets warn now, in this test. What a test made is young: two generations hold all of it.
    gc.collect(1)


@pytest.fixture(autouse=True)
def logs_are_as_loud_as_before() -> Iterator[None]:
    """Take back what a command has set that was tried in this process: the next test may look for what is logged."""
    loggers = [logging.getLogger(name) for name in (None, "node_agent")]
    levels = [logger.level for logger in loggers]
    handlers = set(logging.getLogger().handlers)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for handler in logging.getLogger().handlers[:]:
        # Those of pytest are another set in each phase of a test, and its own to remove.
        if handler not in handlers and type(handler) is logging.StreamHandler:
            logging.getLogger().removeHandler(handler)


@pytest.fixture
async def _tasks_end_with_the_loop() -> AsyncIterator[None]:
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=GRACE)
    assert not left, f"the test left tasks running: {sorted(task.get_name() for task in left)}"


@pytest.fixture(autouse=True)
def tasks_end_with_the_test(threads_end_with_the_test: None, request: pytest.FixtureRequest) -> None:
    """Fail an asynchronous test that leaves a task; the loop's own end would cancel it without a word."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("_tasks_end_with_the_loop")
