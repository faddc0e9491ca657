"""How the GPUs of a node are cut: what each can be cut to, and what lies on it. ``inventory`` has it looked at."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from msgspec import Struct, field

from node_agent.errors import DriverUnavailable, HardwareError, NotSupported
from node_agent.hardware.provider import GpuFacts, Partitioning
from node_agent.model.gpu import GpuUuid
from node_agent.model.partition import Instance, PartitionProfile

T = TypeVar("T")


class Cuts(Struct, frozen=True, kw_only=True):
    """As in ``Inventory``; ``failed`` has what a GPU did not tell, and why."""

    profiles: Mapping[GpuUuid, tuple[PartitionProfile, ...]] = field(default_factory=dict)
    instances: Mapping[GpuUuid, tuple[Instance, ...]] = field(default_factory=dict)
    failed: Mapping[GpuUuid, Mapping[str, str]] = field(default_factory=dict)

    @property
    def unlisted(self) -> Mapping[GpuUuid, str]:
        return {gpu: failed["instances"] for gpu, failed in self.failed.items() if "instances" in failed}


class CutReader:
    """Asks ``partitioning``. What a GPU can be cut to is asked once, until ``forget``: it takes a hundred calls."""

    def __init__(self, partitioning: Partitioning) -> None:
        self._partitioning = partitioning
        self._profiles: dict[GpuUuid, tuple[PartitionProfile, ...]] = {}

    def forget(self) -> None:
        """Ask for all again: another driver may know other profiles."""
        self._profiles = {}

    async def read(self, gpus: Iterable[GpuFacts]) -> Cuts:
        """One look. A GPU that does not tell costs the others nothing. Raises DriverUnavailable."""
        instances: dict[GpuUuid, tuple[Instance, ...]] = {}
        failed: dict[GpuUuid, dict[str, str]] = {}
        modes = {gpu.uuid: gpu.partition_mode for gpu in gpus if gpu.partition_mode is not None}
        for gpu, mode in modes.items():
            troubles: dict[str, str] = {}
            if gpu not in self._profiles:
                await _ask(self._partitioning.profiles, gpu, "profiles", self._profiles, troubles)
            if mode.active:
                await _ask(self._partitioning.instances, gpu, "instances", instances, troubles)
            if troubles:
                failed[gpu] = troubles
        profiles = {gpu: self._profiles[gpu] for gpu in modes if self._profiles.get(gpu)}
        return Cuts(profiles=profiles, instances=instances, failed=failed)


async def _ask(
    ask: Callable[[GpuUuid], Awaitable[tuple[T, ...]]],
    gpu: GpuUuid,
    what: str,
    answers: dict[GpuUuid, tuple[T, ...]],
    troubles: dict[str, str],
) -> None:
    """Put the answer with the others, or the trouble that there was."""
    try:
        answers[gpu] = await ask(gpu)
    except DriverUnavailable:
        raise
    except NotSupported:
        # A guest may be told the mode and have no say in it.
        answers[gpu] = ()
    except HardwareError as error:
        troubles[what] = str(error)
