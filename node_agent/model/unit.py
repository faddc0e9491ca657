"""What is given out by itself: a GPU, or a partition of one."""

from collections.abc import Iterable

from msgspec import Struct

from node_agent.model.gpu import Gpu
from node_agent.model.health import Instance
from node_agent.model.naming import named
from node_agent.model.partition import DeviceUuid, Partition, Place


class Unit(Struct, frozen=True, kw_only=True):
    """A GPU, or the ``partition`` of it. Sizes that it does not tell are None."""

    gpu: Gpu
    partition: Partition | None = None

    @property
    def uuid(self) -> DeviceUuid:
        return self.gpu.uuid if self.partition is None else self.partition.uuid

    @property
    def index(self) -> str:
        """The driver's present number for it, as ``3`` or ``3:1``."""
        return str(self.gpu.index) if self.partition is None else f"{self.gpu.index}:{self.partition.index}"

    @property
    def name(self) -> str:
        """For people."""
        return self.gpu.name if self.partition is None else f"{self.partition.part} of {self.gpu.name}"

    @property
    def place(self) -> Place:
        return Place(gpu=self.gpu.uuid) if self.partition is None else self.partition.place

    @property
    def memory(self) -> int | None:
        """Bytes."""
        return self.gpu.memory if self.partition is None else self.partition.memory

    @property
    def instance(self) -> Instance | None:
        """What the driver calls the partition when it tells of its faults."""
        if self.partition is None:
            return None
        return Instance(id=self.partition.instance, compute=self.partition.compute_instance)

    def is_meant(self, words: Iterable[str]) -> bool:
        """Whether one of the words names it, or its GPU."""
        words = tuple(words)
        return self.uuid in words or self.index in words or named(words, self.gpu)
