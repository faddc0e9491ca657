"""What the agent asks of a vendor's library: six small Protocols, with no vendor's word in them.

``nvml/`` implements them over NVIDIA's library; ``simulated/`` stands in for that library below its binding, so that
the same implementation runs in demo, tests and production. All methods may be called from the event loop; a library
that blocks is the implementation's own trouble. Errors are those of ``node_agent.errors.HardwareError``; one failing
GPU never fails the others.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Protocol

from msgspec import Struct, field

from node_agent.hardware.figures import Figures
from node_agent.kit.lane import Busy
from node_agent.model.gpu import ComputeCapability, GpuUuid, PartitionMode
from node_agent.model.inventory import DriverInfo, MissingGpu
from node_agent.model.links import LinkGraph
from node_agent.model.partition import Instance, PartitionProfile, PartitionUuid, Piece
from node_agent.model.pci import PciAddress


class GpuFacts(Struct, frozen=True, kw_only=True):
    """What a library tells of one GPU that it can read; the fields mean what they mean in ``model.gpu.Gpu``.

    ``failed`` tells a query that went wrong from one that the GPU does not support: the field's name, and why.
    """

    uuid: GpuUuid
    index: int
    product: str
    pci: PciAddress
    minor: int | None = None
    brand: str | None = None
    architecture: str | None = None
    compute_capability: ComputeCapability | None = None
    memory: int | None = None
    multiprocessors: int | None = None
    partition_mode: PartitionMode | None = None
    nvlink_domain: str | None = None
    ecc_enabled: bool | None = None
    addressing_mode: str | None = None
    nvlink_generation: int | None = None
    power_limit: int | None = None
    device_id: int | None = None
    subsystem_id: int | None = None
    serial: str | None = None
    vbios: str | None = None
    failed: Mapping[str, str] = field(default_factory=dict)


class Scan(Struct, frozen=True, kw_only=True):
    """All that one look at the driver found, in the driver's own order; ``failed`` as in the facts, of ``driver``."""

    driver: DriverInfo = field(default_factory=DriverInfo)
    gpus: tuple[GpuFacts, ...] = ()
    missing: tuple[MissingGpu, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)


class Discovery(Protocol):
    """Which GPUs there are."""

    @property
    def busy(self) -> Busy | None:
        """The call that the library is in, and since when: one that does not return shows here."""
        ...

    async def scan(self) -> Scan:
        """Look at every GPU. Raises DriverUnavailable where nothing at all can be asked."""
        ...


class Topology(Protocol):
    """How the GPUs reach each other."""

    async def links(self, gpus: Collection[GpuUuid]) -> LinkGraph:
        """The links among the given GPUs; a pair that cannot be asked has none."""
        ...


class EventKind(StrEnum):
    """FAULT: the driver reported an error code. LOST: a GPU is gone from the bus. CHANGED: look at the GPU again."""

    FAULT = "fault"
    LOST = "lost"
    CHANGED = "changed"


class HardwareEvent(Struct, frozen=True, kw_only=True):
    """What the driver reported. ``gpu`` is None where it did not say which GPU it means.

    ``code`` is the vendor's number of a fault (NVIDIA's Xid). ``instance`` and ``compute_instance`` name a partition
    where the fault is confined to one.
    """

    kind: EventKind
    gpu: GpuUuid | None
    code: int | None = None
    instance: int | None = None
    compute_instance: int | None = None


class Events(Protocol):
    """What the driver reports by itself. One subscription at a time; a new one replaces the last."""

    async def subscribe(self, gpus: Collection[GpuUuid]) -> Mapping[GpuUuid, Exception]:
        """Ask for the events of the given GPUs; answers the GPUs that cannot be monitored, and why.

        ``NotSupported`` there is neutral (the board has no events); any other error means that the GPU is unwatched.
        """
        ...

    async def next(self) -> HardwareEvent:
        """Wait for the next event. Raises HardwareError when the wait itself failed: subscribe again, with a pause."""
        ...

    async def close(self) -> None:
        """End the subscription."""
        ...


class Partitioning(Protocol):
    """Cutting GPUs into partitions and undoing it."""

    async def profiles(self, gpu: GpuUuid) -> tuple[PartitionProfile, ...]:
        """The shapes that this GPU can be cut to. Raises NotSupported where it cannot be partitioned."""
        ...

    async def instances(self, gpu: GpuUuid) -> tuple[Instance, ...]:
        """What lies on a GPU, half made or whole, in the order of the placements; nothing where partitioning is off."""
        ...

    async def set_mode(self, gpu: GpuUuid, enabled: bool) -> PartitionMode:
        """Turn partitioning on or off; the answer says whether the change still waits for something."""
        ...

    async def create(self, gpu: GpuUuid, piece: Piece) -> Instance:
        """Make an instance exactly there; a half-made one is undone before the error is raised."""
        ...

    async def destroy(self, gpu: GpuUuid, piece: Piece) -> None:
        """Remove the instance of that profile at that placement. Raises InUse while something uses it."""
        ...


