"""AMD's GPUs behind the hardware Protocols: a thread for all that is read, since files in /sys may block as well."""

from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from node_agent.errors import NotSupported
from node_agent.hardware.amd import links, readings
from node_agent.hardware.amd.scan import scan
from node_agent.hardware.null import NullProvider
from node_agent.hardware.provider import ComputeMode, GpuReadings, Scan
from node_agent.kit.lane import Busy, Lane
from node_agent.kit.logs import Log, Steady
from node_agent.model.gpu import GpuUuid
from node_agent.model.links import LinkGraph
from node_agent.model.partition import PartitionUuid
from node_agent.model.pci import PciAddress

log = Log(__name__)


class AmdProvider(NullProvider):
    """AMD's GPUs on this node; an async context manager that owns the thread. ``sysfs`` is /sys of the host.

    There are no events, no partitions and no compute modes: what is asked of these is not supported.
    """

    why = "of AMD's GPUs only what /sys tells is served; {} cannot do that"

    def __init__(self, sysfs: Path = Path("/sys")) -> None:
        self._sysfs = sysfs
        self._lane = Lane("amdgpu", grace=0)
        self._threads = ExitStack()
        # Where each GPU was at the last look.
        self._places: dict[GpuUuid, PciAddress] = {}
        self._trouble = Steady()

    async def __aenter__(self) -> "AmdProvider":
        self._threads.enter_context(self._lane)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads.close()

    @property
    def busy(self) -> Busy | None:
        return self._lane.busy

    async def scan(self) -> Scan:
        found = await self._lane.run("scan", lambda: scan(self._sysfs))
        self._places = {gpu.uuid: gpu.pci for gpu in found.gpus}
        return found

    async def links(self, gpus: Collection[GpuUuid]) -> LinkGraph:
        places = {gpu: self._places[gpu] for gpu in gpus if gpu in self._places}
        try:
            return await self._lane.run("links", lambda: links.links(self._sysfs, places))
        except OSError as error:
            if self._trouble.should_say(str(error)):
                log.warning("links cannot be read", reason=error)
            return LinkGraph()

    async def compute_mode(self, device: GpuUuid | PartitionUuid) -> ComputeMode:
        raise NotSupported(self.why.format(device))

    async def set_compute_mode(self, device: GpuUuid | PartitionUuid, mode: ComputeMode) -> None:
        raise NotSupported(self.why.format(device))

    async def read(self, gpu: GpuUuid, *, figures: bool = False) -> GpuReadings:
        place = self._places.get(gpu)
        return await self._lane.run("read", lambda: readings.read(self._sysfs, gpu, place, figures=figures))
