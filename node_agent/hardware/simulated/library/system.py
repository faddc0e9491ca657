"""C functions of the library as a whole: initialisation, versions, and how a GPU's handle is found."""

import pynvml

from node_agent.hardware.simulated.driver import Driver
from node_agent.hardware.simulated.gpu import MigDevice, SimulatedGpu
from node_agent.hardware.simulated.library.calls import Device, call
from node_agent.hardware.simulated.returns import NvmlReturn


@call(needs_init=False)
def nvmlInitWithFlags(driver: Driver, flags: int) -> None:
    driver.initialise()


@call(needs_init=False)
def nvmlShutdown(driver: Driver) -> None:
    driver.shut_down()


@call()
def nvmlSystemGetDriverVersion(driver: Driver) -> str:
    return driver.version


@call()
def nvmlSystemGetNVMLVersion(driver: Driver) -> str:
    return f"{driver.cuda.partition('.')[0]}.{driver.version}"


@call(also=["nvmlSystemGetCudaDriverVersion_v2"])
def nvmlSystemGetCudaDriverVersion(driver: Driver) -> int:
    major, _, minor = driver.cuda.partition(".")
    return 1000 * int(major) + 10 * int(minor or 0)


@call(versions=[pynvml.SystemDriverBranchInfo_v1])
def nvmlSystemGetDriverBranch(driver: Driver) -> dict[str, str]:
    return {"branch": f"r{driver.version.partition('.')[0]}_00"}


@call()
def nvmlDeviceGetCount_v2(driver: Driver) -> int:
    return len(driver.visible)


@call()
def nvmlDeviceGetHandleByIndex_v2(driver: Driver, index: int) -> int:
    if not 0 <= index < len(driver.visible):
        raise NvmlReturn("INVALID_ARGUMENT")
    return _handle(driver, driver.visible[index])


@call()
def nvmlDeviceGetHandleByUUID(driver: Driver, uuid: str) -> int:
    """By the UUID of a GPU or a MIG device; the old MIG form ``MIG-GPU-<uuid>/<gi>/<ci>`` still counts."""
    for gpu in driver.visible:
        if gpu.uuid == uuid:
            return _handle(driver, gpu)
        for device in gpu.mig_devices():
            if uuid in (device.uuid, f"MIG-{gpu.uuid}/{device.instance.id}/{device.compute.id}"):
                return _handle(driver, device)
    raise NvmlReturn("NOT_FOUND")


@call()
def nvmlDeviceGetHandleBySerial(driver: Driver, serial: str) -> int:
    for gpu in driver.visible:
        if gpu.board.serial and gpu.serial == serial:
            return _handle(driver, gpu)
    raise NvmlReturn("NOT_FOUND")


@call()
def nvmlDeviceGetHandleByPciBusId_v2(driver: Driver, bus: str) -> int:
    # Callers write the domain with four digits or with eight.
    domain, _, rest = bus.lower().partition(":")
    for gpu in driver.visible:
        if gpu.place.bus == f"{domain[-4:].zfill(4)}:{rest}":
            return _handle(driver, gpu)
    raise NvmlReturn("NOT_FOUND")


@call()
def nvmlDeviceGetIndex(driver: Driver, device: Device) -> int:
    """A MIG device's index is its slot among the MIG devices of its GPU."""
    return device.compute.slot if isinstance(device, MigDevice) else driver.visible.index(device)


@call()
def nvmlDeviceOnSameBoard(one: SimulatedGpu, other: SimulatedGpu) -> int:
    return int(one is other)


@call()
def nvmlGetExcludedDeviceCount() -> int:
    return 0


def _handle(driver: Driver, device: Device) -> int:
    """Handing out a handle starts the GPU, so a lost one refuses it."""
    if not device.gpu.reachable:
        raise NvmlReturn("GPU_IS_LOST")
    return driver.mig_handle(device) if isinstance(device, MigDevice) else driver.handle(device)
