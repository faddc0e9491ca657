"""C functions about how GPUs reach each other and which CPUs and memory are near them."""

from collections.abc import Iterable

import pynvml

from node_agent.hardware.simulated.driver import Driver
from node_agent.hardware.simulated.gpu import SimulatedGpu
from node_agent.hardware.simulated.library.calls import Target, call
from node_agent.hardware.simulated.library.identity import NVIDIA_VENDOR, pci_fields
from node_agent.hardware.simulated.links import Link, common_ancestor
from node_agent.hardware.simulated.profile import cpu_numbers, nvml_constant
from node_agent.hardware.simulated.returns import NvmlReturn, supported

# NVLink 5 switches are reached over a fabric of their own and have no PCI address to tell.
NO_SWITCH_ADDRESS = "0000:00:00.0"


@call()
def nvmlDeviceGetTopologyCommonAncestor(one: SimulatedGpu, other: SimulatedGpu) -> int:
    # NVLink does not count here: two GPUs on one NVSwitch are as far apart as their PCIe roots.
    if one is other:
        raise NvmlReturn("INVALID_ARGUMENT")
    return common_ancestor(one.place, other.place)


@call()
def nvmlDeviceGetTopologyNearestGpus(driver: Driver, gpu: SimulatedGpu, level: int) -> list[int]:
    others = [other for other in driver.visible if other is not gpu]
    return [driver.handle(other) for other in others if common_ancestor(gpu.place, other.place) <= level]


@call()
def nvmlDeviceGetP2PStatus(one: SimulatedGpu, other: SimulatedGpu, index: int) -> int:
    if index not in range(pynvml.NVML_P2P_CAPS_INDEX_UNKNOWN):
        raise NvmlReturn("INVALID_ARGUMENT")
    linked = linked_by_nvlink(one, other)
    if index == pynvml.NVML_P2P_CAPS_INDEX_NVLINK:
        return int(pynvml.NVML_P2P_STATUS_OK if linked else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)
    # PCIe carries reads and writes between sockets badly enough that chipsets refuse it; atomics need NVLink.
    near = common_ancestor(one.place, other.place) < pynvml.NVML_TOPOLOGY_SYSTEM if one is not other else True
    if linked or (near and index != pynvml.NVML_P2P_CAPS_INDEX_ATOMICS):
        return int(pynvml.NVML_P2P_STATUS_OK)
    return int(pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED)


@call()
def nvmlDeviceGetNvLinkState(gpu: SimulatedGpu, link: int) -> int:
    return int(link_of(gpu, link).active)


@call()
def nvmlDeviceGetNvLinkVersion(gpu: SimulatedGpu, link: int) -> int:
    # The version is the board's, but a link that does not exist has none.
    link_of(gpu, link)
    return nvlink_version(gpu)


@call()
def nvmlDeviceGetNvLinkRemoteDeviceType(gpu: SimulatedGpu, link: int) -> int:
    far_end = _connected(gpu, link)
    return int(pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if far_end.peer is None else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU)


@call()
def nvmlDeviceGetNvLinkRemotePciInfo_v2(driver: Driver, gpu: SimulatedGpu, link: int) -> dict[str, str | int]:
    """Of a switch only the address is defined, and of a switch that is not on the bus not even that."""
    far_end = _connected(gpu, link)
    if far_end.peer is None:
        return pci_fields(far_end.switch or NO_SWITCH_ADDRESS)
    peer = driver.gpus[far_end.peer]
    return {**pci_fields(peer.place.bus), "pciDeviceId": peer.board.pci.device << 16 | NVIDIA_VENDOR}


@call()
def nvmlDeviceGetNvLinkCapability(gpu: SimulatedGpu, link: int, capability: int) -> int:
    """Peer access and its atomics, and that the answer is valid; access to system memory is for other platforms."""
    if capability not in range(pynvml.NVML_NVLINK_CAP_COUNT):
        raise NvmlReturn("INVALID_ARGUMENT")
    link_of(gpu, link)
    has = (pynvml.NVML_NVLINK_CAP_P2P_SUPPORTED, pynvml.NVML_NVLINK_CAP_P2P_ATOMICS, pynvml.NVML_NVLINK_CAP_VALID)
    return int(capability in has)


