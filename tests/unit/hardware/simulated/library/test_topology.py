"""How GPUs reach each other, and what is near them."""

from collections import Counter
from typing import Any

import pynvml
import pytest

from node_agent.hardware.simulated import SimulatedNode
from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import WITH_GPUS, gpu, gpus

SINGLE, MULTIPLE, HOST_BRIDGE, NODE, SYSTEM = 10, 20, 30, 40, 50
READ, WRITE, NVLINK, ATOMICS, PCI = range(5)
OK, CHIPSET, NOT_SUPPORTED = 0, 1, 5
TO_GPU, TO_SWITCH = pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH

# Common ancestors of the first GPU with each of the others.
ANCESTORS = [
    ("h200-8", [NODE] * 3 + [SYSTEM] * 4),
    ("h100-8", [NODE] * 3 + [SYSTEM] * 4),
    ("b200-8", [NODE] * 3 + [SYSTEM] * 4),
    ("a100-40gb-8", [MULTIPLE] + [SYSTEM] * 6),
    ("a100-80gb-8", [SINGLE, NODE, NODE] + [SYSTEM] * 4),
    ("v100-8", [SINGLE, HOST_BRIDGE, HOST_BRIDGE] + [SYSTEM] * 4),
    ("l40s-8", [SINGLE, NODE, NODE] + [SYSTEM] * 4),
    ("a100-pcie-4", [NODE, SYSTEM, SYSTEM]),
    ("t4-4", [HOST_BRIDGE, SYSTEM, SYSTEM]),
    ("gb200-4", [NODE, SYSTEM, SYSTEM]),
    ("h100-vm-8", [HOST_BRIDGE] * 7),
    ("l4-2", [SYSTEM]),
    ("mixed-5", [NODE] * 4),
]


def status(one: int, other: int, index: int = NVLINK) -> int:
    found: int = pynvml.nvmlDeviceGetP2PStatus(gpu(one), gpu(other), index)
    return found


def linked_to(index: int) -> list[int]:
    return [other for other in range(len(gpus())) if other != index and status(index, other) == OK]


# PCIe


@pytest.mark.parametrize(("profile", "levels"), ANCESTORS)
def test_gpus_meet_on_pcie_where_their_machine_says(simulate: Simulate, profile: str, levels: list[int]) -> None:
    simulate(profile)
    first, *others = gpus()
    assert [pynvml.nvmlDeviceGetTopologyCommonAncestor(first, other) for other in others] == levels


@pytest.mark.parametrize("name", WITH_GPUS)
def test_an_ancestor_is_the_same_from_both_sides(simulate: Simulate, name: str) -> None:
    simulate(name)
    handles = gpus()
    for one in handles:
        for other in handles:
            if one is not other:
                level = pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other)
                assert level == pynvml.nvmlDeviceGetTopologyCommonAncestor(other, one)


def test_a_gpu_does_not_meet_itself(h200: SimulatedNode) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetTopologyCommonAncestor(gpu(0), gpu(0))


@pytest.mark.parametrize(("level", "count"), [(SINGLE, 1), (HOST_BRIDGE, 3), (NODE, 3), (SYSTEM, 7)])
def test_the_nearest_gpus_are_those_within_the_level(simulate: Simulate, level: int, count: int) -> None:
    simulate("v100-8")
    near = pynvml.nvmlDeviceGetTopologyNearestGpus(gpu(0), level)
    assert [pynvml.nvmlDeviceGetIndex(handle) for handle in near] == list(range(1, count + 1))


def test_nobody_may_be_near(simulate: Simulate) -> None:
    simulate("l4-2")
    assert pynvml.nvmlDeviceGetTopologyNearestGpus(gpu(0), NODE) == []


# NVLink


