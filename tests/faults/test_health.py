"""What is remembered of faults, what operators say of them, and a watch over the GPUs that cannot end unseen.

Users met: Xids that were counted as a level (B66), a health thread that died while its node went on offering (B06), and
a GPU that was bad before the agent was started anew and good after it (B02).
"""

import asyncio
import time
from pathlib import Path

import pynvml
import pytest
from msgspec.structs import replace

from node_agent.agent.agent import Agent
from node_agent.config.settings import HealthRule, Settings
from node_agent.health import watcher
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Reason
from tests.faults.conftest import Place, lines, until

WAIT = "nvmlEventSetWait_v2"


def ruled(place: Place, *rules: HealthRule) -> Settings:
    """The place's settings with these rules."""
    return place.with_settings(health=replace(place.settings.health, rules=rules))


def counts(agent: Agent) -> dict[tuple[str, int], int]:
    return {(str(gpu), code): number for (gpu, code), number in agent.board.counts.items()}


BY_WORD = HealthRule(xids=frozenset({79}), cleared_by="operator")


async def test_xids_are_counted_by_gpu_and_code_apart_from_what_is_wrong_now_and_over_a_restart(h200: Place) -> None:
    async with h200.serving() as agent:
        assert counts(agent) == {}
        h200.node.faults.xid(0, 31)
        await until(lambda: counts(agent) == {(h200.uuid(0), 31): 1})
        h200.node.faults.xid(0, 31)
        await until(lambda: counts(agent) == {(h200.uuid(0), 31): 2})
        await asyncio.sleep(0.3)
        assert counts(agent) == {(h200.uuid(0), 31): 2}
        assert not (await h200.status_of(0)).causes
    async with h200.agent() as agent:
        assert counts(agent) == {(h200.uuid(0), 31): 2}


async def test_a_fault_that_is_not_over_keeps_its_gpu_out_when_the_agent_is_started_anew(h200: Place) -> None:
    settings = ruled(h200, BY_WORD)
    async with h200.kubelet.running():
        async with h200.agent(settings):
            await h200.allocatable(8)
            h200.node.faults.xid(2, 79)
            await h200.only_withdrawn(2)
            since = (await h200.status_of(2)).causes[0].since
        async with h200.agent(settings) as agent:
            await h200.allocatable(7)
            assert h200.uuid(2) not in await h200.offered_within(0.5)
            (cause,) = (await h200.causes(2, "xid")).causes
            assert (cause.code, cause.since) == (79, since)

            assert [one.code for one in agent.board.clear(GpuUuid(h200.uuid(2)), Reason.XID, 79)] == [79]
            await h200.only_withdrawn()
        async with h200.agent(settings):
            await h200.allocatable(8)


async def test_what_an_operator_clears_and_is_still_there_is_back_with_the_next_probe(h200: Place) -> None:
    async with h200.serving() as agent:
        h200.node.faults.remap_rows(4, failure=True)
        await h200.only_withdrawn(4)
        assert agent.board.clear(GpuUuid(h200.uuid(4)))
        await h200.causes(4, "row-remap-failed")
        await h200.only_withdrawn(4)


async def test_a_damaged_record_is_said_and_costs_nothing_but_itself(
    h200: Place, caplog: pytest.LogCaptureFixture
) -> None:
    state = h200.settings.paths.state_dir
    state.mkdir()
    (state / "health.json").write_text("{")
    async with h200.serving():
        await h200.ready()
    (line,) = lines(caplog, "faults of the past are lost and have to be found again")
    assert Path(str(line["aside"])).read_text() == "{"


async def test_three_crashes_in_ten_minutes_take_a_gpu_out_where_a_rule_says_so(h200: Place) -> None:
    often = HealthRule(xids=frozenset({31}), action="withdraw", after=3, within=600.0, cleared_by="operator")
    async with h200.serving(ruled(h200, often)) as agent:
        for _ in range(2):
            h200.node.faults.xid(5, 31)
        await until(lambda: counts(agent) == {(h200.uuid(5), 31): 2})
        assert h200.view.allocatable == 8
        h200.node.faults.xid(5, 31)
        await h200.only_withdrawn(5)


