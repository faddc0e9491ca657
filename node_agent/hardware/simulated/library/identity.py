"""C functions that say what a GPU is: names, ids, versions and its place on the PCI bus and in the machine."""

import pynvml

from node_agent.hardware.simulated.driver import Driver
from node_agent.hardware.simulated.gpu import MigDevice, SimulatedGpu
from node_agent.hardware.simulated.library.calls import Device, call
from node_agent.hardware.simulated.profile import nvml_constant
from node_agent.hardware.simulated.returns import supported

NVIDIA_VENDOR = 0x10DE
VGA_CONTROLLER = 0x030000


def pci_fields(bus: str) -> dict[str, str | int]:
    """The address part of NVML's PCI structure for a bus id in sysfs spelling."""
    domain, bus_number, rest = bus.split(":")
    return {
        "busId": f"0000{bus}".upper(),
        "busIdLegacy": bus.upper(),
        "domain": int(domain, 16),
        "bus": int(bus_number, 16),
        "device": int(rest.partition(".")[0], 16),
    }


@call()
def nvmlDeviceGetGridLicensableFeatures_v4(gpu: SimulatedGpu) -> dict[str, int]:
    """There are no features that take a licence."""
    return {"isGridLicenseSupported": 0, "licensableFeaturesCount": 0}


@call()
def nvmlDeviceGetName(device: Device) -> str:
    return device.name if isinstance(device, MigDevice) else device.board.name


@call()
def nvmlDeviceGetUUID(device: Device) -> str:
    return device.uuid


@call()
def nvmlDeviceGetSerial(gpu: SimulatedGpu) -> str | None:
    return gpu.serial if gpu.board.serial else None


@call()
def nvmlDeviceGetBoardPartNumber(gpu: SimulatedGpu) -> str | None:
    return gpu.board.board_part_number


@call()
def nvmlDeviceGetVbiosVersion(gpu: SimulatedGpu) -> str:
    return gpu.board.vbios


@call()
def nvmlDeviceGetInforomImageVersion(gpu: SimulatedGpu) -> str | None:
    return gpu.board.inforom.image if gpu.board.inforom else None


@call()
def nvmlDeviceGetInforomVersion(gpu: SimulatedGpu, part: int) -> str | None:
    inforom = gpu.board.inforom
    # Boards without an InfoROM of power readings or of a DEN say so; no shipped board has either.
    parts = {pynvml.NVML_INFOROM_OEM: inforom.oem, pynvml.NVML_INFOROM_ECC: inforom.ecc} if inforom else {}
    return parts.get(part)


@call()
def nvmlDeviceGetMinorNumber(gpu: SimulatedGpu) -> int:
    return gpu.place.minor


@call()
def nvmlDeviceGetPciInfo_v3(gpu: SimulatedGpu) -> dict[str, str | int]:
    pci = gpu.board.pci
    return {
        **pci_fields(gpu.place.bus),
        "pciDeviceId": pci.device << 16 | NVIDIA_VENDOR,
        "pciSubSystemId": pci.subsystem << 16 | NVIDIA_VENDOR,
    }


@call()
def nvmlDeviceGetBusType(gpu: SimulatedGpu) -> int:
    return int(pynvml.NVML_BUS_TYPE_PCIE)


@call()
def nvmlDeviceGetBrand(gpu: SimulatedGpu) -> int:
    return nvml_constant("NVML_BRAND_", gpu.board.brand)


@call()
def nvmlDeviceGetArchitecture(gpu: SimulatedGpu) -> int:
    return nvml_constant("NVML_DEVICE_ARCH_", gpu.board.architecture)


@call()
def nvmlDeviceGetCudaComputeCapability(gpu: SimulatedGpu) -> tuple[int, int]:
    return gpu.board.compute_capability


@call()
def nvmlDeviceGetNumGpuCores(gpu: SimulatedGpu) -> int:
    return gpu.board.sms * gpu.board.cores_per_sm


@call(also=["nvmlDeviceGetDisplayActive"])
def nvmlDeviceGetDisplayMode(gpu: SimulatedGpu) -> int:
    """A GPU of the VGA class drives a display."""
    return int(gpu.board.pci.class_code == VGA_CONTROLLER)


@call()
def nvmlDeviceGetC2cModeInfoV(gpu: SimulatedGpu) -> dict[str, int]:
    return {"isC2cEnabled": int(gpu.board.coherent)}


# Boards with several GPUs on one card went out of use with Kepler; every simulated GPU is a board by itself.
@call()
def nvmlDeviceGetMultiGpuBoard(gpu: SimulatedGpu) -> int:
    return 0


@call()
def nvmlDeviceGetBoardId(gpu: SimulatedGpu) -> int:
    address = pci_fields(gpu.place.bus)
    return int(address["bus"]) << 8 | int(address["device"])


@call()
def nvmlDeviceGetModuleId(gpu: SimulatedGpu) -> int | None:
    return gpu.place.module


@call()
def nvmlDeviceGetGspFirmwareVersion(driver: Driver, gpu: SimulatedGpu) -> str | None:
    return driver.version if gpu.board.gsp else None


@call()
def nvmlDeviceGetGspFirmwareMode(gpu: SimulatedGpu) -> tuple[int, int]:
    return int(gpu.board.gsp), int(gpu.board.gsp)


@call()
def nvmlDeviceGetVirtualizationMode(driver: Driver, gpu: SimulatedGpu) -> int:
    # A host that lends out vGPUs would be HOST_VGPU; containers do not run there.
    modes = {"none": "NONE", "passthrough": "PASSTHROUGH", "vgpu": "VGPU"}
    return int(getattr(pynvml, f"NVML_GPU_VIRTUALIZATION_MODE_{modes[driver.profile.virtualization]}"))


@call(versions=[pynvml.nvmlDeviceAddressingMode_v1])
def nvmlDeviceGetAddressingMode(gpu: SimulatedGpu) -> dict[str, int]:
    coherent = gpu.board.coherent
    return {"value": pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS if coherent else pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE}


@call(versions=[pynvml.nvmlPlatformInfo_v1, pynvml.nvmlPlatformInfo_v2])
def nvmlDeviceGetPlatformInfo(driver: Driver, gpu: SimulatedGpu) -> dict[str, bytes]:
    platform = supported(driver.profile.platform)
    return {
        "chassisSerialNumber": platform.chassis_serial.encode(),
        "slotNumber": bytes([platform.slot]),
        "trayIndex": bytes([platform.tray]),
        "hostId": bytes([platform.host]),
        "peerType": bytes([platform.peer_type]),
        "moduleId": bytes([supported(gpu.place.module)]),
    }
