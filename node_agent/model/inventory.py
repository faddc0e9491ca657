"""One frozen snapshot of the node's GPUs; the generation grows with each snapshot that differs from the last."""

from collections.abc import Iterable, Mapping
from functools import cached_property

from msgspec import Struct, field
from msgspec.structs import replace

from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.links import LinkGraph
from node_agent.model.partition import DeviceUuid, Instance, Partition, PartitionProfile, PartitionUuid, Place
from node_agent.model.vendor import NVIDIA, Vendor


class DriverInfo(Struct, frozen=True, kw_only=True):
    """Versions of the driver; ``cuda`` is the highest CUDA version that it serves, as ``12.4``."""

    version: str | None = None
    cuda: str | None = None
    library: str | None = None


class MissingGpu(Struct, frozen=True, kw_only=True):
    """A GPU that the driver counts but cannot be read: where it is, as far as known, and why."""

    index: int
    reason: str
    uuid: GpuUuid | None = None


class Inventory(Struct, frozen=True, kw_only=True, dict=True):
    """What the node has. ``gpus`` are in the order of their PCI addresses; ``missing`` are counted but unreadable.

    ``profiles`` are what each GPU that can be cut can be cut to, and ``instances`` what lies on those that are cut now;
    ``unlisted`` says of which of these that cannot be told, and why. ``problem`` says why the driver as a whole cannot
    be asked, in words for the operator; then there are no GPUs; ``without_library`` says that it is for want of
    a library that fits the driver, and not of the driver itself.
    """

    generation: int = 0
    vendor: Vendor = NVIDIA
    driver: DriverInfo = field(default_factory=DriverInfo)
    gpus: tuple[Gpu, ...] = ()
    links: LinkGraph = field(default_factory=LinkGraph)
    missing: tuple[MissingGpu, ...] = ()
    profiles: Mapping[GpuUuid, tuple[PartitionProfile, ...]] = field(default_factory=dict)
    instances: Mapping[GpuUuid, tuple[Instance, ...]] = field(default_factory=dict)
    unlisted: Mapping[GpuUuid, str] = field(default_factory=dict)
    problem: str | None = None
    without_library: bool = False

    def __post_init__(self) -> None:
        _all_different("UUID", (gpu.uuid for gpu in self.gpus))
        _all_different("name", (gpu.name for gpu in self.gpus))
        _all_different("PCI address", (gpu.pci for gpu in self.gpus))
        if self.problem is not None and self.gpus:
            raise ValueError(f"a driver that cannot be asked ({self.problem}) shows no GPUs, not {len(self.gpus)}")

    @cached_property
    def by_uuid(self) -> dict[GpuUuid, Gpu]:
        return {gpu.uuid: gpu for gpu in self.gpus}

    @cached_property
    def partitions(self) -> dict[PartitionUuid, Partition]:
        """The live partitions of all GPUs, in the order of the GPUs and of their placements."""
        lying = (one for gpu in self.gpus for one in self.instances.get(gpu.uuid, ()))
        return {partition.uuid: partition for one in lying for partition in one.partitions}

    @cached_property
    def by_place(self) -> dict[Place, Partition]:
        """The same by what they take of their GPUs."""
        return {partition.place: partition for partition in self.partitions.values()}

    @property
    def clique(self) -> str | None:
        """``<cluster>.<clique>`` where all GPUs have joined the same one: one that has not yet may join another."""
        found = {gpu.nvlink_domain for gpu in self.gpus}
        return found.pop() if len(found) == 1 else None

    def place_of(self, device: DeviceUuid) -> Place | None:
        """What of the hardware a GPU or partition is; None for a partition that is not there (any more)."""
        if not device.startswith("MIG-"):
            return Place(gpu=GpuUuid(device))
        partition = self.partitions.get(PartitionUuid(device))
        return None if partition is None else partition.place

    def has(self, place: Place) -> bool:
        """Whether a partition lies at a place, or a GPU can be used as a whole, as far as the last look knows."""
        gpu = self.by_uuid.get(place.gpu)
        return place in self.by_place if place.part is not None else gpu is not None and not gpu.partitioned

    def same_content(self, other: "Inventory") -> bool:
        """True where the two differ in nothing but the generation."""
        return replace(self, generation=other.generation) == other


def _all_different(what: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"two GPUs of one node have the {what} {value}")
        seen.add(value)
