"""Of what there are series: each GPU, or in its place each MIG device that it is cut to, with who holds it. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from node_agent.hardware.figures import Activity, Figures, Memory
from node_agent.hardware.provider import GpuReadings
from node_agent.health.looks import Look, Looks
from node_agent.kubelet.podresources import PodDevice
from node_agent.model.gpu import Gpu
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Instance
from node_agent.reporting.holders import Holding
from node_agent.reporting.metrics.families import labels_text

NO_LOOK = Look(at=0.0, readings=GpuReadings())

# What was told longer ago is not so any more: the driver hangs.
STALE_SECONDS = 60.0


class Naming(Struct, frozen=True, kw_only=True):
    """How the labels are called and filled that do not come from the device."""

    node: str
    host_labels: tuple[str, ...]
    driver_label: str
    driver: str


class Device(Struct, frozen=True, kw_only=True):
    """A GPU, or where it is cut one ``instance`` of it; ``holders`` are without those who only look at it."""

    gpu: Gpu
    look: Look
    memory: Memory | None
    instance: Instance | None = None
    holders: tuple[Holding, ...] = ()

    @property
    def figures(self) -> Figures:
        return self.look.readings.figures or Figures()

    @property
    def activity(self) -> Activity:
        return self.figures.activities.get(self.instance.id if self.instance else None, Activity())

    @property
    def containers(self) -> tuple[tuple[Holding, PodDevice], ...]:
        """Every container that has it or a share of it."""
        return tuple((holding, pod) for holding in self.holders for pod in holding.pods)


class Labelled(Struct, frozen=True, kw_only=True):
    """A device with its labels, as they stand between the braces; several times where each share has its own."""

    device: Device
    labels: str


def devices(inventory: Inventory, looks: Looks, holdings: Sequence[Holding], now: float) -> tuple[Device, ...]:
    """Every device of the node; what was not looked at lately has no figures. ``now`` is wall-clock time in seconds."""
    held = {gpu: [one for one in holdings if gpu in one.hold.gpus and not one.hold.admin] for gpu in inventory.by_uuid}
    return tuple(
        device
        for gpu in inventory.gpus
        for device in _of_gpu(inventory, gpu, _fresh(looks.get(gpu.uuid), now), held[gpu.uuid])
    )


def labelled(all_devices: Iterable[Device], naming: Naming, *, per_share: bool) -> tuple[Labelled, ...]:
    """The devices with their labels; with ``per_share`` once for each container where several have one."""
    return tuple(one for device in all_devices for one in _labelled(device, naming, per_share))


def device_labels(device: Device) -> dict[str, str]:
    """What tells a device from others, and what it is."""
    gpu, instance = device.gpu, device.instance
    return {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": _bus_id(gpu),
        "device": f"nvidia{gpu.minor}" if gpu.minor is not None else "",
        "modelName": gpu.product,
        "GPU_I_PROFILE": instance.profile if instance else "",
        "GPU_I_ID": str(instance.id) if instance else "",
    }


def _labelled(device: Device, naming: Naming, per_share: bool) -> Iterator[Labelled]:
    own = {
        **device_labels(device),
        **dict.fromkeys(naming.host_labels, naming.node),
        naming.driver_label: naming.driver,
    }
    containers = device.containers
    if len(containers) == 1 or (per_share and containers):
        for number, (holding, pod) in enumerate(containers):
            share = holding.hold.share_id or str(number)
            shared = {"vgpu": share} if len(containers) > 1 else {}
            yield Labelled(device=device, labels=labels_text({**own, **shared, **_pod_labels(pod)}))
    else:
        yield Labelled(device=device, labels=labels_text(own))


def _pod_labels(pod: PodDevice) -> Mapping[str, str]:
    return {"container": pod.container, "namespace": pod.namespace, "pod": pod.pod}


def _of_gpu(inventory: Inventory, gpu: Gpu, look: Look, held: Sequence[Holding]) -> Iterator[Device]:
    figures = look.readings.figures or Figures()
    instances = inventory.instances.get(gpu.uuid, ())
    for instance in instances:
        memory = next(
            (figures.partitions[one.uuid] for one in instance.partitions if one.uuid in figures.partitions), None
        )
        holders = tuple(one for one in held if _is_of(one, instance))
        yield Device(gpu=gpu, look=look, memory=memory, instance=instance, holders=holders)
    if not instances:
        yield Device(gpu=gpu, look=look, memory=figures.memory, holders=tuple(held))


def _is_of(holding: Holding, instance: Instance) -> bool:
    part = holding.hold.part
    return part is None or (part.placement == instance.placement)


def _fresh(look: Look | None, now: float) -> Look:
    return look if look is not None and now - look.at < STALE_SECONDS else NO_LOOK


def _bus_id(gpu: Gpu) -> str:
    """As NVML writes it: the domain with eight digits, all in capitals."""
    domain, _, rest = str(gpu.pci).partition(":")
    return f"{domain.zfill(8)}:{rest}".upper()
