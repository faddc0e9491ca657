"""C functions of MIG: the mode, the profiles, and making and removing instances; the rules are in ``mig`` beside."""

from typing import Any

import pynvml

from node_agent.hardware.simulated.driver import Driver, OwnedInstance
from node_agent.hardware.simulated.events import Event
from node_agent.hardware.simulated.gpu import MigDevice, SimulatedGpu
from node_agent.hardware.simulated.library.calls import ComputeHandle, Device, Target, call
from node_agent.hardware.simulated.mig import ComputeProfile, GpuInstance, Mig
from node_agent.hardware.simulated.profile import MigProfile
from node_agent.hardware.simulated.returns import NvmlReturn, supported


@call()
def nvmlDeviceGetMigMode(gpu: SimulatedGpu) -> tuple[int, int]:
    mig = _capable(gpu)
    return int(mig.enabled), int(mig.pending)


@call()
def nvmlDeviceSetMigMode(driver: Driver, gpu: SimulatedGpu, mode: int) -> int:
    """Answers what became of the change: done, or why it is pending. Boards that need a reset get none inside a VM."""
    mig = _capable(gpu)
    if mode not in (pynvml.NVML_DEVICE_MIG_DISABLE, pynvml.NVML_DEVICE_MIG_ENABLE):
        raise NvmlReturn("INVALID_ARGUMENT")
    # The wish is noted first: where it cannot be carried out now, it stays pending until a reset.
    mig.pending = bool(mode)
    if mig.pending == mig.enabled:
        return int(pynvml.NVML_SUCCESS)
    # The call itself succeeds all the same; only the answered status says that nothing has happened yet.
    if gpu.processes or mig.instances:
        return int(pynvml.NVML_ERROR_IN_USE)
    if driver.profile.virtualization == "passthrough" and not mig.table.resetless:
        return int(pynvml.NVML_ERROR_RESET_REQUIRED)
    mig.set_mode(bool(mode))
    _announce(driver, gpu)
    return int(pynvml.NVML_SUCCESS)


@call()
def nvmlDeviceGetMaxMigDeviceCount(gpu: SimulatedGpu) -> int:
    return gpu.mig.table.slices if gpu.mig else 0


@call()
def nvmlDeviceGetGpuInstanceProfileInfo(gpu: SimulatedGpu, enum: int) -> dict[str, Any]:
    return _profile_fields(_profile_by_enum(_capable(gpu), enum))


@call(versions=[pynvml.nvmlGpuInstanceProfileInfo_v2])
def nvmlDeviceGetGpuInstanceProfileInfoV(gpu: SimulatedGpu, enum: int) -> dict[str, Any]:
    """Unlike the plain form, this one wants MIG to be on."""
    return _profile_fields(_profile_by_enum(_enabled(gpu), enum))


@call(versions=[pynvml.nvmlGpuInstanceProfileInfo_v2])
def nvmlDeviceGetGpuInstanceProfileInfoByIdV(gpu: SimulatedGpu, profile_id: int) -> dict[str, Any]:
    return _profile_fields(_enabled(gpu).profile(profile_id))


@call()
def nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu: SimulatedGpu, profile_id: int) -> list[dict[str, int]]:
    """Where a profile may start on an empty GPU; it does not say what is free."""
    profile = _capable(gpu).profile(profile_id)
    return [{"start": start, "size": profile.size} for start in profile.starts]


@call()
def nvmlDeviceGetGpuInstanceRemainingCapacity(gpu: SimulatedGpu, profile_id: int) -> int:
    mig = _enabled(gpu)
    return mig.capacity(mig.profile(profile_id))


@call()
def nvmlDeviceCreateGpuInstance(driver: Driver, gpu: SimulatedGpu, profile_id: int) -> int:
    return _created(driver, gpu, _enabled(gpu).create(profile_id))


@call()
def nvmlDeviceCreateGpuInstanceWithPlacement(
    driver: Driver, gpu: SimulatedGpu, profile_id: int, placement: Target
) -> int:
    mig = _enabled(gpu)
    # The size follows from the profile, but the driver does not correct a caller who has it wrong.
    if placement.size != mig.profile(profile_id).size:
        raise NvmlReturn("INVALID_ARGUMENT")
    return _created(driver, gpu, mig.create(profile_id, placement.start))