async def test_a_fault_that_a_rule_lets_evict_says_so(h200: Place) -> None:
    hard = HealthRule(xids=frozenset({79}), action="evict", cleared_by="operator")
    async with h200.serving(ruled(h200, hard)):
        h200.node.faults.xid(6, 79)
        await h200.only_withdrawn(6)
        assert (await h200.status_of(6)).health == "evicted"


async def test_a_gpu_that_comes_and_goes_is_kept_out_and_said_until_when(h200: Place) -> None:
    settings = h200.with_settings(health=replace(h200.settings.health, probe_interval=1.0))
    async with h200.serving(settings):
        for number in (1, 2, 3):
            h200.node.faults.recovery_action(3, "gpu-reset")
            await h200.only_withdrawn(3)
            h200.node.faults.recovery_action(3, "none")
            if number < 3:
                await h200.only_withdrawn()
        async with asyncio.timeout(30):
            while "came 3 times" not in (await h200.status_of(3)).causes[0].clears:
                await asyncio.sleep(0.05)
        await h200.only_withdrawn()


async def test_a_lost_gpu_that_sends_no_event_is_out_within_seconds_as_shipped(h200: Place) -> None:
    async with h200.serving(h200.shipped()):
        began = time.monotonic()
        h200.node.faults.lose(1)
        await h200.only_withdrawn(1)
        assert time.monotonic() - began < 20


async def test_a_watch_that_dies_takes_every_gpu_out_and_says_so_until_it_is_back(h200: Place) -> None:
    broken = False

    def wait(*_: object) -> int:
        if broken:
            raise ZeroDivisionError("a mistake of our own")
        time.sleep(0.02)
        return int(pynvml.NVML_ERROR_TIMEOUT)

    h200.answer(WAIT, wait)
    async with h200.serving():
        broken = True
        await h200.allocatable(0)
        await h200.trouble("a mistake of our own")
        assert {cause.reason for gpu in (await h200.status()).gpus for cause in gpu.causes} == {"events-failed"}

        broken = False
        await h200.only_withdrawn()
        await h200.ready()


async def test_a_wait_that_fails_at_once_costs_one_list_one_line_and_no_cpu_and_the_agent_is_not_ready(
    h200: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async with h200.serving():
        await h200.ready()
        messages = h200.view.messages
        h200.node.faults.fail(WAIT, "UNKNOWN")
        await h200.allocatable(0)
        await h200.trouble("no GPU is watched")
        used = time.process_time()
        await asyncio.sleep(2)
        assert time.process_time() - used < 1.5
        assert h200.view.messages == messages + 1
        assert len(lines(caplog, "events cannot be watched")) == 1

        h200.node.faults.clear()
        await h200.ready()
        await h200.only_withdrawn()


async def test_a_gpu_over_which_the_driver_hangs_is_out_until_it_answers(
    h200: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "HANG_SECONDS", 0.5)
    async with h200.serving():
        h200.node.faults.hang("nvmlDeviceGetTemperature", gpu=3, seconds=120)
        await h200.only_withdrawn(3)
        await h200.causes(3, "query-failed")

        h200.node.faults.clear()
        await h200.only_withdrawn()


async def test_a_driver_that_hangs_for_long_takes_every_gpu_out_until_it_answers(
    h200: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "HANG_SECONDS", 0.5)
    monkeypatch.setattr(watcher, "BLIND_SECONDS", 0.5)
    async with h200.serving():
        h200.node.faults.hang("nvmlDeviceGetTemperature", gpu=3, seconds=120)
        await h200.allocatable(0)

        h200.node.faults.clear()
        await h200.only_withdrawn()


async def test_a_gpu_without_its_device_node_is_out_and_says_which_one(h200: Place) -> None:
    async with h200.serving():
        minor = h200.node.profile.gpus[2].minor
        node = h200.tree / f"dev/nvidia{minor}"
        aside = node.rename(node.with_name("aside"))
        await h200.only_withdrawn(2)
        (cause,) = (await h200.causes(2, "device-node-missing")).causes
        assert f"/dev/nvidia{minor}" in cause.message

        aside.rename(node)
        await h200.only_withdrawn()
