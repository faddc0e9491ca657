"""How healthy a published device is: for taints, the kubelet's stream and claims' status alike. Pure."""

from node_agent.model.device import PublishedDevice
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Instance
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Place

# The driver counts its instances from 0.
_NOT_MADE = Instance(id=-1)


def health_of(device: PublishedDevice, report: HealthReport, inventory: Inventory) -> DeviceHealth:
    """What reaches the device. A partition that is yet to be made is as sound as its GPU."""
    if device.part is None:
        return report.of_group(device.gpus)
    (gpu,) = device.gpus
    live = inventory.by_place.get(Place(gpu=gpu, part=device.part))
    instance = Instance(id=live.instance, compute=live.compute_instance) if live is not None else _NOT_MADE
    return report.of_instance(gpu, instance)


def causes_of(device: PublishedDevice, report: HealthReport, inventory: Inventory) -> list[tuple[GpuUuid, Cause]]:
    """What is to be told of a device: all that is known of its GPUs, and of a partition what reaches it."""
    if device.part is not None:
        return [(device.gpus[0], cause) for cause in health_of(device, report, inventory).causes]
    return [(gpu, cause) for gpu in device.gpus for cause in report.known_of(gpu).causes]