@pytest.mark.parametrize(
    ("profile", "version", "links", "remote"),
    [
        ("h200-8", 6, 18, TO_SWITCH),
        ("h100-8", 6, 18, TO_SWITCH),
        ("a100-40gb-8", 4, 12, TO_SWITCH),
        ("a100-pcie-4", 4, 12, TO_GPU),
        ("a30-2", 4, 4, TO_GPU),
        ("v100-8", 2, 6, TO_GPU),
        ("b200-8", 7, 18, TO_SWITCH),
        ("gb200-4", 7, 18, TO_SWITCH),
    ],
)
def test_links_are_those_of_the_board(simulate: Simulate, profile: str, version: int, links: int, remote: int) -> None:
    simulate(profile)
    for link in range(links):
        assert pynvml.nvmlDeviceGetNvLinkState(gpu(0), link) == 1
        assert pynvml.nvmlDeviceGetNvLinkVersion(gpu(0), link) == version
        assert pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu(0), link) == remote
    for link in range(links, pynvml.NVML_NVLINK_MAX_LINKS):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetNvLinkState(gpu(0), link)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetNvLinkState(gpu(0), pynvml.NVML_NVLINK_MAX_LINKS)


@pytest.mark.parametrize("profile", ["l40s-8", "t4-4", "l4-2", "gb10-1", "vgpu-1"])
def test_boards_without_nvlink_have_not_even_one_link(simulate: Simulate, profile: str) -> None:
    simulate(profile)
    for call in (
        pynvml.nvmlDeviceGetNvLinkState,
        pynvml.nvmlDeviceGetNvLinkVersion,
        pynvml.nvmlDeviceGetNvLinkRemoteDeviceType,
        pynvml.nvmlDeviceGetNvLinkRemotePciInfo,
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call(gpu(0), 0)


def test_the_far_end_of_a_direct_link_is_the_other_gpu(simulate: Simulate) -> None:
    simulate("v100-8")
    ends = Counter(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu(0), link).busId for link in range(6))
    expected = {1: 1, 2: 1, 3: 2, 4: 2}
    assert ends == {pynvml.nvmlDeviceGetPciInfo(gpu(index)).busId: count for index, count in expected.items()}


def test_the_far_end_of_a_switched_link_is_the_switch(h200: SimulatedNode) -> None:
    buses = {pynvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu(0), link).busId for link in range(18)}
    assert buses == {f"00000000:0{number}:00.0" for number in (5, 6, 7, 8)}


def test_a_switch_that_is_not_on_the_bus_has_no_address(simulate: Simulate) -> None:
    simulate("b200-8")
    assert pynvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu(0), 0).busId == "00000000:00:00.0"


def test_a_link_can_reach_peers_but_not_the_hosts_memory(h200: SimulatedNode) -> None:
    assert [pynvml.nvmlDeviceGetNvLinkCapability(gpu(0), 0, capability) for capability in range(6)] == [
        1,
        0,
        1,
        0,
        0,
        1,
    ]
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetNvLinkCapability(gpu(0), 0, 6)


