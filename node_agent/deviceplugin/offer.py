"""What a resource offers: its devices, and which of them may be given out. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory
from node_agent.topology.preferred import DeviceId, Pool
from node_agent.topology.score import scores

NONE_HELD: Mapping[GpuUuid, str] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedDevice:
    """One entry of the list, on or of a GPU whose ``index`` is the driver's present number for it.

    ``trouble`` says why the device must not be given out; None where it may. A ``gone`` one is in the list only since
    a pod may still hold it.
    """

    id: str
    gpu: GpuUuid
    index: int
    numa_node: int | None = None
    trouble: str | None = None
    gone: bool = False

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

    @property
    def healthy(self) -> frozenset[str]:
        """The ids of what can be given out."""
        return frozenset(device.id for device in self.devices if device.healthy)


def gpu_of(resource: str, device: str) -> GpuUuid | None:
    """The GPU of a device that a pod holds, by the form of its id; None for devices that are not the agent's.

    The pod holds it whether or not the driver lists it, and whatever the configuration calls it by now.
    """
    return GpuUuid(device) if resource.startswith("nvidia.com/") and device.startswith("GPU-") else None


def pool_of(inventory: Inventory, devices: Iterable[OfferedDevice]) -> Pool:
    """What choosing among these devices needs; takes some milliseconds on a large node."""
    return Pool(scores=scores(inventory), parents={DeviceId(device.id): device.gpu for device in devices})


def whole_gpus(
    gpus: Iterable[Gpu],
    health: HealthReport,
    reachable: Collection[GpuUuid] | None,
    elsewhere: Mapping[GpuUuid, str] = NONE_HELD,
) -> tuple[OfferedDevice, ...]:
    """Each of these GPUs as a device of its own, named by UUID; one in MIG mode cannot be used as a whole.

    ``reachable`` are the GPUs that a container can be given (those of the CDI spec), or None where that needs no
    preparation. ``elsewhere`` are those that were given out by another name or front door, with who has them.
    """
    return tuple(
        OfferedDevice(
            id=gpu.uuid,
            gpu=gpu.uuid,
            index=gpu.index,
            numa_node=gpu.numa_node,
            trouble=_trouble(gpu.uuid, health) or elsewhere.get(gpu.uuid) or _unreachable(gpu.uuid, reachable),
        )
        for gpu in gpus
        if not _partitioned(gpu)
    )


def with_absent(
    devices: Iterable[OfferedDevice], before: Iterable[OfferedDevice], inventory: Inventory
) -> tuple[OfferedDevice, ...]:
    """The devices, and unhealthy those of the list ``before`` that are not among them.

    The kubelet may crash on a device that vanishes from the list while a pod holds it. One that should be there stays
    for good; one that is ``gone`` as this kind of device, since its GPU is in MIG mode by now, is left to ``forget``.
    """
    present = tuple(devices)
    known = {device.id for device in present}
    missing = {gpu.uuid: gpu.reason for gpu in inventory.missing}
    absent = [device for device in before if device.id not in known]
    return (
        *present,
        *(replace(one, trouble=missing[one.gpu], gone=False) for one in absent if one.gpu in missing),
        *(replace(one, trouble=_why_gone(one.gpu, inventory), gone=True) for one in absent if one.gpu not in missing),
    )


def forget(offer: Offer, held: Collection[str]) -> Offer:
    """The offer without the gone devices that no pod holds any more."""
    kept = tuple(device for device in offer.devices if not device.gone or device.id in held)
    return replace(offer, devices=kept)


def _trouble(gpu: GpuUuid, health: HealthReport) -> str | None:
    found = health.of(gpu)
    return "; ".join(cause.text for cause in found.causes) if found.withdrawn else None


def _partitioned(gpu: Gpu) -> bool:
    return gpu.partition_mode is not None and gpu.partition_mode.active


def _unreachable(gpu: GpuUuid, reachable: Collection[GpuUuid] | None) -> str | None:
    if reachable is None or gpu in reachable:
        return None
    return "no CDI spec names it yet"


def _why_gone(gpu: GpuUuid, inventory: Inventory) -> str:
    found = inventory.by_uuid.get(gpu)
    if found is None:
        return "the driver no longer lists it"
    return "in MIG mode it can only be used by its MIG devices" if _partitioned(found) else "it is not offered any more"
