"""Puts the intervals of time-sliced GPUs together, for ``build``, and keeps them what the configuration says."""

import math
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from node_agent.allocation.grants import Grant
from node_agent.cdi.libraries import library_folders
from node_agent.cdi.roots import DriverRoots
from node_agent.config.settings import Settings
from node_agent.deviceplugin.selection import Selection
from node_agent.dra.time_slice_step import claimed_gpus
from node_agent.kit.lane import Lane
from node_agent.kit.latest import SETTLE_SECONDS, Latest, changes
from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.sharing.shares import Interval
from node_agent.sharing.smi import Program, Smi
from node_agent.sharing.time_slices import IntervalFile, TimeSlices

# How soon what failed is tried again.
RETRY_SECONDS = 60.0

SMI, NVML = PurePosixPath("/usr/bin/nvidia-smi"), "libnvidia-ml.so.1"


class TimeSliceKeeper:
    """A service: follows what is selected, which GPUs there are and what claims have."""

    def __init__(
        self,
        *,
        slices: TimeSlices,
        selection: Latest[Selection],
        inventory: Latest[Inventory],
        grants: Latest[Mapping[str, Grant]],
    ) -> None:
        self.slices = slices
        self._selection = selection
        self._inventory = inventory
        self._grants = grants
        self._again = False

    async def run(self) -> None:
        """Follow until cancelled."""
        seen: tuple[object, ...] = ()
        sources = self._selection, self._inventory, self._grants
        async for _ in changes(*sources, every=self._pause, settle=SETTLE_SECONDS):
            inventory, claimed = self._inventory.value, claimed_gpus(self._grants.value.values())
            # Nothing is known of GPUs before the first look, nor while the driver cannot be asked.
            if not inventory.generation or inventory.problem:
                continue
            if self._again or seen != (self._selection.value, inventory, claimed):
                seen = (self._selection.value, inventory, claimed)
                self._again = not await self.slices.keep(self._configured(), inventory.by_uuid.keys(), claimed)

    def _pause(self) -> float:
        return RETRY_SECONDS if self._again else math.inf

    def _configured(self) -> Mapping[GpuUuid, Interval]:
        shared = self._selection.value.shares(self._inventory.value).gpus
        # The turns of a MIG device have no interval of their own.
        known = (gpu for gpu in self._inventory.value.by_uuid if gpu in shared)
        return {gpu: interval for gpu in known if (interval := shared[gpu].interval) is not None}


def time_slices(settings: Settings, roots: DriverRoots, files: Lane) -> TimeSlices:
    """The intervals of this node, set by the driver's own program."""
    smi = Smi(lambda: find_smi(roots, settings.paths.run_dir / "nvml"))
    file = IntervalFile(settings.paths.state_dir / "time-slices.json")
    return TimeSlices(set_interval=smi.set_interval, file=file, lane=files)


def find_smi(roots: DriverRoots, folder: Path) -> Program | None:
    """The driver's nvidia-smi; where the driver has a root of its own, with a link to its NVML in ``folder``."""
    path = roots.driver_file(roots.resolve(SMI))
    if not path.is_file():
        return None
    libraries = (roots.driver_file(roots.resolve(place / NVML)) for place in library_folders(roots))
    library = next(filter(Path.is_file, libraries), None) if roots.driver != Path("/") else None
    if library is None:
        return Program(path=path)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    link = folder / NVML
    if not link.is_symlink() or link.readlink() != library:
        link.unlink(missing_ok=True)
        link.symlink_to(library)
    return Program(path=path, library_folder=folder)
