"""Time slices by the driver's nvidia-smi: the stand-in of a simulated tree, and programs that misbehave."""

import time
from pathlib import Path

import pytest

from node_agent.errors import CallTimedOut, HardwareError, NotSupported
from node_agent.hardware.simulated import SimulatedNode, load_profile
from node_agent.hardware.simulated.tree.smi import refuse, time_slice
from node_agent.model.gpu import GpuUuid
from node_agent.sharing.shares import Interval
from node_agent.sharing.smi import Program, Smi


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    node = SimulatedNode(load_profile("l4-2"))
    node.write_tree(tmp_path, devices="placeholder")
    return node


@pytest.fixture
def gpu(node: SimulatedNode) -> GpuUuid:
    return GpuUuid(node.faults.gpu(0).uuid)


def smi(root: Path) -> Smi:
    return Smi(lambda: Program(path=root / "usr/bin/nvidia-smi"))


def program(folder: Path, script: str) -> Smi:
    """A program of our own in the driver's place."""
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Smi(lambda: Program(path=path), seconds=0.3)


@pytest.mark.parametrize("interval", Interval)
async def test_each_interval_reaches_the_driver_by_its_number(tmp_path: Path, gpu: GpuUuid, interval: Interval) -> None:
    await smi(tmp_path).set_interval(gpu, interval)
    assert time_slice(tmp_path, gpu) == interval.number


async def test_only_the_gpu_that_is_named_is_set(tmp_path: Path, node: SimulatedNode, gpu: GpuUuid) -> None:
    await smi(tmp_path).set_interval(gpu, Interval.LONG)
    assert time_slice(tmp_path, node.faults.gpu(1).uuid) is None


async def test_a_gpu_without_time_slices_says_so(tmp_path: Path, gpu: GpuUuid) -> None:
    refuse(tmp_path, gpu)
    with pytest.raises(NotSupported, match=f"{gpu} has no time slices to set to Short: not available on"):
        await smi(tmp_path).set_interval(gpu, Interval.SHORT)
    assert time_slice(tmp_path, gpu) is None


async def test_a_failure_tells_what_the_program_says(tmp_path: Path, node: SimulatedNode) -> None:
    with pytest.raises(HardwareError, match="nvidia-smi ended with 6: no simulated GPU is 'GPU-9'"):
        await smi(tmp_path).set_interval(GpuUuid("GPU-9"), Interval.SHORT)


async def test_a_missing_right_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match="it says nothing; run the agent as root"):
        await program(tmp_path, "exit 4").set_interval(GpuUuid("GPU-0"), Interval.SHORT)


async def test_a_driver_without_the_program_is_told(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match="nvidia-smi is not found under its root"):
        await Smi(lambda: None).set_interval(GpuUuid("GPU-0"), Interval.SHORT)
    with pytest.raises(HardwareError, match=r"cannot run .*: No such file"):
        await smi(tmp_path / "nowhere").set_interval(GpuUuid("GPU-0"), Interval.SHORT)


async def test_a_driver_that_cannot_be_searched_is_told() -> None:
    def searched() -> Program:
        raise PermissionError(13, "Permission denied", "/run/agent/nvml")

    with pytest.raises(HardwareError, match=r"cannot be set to Short: .*Permission denied: '/run/agent/nvml'"):
        await Smi(searched).set_interval(GpuUuid("GPU-0"), Interval.SHORT)


async def test_a_program_that_hangs_is_ended_and_told(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(CallTimedOut, match=r"did not end within 0.3 s"):
        await program(tmp_path, "exec sleep 60").set_interval(GpuUuid("GPU-0"), Interval.SHORT)
    assert time.monotonic() - began < 10


def test_the_program_finds_the_nvml_of_its_own_driver_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/other")
    own = Program(path=Path("/driver/smi"), library_folder=Path("/run/agent/nvml"))
    assert own.environment["LD_LIBRARY_PATH"] == "/run/agent/nvml:/other"
    assert Program(path=Path("/usr/bin/nvidia-smi")).environment["LD_LIBRARY_PATH"] == "/other"
