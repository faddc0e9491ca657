"""A node with GPUs, one of them cut, and who holds what of it."""

from collections.abc import Mapping
from typing import Any

from node_agent.allocation.grants import Door, Hold, Holder
from node_agent.hardware.figures import Figures, Memory
from node_agent.hardware.provider import GpuReadings
from node_agent.health.looks import Look
from node_agent.kubelet.podresources import PodDevice
from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Part, Placement
from node_agent.reporting.holders import Holding
from node_agent.reporting.metrics.devices import Naming
from tests.fakes.builders import cut, gpu, inventory, partition, uuid

GIB = 1 << 30
NOW = 1000.0
A, B = uuid(0), uuid(1)
PARTS = [partition(gpu(1), "1g.18gb", start=number, number=number + 7) for number in range(2)]
NAMING = Naming(node="node-a", host_labels=("Hostname",), driver_label="DCGM_FI_DRIVER_VERSION", driver="580.95.05")


def node(*, whole: bool = False) -> Inventory:
    """Two GPUs, of which B is cut into two instances."""
    made = inventory([gpu(0), gpu(1)])
    return made if whole else cut(made, {1: PARTS})


def memory(used: int) -> Memory:
    return Memory(total=16 * GIB, used=used, free=15 * GIB - used, reserved=GIB)


def look(at: float = NOW, **readings: Any) -> Look:
    """A look at a GPU with some of everything."""
    figures = Figures(
        memory=Memory(total=140 * GIB, used=2 * GIB, free=137 * GIB, reserved=GIB),
        sm_clock=345,
        memory_utilization=0.25,
        energy=1234,
        memory_temperature=31,
        partitions={PARTS[0].uuid: memory(GIB), PARTS[1].uuid: memory(0)},
    )
    told = {"temperature": 29, "power": 76.0, "utilization": 0.5, "row_remap_failed": False, "figures": figures}
    return Look(at=at, readings=GpuReadings(**{**told, **readings}))


def looks(**readings: Any) -> Mapping[GpuUuid, Look]:
    return {A: look(**readings), B: look(**readings)}


def holding(gpu: GpuUuid, *pods: str, share: str | None = None, at: int | None = None, admin: bool = False) -> Holding:
    """What these pods have of a GPU, or of its instance at a memory slice."""
    part = None if at is None else Part(profile="1g.18gb", placement=Placement(start=at, length=1))
    hold = Hold(device=f"{gpu}-{share}", gpus=(gpu,), share_id=share, part=part, admin=admin)
    holder = Holder(door=Door.LIMIT, id=f"nvidia.com/gpu/{gpu}-{share}", name="nvidia.com/gpu")
    devices = (PodDevice(namespace="team", pod=pod, container="main", of="nvidia.com/gpu", device=gpu) for pod in pods)
    return Holding(holder=holder, hold=hold, pods=tuple(devices))
