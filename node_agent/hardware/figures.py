"""What a GPU measures of itself for people to see: asked only while somebody looks."""

from collections.abc import Mapping

from msgspec import Struct, field

from node_agent.model.partition import PartitionUuid


class Memory(Struct, frozen=True, kw_only=True):
    """Bytes of a GPU or a partition. ``used`` is without what the driver has ``reserved`` for itself, where it says."""

    total: int
    used: int
    free: int
    reserved: int | None = None


class Activity(Struct, frozen=True, kw_only=True):
    """How busy parts of a GPU were between two looks: shares from 0 to 1, and bytes a second over PCIe."""

    graphics: float | None = None
    tensor: float | None = None
    memory: float | None = None
    pcie_sent: float | None = None
    pcie_received: float | None = None


class Figures(Struct, frozen=True, kw_only=True):
    """One look at a GPU's figures; what it cannot tell is None.

    Clocks are in MHz, temperatures in degrees Celsius, utilizations shares from 0 to 1, ``energy`` is in mJ and
    ``nvlink_sent`` and ``nvlink_received`` in KiB since the driver was loaded; ``power_held`` and ``heat_held`` are the
    nanoseconds for which clocks were held back. Errors are counted since the driver was loaded, those ``ever`` over the
    GPU's life. ``licensed`` says whether a feature has the licence that it takes. ``partitions`` has the memory of each
    live partition; ``activities`` those of the GPU under None, or of its GPU instances by their ids. ``failed`` as in
    ``GpuReadings``.
    """

    memory: Memory | None = None
    sm_clock: int | None = None
    memory_clock: int | None = None
    memory_temperature: int | None = None
    memory_utilization: float | None = None
    encoder_utilization: float | None = None
    decoder_utilization: float | None = None
    energy: int | None = None
    licensed: bool | None = None
    pcie_replays: int | None = None
    correctable_remapped_rows: int | None = None
    uncorrectable_remapped_rows: int | None = None
    corrected_errors: int | None = None
    uncorrected_errors: int | None = None
    corrected_errors_ever: int | None = None
    uncorrected_errors_ever: int | None = None
    power_held: int | None = None
    heat_held: int | None = None
    nvlink_sent: int | None = None
    nvlink_received: int | None = None
    nvlink_flit_errors: int | None = None
    nvlink_data_errors: int | None = None
    nvlink_replays: int | None = None
    nvlink_recoveries: int | None = None
    partitions: Mapping[PartitionUuid, Memory] = field(default_factory=dict)
    activities: Mapping[int | None, Activity] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
