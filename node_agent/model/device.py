"""What is offered as one device in a ResourceSlice, and the hardware that it stands for."""

from enum import StrEnum

from msgspec import Struct

from node_agent.model.gpu import DeviceName, GpuUuid
from node_agent.model.partition import Part, Place


class DeviceKind(StrEnum):
    """The values of the attribute ``type``."""

    GPU = "gpu"
    GROUP = "group"
    MIG = "mig"


class PublishedDevice(Struct, frozen=True, kw_only=True):
    """A device by the name under which it is published; whoever holds it holds all of ``gpus``.

    A partition is the ``part`` of one GPU, whether it is there already or is made for whoever gets it.
    """

    name: DeviceName
    kind: DeviceKind
    gpus: tuple[GpuUuid, ...]
    part: Part | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """What it takes of the hardware."""
        return tuple(Place(gpu=gpu, part=self.part) for gpu in self.gpus)

    def __post_init__(self) -> None:
        if not self.gpus or len(set(self.gpus)) != len(self.gpus):
            raise ValueError(f"{self.name}: a device stands for one GPU or for several different ones")
        if (self.part is not None) is not (self.kind is DeviceKind.MIG) or (self.part and len(self.gpus) > 1):
            raise ValueError(f"{self.name}: a MIG device is a part of one GPU, and no other device is a part")
