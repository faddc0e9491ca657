"""The life of MPS daemons: who joins and leaves, what dies, and what an agent finds that comes after another."""

import asyncio
import os
import signal
import time

import pytest
from msgspec.structs import replace

from node_agent.errors import MpsError, MpsImpossible, StateError
from node_agent.hardware.provider import ComputeMode
from node_agent.sharing.mps.daemon import Phase
from node_agent.sharing.mps.plan import CLIENT_PIPE, Limits, daemon_key
from node_agent.sharing.mps.processes import of_pipe
from tests.unit.sharing.mps.conftest import GIB, MpsNode, until

EXCLUSIVE, DEFAULT = ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT


# Joining and leaving


async def test_who_joins_gets_a_daemon_that_answers_and_what_its_clients_need(node: MpsNode) -> None:
    async with node.agent() as daemons:
        edits = await daemons.join(
            "claim a", node.wanted(2, limits=Limits(memory={node.gpus[2]: 20 * GIB}, threads=25))
        )
        assert edits.environment == {
            "CUDA_MPS_PIPE_DIRECTORY": CLIENT_PIPE,
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        }
        assert edits.mounts == {str(node.folders(2).pipe): CLIENT_PIPE, "/dev/shm": "/dev/shm"}
        with node.client(edits) as client:
            assert client.granted["threads"] == 25
            assert client.granted["memory"] == {"0": 20 * GIB}


async def test_only_the_servers_may_open_the_gpu_and_after_the_last_user_everybody_may(node: MpsNode) -> None:
    async with node.agent() as daemons:
        await daemons.join("claim a", node.wanted(0))
        assert [node.mode(0), node.mode(1)] == [EXCLUSIVE, DEFAULT]
        await daemons.leave("claim a")
        assert node.mode(0) is DEFAULT
        assert not node.folders(0).pipe.parent.exists()
        assert not node.pids(0)
        assert not daemons.states.value
    assert not node.records.all()


async def test_two_users_of_one_gpu_have_one_daemon_and_it_ends_with_the_last(node: MpsNode) -> None:
    async with node.agent() as daemons:
        one = await daemons.join("claim a", node.wanted(0))
        before = node.pids(0)
        other = await daemons.join("claim b", node.wanted(0))
        assert one.mounts == other.mounts
        assert node.pids(0) == before
        await daemons.leave("claim a")
        assert node.pids(0) == before
        assert node.mode(0) is EXCLUSIVE
        await daemons.leave("claim b")
        assert not node.pids(0)
        assert node.mode(0) is DEFAULT


async def test_daemons_of_several_gpus_have_nothing_in_common(node: MpsNode) -> None:
    async with node.agent() as daemons:
        edits = await asyncio.gather(*(daemons.join(f"claim {n}", node.wanted(n)) for n in range(4)))
        assert len({next(iter(each.mounts)) for each in edits}) == 4
        await daemons.leave("claim 1")
        assert [node.mode(n) for n in range(4)] == [EXCLUSIVE, DEFAULT, EXCLUSIVE, EXCLUSIVE]


async def test_one_daemon_may_have_several_gpus_and_numbers_them(node: MpsNode) -> None:
    async with node.agent() as daemons:
        limits = Limits(memory={node.gpus[5]: 2 * GIB, node.gpus[3]: GIB})
        edits = await daemons.join("claim a", node.wanted(3, 5, limits=limits))
        assert edits.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1024M,1=2048M"
        assert [node.mode(n) for n in (3, 4, 5)] == [EXCLUSIVE, DEFAULT, EXCLUSIVE]


async def test_joining_again_is_the_same_and_leaving_again_is_nothing(node: MpsNode) -> None:
    async with node.agent() as daemons:
        assert await daemons.join("a", node.wanted(0)) == await daemons.join("a", node.wanted(0))
        await daemons.leave("a")
        await daemons.leave("a")
        await daemons.leave("stranger")
        assert node.mode(0) is DEFAULT


async def test_all_users_are_known_and_those_who_left_are_none(node: MpsNode) -> None:
    async with node.agent() as daemons:
        assert await daemons.users() == frozenset()
        for number, user in enumerate(("a", "b")):
            await daemons.join(user, node.wanted(number))
        await daemons.join("c", node.wanted(0))
        await daemons.leave("a")
        assert await daemons.users() == {"b", "c"}


# What cannot be together