class RecoveryAction(StrEnum):
    """What the driver says must be done before a GPU can be trusted again."""

    NONE = "none"
    RESET = "reset"
    REBOOT = "reboot"
    DRAIN = "drain"
    DRAIN_AND_RESET = "drain-and-reset"
    OTHER = "other"


class Throttle(StrEnum):
    """Why a GPU holds its clocks back. The cap on power is its normal state under load; slowdowns are not."""

    POWER_CAP = "power-cap"
    SLOWDOWN = "hardware-slowdown"
    POWER_BRAKE = "power-brake"
    HARDWARE_THERMAL = "hardware-thermal"
    SOFTWARE_THERMAL = "software-thermal"


class PcieLink(Struct, frozen=True, kw_only=True):
    """What the GPU's PCIe link runs at, and what GPU and slot could do together.

    A GPU at rest may run its link in a lower generation to save power, but never with fewer lanes; ``at_work`` says
    that it was not at rest.
    """

    generation: int
    width: int
    max_generation: int
    max_width: int
    at_work: bool = False


class GpuLinks(Struct, frozen=True, kw_only=True):
    """A GPU's links to other GPUs: how many are up, and which are of no use, by number and with whom they lead to.

    ``down`` are those that should be up: one that nothing is plugged into is none. ``noisy`` are up, but make so many
    errors that little gets through.
    """

    up: int
    down: Mapping[int, frozenset[GpuUuid]] = field(default_factory=dict)
    noisy: Mapping[int, frozenset[GpuUuid]] = field(default_factory=dict)


class Fabric(Struct, frozen=True, kw_only=True):
    """Whether a GPU has joined the fabric of its links, and what is wrong with that, in words."""

    joined: bool
    troubles: tuple[str, ...] = ()


class GpuReadings(Struct, frozen=True, kw_only=True):
    """One look at a GPU's state; what it cannot tell is None. Bytes, degrees Celsius, watts, shares from 0 to 1.

    Errors are counted since the driver was loaded or the GPU reset, retired pages over its life. ``figures`` are those
    that only people want to see, None where they were not asked for. ``failed`` tells a
    query that went wrong from one that the GPU does not support: the field's name, and why.
    """

    memory_used: int | None = None
    utilization: float | None = None
    temperature: int | None = None
    power: float | None = None
    recovery_action: RecoveryAction | None = None
    uncorrected_ecc_errors: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    pages_retired_for_single_bits: int | None = None
    pages_retired_for_double_bits: int | None = None
    page_retirement_pending: bool | None = None
    links: GpuLinks | None = None
    fabric: Fabric | None = None
    pcie: PcieLink | None = None
    throttles: frozenset[Throttle] | None = None
    figures: Figures | None = None
    failed: Mapping[str, str] = field(default_factory=dict)


class Readings(Protocol):
    """What a GPU measures of itself."""

    async def read(self, gpu: GpuUuid, *, figures: bool = False) -> GpuReadings:
        """Read one GPU, with its ``figures`` where they are wanted.

        Raises DeviceLost when it is off the bus, HardwareError when it answers nothing at all.
        """
        ...


class ComputeMode(StrEnum):
    """How many processes may open a GPU: any number, one, or none."""

    DEFAULT = "default"
    EXCLUSIVE_PROCESS = "exclusive-process"
    PROHIBITED = "prohibited"


class Modes(Protocol):
    """Who may open a device. A GPU in partitions has no mode of its own: NotSupported there, where it has to be set."""

    async def compute_mode(self, device: GpuUuid | PartitionUuid) -> ComputeMode:
        """The mode of a GPU or a partition. Raises DeviceLost where there is no such device."""
        ...

    async def set_compute_mode(self, device: GpuUuid | PartitionUuid, mode: ComputeMode) -> None:
        """Set it, until the driver is loaded anew. Raises HardwareError; needs root."""
        ...


class Provider(Protocol):
    """One vendor's library, as far as it implements the Protocols above; ``Modes`` is asked for by itself."""

    @property
    def discovery(self) -> Discovery: ...
    @property
    def topology(self) -> Topology: ...
    @property
    def events(self) -> Events: ...
    @property
    def partitioning(self) -> Partitioning: ...
    @property
    def readings(self) -> Readings: ...
