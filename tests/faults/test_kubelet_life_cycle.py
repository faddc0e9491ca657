"""A kubelet that restarts, and two agents on one node. Users met: after a restart of the kubelet the node showed no
GPUs (B11), and in a rolling update the goodbye of the old pod wiped the registration of the new one (B13).
"""

import asyncio
import os
import signal
import socket
import time
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec.structs import replace

from node_agent.allocation.custody import Custody
from node_agent.allocation.grants import Door
from node_agent.cli.run import serve, work
from node_agent.hardware.simulated.placeholders import stat
from node_agent.kit.tasks import running
from node_agent.kubelet.written import FILE
from tests.fakes.names import GPU_RESOURCE
from tests.faults.conftest import PATIENCE, Place, until

WITHIN = 20.0
"""Seconds in which the kubelet must have everything again; more only where the machine is busy."""


async def test_a_kubelet_that_was_away_for_a_while_has_all_gpus_again(h200: Place) -> None:
    """It comes back with every socket of its folder wiped, as the kubelet does at its start."""
    async with h200.agent():
        async with h200.kubelet.running():
            first = await h200.allocatable(8)
        await asyncio.sleep(2)
        async with h200.kubelet.running():
            began = time.monotonic()
            second = await h200.allocatable(8)
            assert time.monotonic() - began < WITHIN
            await h200.ready()

    assert first.endpoint != second.endpoint


async def test_two_restarts_within_a_second_end_with_all_gpus(h200: Place) -> None:
    async with h200.agent():
        for _ in range(2):
            async with h200.kubelet.running():
                await asyncio.sleep(0.4)
        async with h200.kubelet.running():
            await h200.allocatable(8)


async def test_the_agent_says_that_it_waits_while_there_is_no_kubelet(h200: Place) -> None:
    async with h200.agent():
        await h200.trouble("waiting for the kubelet")
        assert (await h200.ask("/healthz"))[0] == 200
        async with h200.kubelet.running():
            await h200.allocatable(8)
            await h200.ready()


async def test_sockets_that_are_wiped_under_a_running_kubelet_are_made_again(h200: Place) -> None:
    async with h200.serving():
        Path(h200.view.endpoint).unlink()
        await until(lambda: h200.view.registrations == 2)
        await h200.allocatable(8)


async def test_pods_keep_their_gpus_over_a_restart_of_the_kubelet(h200: Place) -> None:
    async with h200.agent() as agent:
        async with h200.kubelet.running():
            await h200.allocatable(8)
            await until(lambda: agent.ledger.trouble is None)
            held, _ = await h200.kubelet.admit("trainer", GPU_RESOURCE, 4)
        async with h200.kubelet.running():
            await h200.allocatable(8)
            others, _ = await h200.kubelet.admit("notebook", GPU_RESOURCE, 4)

    assert not set(held) & set(others)


async def test_a_new_agent_serves_beside_the_old_one_and_on_after_its_goodbye(h200: Place) -> None:
    """Both share all folders, as two pods of one DaemonSet do in a rolling update with a surge."""
    async with h200.kubelet.running(), AsyncExitStack() as update:
        async with h200.agent():
            old = await h200.allocatable(8)
            held, _ = await h200.kubelet.admit("before", GPU_RESOURCE, 2)
            new_agent = await update.enter_async_context(h200.agent())
            await until(lambda: h200.view.endpoint != old.endpoint)
            new = await h200.allocatable(8)
            others, _ = await h200.kubelet.admit("between", GPU_RESOURCE, 2)
            assert Path(old.endpoint).exists()
            assert new_agent.ledger.held_gpus(Door.LIMIT) == {*held, *others}
        await asyncio.sleep(1)

        assert h200.view.endpoint == new.endpoint
        assert h200.view.allocatable == 8
        assert Path(new.endpoint).exists()
        assert not Path(old.endpoint).exists()
        await h200.ready()
        await h200.kubelet.admit("after", GPU_RESOURCE, 4)


