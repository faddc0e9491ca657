"""The provider of a node without GPUs: everything may be asked, and there is nothing."""

import asyncio
from collections.abc import Collection, Mapping

from node_agent.errors import DeviceLost, NotSupported
from node_agent.hardware.provider import ComputeMode, GpuReadings, HardwareEvent, Scan
from node_agent.kit.lane import Busy
from node_agent.model.gpu import GpuUuid, PartitionMode
from node_agent.model.links import LinkGraph
from node_agent.model.partition import Instance, PartitionProfile, PartitionUuid, Piece


class NullProvider:
    """All six Protocols in one, since none has anything to keep apart; ``why`` tells of a GPU that is asked for."""

    why = "this node has no GPU {}"

    @property
    def discovery(self) -> "NullProvider":
        return self

    topology = events = partitioning = readings = modes = discovery

    @property
    def busy(self) -> Busy | None:
        return None

    async def scan(self) -> Scan:
        return Scan()

    async def links(self, gpus: Collection[GpuUuid]) -> LinkGraph:
        return LinkGraph()

    async def subscribe(self, gpus: Collection[GpuUuid]) -> Mapping[GpuUuid, Exception]:
        return {gpu: NotSupported(self.why.format(gpu)) for gpu in gpus}

    async def next(self) -> HardwareEvent:
        await asyncio.Event().wait()
        raise AssertionError("nothing ever happens")

    async def close(self) -> None:
        return None

    async def profiles(self, gpu: GpuUuid) -> tuple[PartitionProfile, ...]:
        raise NotSupported(self.why.format(gpu))

    async def instances(self, gpu: GpuUuid) -> tuple[Instance, ...]:
        return ()

    async def set_mode(self, gpu: GpuUuid, enabled: bool) -> PartitionMode:
        raise NotSupported(self.why.format(gpu))

    async def create(self, gpu: GpuUuid, piece: Piece) -> Instance:
        raise NotSupported(self.why.format(gpu))

    async def destroy(self, gpu: GpuUuid, piece: Piece) -> None:
        raise NotSupported(f"{gpu} has no {piece}: {self.why.format(gpu)}")

    async def read(self, gpu: GpuUuid, *, figures: bool = False) -> GpuReadings:
        raise DeviceLost(self.why.format(gpu))

    async def compute_mode(self, device: GpuUuid | PartitionUuid) -> ComputeMode:
        raise DeviceLost(self.why.format(device))

    async def set_compute_mode(self, device: GpuUuid | PartitionUuid, mode: ComputeMode) -> None:
        raise DeviceLost(self.why.format(device))
