"""Nodes as they are built and sold, by figures written down here and not taken from the profiles.

They pin the simulated nodes as much as what is read of them: the figures are those that the hardware reports.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path

import pytest

from node_agent.hardware.nvml.provider import NvmlProvider
from node_agent.hardware.provider import GpuFacts
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.sysfs import Sysfs
from node_agent.model.gpu import ComputeCapability, PartitionMode
from node_agent.model.links import Link, LinkGraph, PciePath

MIB = 1 << 20

Matrix = Mapping[tuple[int, int], Link]


@pytest.fixture
def node(name: str) -> Iterator[SimulatedNode]:
    """The node that a test is about."""
    with install(SimulatedNode(load_profile(name))) as node:
        yield node


async def gpus_of(nvml: NvmlProvider) -> tuple[GpuFacts, ...]:
    scan = await nvml.discovery.scan()
    assert scan.missing == ()
    return scan.gpus


async def matrix(nvml: NvmlProvider) -> Matrix:
    """The link of each pair by the indices of its GPUs."""
    gpus = await gpus_of(nvml)
    graph: LinkGraph = await nvml.topology.links([gpu.uuid for gpu in gpus])
    return {(a.index, b.index): graph.between(a.uuid, b.uuid) for a, b in combinations(gpus, 2)}


def nvlinks(links: Matrix) -> dict[tuple[int, int], int]:
    return {ends: link.nvlinks for ends, link in links.items() if link.nvlinks}


def paths(links: Matrix) -> dict[PciePath | None, set[tuple[int, int]]]:
    found: dict[PciePath | None, set[tuple[int, int]]] = {}
    for ends, link in links.items():
        found.setdefault(link.path, set()).add(ends)
    return found


def halves(count: int) -> set[tuple[int, int]]:
    """The pairs on one socket, where the first half of the GPUs is on the first."""
    return {(a, b) for a, b in combinations(range(count), 2) if (a < count // 2) == (b < count // 2)}


H200 = pytest.mark.parametrize("name", ["h200-8"])
A100_BRIDGES = pytest.mark.parametrize("name", ["a100-pcie-4"])
V100 = pytest.mark.parametrize("name", ["v100-8"])
GB200 = pytest.mark.parametrize("name", ["gb200-4"])
GB10 = pytest.mark.parametrize("name", ["gb10-1"])
T4 = pytest.mark.parametrize("name", ["t4-4"])
A30 = pytest.mark.parametrize("name", ["a30-2"])
MIXED = pytest.mark.parametrize("name", ["mixed-5"])
VGPU = pytest.mark.parametrize("name", ["vgpu-1"])


@H200
async def test_eight_h200_on_nvswitch_have_18_links_between_any_two(name: str, nvml: NvmlProvider) -> None:
    links = await matrix(nvml)
    assert set(links.values()) == {
        Link(nvlinks=18, bandwidth=478_116, switched=True, path=PciePath.NUMA_NODE),
        Link(nvlinks=18, bandwidth=478_116, switched=True, path=PciePath.SYSTEM),
    }
    assert paths(links)[PciePath.NUMA_NODE] == halves(8)


@H200
async def test_an_h200_is_a_hopper_of_141_gb_with_132_multiprocessors(name: str, nvml: NvmlProvider) -> None:
    for gpu in await gpus_of(nvml):
        assert (gpu.product, gpu.brand, gpu.architecture) == ("NVIDIA H200", "Nvidia", "Hopper")
        assert gpu.compute_capability == ComputeCapability(major=9, minor=0)
        assert (gpu.memory, gpu.multiprocessors) == (150_754_820_096, 132)
        assert gpu.partition_mode is PartitionMode.DISABLED


@H200
async def test_minor_numbers_of_the_h200s_are_not_their_indices(name: str, nvml: NvmlProvider) -> None:
    gpus = await gpus_of(nvml)
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert sorted(gpu.minor or 0 for gpu in gpus) == list(range(8))
    assert [gpu.minor for gpu in gpus] != list(range(8))


@H200
async def test_an_h200_is_cut_to_the_shapes_that_nvidia_documents(name: str, nvml: NvmlProvider) -> None:
    profiles = await nvml.partitioning.profiles((await gpus_of(nvml))[0].uuid)
    assert {(profile.name, profile.id, profile.limit, profile.memory // MIB) for profile in profiles} == {
        ("1g.18gb", 19, 7, 16384),
        ("1g.18gb+me", 20, 1, 16384),
        ("1g.35gb", 15, 4, 33024),
        ("2g.35gb", 14, 3, 33024),
        ("3g.71gb", 9, 2, 71168),
        ("4g.71gb", 5, 1, 71168),
        ("7g.141gb", 0, 1, 143104),
    }


@A100_BRIDGES
async def test_a100s_with_bridges_have_12_links_in_a_pair_and_none_between_pairs(name: str, nvml: NvmlProvider) -> None:
    links = await matrix(nvml)
    assert nvlinks(links) == {(0, 1): 12, (2, 3): 12}
    assert links[0, 1].bandwidth == 300_000
    assert not links[0, 1].switched
    assert paths(links)[PciePath.SYSTEM] == {(0, 2), (0, 3), (1, 2), (1, 3)}


@A100_BRIDGES
async def test_a_pcie_a100_is_an_ampere_with_108_multiprocessors(name: str, nvml: NvmlProvider) -> None:
    for gpu in await gpus_of(nvml):
        assert gpu.product == "NVIDIA A100-PCIE-40GB"
        assert gpu.architecture == "Ampere"
        assert (gpu.memory, gpu.multiprocessors) == (40_960 * MIB, 108)


@V100
async def test_eight_v100_are_a_hybrid_cube_mesh(name: str, nvml: NvmlProvider) -> None:
    links = await matrix(nvml)
    double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
    assert nvlinks(links) == {**dict.fromkeys(double, 2), **dict.fromkeys(single, 1)}
    assert links[0, 3].bandwidth == 2 * 25_781
    assert not any(link.switched for link in links.values())


@V100
async def test_v100s_meet_at_a_switch_in_pairs_at_the_host_bridge_in_a_socket(name: str, nvml: NvmlProvider) -> None:
    found = paths(await matrix(nvml))
    pairs = {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert found[PciePath.ONE_SWITCH] == pairs
    assert found[PciePath.HOST_BRIDGE] == halves(8) - pairs
    assert len(found[PciePath.SYSTEM]) == 16


@V100
async def test_a_v100_is_a_tesla_that_cannot_be_cut(name: str, nvml: NvmlProvider) -> None:
    for gpu in await gpus_of(nvml):
        assert (gpu.product, gpu.brand, gpu.architecture) == ("Tesla V100-SXM2-16GB", "Tesla", "Volta")
        assert (gpu.memory, gpu.multiprocessors) == (16_384 * MIB, 80)
        assert gpu.partition_mode is None
        assert (await nvml.readings.read(gpu.uuid)).row_remap_failed is None


@GB200
async def test_gb200s_have_pci_domains_of_their_own(
    name: str, nvml: NvmlProvider, node: SimulatedNode, tmp_path: Path
) -> None:
    node.write_tree(tmp_path, devices="placeholder")
    sysfs = Sysfs(root=tmp_path / "sys")
    gpus = await gpus_of(nvml)
    assert [gpu.pci for gpu in gpus] == ["0008:01:00.0", "0009:01:00.0", "0018:01:00.0", "0019:01:00.0"]
    assert [sysfs.pcie_root(gpu.pci) for gpu in gpus] == ["pci0008:00", "pci0009:00", "pci0018:00", "pci0019:00"]
    assert [sysfs.numa_node(gpu.pci) for gpu in gpus] == [0, 0, 1, 1]


@GB200
async def test_gb200s_have_18_links_over_switches_that_nobody_sees(name: str, nvml: NvmlProvider) -> None:
    links = await matrix(nvml)
    assert nvlinks(links) == dict.fromkeys(combinations(range(4), 2), 18)
    assert {link.bandwidth for link in links.values()} == {18 * 53_125}
    assert {link.switched for link in links.values()} == {True}


@GB200
async def test_a_gb200_is_a_blackwell(name: str, nvml: NvmlProvider) -> None:
    for gpu in await gpus_of(nvml):
        assert (gpu.product, gpu.architecture) == ("NVIDIA GB200", "Blackwell")
        assert gpu.memory == 189_471 * MIB
        assert gpu.nvlink_domain == "b2daed23-0000-4000-8000-6a1f00c0ffee.1"
        assert gpu.partition_mode is PartitionMode.DISABLED


@GB10
async def test_a_gb10_has_no_memory_of_its_own_and_is_offered_all_the_same(name: str, nvml: NvmlProvider) -> None:
    (gpu,) = await gpus_of(nvml)
    assert (gpu.product, gpu.pci) == ("NVIDIA GB10", "000f:01:00.0")
    assert gpu.compute_capability == ComputeCapability(major=12, minor=1)
    assert (gpu.memory, gpu.partition_mode, gpu.failed) == (None, None, {})
    readings = await nvml.readings.read(gpu.uuid)
    assert (readings.memory_used, readings.uncorrected_ecc_errors, readings.failed) == (None, None, {})
    assert await matrix(nvml) == {}


@T4
async def test_t4s_are_joined_by_pcie_alone(name: str, nvml: NvmlProvider) -> None:
    links = await matrix(nvml)
    assert nvlinks(links) == {}
    assert paths(links) == {PciePath.HOST_BRIDGE: halves(4), PciePath.SYSTEM: set(links) - halves(4)}


@T4
async def test_a_t4_with_an_old_driver_tells_what_that_driver_knows(name: str, nvml: NvmlProvider) -> None:
    for gpu in await gpus_of(nvml):
        assert (gpu.product, gpu.architecture) == ("Tesla T4", "Turing")
        assert gpu.compute_capability == ComputeCapability(major=7, minor=5)
        assert (gpu.memory, gpu.multiprocessors, gpu.partition_mode) == (15_360 * MIB, 40, None)
        assert gpu.failed == {}


@A30
async def test_an_a30_has_four_slices(name: str, nvml: NvmlProvider) -> None:
    first, second = await gpus_of(nvml)
    assert (first.partition_mode, second.partition_mode) == (PartitionMode.DISABLED, PartitionMode.ENABLED)
    profiles = {profile.name: profile for profile in await nvml.partitioning.profiles(first.uuid)}
    assert (profiles["1g.6gb"].limit, profiles["2g.12gb"].limit, profiles["4g.24gb"].limit) == (4, 2, 1)
    live = await nvml.partitioning.instances(second.uuid)
    assert [(one.profile, one.placement.start) for one in live] == [("1g.6gb", 0), ("1g.6gb", 1), ("2g.12gb", 2)]


@MIXED
async def test_the_gpu_that_drives_the_monitor_is_not_offered(name: str, nvml: NvmlProvider) -> None:
    gpus = await gpus_of(nvml)
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 4]
    assert {gpu.product for gpu in gpus} == {"NVIDIA A100-SXM4-80GB"}
    for _ in range(10):
        assert await gpus_of(nvml) == gpus


@VGPU
async def test_a_vgpu_guest_offers_its_gpu_though_it_reports_little(name: str, nvml: NvmlProvider) -> None:
    (gpu,) = await gpus_of(nvml)
    assert gpu.memory == 20_480 * MIB
    assert (await nvml.readings.read(gpu.uuid)).failed == {}
    assert await nvml.partitioning.instances(gpu.uuid) == ()
