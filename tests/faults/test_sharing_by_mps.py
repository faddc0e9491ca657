"""Sharing by MPS. Users met: one slow claim that held up all others of the node (B57), shares that were offered before
their daemon ran or because a dead one had left its marks (B58), GPUs that stayed in exclusive mode and two daemons on
one GPU (B59), and a setting that nobody had asked for, which failed claims on cards without it (B60).
"""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent.config.settings import Sharing, SharingRule
from node_agent.errors import MpsError
from node_agent.hardware.provider import ComputeMode
from node_agent.hardware.simulated.mps import FAULTS
from node_agent.sharing.mps.plan import daemon_key
from tests.unit.agent.conftest import Place, place
from tests.unit.agent.test_mps_shares import RESOURCE, by_mps, daemon, sharing, uuid
from tests.unit.dra.test_mps_step import claim, share, world
from tests.unit.sharing.mps.conftest import MpsNode, node

__all__ = ["node", "place"]

DEFAULT, EXCLUSIVE = ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS


# B57: one slow claim


async def test_while_one_claim_waits_for_its_daemon_another_is_prepared_and_its_twin_waits(
    node: MpsNode, tmp_path: Path
) -> None:
    node.break_daemons(ready_after=-1)
    slow, quick = (claim(name, share(number, "s", memory="20Gi")) for number, name in enumerate(("slow", "quick")))
    async with world(node, tmp_path, limit=30.0) as here:
        twins = [asyncio.create_task(here.prepare(slow)) for _ in range(2)]
        while not node.pids(0):
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        node.break_daemons()
        await here.prepare(quick)
        assert not any(twin.done() for twin in twins)
        assert len(node.pids(0)) == 1
        for twin in twins:
            twin.cancel()
        await here.unprepare(quick)


# B58: what is offered, and when


async def test_what_a_dead_daemon_left_behind_offers_nothing_and_is_cleared_away(place: Place) -> None:
    settings = by_mps(place, "0")
    faults = settings.container_driver_root / FAULTS
    pipe = settings.paths.run_dir / "mps" / daemon_key([uuid(place, 0)]) / "pipe"
    pipe.mkdir(parents=True)
    for left in ("control", ".started", "nvidia-cuda-mps-control.pid"):
        (pipe / left).write_text("4242")
    faults.write_text('{"ready_after": 2}')
    began = time.monotonic()
    async with sharing(place, settings) as agent:
        await place.kubelet.until(RESOURCE, allocatable=1)
        assert {one.trouble for one in agent.plugins[RESOURCE].offer.value.devices if one.shared} != {None}
        await place.kubelet.until(RESOURCE, allocatable=5)
        assert time.monotonic() - began > 2
        assert not (pipe / ".started").exists()
        faults.write_text('{"refuse": "not again"}')
        os.kill(daemon(settings, uuid(place, 0)), signal.SIGKILL)
        await place.kubelet.until(RESOURCE, allocatable=1)
        faults.write_text("{}")
        await place.kubelet.until(RESOURCE, allocatable=5, timeout=60)


@pytest.mark.parametrize("place", ["a30-2"], indirect=True)
async def test_a_gpu_in_mig_mode_gets_no_daemon_and_costs_the_others_nothing(place: Place) -> None:
    rule = SharingRule(strategy="mps", shares=4, devices=("*",), fail_requests_greater_than_one=True)
    async with sharing(place, replace(place.settings(), sharing=Sharing(rules=(rule,)))) as agent:
        view = await place.kubelet.until(RESOURCE, allocatable=4)
        assert {name.partition("::")[0] for name in view.devices} == {uuid(place, 0)}
        assert len(agent.mps.states.value) == 1


# B59: what is left


async def test_a_gpu_is_in_default_mode_however_mps_ended(node: MpsNode, tmp_path: Path) -> None:
    wanted = claim("a", share(0, "s", memory="20Gi"))
    async with world(node, tmp_path) as here:
        await here.prepare(wanted)
        assert node.mode(0) is EXCLUSIVE
        await here.unprepare(wanted)
        assert node.mode(0) is DEFAULT
        await here.prepare(wanted)
    # An agent that is killed after it has ended the daemon, and before it sets the mode.
    node.records.leave("claim default/a (uid-of-a)")
    os.kill(node.record(0).process.pid, signal.SIGKILL)  # type: ignore[union-attr]
    assert node.mode(0) is EXCLUSIVE
    async with node.agent() as daemons:
        await daemons.leave("claim default/a (uid-of-a)")
        assert node.mode(0) is DEFAULT
        assert not node.records.all()


async def test_two_claims_on_one_gpu_have_one_daemon_that_goes_with_the_last(node: MpsNode, tmp_path: Path) -> None:
    claims = [claim(name, share(0, name, memory="20Gi")) for name in ("a", "b")]
    async with world(node, tmp_path) as here:
        await asyncio.gather(*(here.prepare(one) for one in claims))
        assert len(node.pids(0)) == 1
        await here.unprepare(claims[0])
        assert len(node.pids(0)) == 1
        await here.unprepare(claims[1])
        assert not node.pids(0)
        assert node.mode(0) is DEFAULT


# B60: what nobody asked for


async def test_where_there_is_no_mps_only_claims_that_ask_for_it_fail(node: MpsNode, tmp_path: Path) -> None:
    node.program = None
    async with world(node, tmp_path) as here:
        assert (await here.prepare(claim("silent", share(0, "s")))).steps == {}
        assert (await here.prepare(claim("part", share(1, "s", memory="20Gi")))).steps == {}
        with pytest.raises(MpsError, match="the driver has no nvidia-cuda-mps-control: install it, or set the driver"):
            await here.prepare(claim("asks", share(2, "s", memory="20Gi"), strategy="MPS"))
        assert [node.mode(number) for number in range(3)] == [DEFAULT] * 3