async def test_a_gpu_has_one_daemon_only(node: MpsNode) -> None:
    async with node.agent() as daemons:
        await daemons.join("claim a/one", node.wanted(0))
        with pytest.raises(MpsImpossible, match=rf"claim b/two wants .*{node.gpus[0]} has a daemon.*claim a/one"):
            await daemons.join("claim b/two", node.wanted(0, 1))
        assert node.mode(1) is DEFAULT


async def test_a_daemon_serves_several_users_at_once_or_it_does_not(node: MpsNode) -> None:
    async with node.agent() as daemons:
        await daemons.join("claim a/one", node.wanted(0, multi_user=True))
        with pytest.raises(MpsImpossible, match=r"claim b/two .*without multiUser, and claim a/one has it with"):
            await daemons.join("claim b/two", node.wanted(0))


# Limits


async def test_no_client_gets_more_than_the_widest_limit_whatever_it_says(node: MpsNode) -> None:
    async with node.agent() as daemons:
        small = await daemons.join("a", node.wanted(0, limits=Limits(memory={node.gpus[0]: GIB}, threads=10)))
        large = await daemons.join("b", node.wanted(0, limits=Limits(memory={node.gpus[0]: 3 * GIB}, threads=30)))
        with node.client(small) as client:
            assert client.granted["memory"] == {"0": GIB}
        forged = replace(small, environment={"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=100G"})
        with node.client(forged) as client:
            assert client.granted["memory"] == {"0": 3 * GIB}
            assert client.granted["threads"] == 30
        with node.client(large) as client:
            assert client.granted["memory"] == {"0": 3 * GIB}


async def test_one_without_limits_is_not_cut_short_by_the_others(node: MpsNode) -> None:
    async with node.agent() as daemons:
        await daemons.join("a", node.wanted(0, limits=Limits(memory={node.gpus[0]: GIB}, threads=10)))
        free = await daemons.join("b", node.wanted(0))
        with node.client(free) as client:
            assert client.granted["threads"] == 100
            assert client.granted["memory"]["0"] > 140 * GIB - GIB


async def test_a_server_that_runs_takes_the_new_limits_for_its_next_clients(node: MpsNode) -> None:
    async with node.agent() as daemons:
        edits = await daemons.join("a", node.wanted(0, limits=Limits(memory={node.gpus[0]: 4 * GIB}, threads=40)))
        with node.client(replace(edits, environment={})) as client:
            assert client.granted["memory"] == {"0": 4 * GIB}
        await daemons.join("a", node.wanted(0, limits=Limits(memory={node.gpus[0]: GIB}, threads=10)))
        with node.client(replace(edits, environment={})) as client:
            assert client.granted["memory"] == {"0": GIB}
            assert client.granted["threads"] == 10


# Death


async def test_a_daemon_that_dies_is_down_and_comes_back_in_its_place(node: MpsNode) -> None:
    async with node.agent() as daemons:
        edits = await daemons.join("a", node.wanted(0))
        place = node.folders(0).pipe.stat().st_ino
        (first,) = node.pids(0)
        os.kill(first, signal.SIGKILL)
        await until(daemons, Phase.DOWN)
        (state,) = daemons.states.value.values()
        assert "has died" in (state.trouble or "")
        assert state.devices == (node.gpus[0],)
        await until(daemons, Phase.READY)
        assert node.pids(0) != {first}
        # Containers have the folder mounted: another one of that name would be nowhere for them.
        assert node.folders(0).pipe.stat().st_ino == place
        assert node.mode(0) is EXCLUSIVE
        with node.client(edits) as client:
            assert client.granted


async def test_servers_of_a_dead_daemon_do_not_keep_the_gpu_from_the_next(node: MpsNode) -> None:
    async with node.agent() as daemons:
        edits = await daemons.join("a", node.wanted(0))
        with node.client(edits) as client:
            server = client.granted["server"]
        assert server in node.pids(0)
        os.kill(node.record(0).process.pid, signal.SIGKILL)  # type: ignore[union-attr]
        await until(daemons, Phase.DOWN)
        await until(daemons, Phase.READY)
        assert server not in node.pids(0)


async def test_a_daemon_that_dies_again_and_again_is_started_with_growing_pauses(node: MpsNode) -> None:
    node.times = replace(node.times, longest_pause=60.0)
    async with node.agent() as daemons:
        await daemons.join("a", node.wanted(0))
        pauses = []
        for _ in range(2):
            os.kill(next(iter(node.pids(0))), signal.SIGKILL)
            await until(daemons, Phase.DOWN)
            began = time.monotonic()
            await until(daemons, Phase.READY)
            pauses.append(time.monotonic() - began)
    assert pauses[0] >= 1.0
    assert pauses[1] >= 2.0


