"""Which GPUs there are, and what each one is."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pynvml

from node_agent.errors import DriverUnavailable, HardwareError
from node_agent.hardware.nvml.fabric import nvlink_domain
from node_agent.hardware.nvml.session import Listed, Session
from node_agent.hardware.nvml.translate import Answers, Calls, Handle, Query, figure, text
from node_agent.hardware.provider import GpuFacts, Scan
from node_agent.model.gpu import ComputeCapability, PartitionMode
from node_agent.model.inventory import DriverInfo, MissingGpu
from node_agent.model.pci import pci_address

# NVIDIA's own DRA driver publishes brands and architectures in these words.
_BRANDS = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "NvidiaVPC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "NvidiaVCS",
    pynvml.NVML_BRAND_NVIDIA_VWS: "NvidiaVWS",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}

_ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
    pynvml.NVML_DEVICE_ARCH_RUBIN: "Rubin",
}

# CUDA cores of one multiprocessor, by compute capability; NVML tells only the cores of the whole GPU.
_CORES = {(6, 0): 64, (6, 1): 128, (7, 0): 64, (7, 5): 64, (8, 0): 64} | {
    capability: 128 for capability in ((8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1))
}

_ADDRESSING_MODES = {
    pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE: "None",
    pynvml.NVML_DEVICE_ADDRESSING_MODE_HMM: "HMM",
    pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS: "ATS",
}

# NVML counts versions, of which some generations have two.
_NVLINK_GENERATIONS = {
    pynvml.NVML_NVLINK_VERSION_1_0: 1,
    pynvml.NVML_NVLINK_VERSION_2_0: 2,
    pynvml.NVML_NVLINK_VERSION_2_2: 2,
    pynvml.NVML_NVLINK_VERSION_3_0: 3,
    pynvml.NVML_NVLINK_VERSION_3_1: 3,
    pynvml.NVML_NVLINK_VERSION_4_0: 4,
    pynvml.NVML_NVLINK_VERSION_5_0: 5,
    pynvml.NVML_NVLINK_VERSION_6_0: 6,
}

# A DGX Station has a board that drives its monitor: nobody's work belongs there, and others' tools skip it, too.
_DISPLAY_ONLY = "DGX Display"

_MODES = {
    (0, 0): PartitionMode.DISABLED,
    (1, 1): PartitionMode.ENABLED,
    (0, 1): PartitionMode.ENABLE_PENDING,
    (1, 0): PartitionMode.DISABLE_PENDING,
}


def scan(session: Session) -> Scan:
    """All GPUs that can be worked on.

    Raises:
        DriverUnavailable: nothing can be asked, or the driver went away since the last look. Even where it is there
            again it may be another version with other device numbers, so that all that was made of the old one is out
            of use until the next look.
    """
    session.ensure_open()
    try:
        return _look(session)
    except DriverUnavailable:
        session.close()
        # Opened anew for the next look. A driver that is still away says here why.
        session.ensure_open()
        raise


def partition_mode(calls: Calls, handle: Handle) -> PartitionMode:
    """Whether MIG is on, or will be. Raises NotSupported where the GPU has no MIG."""
    current, pending = calls(pynvml.nvmlDeviceGetMigMode, handle)
    return _MODES[bool(current), bool(pending)]


def memory_total(calls: Calls, handle: Handle) -> int | None:
    """Bytes, with what the driver keeps for itself; None where the GPU has no memory of its own."""
    info = memory_info(calls, handle)
    return (figure(info.total) or None) if info else None


def memory_info(calls: Calls, handle: Handle) -> Any | None:
    """NVML's figures of the GPU's memory, in the older form where the driver has no other."""
    # The older form counts what the driver keeps for itself as used, so it is only the second choice.
    newer = calls.optional(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return newer or calls.optional(pynvml.nvmlDeviceGetMemoryInfo, handle)


def _look(session: Session) -> Scan:
    listed, missing = session.refresh()
    found = []
    for gpu in listed:
        try:
            found.append(_facts(session.calls, gpu))
        except DriverUnavailable:
            raise
        except HardwareError as error:
            missing.append(MissingGpu(index=gpu.index, reason=str(error), uuid=gpu.uuid))
    gpus = tuple(gpu for gpu in found if _DISPLAY_ONLY not in gpu.product)
    answers = Answers()
    driver = DriverInfo(**{name: answers.ask(name, partial(query, session.calls)) for name, query in _VERSIONS.items()})
    return Scan(driver=driver, gpus=gpus, missing=tuple(missing), failed=answers.failed)


def _facts(calls: Calls, gpu: Listed) -> GpuFacts:
    """Raises HardwareError where the GPU is lost or has no PCI address: nothing could be done with it."""
    pci = calls(pynvml.nvmlDeviceGetPciInfo, gpu.handle)
    try:
        address = pci_address(text(pci.busId))
    except ValueError as error:
        raise HardwareError(f"nvmlDeviceGetPciInfo: {error}") from error
    # A name may be missing because the InfoROM is damaged, and then the GPU still works.
    answers = Answers()
    values = answers.ask_all(_QUERIES, calls, gpu.handle)
    product = values.pop("product") or f"NVIDIA {pci.pciDeviceId >> 16:04X}"
    return GpuFacts(uuid=gpu.uuid, index=gpu.index, product=product, pci=address, failed=answers.failed, **values)


def _cuda(calls: Calls) -> str:
    """The newer call asks libcuda, which a container may lack; the plain one needs nothing."""
    try:
        version = calls(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    except HardwareError:
        version = calls(pynvml.nvmlSystemGetCudaDriverVersion)
    return f"{version // 1000}.{version % 1000 // 10}"


def _capability(calls: Calls, handle: Handle) -> ComputeCapability:
    major, minor = calls(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return ComputeCapability(major=major, minor=minor)


def _multiprocessors(calls: Calls, handle: Handle) -> int | None:
    capability = calls(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    cores = calls(pynvml.nvmlDeviceGetNumGpuCores, handle)
    each = _CORES.get(capability)
    return cores // each if each else None


def _nvlink_generation(calls: Calls, handle: Handle) -> int | None:
    """That of the first link which tells; boards have gaps in the numbers of their links."""
    versions = (
        calls.optional(pynvml.nvmlDeviceGetNvLinkVersion, handle, link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
    )
    return next((_NVLINK_GENERATIONS[version] for version in versions if version in _NVLINK_GENERATIONS), None)


_VERSIONS: Mapping[str, Callable[[Calls], str]] = {
    "version": lambda calls: calls.text(pynvml.nvmlSystemGetDriverVersion),
    "cuda": _cuda,
    "library": lambda calls: calls.text(pynvml.nvmlSystemGetNVMLVersion),
}

_QUERIES: Mapping[str, Query] = {
    "product": lambda calls, handle: calls.text(pynvml.nvmlDeviceGetName, handle),
    "minor": lambda calls, handle: figure(calls(pynvml.nvmlDeviceGetMinorNumber, handle)),
    "brand": lambda calls, handle: _BRANDS.get(calls(pynvml.nvmlDeviceGetBrand, handle)),
    "architecture": lambda calls, handle: _ARCHITECTURES.get(calls(pynvml.nvmlDeviceGetArchitecture, handle)),
    "compute_capability": _capability,
    "memory": memory_total,
    "multiprocessors": _multiprocessors,
    "partition_mode": partition_mode,
    "nvlink_domain": nvlink_domain,
    "ecc_enabled": lambda calls, handle: bool(calls(pynvml.nvmlDeviceGetEccMode, handle)[0]),
    "addressing_mode": lambda calls, handle: _ADDRESSING_MODES.get(calls(pynvml.nvmlDeviceGetAddressingMode, handle)),
    "nvlink_generation": _nvlink_generation,
    "power_limit": lambda calls, handle: calls(pynvml.nvmlDeviceGetPowerManagementLimit, handle) // 1000 or None,
    "device_id": lambda calls, handle: calls(pynvml.nvmlDeviceGetPciInfo, handle).pciDeviceId >> 16,
    "subsystem_id": lambda calls, handle: calls(pynvml.nvmlDeviceGetPciInfo, handle).pciSubSystemId,
    "serial": lambda calls, handle: calls.text(pynvml.nvmlDeviceGetSerial, handle) or None,
    "vbios": lambda calls, handle: calls.text(pynvml.nvmlDeviceGetVbiosVersion, handle) or None,
}
