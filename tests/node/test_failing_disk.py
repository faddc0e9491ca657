"""The agent's state folder on a disk that is really full, or that was made read-only: a small tmpfs, as root.

No cluster is needed, so the whole agent runs in the test's process, as in ``tests/faults``.
"""

import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from node_agent.errors import StateError
from tests.fakes.api_server import ApiServer
from tests.fakes.names import GPU_RESOURCE
from tests.faults.claims import Cluster
from tests.faults.conftest import Simulate, short_waits, simulate

__all__ = ["short_waits", "simulate"]

pytestmark = pytest.mark.node

Broken = Callable[[Path], AbstractContextManager[None]]


@contextmanager
def disk(folder: Path) -> Iterator[None]:
    folder.mkdir(mode=0o750)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Not a byte more fits."""
    rest = folder / "rest"
    with pytest.raises(OSError, match="No space left"), rest.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)
    yield
    rest.unlink()


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """As the kernel makes it after an error: files that are open for writing hinder nothing."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
async def l4(simulate: Simulate) -> AsyncIterator[Cluster]:
    """Two L4, with the agent's state on a disk of its own."""
    async with ApiServer() as server:
        here = Cluster(simulate("l4-2"), server)
        with disk(here.place.settings.paths.state_dir):
            yield here


@pytest.mark.parametrize(("broken", "reason"), [(full, "No space left"), (read_only, "Read-only file system")])
async def test_pods_are_admitted_claims_refused_and_nothing_is_lost_until_the_disk_takes_more(
    l4: Cluster, broken: Broken, reason: str
) -> None:
    async with l4.serving(2) as agent:
        first, second = l4.device_of(0), l4.device_of(1)
        before = l4.allocate("before", first)
        await l4.prepared(before)
        with broken(l4.place.settings.paths.state_dir):
            late = l4.allocate("late", second)
            refused = (await l4.prepare(late))["late"]
            assert not refused.devices
            assert reason in refused.error and str(l4.books) in refused.error
            assert not l4.spec_of(late).exists()

            # What is prepared stays so, and what cannot be written down as ended is still held.
            assert await l4.prepared(before) == [first]
            assert reason in (await l4.unprepare(before))["before"]
            assert before.uid in agent.ledger.grants.value

            (held,), _ = await l4.place.kubelet.admit("pod", GPU_RESOURCE, 1)
            assert held == l4.place.uuid(1)
            assert (await l4.place.ask("/healthz"))[0] == 200

        assert await l4.unprepare(before) == {"before": ""}
        l4.place.kubelet.release("pod")
        l4.forget(late)
        again = l4.allocate("again", first)
        assert await l4.prepared(again) == [first]


async def test_an_agent_that_starts_on_a_read_only_disk_ends_with_a_line_that_names_the_file(l4: Cluster) -> None:
    """It cannot promise anything there; its pod is started again until it can, and says so meanwhile."""
    async with l4.serving(2):
        claim = l4.allocate("claim", l4.device_of(0))
        await l4.prepared(claim)
    with (
        read_only(l4.place.settings.paths.state_dir),
        pytest.raises(StateError, match=r"cannot open .*ledger.json.lock: Read-only file system"),
    ):
        async with l4.place.agent(l4.settings):
            pass
    async with l4.serving(2):
        assert await l4.unprepare(claim) == {"claim": ""}