@call()
def nvmlGpuInstanceDestroy(driver: Driver, owned: OwnedInstance) -> None:
    if any(process.instance == owned.instance.id for process in owned.gpu.processes):
        raise NvmlReturn("IN_USE")
    _enabled(owned.gpu).destroy(owned.instance)
    _announce(driver, owned.gpu)


@call()
def nvmlDeviceGetGpuInstances(driver: Driver, gpu: SimulatedGpu, profile_id: int) -> list[int]:
    mig = _enabled(gpu)
    profile = mig.profile(profile_id)
    return [driver.instance_handle(gpu, made) for made in mig.instances.values() if made.profile == profile]


@call()
def nvmlDeviceGetGpuInstanceById(driver: Driver, gpu: SimulatedGpu, instance_id: int) -> int:
    instance = _enabled(gpu).instances.get(instance_id)
    if instance is None:
        raise NvmlReturn("NOT_FOUND")
    return driver.instance_handle(gpu, instance)


@call()
def nvmlGpuInstanceGetInfo(driver: Driver, owned: OwnedInstance) -> dict[str, Any]:
    instance = owned.instance
    return {
        "device": driver.handle(owned.gpu),
        "id": instance.id,
        "profileId": instance.profile.id,
        "placement": {"start": instance.start, "size": instance.profile.size},
    }


@call()
def nvmlGpuInstanceGetComputeInstanceProfileInfo(owned: OwnedInstance, enum: int, engines: int) -> dict[str, Any]:
    """The enum of a compute profile is its id, too."""
    if enum not in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        raise NvmlReturn("INVALID_ARGUMENT")
    if engines != pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED:
        raise NvmlReturn("INVALID_ARGUMENT")
    profile = next((made for made in owned.instance.compute_profiles() if made.id == enum), None)
    return _compute_profile_fields(owned.instance, supported(profile))


@call(versions=[pynvml.nvmlComputeInstanceProfileInfo_v2])
def nvmlGpuInstanceGetComputeInstanceProfileInfoV(owned: OwnedInstance, enum: int, engines: int) -> dict[str, Any]:
    return nvmlGpuInstanceGetComputeInstanceProfileInfo(owned, enum, engines)


@call()
def nvmlGpuInstanceGetComputeInstanceRemainingCapacity(owned: OwnedInstance, profile_id: int) -> int:
    return len(owned.instance.free_compute_starts(owned.instance.compute_profile(profile_id)))


@call()
def nvmlGpuInstanceGetComputeInstancePossiblePlacements(owned: OwnedInstance, profile_id: int) -> list[dict[str, int]]:
    profile = owned.instance.compute_profile(profile_id)
    return [{"start": start, "size": profile.slices} for start in profile.starts]


@call()
def nvmlGpuInstanceCreateComputeInstance(driver: Driver, owned: OwnedInstance, profile_id: int) -> int:
    return _create_compute(driver, owned, profile_id, None)


@call()
def nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    driver: Driver, owned: OwnedInstance, profile_id: int, placement: Target
) -> int:
    return _create_compute(driver, owned, profile_id, placement.start)


@call()
def nvmlComputeInstanceDestroy(driver: Driver, device: ComputeHandle) -> None:
    if device.processes:
        raise NvmlReturn("IN_USE")
    _enabled(device.gpu).destroy_compute(device.instance, device.compute)
    _announce(driver, device.gpu)


@call()
def nvmlGpuInstanceGetComputeInstances(driver: Driver, owned: OwnedInstance, profile_id: int) -> list[int]:
    profile = owned.instance.compute_profile(profile_id)
    return [driver.compute_handle(device) for device in _devices_in(owned) if device.compute.profile == profile]


@call()
def nvmlGpuInstanceGetComputeInstanceById(driver: Driver, owned: OwnedInstance, compute_id: int) -> int:
    for device in _devices_in(owned):
        if device.compute.id == compute_id:
            return driver.compute_handle(device)
    raise NvmlReturn("NOT_FOUND")


