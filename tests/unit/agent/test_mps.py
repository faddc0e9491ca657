"""MPS daemons in the agent: where their program is, what their death means, and claims that are gone."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from node_agent.agent.mps import (
    MpsHealth,
    control_program,
    find_control,
    forget_gone_claims,
    mps_folder,
    what_mps_lacks,
)
from node_agent.allocation.grants import Door
from node_agent.cdi.roots import DriverRoots
from node_agent.config.settings import Paths, Settings
from node_agent.dra.mps_step import user_of
from node_agent.hardware.provider import ComputeMode
from node_agent.health.board import HealthBoard
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Instance, Reason, Severity
from node_agent.model.inventory import Inventory
from node_agent.sharing.mps.daemon import Phase, State
from tests.fakes.builders import cut, gpu, l4_pair, partition
from tests.unit.allocation.support import grant, opened
from tests.unit.sharing.mps.conftest import MpsNode, node

__all__ = ["node"]

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")


def test_the_control_program_is_found_below_the_drivers_root_and_through_its_links(tmp_path: Path) -> None:
    roots = DriverRoots(driver=tmp_path)
    assert find_control(roots) is None
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/real").write_text("")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvidia-cuda-mps-control").symlink_to("/opt/real")
    assert find_control(roots) == tmp_path / "opt/real"


def test_a_pod_needs_a_folder_that_containers_find_on_the_host(tmp_path: Path) -> None:
    """Its own run folder is nowhere on the host: a container that is told of it there does not start."""
    roots = DriverRoots(driver=tmp_path)
    program = tmp_path / "usr/bin/nvidia-cuda-mps-control"
    program.parent.mkdir(parents=True)
    program.write_text("")
    pod, process = Settings(pod_name="agent-x"), Settings()
    assert "with the component mps" in str(what_mps_lacks(pod, roots))
    for has_a_place in (process, replace(pod, mps_root=Path("/run/nvidia/mps"))):
        assert what_mps_lacks(has_a_place, roots) is None
        assert control_program(has_a_place, roots) == program
    program.unlink()
    assert "the driver has no nvidia-cuda-mps-control" in str(what_mps_lacks(process, roots))


def test_the_folder_is_that_of_the_configuration_or_the_agents_own() -> None:
    paths = Paths(run_dir=Path("/run/a"))
    assert mps_folder(Settings(paths=paths)) == Path("/run/a/mps")
    assert mps_folder(Settings(paths=paths, mps_root=Path("/run/nvidia/mps"))) == Path("/run/nvidia/mps")


async def test_gpus_of_a_dead_daemon_are_out_of_service_until_it_is_back() -> None:
    states: Latest[Mapping[str, State]] = Latest({})
    board = HealthBoard()
    for each in (A, B):
        board.clear(each)

    async def said(**phases: Phase) -> list[tuple[str, str, Severity]]:
        devices = {"a": (A,), "b": (B,)}
        troubles = {key: f"{key} has died" if phase is Phase.DOWN else None for key, phase in phases.items()}
        states.set(
            {key: State(phase=phase, devices=devices[key], trouble=troubles[key]) for key, phase in phases.items()}
        )
        async for report in board.report.watch():
            found = {gpu: [one for one in report.known_of(gpu).causes if one.reason is Reason.MPS] for gpu in (A, B)}
            if {gpu for gpu, causes in found.items() if causes} == {
                devices[key][0] for key, phase in phases.items() if phase is Phase.DOWN
            }:
                return [(gpu, one.message, one.severity) for gpu, causes in found.items() for one in causes]
        raise AssertionError("a watch does not end by itself")

    async with running(MpsHealth(states, board, Latest(Inventory())).run()):
        assert await said(a=Phase.STARTING, b=Phase.READY) == []
        assert await said(a=Phase.READY, b=Phase.DOWN) == [(B, "b has died", Severity.WITHDRAWN)]
        assert await said(a=Phase.DOWN, b=Phase.DOWN) == [
            (A, "a has died", Severity.WITHDRAWN),
            (B, "b has died", Severity.WITHDRAWN),
        ]
        assert await said(a=Phase.READY) == []


async def test_claims_that_are_gone_leave_and_nobody_does_before_the_claims_are_known(
    node: MpsNode, tmp_path: Path
) -> None:
    async with node.agent() as daemons, opened(tmp_path, told=False) as ledger:
        kept, gone = grant("kept", 0), grant("gone", 1)
        for number, user in enumerate((user_of(kept), user_of(gone), "limit shares of GPU-2")):
            await daemons.join(user, node.wanted(number))
        async with running(forget_gone_claims(daemons, ledger)):
            await ledger.reconcile(Door.LIMIT, [])
            assert len(await daemons.users()) == 3
            # A daemon's state follows it: two of three are not yet two that are left.
            async for states in daemons.states.watch():
                if len(states) == 3:
                    break
            await ledger.reconcile(Door.CLAIM, [kept])
            async for states in daemons.states.watch():
                if len(states) == 2:
                    break
            assert await daemons.users() == {user_of(kept), "limit shares of GPU-2"}
            assert node.mode(1) is ComputeMode.DEFAULT


async def test_a_daemon_of_a_mig_device_that_dies_withdraws_that_and_no_other() -> None:
    one, other = (partition(gpu(0), "1g.10gb", start, number=start) for start in (0, 2))
    inventory = Latest(cut(l4_pair(), {0: [one, other]}))
    states: Latest[Mapping[str, State]] = Latest({})
    board = HealthBoard()
    board.clear(one.parent)
    async with running(MpsHealth(states, board, inventory).run()):
        states.set({"a": State(phase=Phase.DOWN, devices=(one.uuid,), trouble="it has died")})
        async with asyncio.timeout(30):
            async for report in board.report.watch():
                if report.known_of(one.parent).causes:
                    break
    found = [board.report.value.of_instance(one.parent, Instance(id=part.instance, compute=0)) for part in (one, other)]
    assert [health.withdrawn for health in found] == [True, False]
