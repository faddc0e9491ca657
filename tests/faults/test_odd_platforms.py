"""Platforms that lack what most have. Users met: parts with unified memory that crashed discovery (B61), odd or
missing files in /sys that crashed the agent or made up a NUMA node (B47), names and handles that the binding could not
read (B62), and an NVLink fabric that was still joining and crashed the plugin, or was broken and passed for none (B64).
"""

import ctypes
import os
import subprocess
import sys
import uuid
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from node_agent.model.gpu import Gpu
from tests.faults.conftest import Place, Simulate, lines, until

# C functions that some part does not have. Without a UUID, a PCI address or a handle there is no GPU to speak of.
OPTIONAL = [
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetName",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetUtilizationRates",
]


@pytest.fixture
def l4(simulate: Simulate) -> Place:
    """Two L4."""
    return simulate("l4-2")


@pytest.fixture
def gb200(simulate: Simulate) -> Place:
    """Four GB200, one tray of a rack that is one NVLink domain."""
    return simulate("gb200-4")


# B61: optional queries


async def test_a_part_with_unified_memory_is_offered_without_a_made_up_capacity(
    simulate: Simulate, caplog: pytest.LogCaptureFixture
) -> None:
    gb10 = simulate("gb10-1")
    async with gb10.serving():
        found = await gb10.status_of(0)
        assert found.product == "NVIDIA GB10"
        assert found.memory is None
        await gb10.ready()
        await until(lambda: lines(caplog, "facts left out"))

    said = [line for line in lines(caplog, "facts left out") if "memory" in line]
    assert len(said) == 1


@pytest.mark.parametrize("call", OPTIONAL)
async def test_a_query_that_is_not_supported_costs_no_gpu(l4: Place, call: str) -> None:
    l4.node.faults.fail(call, "NOT_SUPPORTED")
    async with l4.serving():
        assert {gpu.health for gpu in (await l4.status()).gpus} == {"healthy"}


async def test_a_part_that_supports_nothing_optional_at_all_is_offered(l4: Place) -> None:
    for call in OPTIONAL:
        l4.node.faults.fail(call, "NOT_SUPPORTED")
    async with l4.serving():
        found = await l4.causes(0, "not-monitored")
        assert found.health == "healthy"
        assert found.memory is None
        assert found.product == "NVIDIA 27B8", "without a name it goes by its PCI device"


async def test_a_memory_of_zero_is_no_capacity(simulate: Simulate, l4: Place) -> None:
    board = l4.node.profile.boards["l4"]
    assert board.memory is not None
    none = msgspec.structs.replace(board, memory=msgspec.structs.replace(board.memory, total_mib=0, reserved_mib=0))
    place = simulate(msgspec.structs.replace(l4.node.profile, boards={**l4.node.profile.boards, "l4": none}))
    async with place.serving():
        assert (await place.status_of(0)).memory is None


# B47: /sys


async def numa_of(place: Place, gpu: int) -> tuple[int | None, str | None]:
    """The NUMA node and the PCIe root that the agent found for a GPU, once it serves."""
    async with place.serving() as agent:
        found: Gpu = next(one for one in agent.keeper.inventory.value.gpus if one.uuid == place.uuid(gpu))
        listed = [node.ID for node in place.view.devices[place.uuid(gpu)].topology.nodes]
        assert listed == ([] if found.numa_node is None else [found.numa_node])
    return found.numa_node, found.pcie_root


def device_folder(place: Place, gpu: int) -> Path:
    return (place.tree / "sys/bus/pci/devices" / place.node.profile.gpus[gpu].bus).resolve()


