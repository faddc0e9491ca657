"""The guards of ``tests/conftest.py`` really fail a test that leaves something behind."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LEAKS = """
import asyncio, gc, socket, threading, warnings
from hypothesis import given, strategies as st
import pytest

kept = []

async def forever():
    await asyncio.Event().wait()

async def test_leaves_a_task():
    kept.append(asyncio.create_task(forever(), name="left-behind"))

@given(st.booleans())
async def test_leaves_a_task_in_an_example(_):
    kept.append(asyncio.create_task(forever(), name="left-behind"))

async def test_leaves_a_task_that_ends_at_once():
    kept.append(asyncio.create_task(asyncio.sleep(0)))

def test_leaves_a_thread():
    threading.Thread(target=threading.Event().wait, name="left-running", daemon=True).start()

async def test_uses_the_default_executor():
    await asyncio.to_thread(int)

def test_leaves_a_socket():
    socket.socket()

def test_leaves_a_socket_in_a_cycle():
    cycle = [socket.socket()]
    cycle.append(cycle)

async def test_leaves_a_server():
    await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)

@pytest.fixture
async def task():
    kept.append(asyncio.create_task(forever(), name="of-a-fixture"))

async def test_has_a_fixture_that_leaves_a_task(task):
    pass

@pytest.fixture
async def tidy():
    task = asyncio.create_task(forever())
    yield
    task.cancel()
    await asyncio.wait([task])

async def test_has_a_tidy_fixture(tidy):
    await asyncio.sleep(0)

def test_never_awaits():
    forever()

def test_warns():
    warnings.warn("old", DeprecationWarning)

async def test_closes_everything():
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    server.close()
    await server.wait_closed()
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The short summary of a run of tests that leave things behind, under this project's settings and conftest."""
    folder = tmp_path_factory.mktemp("leaks")
    (folder / "test_leaks.py").write_text(LEAKS)
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    command = [sys.executable, "-m", "pytest", "-rA", "--no-header", "test_leaks.py"]
    wide = {**os.environ, "COLUMNS": "400"}
    return subprocess.run(
        command, cwd=folder, env=wide, text=True, check=False, timeout=120, stdout=subprocess.PIPE
    ).stdout


@pytest.mark.parametrize(
    ("test", "complaint"),
    [
        ("test_leaves_a_task", "the test left tasks running: ['left-behind']"),
        ("test_leaves_a_task_in_an_example", "the test left tasks running: ['left-behind'"),
        ("test_has_a_fixture_that_leaves_a_task", "the test left tasks running: ['of-a-fixture']"),
        ("test_leaves_a_thread", "the test left the thread 'left-running' running"),
        ("test_leaves_a_socket", "<socket.socket"),
        ("test_leaves_a_socket_in_a_cycle", "<socket.socket"),
        ("test_leaves_a_server", "<socket.socket"),
        ("test_never_awaits", "<coroutine object forever"),
        ("test_warns", "DeprecationWarning: old"),
    ],
)
def test_a_test_that_leaves_something_behind_fails(report: str, test: str, complaint: str) -> None:
    verdicts = [line for line in report.splitlines() if line.startswith(("FAILED", "ERROR")) and f"::{test} - " in line]
    assert len(verdicts) == 1, report
    assert complaint in verdicts[0]


@pytest.mark.parametrize(
    "test",
    [
        "test_closes_everything",
        "test_has_a_tidy_fixture",
        "test_leaves_a_task_that_ends_at_once",
        "test_uses_the_default_executor",
    ],
)
def test_a_tidy_test_passes(report: str, test: str) -> None:
    names = [line.partition(" - ")[0] for line in report.splitlines()]
    assert [name.split()[0] for name in names if name.endswith(f"::{test}")] == ["PASSED"], report