@call()
def nvmlComputeInstanceGetInfo_v2(driver: Driver, device: ComputeHandle) -> dict[str, Any]:
    compute = device.compute
    return {
        "device": driver.handle(device.gpu),
        "gpuInstance": driver.instance_handle(device.gpu, device.instance),
        "id": compute.id,
        "profileId": compute.profile.id,
        "placement": {"start": compute.start, "size": compute.profile.slices},
    }


@call()
def nvmlDeviceIsMigDeviceHandle(device: Device) -> int:
    return int(isinstance(device, MigDevice))


@call()
def nvmlDeviceGetGpuInstanceId(device: MigDevice) -> int:
    return device.instance.id


@call()
def nvmlDeviceGetComputeInstanceId(device: MigDevice) -> int:
    return device.compute.id


@call()
def nvmlDeviceGetMigDeviceHandleByIndex(driver: Driver, gpu: SimulatedGpu, index: int) -> int:
    # Slots are as many as there can ever be devices; those without one are holes, not the end of the list.
    if not 0 <= index < _capable(gpu).table.slices:
        raise NvmlReturn("INVALID_ARGUMENT")
    for device in gpu.mig_devices():
        if device.compute.slot == index:
            return driver.mig_handle(device)
    raise NvmlReturn("NOT_FOUND")


@call()
def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(driver: Driver, device: MigDevice) -> int:
    return driver.handle(device.gpu)


@call()
def nvmlDeviceGetAttributes_v2(device: MigDevice) -> dict[str, int]:
    shared = _compute_profile_fields(device.instance, device.compute.profile)
    return {
        **shared,
        "gpuInstanceSliceCount": device.instance.profile.slices,
        "computeInstanceSliceCount": device.compute.profile.slices,
        "memorySizeMB": device.instance.profile.mib,
    }


def _capable(gpu: SimulatedGpu) -> Mig:
    return supported(gpu.mig)


def _enabled(gpu: SimulatedGpu) -> Mig:
    return supported(gpu.mig if gpu.mig_enabled else None)


def _profile_by_enum(mig: Mig, enum: int) -> MigProfile:
    if enum not in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        raise NvmlReturn("INVALID_ARGUMENT")
    return supported(next((profile for profile in mig.table.profiles if profile.enum == enum), None))


def _profile_fields(profile: MigProfile) -> dict[str, Any]:
    return {
        "id": profile.id,
        "isP2pSupported": 0,
        "sliceCount": profile.slices,
        "instanceCount": profile.count,
        "multiprocessorCount": profile.sms,
        "copyEngineCount": profile.ce,
        "decoderCount": profile.dec,
        "encoderCount": 0,
        "jpegCount": profile.jpeg,
        "ofaCount": profile.ofa,
        "memorySizeMB": profile.mib,
        "name": f"MIG {profile.name}",
    }


def _compute_profile_fields(instance: GpuInstance, profile: ComputeProfile) -> dict[str, Any]:
    """Engines are not divided: each compute instance shows those of the whole GPU instance."""
    return {
        "id": profile.id,
        "sliceCount": profile.slices,
        "instanceCount": profile.count,
        "multiprocessorCount": profile.sms,
        "sharedCopyEngineCount": instance.profile.ce,
        "sharedDecoderCount": instance.profile.dec,
        "sharedEncoderCount": 0,
        "sharedJpegCount": instance.profile.jpeg,
        "sharedOfaCount": instance.profile.ofa,
        "name": f"MIG {profile.name}",
    }


def _created(driver: Driver, gpu: SimulatedGpu, instance: GpuInstance) -> int:
    _announce(driver, gpu)
    return driver.instance_handle(gpu, instance)


def _create_compute(driver: Driver, owned: OwnedInstance, profile_id: int, start: int | None) -> int:
    compute = _enabled(owned.gpu).create_compute(owned.instance, profile_id, start)
    _announce(driver, owned.gpu)
    return driver.compute_handle(MigDevice(gpu=owned.gpu, instance=owned.instance, compute=compute))


def _devices_in(owned: OwnedInstance) -> list[MigDevice]:
    return [device for device in owned.gpu.mig_devices() if device.instance is owned.instance]


def _announce(driver: Driver, gpu: SimulatedGpu) -> None:
    driver.report(Event(gpu=gpu, type=pynvml.nvmlEventMigConfigChange))
    driver.hardware_changed()