@pytest.mark.parametrize(("content", "expected"), [("1\n", 1), ("0\n", 0), ("-1\n", None), ("", None), ("many", None)])
async def test_the_numa_node_is_what_the_kernel_says_and_never_made_up(
    l4: Place, content: str, expected: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    (device_folder(l4, 1) / "numa_node").write_text(content)
    assert (await numa_of(l4, 1))[0] == expected
    said = [line for line in lines(caplog, "facts left out") if line["of"] == "gpu-1" and "numa_node" in line]
    assert len(said) == (expected is None)


async def test_without_a_file_for_the_numa_node_the_gpu_is_offered_without_one(l4: Place) -> None:
    (device_folder(l4, 1) / "numa_node").unlink()
    assert (await numa_of(l4, 1))[0] is None
    assert (await numa_of(l4, 0))[0] == 0


async def test_a_device_under_a_virtual_bus_has_no_pcie_root(l4: Place) -> None:
    """As on Hyper-V."""
    link = l4.tree / "sys/bus/pci/devices" / l4.node.profile.gpus[1].bus
    odd = l4.tree / "sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/f0b2/pci0001:00" / link.name
    odd.mkdir(parents=True)
    (odd / "numa_node").write_text("0\n")
    link.unlink()
    link.symlink_to(odd)
    assert await numa_of(l4, 1) == (0, None)


async def test_without_any_sys_the_gpus_are_offered_without_their_place(l4: Place) -> None:
    l4.settings = l4.with_settings(paths=replace(l4.settings.paths, sysfs_root=l4.folder / "nowhere"))
    assert await numa_of(l4, 0) == (None, None)


async def test_a_pci_domain_of_eight_digits_is_found_in_sys_by_its_four(simulate: Simulate) -> None:
    """NVML says 00000008:01:00.0, /sys has 0008:01:00.0."""
    assert await numa_of(simulate("gb200-4"), 3) == (1, "pci0019:00")


# B62: the binding


@pytest.mark.parametrize(
    ("raw", "expected"),
    [(b"NVIDIA H200", "NVIDIA H200"), (b"NVIDIA \xf8", "NVIDIA \ufffd"), ("NVIDIA µ".encode(), "NVIDIA µ")],
)
async def test_a_name_is_text_whatever_bytes_the_library_answers(h200: Place, raw: bytes, expected: str) -> None:
    def name(_: object, buffer: ctypes.Array[ctypes.c_char], __: object) -> int:
        buffer.value = raw
        return 0

    h200.answer("nvmlDeviceGetName", name)
    async with h200.serving():
        assert {gpu.product for gpu in (await h200.status()).gpus} == {expected}


async def test_mig_devices_are_found_at_any_number_though_most_have_none(simulate: Simulate) -> None:
    """The greatest number of MIG devices is no count of them: handles may be at 0, 2 and 5 only."""
    profile = simulate("h200-8").node.profile
    first = msgspec.structs.replace(profile.gpus[0], mig=tuple(f"1g.18gb@{start}" for start in range(7)))
    place = simulate(msgspec.structs.replace(profile, gpus=(first, *profile.gpus[1:])))
    mig = place.node.faults.gpu(0).mig
    assert mig is not None
    for instance in [one for one in mig.instances.values() if one.id not in sorted(mig.instances)[:6:3]]:
        instance.compute.clear()
        del mig.instances[instance.id]
    async with place.kubelet.running(), place.agent() as agent:
        await place.allocatable(7)
        assert (await place.status_of(0)).partition_mode == "enabled"
        assert agent.board.report.value.of(agent.keeper.inventory.value.gpus[0].uuid).causes == ()


def test_a_look_alike_of_the_binding_is_refused_at_the_start_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("def nvmlInit(): pass\n")
    command = [str(Path(sys.executable).with_name("node-agent")), "topology"]
    ended = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "uninstall the packages pynvml and nvidia-ml-py3" in ended.stderr
    assert "Traceback" not in ended.stderr


# B64: the fabric


async def domains(place: Place) -> set[str | None]:
    async with place.serving() as agent:
        return {gpu.nvlink_domain for gpu in agent.keeper.inventory.value.gpus}


async def test_a_complete_and_healthy_fabric_names_the_domain(gb200: Place) -> None:
    assert await domains(gb200) == {"b2daed23-0000-4000-8000-6a1f00c0ffee.1"}


async def test_a_platform_without_a_fabric_has_no_domain(gb200: Place) -> None:
    gb200.node.faults.fail("nvmlDeviceGetGpuFabricInfoV", "NOT_SUPPORTED")
    gb200.node.faults.fail("nvmlDeviceGetGpuFabricInfo", "NOT_SUPPORTED")
    assert await domains(gb200) == {None}


async def test_a_cluster_of_all_zeroes_is_no_domain(gb200: Place) -> None:
    gb200.node.faults.fabric(cluster=uuid.UUID(int=0))
    assert await domains(gb200) == {None}


async def test_gpus_that_still_join_are_offered_and_get_their_domain_without_a_restart(gb200: Place) -> None:
    gb200.node.faults.fabric(state="in-progress")
    async with gb200.serving() as agent:
        assert {gpu.nvlink_domain for gpu in agent.keeper.inventory.value.gpus} == {None}
        gb200.node.faults.fabric(state="completed")
        await until(lambda: all(gpu.nvlink_domain for gpu in agent.keeper.inventory.value.gpus))
        assert gb200.view.registrations == 1


async def test_a_broken_fabric_is_said_to_be_broken_and_costs_no_gpu(
    gb200: Place, caplog: pytest.LogCaptureFixture
) -> None:
    gb200.node.faults.fabric(2, summary="unhealthy")
    async with gb200.serving() as agent:
        domains = {gpu.index: gpu.nvlink_domain for gpu in agent.keeper.inventory.value.gpus}
        assert domains[2] is None
        assert domains[1] is not None
    said = [line["nvlink_domain"] for line in lines(caplog, "facts left out") if "nvlink_domain" in line]
    assert said == ["the NVLink fabric of the GPU is broken: it is unhealthy"]