def test_a_link_without_a_cable_is_inactive(simulate: Simulate) -> None:
    node = simulate("a30-2")
    for link in node.faults.gpu(0).links:
        link.peer = None
    assert pynvml.nvmlDeviceGetNvLinkState(gpu(0), 0) == 0
    for call in (pynvml.nvmlDeviceGetNvLinkRemotePciInfo, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call(gpu(0), 0)


def test_errors_of_a_link_are_counted_and_cleared(h200: SimulatedNode) -> None:
    h200.faults.link_errors(0, 3, "replay", 2)
    h200.faults.link_errors(0, 3, "replay")
    counts = [pynvml.nvmlDeviceGetNvLinkErrorCounter(gpu(0), 3, counter) for counter in range(5)]
    assert counts == [3, 0, 0, 0, 0]
    pynvml.nvmlDeviceResetNvLinkErrorCounters(gpu(0), 3)
    assert pynvml.nvmlDeviceGetNvLinkErrorCounter(gpu(0), 3, 0) == 0
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetNvLinkErrorCounter(gpu(0), 3, 5)


# Peer access


@pytest.mark.parametrize(
    ("profile", "peers"),
    [
        ("h200-8", [1, 2, 3, 4, 5, 6, 7]),
        ("v100-8", [1, 2, 3, 4]),
        ("a100-pcie-4", [1]),
        ("l40s-8", []),
        ("a100-40gb-16", [1, 2, 3, 4, 5, 6, 7]),
        ("mixed-5", [1, 2, 4]),
        ("gb200-4", [1, 2, 3]),
    ],
)
def test_nvlink_joins_an_island(simulate: Simulate, profile: str, peers: list[int]) -> None:
    simulate(profile)
    assert linked_to(0) == peers


def test_islands_are_apart(simulate: Simulate) -> None:
    simulate("a100-40gb-16")
    assert linked_to(8) == [9, 10, 11, 12, 13, 14, 15]


def test_linked_gpus_reach_each_other_in_every_way(h200: SimulatedNode) -> None:
    assert [status(0, 7, index) for index in range(5)] == [OK] * 5
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        status(0, 7, 5)


def test_without_nvlink_pcie_joins_what_is_near(simulate: Simulate) -> None:
    simulate("l40s-8")
    assert [status(0, 1, index) for index in range(5)] == [OK, OK, NOT_SUPPORTED, CHIPSET, OK]
    assert [status(0, 4, index) for index in range(5)] == [CHIPSET, CHIPSET, NOT_SUPPORTED, CHIPSET, CHIPSET]


def test_a_gpu_with_mig_on_has_no_peers(a100: SimulatedNode) -> None:
    pynvml.nvmlDeviceSetMigMode(gpu(1), 1)
    assert linked_to(1) == []
    assert linked_to(0) == [2, 3, 4, 5, 6, 7]


# Neighbours


def words(values: Any) -> list[int]:
    return [int(word) for word in values]


def test_cpus_near_a_gpu_are_a_mask_of_words(h200: SimulatedNode) -> None:
    low = [0x00FFFFFFFFFFFFFF, 0xFFFF000000000000, 0x000000FFFFFFFFFF, 0]
    high = [0xFF00000000000000, 0x0000FFFFFFFFFFFF, 0xFFFFFF0000000000, 0x00000000FFFFFFFF]
    assert words(pynvml.nvmlDeviceGetCpuAffinity(gpu(0), 4)) == low
    assert words(pynvml.nvmlDeviceGetCpuAffinity(gpu(7), 4)) == high
    for scope in (pynvml.NVML_AFFINITY_SCOPE_NODE, pynvml.NVML_AFFINITY_SCOPE_SOCKET):
        assert words(pynvml.nvmlDeviceGetCpuAffinityWithinScope(gpu(7), 4, scope)) == high


def test_a_short_mask_holds_the_first_cpus(h200: SimulatedNode) -> None:
    assert words(pynvml.nvmlDeviceGetCpuAffinity(gpu(0), 1)) == [0x00FFFFFFFFFFFFFF]


def test_a_scope_that_does_not_exist_is_invalid(h200: SimulatedNode) -> None:
    for call in (pynvml.nvmlDeviceGetCpuAffinityWithinScope, pynvml.nvmlDeviceGetMemoryAffinity):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call(gpu(0), 1, 2)


def test_a_guest_may_not_know_what_is_near(simulate: Simulate) -> None:
    simulate("h100-vm-8")
    assert words(pynvml.nvmlDeviceGetCpuAffinity(gpu(0), 4)) == [0, 0, 0, 0]
    assert words(pynvml.nvmlDeviceGetMemoryAffinity(gpu(0), 1, 0)) == [0]


@pytest.mark.parametrize(
    ("profile", "masks"),
    [
        ("h200-8", [1 << 0] * 4 + [1 << 1] * 4),
        ("a100-40gb-8", [1 << 3, 1 << 3, 1 << 1, 1 << 1, 1 << 7, 1 << 7, 1 << 5, 1 << 5]),
        ("gb200-4", [0x3FBF9] * 2 + [0x3FBF80002] * 2),
    ],
)
def test_memory_near_a_gpu_is_a_mask_of_nodes(simulate: Simulate, profile: str, masks: list[int]) -> None:
    simulate(profile)
    found = [words(pynvml.nvmlDeviceGetMemoryAffinity(handle, 1, 0))[0] for handle in gpus()]
    assert found == masks


def test_the_memory_of_a_coherent_gpu_is_a_node(simulate: Simulate) -> None:
    simulate("gb200-4")
    assert [pynvml.nvmlDeviceGetNumaNodeId(handle) for handle in gpus()] == [2, 10, 18, 26]


def test_the_memory_of_other_gpus_is_no_node(h200: SimulatedNode) -> None:
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetNumaNodeId(gpu(0))
