"""The GPUs' figures by the names of DCGM-exporter, so that its dashboards and alerts work: as far as NVML can tell.

Names, types and units are those of its releases up to 4.8, or where the newer ones are wanted of those from 4.9 on. Of
a MIG device the figures of the whole board are repeated, and its memory is its own; what a GPU cannot tell has no
series.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from node_agent.health.xids import xid
from node_agent.model.gpu import GpuUuid
from node_agent.reporting.metrics.devices import Device, Labelled
from node_agent.reporting.metrics.families import Family, Number, Series, labels_text

Names = Literal["legacy", "current"]

MIB, MHZ = 1 << 20, 1_000_000

# A memory that is said to be hotter has no sensor.
HOTTEST = 200


# What the labels about the node are called; ``Hostname`` became ``hostname`` in release 4.8.3.
HOST_LABELS: Mapping[Names, tuple[str, ...]] = {"legacy": ("Hostname", "hostname"), "current": ("hostname",)}
DRIVER_LABEL: Mapping[Names, str] = {"legacy": "DCGM_FI_DRIVER_VERSION", "current": "DCGM_FI_SYSTEM_DRIVER_VERSION"}


class Field(Struct, frozen=True, kw_only=True):
    """One family: its names and help without and with ``current`` names, and where its value comes from.

    ``factor`` makes of the value what the current name means; one that is whole stays so.
    """

    name: str
    help: str
    value: Callable[[Device], Number | None]
    kind: Literal["gauge", "counter"] = "gauge"
    current: str = ""
    current_help: str = ""
    factor: Number = 1

    def named(self, names: Names) -> str:
        return self.current or self.name if names == "current" else self.name

    def described(self, names: Names) -> str:
        return self.current_help or self.help if names == "current" else self.help

    def valued(self, device: Device, names: Names) -> Number | None:
        value = self.value(device)
        return value if value is None or names == "legacy" or self.factor == 1 else value * self.factor


class XidField(Struct, frozen=True, kw_only=True):
    """A family of Xids: its name, and with ``current`` names."""

    name: str
    current: str
    kind: Literal["gauge", "counter"]
    help: str


XID_FIELDS = (
    XidField(
        name="DCGM_FI_DEV_XID_ERRORS",
        current="DCGM_FI_DEV_XID_ERROR",
        kind="gauge",
        help="Value of the last XID error encountered.",
    ),
    XidField(
        name="DCGM_EXP_XID_ERRORS_TOTAL",
        current="DCGM_EXP_XID_ERRORS_TOTAL",
        kind="counter",
        help="XID errors, by their number, since the agent's state was made.",
    ),
)


def families(
    devices: Sequence[Labelled],
    last_xids: Mapping[GpuUuid, int],
    counts: Mapping[tuple[GpuUuid, int], int],
    names: Names,
) -> list[Family]:
    """All families, in the order of the table; those of Xids are of whole GPUs and come last."""
    plain = [
        Family(
            name=field.named(names), kind=field.kind, help=field.described(names), series=_series(field, devices, names)
        )
        for field in FIELDS
    ]
    return [*plain, *_xids(devices, last_xids, counts, names)]


def _series(field: Field, devices: Iterable[Labelled], names: Names) -> tuple[Series, ...]:
    valued = ((one.labels, field.valued(one.device, names)) for one in devices)
    return tuple(Series(labels=labels, value=value) for labels, value in valued if value is not None)


def _xids(
    devices: Sequence[Labelled],
    last_xids: Mapping[GpuUuid, int],
    counts: Mapping[tuple[GpuUuid, int], int],
    names: Names,
) -> list[Family]:
    last = [
        Series(labels=f"{one.labels},{labels_text({'err_code': str(code), 'err_msg': xid(code).name})}", value=code)
        for one in devices
        if (code := last_xids.get(one.device.gpu.uuid)) is not None
    ]
    total = [
        Series(labels=f"{one.labels},{labels_text({'xid': str(code)})}", value=count)
        for one in devices
        for (gpu, code), count in sorted(counts.items())
        if gpu == one.device.gpu.uuid
    ]
    return [
        Family(
            name=field.current if names == "current" else field.name,
            kind=field.kind,
            help=field.help,
            series=tuple(rows),
        )
        for field, rows in zip(XID_FIELDS, (last, total), strict=True)
    ]


def _reading(name: str) -> Callable[[Device], Number | None]:
    def value(device: Device) -> Number | None:
        found: Number | None = getattr(device.look.readings, name)
        return found if found is None or not isinstance(found, bool) else int(found)

    return value


def _figure(name: str) -> Callable[[Device], Number | None]:
    def value(device: Device) -> Number | None:
        found: Number | None = getattr(device.figures, name)
        return found

    return value


def _percent(share: Callable[[Device], Number | None]) -> Callable[[Device], Number | None]:
    """Of a share; a MIG device has none, since NVML measures whole GPUs only."""

    def value(device: Device) -> Number | None:
        found = share(device) if device.instance is None else None
        return None if found is None else round(found * 100)

    return value


def _memory(name: str) -> Callable[[Device], Number | None]:
    def value(device: Device) -> Number | None:
        found: int | None = getattr(device.memory, name) if device.memory else None
        return None if found is None else found // MIB

    return value


def _licensed(device: Device) -> Number | None:
    found = device.figures.licensed
    return None if found is None else int(found)


def _memory_temperature(device: Device) -> Number | None:
    found = device.figures.memory_temperature
    return found if found is not None and found <= HOTTEST else None


def _temperature(device: Device) -> Number | None:
    found = device.look.readings.temperature
    return found if found is not None and found <= HOTTEST else None


def _power(device: Device) -> Number | None:
    found = device.look.readings.power
    return None if found is None else float(found)


def _power_limit(device: Device) -> Number | None:
    limit = device.gpu.power_limit
    return None if limit is None else float(limit)


def _throughput(device: Device) -> Number | None:
    """In what DCGM calls MB/s: a thousand KiB a second."""
    moved = device.look.nvlink_throughput
    return None if moved is None else round(moved / 1024 / 1000)


_PREFIX = "DCGM_FI_DEV_"


def _field(name: str, help: str, value: Callable[[Device], Number | None], *, current: str = "", **more: Any) -> Field:
    full = f"{_PREFIX}{current}" if current else ""
    return Field(name=f"{_PREFIX}{name}", help=help, value=value, current=full, **more)


def _profiled(name: str, help: str, part: str, current: str = "") -> Field:
    """A figure of profiling, which only newer GPUs have."""
    return Field(
        name=f"DCGM_FI_PROF_{name}",
        help=help,
        value=lambda device: getattr(device.activity, part),
        current=f"DCGM_FI_PROF_{current}" if current else "",
    )


_COUNTER: Mapping[str, Any] = {"kind": "counter"}

FIELDS: tuple[Field, ...] = (
    _field(
        "SM_CLOCK",
        "SM clock frequency (in MHz).",
        _figure("sm_clock"),
        current="SM_CLOCK_HERTZ",
        current_help="SM clock frequency (in Hz).",
        factor=MHZ,
    ),
    _field(
        "MEM_CLOCK",
        "Memory clock frequency (in MHz).",
        _figure("memory_clock"),
        current="MEMORY_CLOCK_HERTZ",
        current_help="Memory clock frequency (in Hz).",
        factor=MHZ,
    ),
    _field("MEMORY_TEMP", "Memory temperature (in C).", _memory_temperature, current="MEMORY_TEMP_CELSIUS"),
    _field("GPU_TEMP", "GPU temperature (in C).", _temperature, current="GPU_TEMP_CELSIUS"),
    _field("POWER_USAGE", "Power draw (in W).", _power, current="BOARD_POWER_WATTS"),
    _field("POWER_MGMT_LIMIT", "Power limit that is set (in W).", _power_limit),
    _field(
        "TOTAL_ENERGY_CONSUMPTION",
        "Total energy consumption since boot (in mJ).",
        _figure("energy"),
        current="GPU_ENERGY_JOULES_TOTAL",
        current_help="Total energy consumption since boot (in J).",
        factor=0.001,
        **_COUNTER,
    ),
    _field(
        "PCIE_REPLAY_COUNTER",
        "Total number of PCIe retries.",
        _figure("pcie_replays"),
        current="PCIE_REPLAY_TOTAL",
        **_COUNTER,
    ),
    *(
        _field(
            name,
            f"{what} (in %).",
            _percent(share),
            current=current,
            current_help=f"{what} (from 0 to 1).",
            factor=0.01,
        )
        for name, what, share, current in (
            ("GPU_UTIL", "GPU utilization", _reading("utilization"), "GPU_UTIL_RATIO"),
            ("MEM_COPY_UTIL", "Memory utilization", _figure("memory_utilization"), "MEMORY_UTIL_RATIO"),
            ("ENC_UTIL", "Encoder utilization", _figure("encoder_utilization"), "ENC_UTIL_RATIO"),
            ("DEC_UTIL", "Decoder utilization", _figure("decoder_utilization"), "DEC_UTIL_RATIO"),
        )
    ),
    *(
        _field(
            name,
            f"Framebuffer memory {what} (in MiB).",
            _memory(what),
            current=current,
            current_help=f"Framebuffer memory {what} (in bytes).",
            factor=MIB,
        )
        for name, what, current in (
            ("FB_TOTAL", "total", "FB_CAPACITY_BYTES"),
            ("FB_FREE", "free", "FB_FREE_BYTES"),
            ("FB_USED", "used", "FB_USED_BYTES"),
            ("FB_RESERVED", "reserved", "FB_RESERVED_BYTES"),
        )
    ),
    _field(
        "UNCORRECTABLE_REMAPPED_ROWS",
        "Number of remapped rows for uncorrectable errors",
        _figure("uncorrectable_remapped_rows"),
        current="ROW_REMAP_UNCORRECTABLE_TOTAL",
        **_COUNTER,
    ),
    _field(
        "CORRECTABLE_REMAPPED_ROWS",
        "Number of remapped rows for correctable errors",
        _figure("correctable_remapped_rows"),
        current="ROW_REMAP_CORRECTABLE_TOTAL",
        **_COUNTER,
    ),
    _field(
        "ROW_REMAP_FAILURE",
        "Whether remapping of rows has failed",
        _reading("row_remap_failed"),
        current="ROW_REMAP_FAILED",
    ),
    _field("ROW_REMAP_PENDING", "Whether remapping of rows waits for a reset", _reading("row_remap_pending")),
    _field("ECC_SBE_VOL_TOTAL", "Single-bit volatile ECC errors.", _figure("corrected_errors"), **_COUNTER),
    _field("ECC_DBE_VOL_TOTAL", "Double-bit volatile ECC errors.", _figure("uncorrected_errors"), **_COUNTER),
    _field("ECC_SBE_AGG_TOTAL", "Single-bit persistent ECC errors.", _figure("corrected_errors_ever"), **_COUNTER),
    _field("ECC_DBE_AGG_TOTAL", "Double-bit persistent ECC errors.", _figure("uncorrected_errors_ever"), **_COUNTER),
    _field(
        "RETIRED_SBE", "Pages retired for single-bit errors.", _reading("pages_retired_for_single_bits"), **_COUNTER
    ),
    _field(
        "RETIRED_DBE", "Pages retired for double-bit errors.", _reading("pages_retired_for_double_bits"), **_COUNTER
    ),
    _field("RETIRED_PENDING", "Whether retirement of pages waits for a reset", _reading("page_retirement_pending")),
    _field("POWER_VIOLATION", "Throttling due to power constraints (in ns).", _figure("power_held"), **_COUNTER),
    _field("THERMAL_VIOLATION", "Throttling due to thermal constraints (in ns).", _figure("heat_held"), **_COUNTER),
    _field(
        "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "NVLink flow-control CRC errors.",
        _figure("nvlink_flit_errors"),
        **_COUNTER,
    ),
    _field("NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "NVLink data CRC errors.", _figure("nvlink_data_errors"), **_COUNTER),
    _field("NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLink retries.", _figure("nvlink_replays"), **_COUNTER),
    _field("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "NVLink recoveries.", _figure("nvlink_recoveries"), **_COUNTER),
    _field(
        "NVLINK_BANDWIDTH_TOTAL",
        "NVLink bandwidth of all lanes (in MB/s).",
        _throughput,
        current="NVLINK_THROUGHPUT_BYTES_PER_SECOND",
        current_help="NVLink throughput of all lanes (in bytes a second).",
        factor=1024 * 1000,
    ),
    _field("VGPU_LICENSE_STATUS", "Whether the licence of a virtual GPU is there.", _licensed),
    _profiled("GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", "graphics", "GR_ENGINE_UTIL_RATIO"),
    _profiled("PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor pipe is active.", "tensor", "TENSOR_UTIL_RATIO"),
    _profiled("DRAM_ACTIVE", "Ratio of cycles the memory interface is active.", "memory", "DRAM_UTIL_RATIO"),
    _profiled("PCIE_TX_BYTES", "Bytes a second sent over PCIe.", "pcie_sent"),
    _profiled("PCIE_RX_BYTES", "Bytes a second received over PCIe.", "pcie_received"),
)