async def test_one_that_does_not_answer_any_more_is_down_but_its_clients_are_left_alone(node: MpsNode) -> None:
    node.times = replace(node.times, answer=1.0)
    async with node.agent() as daemons:
        edits = await daemons.join("a", node.wanted(0))
        with node.client(edits) as client:
            pids = node.pids(0)
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            daemon = daemons.states.value
            assert daemon
            await until(daemons, Phase.DOWN)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            await until(daemons, Phase.READY)
            assert client.connected
            assert node.pids(0) == pids


async def test_one_answer_that_is_late_takes_nobody_out_of_service(
    node: MpsNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="node_agent")
    async with node.agent() as daemons:
        await daemons.join("a", node.wanted(0))
        pids = node.pids(0)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        async with asyncio.timeout(30):
            while "MPS daemon is asked once more" not in caplog.messages:
                await asyncio.sleep(0.01)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        phases = set()
        for _ in range(50):
            phases |= {state.phase for state in daemons.states.value.values()}
            await asyncio.sleep(0.05)
        assert phases == {Phase.READY}


# Starts that fail


async def test_a_start_that_is_refused_fails_who_joined_and_leaves_nothing(node: MpsNode) -> None:
    node.break_daemons(refuse="no permission to open the device")
    async with node.agent() as daemons:
        with pytest.raises(MpsError, match=r"mps-control -d failed with status 1: no permission to open the device"):
            await daemons.join("a", node.wanted(0))
        await daemons.leave("a")
        assert node.mode(0) is DEFAULT
        assert not node.folders(0).pipe.parent.exists()


async def test_a_daemon_that_is_slow_holds_up_no_other(node: MpsNode) -> None:
    node.break_daemons(ready_after=-1)
    async with node.agent() as daemons:
        slow = asyncio.create_task(daemons.join("slow", node.wanted(0)))
        await until(daemons, Phase.STARTING)
        while not node.pids(0):
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        node.break_daemons()
        await daemons.join("quick", node.wanted(1))
        assert not slow.done()
        await daemons.leave("slow")
        with pytest.raises(MpsError, match=r"slow left the MPS daemon of GPU-.* while it was about to join"):
            await slow


async def test_a_daemon_that_is_slow_is_waited_for(node: MpsNode) -> None:
    node.break_daemons(ready_after=1.0)
    async with node.agent() as daemons:
        began = time.monotonic()
        await daemons.join("a", node.wanted(0))
        assert time.monotonic() - began > 1.0


async def test_who_does_not_wait_until_it_is_ready_leaves_nothing_behind(node: MpsNode) -> None:
    node.break_daemons(ready_after=-1)
    async with node.agent() as daemons:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(daemons.join("a", node.wanted(0)), 0.5)
        await daemons.leave("a")
        assert node.mode(0) is DEFAULT
        assert not node.pids(0)


async def test_one_that_does_not_quit_is_made_to(node: MpsNode) -> None:
    async with node.agent() as daemons:
        node.break_daemons(stubborn=True)
        edits = await daemons.join("a", node.wanted(0))
        with node.client(edits):
            assert len(node.pids(0)) == 2
        await daemons.leave("a")
        assert not of_pipe(node.folders(0).pipe)
        assert node.mode(0) is DEFAULT


async def test_a_node_without_the_program_says_so(node: MpsNode) -> None:
    node.program = None
    async with node.agent() as daemons:
        with pytest.raises(MpsError, match="the driver has no nvidia-cuda-mps-control"):
            await daemons.join("a", node.wanted(0))
        await daemons.leave("a")
        assert node.mode(0) is DEFAULT


# Agents that come and go


async def test_a_new_agent_takes_up_the_daemon_with_all_its_clients(node: MpsNode) -> None:
    async with node.agent() as daemons:
        edits = await daemons.join("a", node.wanted(0))
        before = node.pids(0)
    with node.client(edits) as client:
        async with node.agent() as daemons:
            await until(daemons, Phase.READY)
            assert client.connected
            assert before < node.pids(0)
            assert await daemons.join("a", node.wanted(0)) == edits
            assert client.connected
    async with node.agent() as daemons:
        await daemons.leave("a")
        assert node.mode(0) is DEFAULT
        assert not node.pids(0)


