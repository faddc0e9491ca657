"""What a resource offers: its devices, and which of them may be given out. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory
from node_agent.topology.preferred import DeviceId, Pool
from node_agent.topology.score import scores


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedDevice:
    """One entry of the list, on or of a GPU whose ``index`` is the driver's present number for it.

    ``trouble`` says why the device must not be given out; None where it may.
    """

    id: str
    gpu: GpuUuid
    index: int
    numa_node: int | None = None
    trouble: str | None = None

    @property
    def healthy(self) -> bool:
        return self.trouble is None


@dataclass(frozen=True, kw_only=True)
class Offer:
    """The whole list of one resource. ``pool`` is what choosing among its devices needs, worked out beforehand."""

    resource: str
    devices: tuple[OfferedDevice, ...] = ()
    pool: Pool = field(compare=False, repr=False)

    @cached_property
    def by_id(self) -> Mapping[str, OfferedDevice]:
        return {device.id: device for device in self.devices}


def pool_of(inventory: Inventory, devices: Iterable[OfferedDevice]) -> Pool:
    """What choosing among these devices needs; takes some milliseconds on a large node."""
    return Pool(scores=scores(inventory), parents={DeviceId(device.id): device.gpu for device in devices})


def whole_gpus(
    gpus: Iterable[Gpu], health: HealthReport, reachable: Collection[GpuUuid] | None
) -> tuple[OfferedDevice, ...]:
    """Each of these GPUs as a device of its own, named by UUID.

    ``reachable`` are the GPUs that a container can be given (those of the CDI spec), or None where that needs no
    preparation.
    """
    return tuple(
        OfferedDevice(
            id=gpu.uuid,
            gpu=gpu.uuid,
            index=gpu.index,
            numa_node=gpu.numa_node,
            trouble=_trouble(gpu.uuid, health) or _partitioned(gpu) or _unreachable(gpu.uuid, reachable),
        )
        for gpu in gpus
    )


def with_gone(
    devices: Iterable[OfferedDevice], before: Iterable[OfferedDevice], inventory: Inventory
) -> tuple[OfferedDevice, ...]:
    """The devices, and those of the list ``before`` that are gone, unhealthy.

    The kubelet may crash on a device that vanishes from the list while a pod holds it.
    """
    present = tuple(devices)
    known = {device.id for device in present}
    reasons = {missing.uuid: missing.reason for missing in inventory.missing}
    gone = [device for device in before if device.id not in known]
    return (*present, *(_withdrawn(device, reasons.get(device.gpu) or inventory.problem) for device in gone))


def _trouble(gpu: GpuUuid, health: HealthReport) -> str | None:
    found = health.of(gpu)
    return "; ".join(cause.message for cause in found.causes) if found.withdrawn else None


def _partitioned(gpu: Gpu) -> str | None:
    """A GPU in MIG mode cannot be used as a whole: CUDA finds no device on it."""
    if gpu.partition_mode is None or not gpu.partition_mode.active:
        return None
    return "it is in MIG mode, and can only be used by its MIG devices"


def _unreachable(gpu: GpuUuid, reachable: Collection[GpuUuid] | None) -> str | None:
    if reachable is None or gpu in reachable:
        return None
    return "no CDI spec names it yet"


def _withdrawn(device: OfferedDevice, reason: str | None) -> OfferedDevice:
    return replace(device, trouble=reason or "the driver no longer lists it")
