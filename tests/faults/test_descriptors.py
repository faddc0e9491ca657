"""An agent that has no file descriptor left: what it cannot look at it does not offer, and all is back once it can."""

import asyncio
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from node_agent.kit.http_client import get
from node_agent.kubelet.embedded import EmbeddedKubelet
from tests.unit.cli.conftest import folder
from tests.unit.cli.test_run import RESOURCE, agent, config, kubelet

__all__ = ["config", "folder", "kubelet"]

PATIENCE = 60.0


@contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    """The process may open nothing more: all numbers below three are in use for good."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    yield
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_a_descriptor_nothing_unseen_is_offered_little_is_said_and_all_is_back_afterwards(
    folder: Path, config: Path, kubelet: EmbeddedKubelet
) -> None:
    document = json.loads(config.read_text())
    document["agent"] |= {"rescanInterval": "1s", "health": {"probeInterval": "1s"}}
    config.write_text(json.dumps(document))
    async with agent(config) as process:
        await kubelet.until(RESOURCE, allocatable=2, timeout=PATIENCE)
        registrations = kubelet.view(RESOURCE).registrations
        with without_descriptors(process.pid):
            # A probe knocks, and is let in only later.
            with suppress(OSError):
                await asyncio.to_thread(get, folder / "run" / "agent.sock", "/healthz", timeout=1)
            await kubelet.until(RESOURCE, allocatable=0, timeout=PATIENCE)
        await kubelet.until(RESOURCE, allocatable=2, timeout=PATIENCE)
        assert kubelet.view(RESOURCE).registrations == registrations, "the same agent over the same stream"
        code, body = await asyncio.to_thread(get, folder / "run" / "agent.sock", "/healthz", timeout=PATIENCE)
        assert (code, process.returncode) == (200, None), body
        process.terminate()
        _, logged = await process.communicate()
    log = logged.decode()
    # Once a minute, where asyncio would say it a hundred times a second.
    assert 1 <= log.count("out of system resource") < 10
    assert "Too many open files" in log