async def test_what_died_while_no_agent_ran_is_cleared_away_and_started_anew(node: MpsNode) -> None:
    async with node.agent() as daemons:
        edits = await daemons.join("a", node.wanted(0))
        with node.client(edits) as client:
            server = client.granted["server"]
        daemon = node.record(0).process
        assert daemon is not None
    os.kill(daemon.pid, signal.SIGKILL)
    assert (node.folders(0).pipe / "control").exists()
    async with node.agent() as daemons:
        await until(daemons, Phase.READY)
        assert {daemon.pid, server}.isdisjoint(node.pids(0))
        with node.client(edits) as client:
            assert client.granted


async def test_a_pid_that_another_process_has_by_now_is_no_daemon(node: MpsNode) -> None:
    async with node.agent() as daemons:
        await daemons.join("a", node.wanted(0))
        key = next(iter(daemons.states.value))
    os.kill(next(iter(node.pids(0))), signal.SIGKILL)
    stranger = replace(node.record(0).process, pid=os.getpid())  # type: ignore[type-var]
    node.records.change(key, lambda record: replace(record, process=stranger))
    async with node.agent() as daemons:
        await until(daemons, Phase.READY)
        assert node.pids(0)
        await daemons.leave("a")


async def test_what_nobody_uses_any_more_ends_with_the_next_agent(node: MpsNode) -> None:
    async with node.agent() as daemons:
        await daemons.join("a", node.wanted(0))
    # As an agent that was killed after this had been written, and before anything was done.
    node.records.leave("a")
    async with node.agent() as daemons:
        await daemons.leave("a")
        assert node.mode(0) is DEFAULT
        assert not node.pids(0)
    assert not node.records.all()


async def test_the_mode_is_put_back_to_what_it_was(node: MpsNode) -> None:
    node.simulated.faults.gpu(0).compute_mode = 3
    async with node.agent() as daemons:
        await daemons.join("a", node.wanted(0))
        await daemons.leave("a")
        assert node.mode(0) is EXCLUSIVE


async def test_the_mode_that_a_daemon_has_set_whose_record_was_lost_does_not_stay(node: MpsNode) -> None:
    async with node.agent() as daemons:
        await daemons.join("a", node.wanted(0))
        key = daemon_key([node.gpus[0]])
    (node.folder / "state" / f"{key}.json").unlink()
    async with node.agent() as daemons:
        await daemons.join("b", node.wanted(0))
        assert node.mode(0) is EXCLUSIVE
        await daemons.leave("b")
        assert node.mode(0) is DEFAULT


async def test_a_damaged_record_keeps_no_other_daemon_from_its_work(node: MpsNode) -> None:
    async with node.agent() as daemons:
        await daemons.join("a", node.wanted(0))
        await daemons.join("a", node.wanted(1))
    damaged = node.folder / "state" / f"{daemon_key([node.gpus[0]])}.json"
    content = damaged.read_bytes()
    damaged.write_text("{")
    async with node.agent() as daemons:
        await until(daemons, Phase.READY)
        with pytest.raises(StateError, match="remove it"):
            await daemons.join("b", node.wanted(0))
        await daemons.leave("a")
        assert node.mode(1) is DEFAULT
        assert node.mode(0) is EXCLUSIVE
    damaged.write_bytes(content)
    async with node.agent() as daemons:
        await daemons.leave("a")


async def test_two_agents_at_once_keep_one_daemon_and_either_may_end_it(node: MpsNode) -> None:
    async with node.agent() as first:
        edits = await first.join("a", node.wanted(0))
        before = node.pids(0)
        async with node.agent() as second:
            await until(second, Phase.READY)
            assert await second.join("b", node.wanted(0)) == edits
            assert node.pids(0) == before
            await first.leave("a")
            assert node.pids(0) == before
            await second.leave("b")
            assert node.mode(0) is DEFAULT
            async for states in first.states.watch():
                if not states:
                    break
            assert not node.pids(0)
            assert not node.records.all()


async def test_a_daemon_that_dies_beside_two_agents_is_started_once(node: MpsNode) -> None:
    async with node.agent() as first, node.agent() as second:
        await first.join("a", node.wanted(0))
        await second.join("b", node.wanted(0))
        os.kill(next(iter(node.pids(0))), signal.SIGKILL)
        await until(first, Phase.DOWN)
        await until(first, Phase.READY)
        await until(second, Phase.READY)
        assert len(node.pids(0)) == 1
        await first.leave("a")
        await second.leave("b")
