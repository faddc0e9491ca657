"""The library while it is open: init, shutdown, and the handles of the GPUs that the driver lists.

NVML lists GPUs once, at its first init, and is useless after the driver was reloaded underneath it. So the session
starts anew when the kernel has other GPUs than then, and when the library says that the driver is gone.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pynvml
from msgspec import Struct

from node_agent.errors import DeviceLost, DriverUnavailable, HardwareError, LibraryUnusable, NotSupported
from node_agent.hardware.nvml.translate import Calls, Handle
from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import MissingGpu

# What UNKNOWN means when everything answers it; of a single query it means nothing in particular.
_NODES_LOST = "in a container, its device cgroup lost /dev/nvidia*, as systemd reloads do: restart the pod"


class Listed(Struct, frozen=True, kw_only=True):
    """One GPU that the driver lists and that tells who it is."""

    index: int
    uuid: GpuUuid
    handle: Handle


class Session:
    """Belongs to the thread of ``calls``; only ``handle``, ``generation`` and ``guard`` are for others too.

    ``generation`` counts how often the library was closed, which voids all that it gave out. ``guard`` is held while
    the library is opened or closed: who calls it from another thread holds it meanwhile, and looks at the generation.
    """

    def __init__(self, sysfs: Path = Path("/sys")) -> None:
        self.calls = Calls()
        self.guard = threading.RLock()
        self.generation = 0
        self._bound_gpus = sysfs / "bus/pci/drivers/nvidia"
        self._bound: frozenset[str] = frozenset()
        self._handles: dict[GpuUuid, Handle] = {}
        self._open = False

    def handle(self, gpu: GpuUuid) -> Handle:
        """The handle of a GPU. Raises DeviceLost where the last ``refresh`` did not list it."""
        # NVML's own look-up by UUID may fail for a healthy GPU because another one is lost.
        if not self._open:
            raise DriverUnavailable("the driver is not open: it is tried again at each look")
        try:
            return self._handles[gpu]
        except KeyError:
            raise DeviceLost(f"the driver does not list {gpu}: it is off the bus, or was taken away") from None

    @property
    def gpus(self) -> tuple[GpuUuid, ...]:
        return tuple(self._handles)

    def ensure_open(self) -> None:
        """Open the library, anew where the kernel has other GPUs by now. Raises DriverUnavailable."""
        bound = self._bound_now()
        # Where there is nothing to lose, a fresh start costs nothing and finds whatever came late.
        if self._open and (bound != self._bound or not self._handles):
            self.close()
        if self._open:
            return
        with self.guard:
            try:
                self.calls(pynvml.nvmlInit)
            except HardwareError as error:
                advice = f": {_NODES_LOST}" if error.code == pynvml.NVML_ERROR_UNKNOWN else ""
                # A library that does not know how to begin is none.
                kind = LibraryUnusable if isinstance(error, LibraryUnusable | NotSupported) else DriverUnavailable
                raise kind(f"{error}{advice}", call=error.call, code=error.code) from error
        self._open, self._bound = True, bound

    def close(self) -> None:
        """Shut the library down; all handles are void then."""
        self._handles = {}
        if not self._open:
            return
        self._open = False
        # A driver that is gone refuses this too, and leaves nothing to shut down.
        with self.guard, suppress(HardwareError):
            self.generation += 1
            self.calls(pynvml.nvmlShutdown)

    def refresh(self) -> tuple[list[Listed], list[MissingGpu]]:
        """List the GPUs again: those that tell who they are, and those that do not, with the reason."""
        listed: dict[GpuUuid, Listed] = {}
        missing: list[MissingGpu] = []
        codes: set[int | None] = set()
        for index in range(self._count()):
            try:
                found = self._listed(index, listed)
            except DriverUnavailable:
                raise
            except HardwareError as error:
                codes.add(error.code)
                missing.append(MissingGpu(index=index, reason=str(error)))
            else:
                listed[found.uuid] = found
        if codes == {pynvml.NVML_ERROR_UNKNOWN} and not listed:
            raise DriverUnavailable(f"no GPU answers; {missing[0].reason}: {_NODES_LOST}")
        self._handles = {gpu.uuid: gpu.handle for gpu in listed.values()}
        return list(listed.values()), missing

    def _count(self) -> int:
        """How many GPUs the driver counts, with those that do not answer."""
        # This asks no GPU, so a failure of any kind is the driver's own.
        try:
            count: int = self.calls(pynvml.nvmlDeviceGetCount)
        except HardwareError as error:
            kind = LibraryUnusable if isinstance(error, LibraryUnusable) else DriverUnavailable
            raise kind(str(error), call=error.call, code=error.code) from error
        return count

    def _listed(self, index: int, before: Mapping[GpuUuid, Listed]) -> Listed:
        handle = self.calls(pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid = GpuUuid(self.calls.text(pynvml.nvmlDeviceGetUUID, handle))
        if uuid in before:
            raise HardwareError(f"it says that it is {uuid}, as the GPU with index {before[uuid].index} does")
        return Listed(index=index, uuid=uuid, handle=handle)

    def _bound_now(self) -> frozenset[str]:
        """The PCI devices that the kernel's nvidia driver drives at present; none where the kernel does not say."""
        try:
            return frozenset(entry.name for entry in self._bound_gpus.iterdir() if ":" in entry.name)
        except OSError:
            return frozenset()