@call()
def nvmlDeviceGetNvLinkErrorCounter(gpu: SimulatedGpu, link: int, counter: int) -> int:
    if counter not in range(pynvml.NVML_NVLINK_ERROR_COUNT):
        raise NvmlReturn("INVALID_ARGUMENT")
    return link_of(gpu, link).errors.get(counter, 0)


@call()
def nvmlDeviceResetNvLinkErrorCounters(gpu: SimulatedGpu, link: int) -> None:
    link_of(gpu, link).errors.clear()


@call()
def nvmlDeviceGetCpuAffinity(driver: Driver, gpu: SimulatedGpu, words: int, mask: Target) -> None:
    _fill_mask(mask, words, _near_cpus(driver, gpu))


@call()
def nvmlDeviceGetCpuAffinityWithinScope(
    driver: Driver, gpu: SimulatedGpu, words: int, mask: Target, scope: int
) -> None:
    _require_scope(scope)
    _fill_mask(mask, words, _near_cpus(driver, gpu))


@call()
def nvmlDeviceGetMemoryAffinity(gpu: SimulatedGpu, words: int, mask: Target, scope: int) -> None:
    _require_scope(scope)
    # Coherent boards list the nodes held for MIG as well; elsewhere memory is near where the CPUs are.
    listed = gpu.place.memory_nodes
    nodes = [] if gpu.place.numa is None else [gpu.place.numa]
    _fill_mask(mask, words, cpu_numbers(listed) if listed else nodes)


@call()
def nvmlDeviceGetNumaNodeId(gpu: SimulatedGpu) -> int | None:
    """The node made of the GPU's own memory, not the CPU node beside it."""
    return gpu.place.memory_numa


def link_of(gpu: SimulatedGpu, link: int) -> Link:
    """A link by its number; NOT_SUPPORTED where the board has no such link."""
    if not 0 <= link < pynvml.NVML_NVLINK_MAX_LINKS:
        raise NvmlReturn("INVALID_ARGUMENT")
    return supported(gpu.links[link] if link < len(gpu.links) else None)


def nvlink_version(gpu: SimulatedGpu) -> int:
    return nvml_constant("NVML_NVLINK_VERSION_", supported(gpu.board.nvlink).version)


def is_nvlink5(gpu: SimulatedGpu) -> bool:
    """Whether its links are of the fifth generation or newer, which count and report in another way."""
    return nvlink_version(gpu) >= int(pynvml.NVML_NVLINK_VERSION_5_0)


def linked_by_nvlink(one: SimulatedGpu, other: SimulatedGpu) -> bool:
    """Whether an active link joins two GPUs, directly or over switches of the same fabric; MIG mode takes it away."""
    if one.mig_enabled or other.mig_enabled:
        return False
    # Switches of one island are not joined to each other: two GPUs need an active link to the same one.
    direct = any(link.active and link.peer == other.slot for link in one.links)
    return direct or bool(_switches(one) & _switches(other))


def _switches(gpu: SimulatedGpu) -> set[tuple[int, str | None]]:
    return {(link.island, link.switch) for link in gpu.links if link.active and link.island is not None}


def _connected(gpu: SimulatedGpu, link: int) -> Link:
    found = link_of(gpu, link)
    return supported(found if found.connected else None)


def _near_cpus(driver: Driver, gpu: SimulatedGpu) -> list[int]:
    return [] if gpu.place.numa is None else cpu_numbers(driver.profile.numa[gpu.place.numa])


def _require_scope(scope: int) -> None:
    if scope not in (pynvml.NVML_AFFINITY_SCOPE_NODE, pynvml.NVML_AFFINITY_SCOPE_SOCKET):
        raise NvmlReturn("INVALID_ARGUMENT")


def _fill_mask(mask: Target, words: int, numbers: Iterable[int]) -> None:
    """Set a bit for each number in an array of 64-bit words; numbers past the caller's last word are dropped."""
    bits = sum(1 << number for number in numbers)
    for word in range(words):
        mask[word] = bits >> (64 * word) & 0xFFFFFFFFFFFFFFFF
