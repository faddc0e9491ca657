"""What holds for the compute modes of every provider, and what the driver's rules for them are."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node_agent.errors import DeviceLost, NotSupported
from node_agent.hardware.null import NullProvider
from node_agent.hardware.nvml.provider import NvmlProvider
from node_agent.hardware.provider import ComputeMode, Modes
from node_agent.hardware.simulated import SimulatedNode, install
from node_agent.model.gpu import GpuUuid
from node_agent.model.partition import PartitionUuid
from tests.contract.conftest import profile

STRANGERS = [GpuUuid("GPU-00000000-dead-beef-0000-000000000000"), PartitionUuid("MIG-00000000-dead-beef-0000-0000")]


@pytest.fixture
async def a30s(tmp_path: Path) -> AsyncIterator[NvmlProvider]:
    """Two GPUs, of which the second is in MIG mode."""
    with install(SimulatedNode(profile("a30-2"))):
        async with NvmlProvider(sysfs=tmp_path) as provider:
            await provider.discovery.scan()
            yield provider


async def test_a_whole_gpu_takes_every_mode_and_keeps_it(nvml: NvmlProvider) -> None:
    for gpu in (await nvml.discovery.scan()).gpus:
        if gpu.partition_mode is not None and gpu.partition_mode.active:
            continue
        assert await nvml.modes.compute_mode(gpu.uuid) is ComputeMode.DEFAULT
        for mode in reversed(ComputeMode):
            await nvml.modes.set_compute_mode(gpu.uuid, mode)
            assert await nvml.modes.compute_mode(gpu.uuid) is mode


async def test_the_mode_of_one_gpu_is_its_own(a30s: NvmlProvider) -> None:
    whole, cut = (gpu.uuid for gpu in (await a30s.discovery.scan()).gpus)
    await a30s.modes.set_compute_mode(whole, ComputeMode.EXCLUSIVE_PROCESS)
    device = (await a30s.partitioning.instances(cut))[0].partitions[0].uuid
    assert await a30s.modes.compute_mode(device) is ComputeMode.DEFAULT


async def test_a_gpu_in_mig_mode_is_set_by_its_mig_devices(a30s: NvmlProvider) -> None:
    _, cut = (gpu.uuid for gpu in (await a30s.discovery.scan()).gpus)
    with pytest.raises(NotSupported):
        await a30s.modes.set_compute_mode(cut, ComputeMode.EXCLUSIVE_PROCESS)
    device = (await a30s.partitioning.instances(cut))[0].partitions[0].uuid
    await a30s.modes.set_compute_mode(device, ComputeMode.EXCLUSIVE_PROCESS)
    assert await a30s.modes.compute_mode(device) is ComputeMode.EXCLUSIVE_PROCESS


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_a_device_that_is_not_here_has_no_mode(nvml: NvmlProvider, stranger: GpuUuid | PartitionUuid) -> None:
    await nvml.discovery.scan()
    implementations: list[Modes] = [nvml.modes, NullProvider().modes]
    for modes in implementations:
        with pytest.raises(DeviceLost):
            await modes.compute_mode(stranger)
        with pytest.raises(DeviceLost):
            await modes.set_compute_mode(stranger, ComputeMode.DEFAULT)