async def test_an_agent_that_is_not_let_in_ends_when_it_is_told(h200: Place) -> None:
    """The one before it hangs, and keeps the ledger for itself."""
    h200.settings.paths.state_dir.mkdir(parents=True)
    hanging = Custody(h200.settings.paths.state_dir / "ledger.json.lock")
    hanging.enter()
    async with h200.kubelet.running():
        async with running(work(serve(h200.settings, stat))) as waiting:
            await until(lambda: hanging.asked)
            os.kill(os.getpid(), signal.SIGTERM)
            await until(waiting.done)
        assert h200.view.registrations == 0
    hanging.leave()


async def test_an_old_agent_takes_nothing_of_a_new_one_away_whose_folders_are_its_own(h200: Place) -> None:
    """As in a rolling update from an agent that keeps its state elsewhere: they meet at the kubelet only."""
    own = replace(h200.settings.paths, state_dir=h200.folder / "state-2", run_dir=h200.folder / "run-2")
    async with h200.kubelet.running(), h200.agent(replace(h200.settings, paths=own)):
        old = await h200.allocatable(8)
        async with h200.agent():
            await until(lambda: h200.view.endpoint != old.endpoint)
            new = await h200.allocatable(8)
            await asyncio.sleep(1)
            assert Path(new.endpoint).exists()
            assert h200.view.allocatable == 8


async def test_what_a_killed_agent_left_behind_does_not_stop_the_next(h200: Place) -> None:
    """Its socket at the kubelet, its status socket, its half-written files."""
    folder, run, state = h200.kubelet.folder, h200.settings.paths.run_dir, h200.settings.paths.state_dir
    for place in (folder, run, state, h200.spec_file.parent):
        place.mkdir(parents=True)
    for path in (folder / "node-agent-gpu-deadbeef.sock", run / "agent.sock", run / ".agent.sock"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    (state / ".names.json.abcdef").write_text("{")
    (h200.spec_file.parent / f".{h200.spec_file.name}.abcdef").write_text("{")
    other = folder / "someone-else.sock"
    async with h200.kubelet.running():
        (folder / "node-agent-gpu-deadbeef.sock").unlink(missing_ok=True)
        for path in (other, folder / "node-agent-gpu-deadbeef.sock"):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(path))
        async with h200.agent():
            await h200.allocatable(8)
            await until(lambda: not (folder / "node-agent-gpu-deadbeef.sock").exists())
            assert other.exists(), "only what is the agent's own is removed"
            await h200.ready()


async def test_a_kubelet_that_refuses_is_asked_again_and_said_to_have_refused(h200: Place) -> None:
    h200.kubelet.refusal = "no more resources, thank you"
    async with h200.kubelet.running(), h200.agent():
        await h200.trouble("no more resources, thank you")
        h200.kubelet.refusal = None
        await h200.allocatable(8)
        await h200.ready()


async def test_a_kubelet_that_finds_plugins_by_itself_is_served_too(h200: Place) -> None:
    registry = h200.settings.paths.kubelet_dir / "plugins_registry"
    registry.mkdir(parents=True)
    h200.kubelet.registry = registry
    async with h200.agent(replace(h200.settings, registration="watcher")):
        async with h200.kubelet.running():
            await h200.allocatable(8)
        async with h200.kubelet.running(), asyncio.timeout(PATIENCE):
            await h200.allocatable(8)


async def test_nothing_is_left_behind_at_the_end(h200: Place) -> None:
    async with h200.kubelet.running():
        async with h200.agent():
            await h200.allocatable(8)
        left = {path.name for path in h200.kubelet.folder.iterdir()}
        assert left == {"kubelet.sock", FILE.name}, "the kubelet's own"
        assert not (h200.settings.paths.run_dir / "agent.sock").exists()
    assert h200.spec_file.exists(), "containers that are restarted while the agent is away still need it"
