"""What is offered as one device in a ResourceSlice, and the hardware that it stands for."""

from dataclasses import dataclass
from enum import StrEnum

from node_agent.model.gpu import DeviceName, GpuUuid


class DeviceKind(StrEnum):
    """The values of the attribute ``type``."""

    GPU = "gpu"
    GROUP = "group"


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedDevice:
    """A device by the name under which it is published; whoever holds it holds all of ``gpus``."""

    name: DeviceName
    kind: DeviceKind
    gpus: tuple[GpuUuid, ...]

    def __post_init__(self) -> None:
        if not self.gpus or len(set(self.gpus)) != len(self.gpus):
            raise ValueError(f"{self.name}: a device stands for one GPU or for several different ones")
