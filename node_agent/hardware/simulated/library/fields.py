"""``nvmlDeviceGetFieldValues``: many readings in one call, each with a return code of its own.

``FIELDS`` maps a field id to the type of its value and to the function that answers it, which gets the GPU and the
field's scope, which is a link's number. A field that is not in the table is NOT_SUPPORTED, and so is ``None``.
"""

import time
from collections.abc import Callable
from typing import Any

import pynvml

from node_agent.hardware.simulated.driver import Driver
from node_agent.hardware.simulated.gpu import SimulatedGpu
from node_agent.hardware.simulated.library import memory_errors, readings, topology
from node_agent.hardware.simulated.library.calls import Target, call
from node_agent.hardware.simulated.links import Link
from node_agent.hardware.simulated.returns import NvmlReturn, supported

Answer = Callable[[SimulatedGpu, int], int | None]

# The scope that means every link of a GPU together.
_ALL_LINKS = 0xFFFFFFFF
_U32, _U64, _I32 = (
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
    pynvml.NVML_VALUE_TYPE_SIGNED_INT,
)
_MEMBERS = {_U32: "uiVal", _U64: "ullVal", _I32: "siVal"}

_CORRECTED, _UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
_VOLATILE, _AGGREGATE = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC


@call()
def nvmlDeviceGetFieldValues(driver: Driver, gpu: SimulatedGpu, count: int, values: Target) -> None:
    for index in range(count):
        _answer(gpu, values[index])


def _answer(gpu: SimulatedGpu, field: Any) -> None:
    started = time.time_ns()
    try:
        if field.fieldId not in FIELDS or field.fieldId in gpu.board.unsupported_fields:
            raise NvmlReturn("NOT_SUPPORTED")
        field.valueType, answer = FIELDS[field.fieldId]
        setattr(field.value, _MEMBERS[field.valueType], supported(answer(gpu, field.scopeId)))
        field.nvmlReturn = pynvml.NVML_SUCCESS
    # A field that fails fails alone: the caller still gets the others, and SUCCESS for the whole call.
    except NvmlReturn as refusal:
        field.nvmlReturn = refusal.code
    field.timestamp = started // 1000
    field.latencyUsec = (time.time_ns() - started) // 1000


def _errors(kind: int, counter: int) -> Answer:
    return lambda gpu, _: memory_errors.nvmlDeviceGetTotalEccErrors(gpu, kind, counter)


def _memory_errors(kind: int, counter: int) -> Answer:
    location = pynvml.NVML_MEMORY_LOCATION_DRAM
    return lambda gpu, _: memory_errors.nvmlDeviceGetMemoryErrorCounter(gpu, kind, counter, location)


def _remapped(position: int) -> Answer:
    return lambda gpu, _: memory_errors.nvmlDeviceGetRemappedRows(gpu)[position]


def _retired(cause: int) -> Answer:
    return lambda gpu, _: len(memory_errors.nvmlDeviceGetRetiredPages(gpu, cause))


def _margin(name: str) -> Answer:
    return lambda gpu, _: getattr(readings.temperature_limits(gpu, "margin"), name)


def _links(gpu: SimulatedGpu, scope: int) -> list[Link]:
    """The links that a scope means; a board without NVLink has none to ask for."""
    topology.nvlink_version(gpu)
    return gpu.links if scope == _ALL_LINKS else [topology.link_of(gpu, scope)]


def _link_speed(gpu: SimulatedGpu, link: int) -> int:
    port = gpu.board.nvlink
    return port.speed if port and topology.link_of(gpu, link).active else 0


def _common_speed(gpu: SimulatedGpu, _: int) -> int:
    """MB/s that the active links have in common."""
    return max(_link_speed(gpu, link) for link in range(len(_links(gpu, _ALL_LINKS))))


def _traffic(unit: int) -> Answer:
    """Bytes over the links of the scope since the driver was loaded, in units of so many bytes."""

    def answer(gpu: SimulatedGpu, scope: int) -> int:
        moving = sum(link.active for link in _links(gpu, scope))
        return round(_common_speed(gpu, 0) * 1_000_000 * moving * gpu.busy_seconds / unit)

    return answer


def _link_errors(*counters: int) -> Answer:
    def answer(gpu: SimulatedGpu, scope: int) -> int:
        return sum(link.errors.get(counter, 0) for link in _links(gpu, scope) for counter in counters)

    return answer


def _all_link_errors(counter: int) -> Answer:
    answer = _link_errors(counter)
    return lambda gpu, _: answer(gpu, _ALL_LINKS)


def _only_nvlink5(answer: Answer) -> Answer:
    """The counters of newer links, which count in bytes and packets rather than in CRC errors."""

    return lambda gpu, scope: answer(gpu, scope) if topology.is_nvlink5(gpu) else None


def _quiet_link(gpu: SimulatedGpu, scope: int) -> int:
    """A counter of links that simulated ones never move."""
    _links(gpu, scope)
    return 0


def _quiet_pcie(gpu: SimulatedGpu, _: int) -> int:
    readings.nvmlDeviceGetPcieReplayCounter(gpu)
    return 0


def _recovery_is(action: int) -> Answer:
    return lambda gpu, _: int(gpu.recovery_action == action) if gpu.board.recovery_action else None


def _coherent(value: int) -> Answer:
    """About the link between the chips of a coherent board."""
    return lambda gpu, _: value if gpu.board.coherent else None


def _power_limit(name: str) -> Answer:
    return lambda gpu, _: 1000 * int(getattr(readings.power_limits(gpu), name))


def _never(gpu: SimulatedGpu, _: int) -> int:
    """ns spent slowed down for a reason that simulated GPUs never have."""
    return 0


FIELDS: dict[int, tuple[int, Answer]] = {
    pynvml.NVML_FI_DEV_ECC_CURRENT: (_U32, lambda gpu, _: memory_errors.nvmlDeviceGetEccMode(gpu)[0]),
    pynvml.NVML_FI_DEV_ECC_PENDING: (_U32, lambda gpu, _: memory_errors.nvmlDeviceGetEccMode(gpu)[1]),
    pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: (_U64, _errors(_CORRECTED, _VOLATILE)),
    pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: (_U64, _errors(_UNCORRECTED, _VOLATILE)),
    pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL: (_U64, _errors(_CORRECTED, _AGGREGATE)),
    pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL: (_U64, _errors(_UNCORRECTED, _AGGREGATE)),
    pynvml.NVML_FI_DEV_ECC_SBE_VOL_DEV: (_U64, _memory_errors(_CORRECTED, _VOLATILE)),
    pynvml.NVML_FI_DEV_ECC_DBE_VOL_DEV: (_U64, _memory_errors(_UNCORRECTED, _VOLATILE)),
    pynvml.NVML_FI_DEV_ECC_SBE_AGG_DEV: (_U64, _memory_errors(_CORRECTED, _AGGREGATE)),
    pynvml.NVML_FI_DEV_ECC_DBE_AGG_DEV: (_U64, _memory_errors(_UNCORRECTED, _AGGREGATE)),
    pynvml.NVML_FI_DEV_RETIRED_SBE: (_U64, _retired(pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS)),
    pynvml.NVML_FI_DEV_RETIRED_DBE: (_U64, _retired(pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)),
    pynvml.NVML_FI_DEV_RETIRED_PENDING: (
        _U64,
        lambda gpu, _: memory_errors.nvmlDeviceGetRetiredPagesPendingStatus(gpu),
    ),
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: (
        _U64,
        _all_link_errors(pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT),
    ),
    pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL: (
        _U64,
        _all_link_errors(pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA),
    ),
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: (_U64, _all_link_errors(pynvml.NVML_NVLINK_ERROR_DL_REPLAY)),
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: (
        _U64,
        _all_link_errors(pynvml.NVML_NVLINK_ERROR_DL_RECOVERY),
    ),
    pynvml.NVML_FI_DEV_PERF_POLICY_POWER: (_U64, _never),
    pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL: (_U64, _never),
    pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST: (_U64, _never),
    pynvml.NVML_FI_DEV_MEMORY_TEMP: (_U32, lambda gpu, _: readings.memory_temperature(gpu)),
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: (
        _U64,
        lambda gpu, _: readings.nvmlDeviceGetTotalEnergyConsumption(gpu),
    ),
    pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: (_U32, _common_speed),
    pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT: (_U32, lambda gpu, _: len(_links(gpu, _ALL_LINKS))),
    pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: (_U32, lambda gpu, _: readings.nvmlDeviceGetPcieReplayCounter(gpu)),
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: (_U64, _traffic(1024)),
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: (_U64, _traffic(1024)),
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX: (_U64, _traffic(1024)),
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX: (_U64, _traffic(1024)),
    pynvml.NVML_FI_DEV_REMAPPED_COR: (_U32, _remapped(0)),
    pynvml.NVML_FI_DEV_REMAPPED_UNC: (_U32, _remapped(1)),
    pynvml.NVML_FI_DEV_REMAPPED_PENDING: (_U32, _remapped(2)),
    pynvml.NVML_FI_DEV_REMAPPED_FAILURE: (_U32, _remapped(3)),
    pynvml.NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID: (_U32, lambda gpu, link: topology.link_of(gpu, link).peer_link),
    pynvml.NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT: (
        _U32,
        lambda gpu, _: sum(link.active and link.island is not None for link in _links(gpu, _ALL_LINKS)),
    ),
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY: (_U64, _link_errors(pynvml.NVML_NVLINK_ERROR_DL_REPLAY)),
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY: (_U64, _link_errors(pynvml.NVML_NVLINK_ERROR_DL_RECOVERY)),
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC: (
        _U64,
        _link_errors(pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT, pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA),
    ),
    pynvml.NVML_FI_DEV_NVLINK_GET_SPEED: (_U32, _link_speed),
    pynvml.NVML_FI_DEV_NVLINK_GET_STATE: (_U32, topology.nvmlDeviceGetNvLinkState),
    pynvml.NVML_FI_DEV_NVLINK_GET_VERSION: (_U32, topology.nvmlDeviceGetNvLinkVersion),
    pynvml.NVML_FI_DEV_C2C_LINK_COUNT: (_U32, _coherent(1)),
    pynvml.NVML_FI_DEV_C2C_LINK_GET_STATUS: (_U32, _coherent(1)),
    pynvml.NVML_FI_DEV_C2C_LINK_GET_MAX_BW: (_U32, _coherent(450_000)),
    pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED: (
        _U32,
        lambda gpu, _: int(gpu.mig.table.resetless) if gpu.mig else None,
    ),
    pynvml.NVML_FI_DEV_POWER_AVERAGE: (_U32, lambda gpu, _: readings.nvmlDeviceGetPowerUsage(gpu)),
    pynvml.NVML_FI_DEV_POWER_INSTANT: (_U32, lambda gpu, _: readings.nvmlDeviceGetPowerUsage(gpu)),
    pynvml.NVML_FI_DEV_POWER_MIN_LIMIT: (_U32, _power_limit("min")),
    pynvml.NVML_FI_DEV_POWER_MAX_LIMIT: (_U32, _power_limit("max")),
    pynvml.NVML_FI_DEV_POWER_DEFAULT_LIMIT: (_U32, _power_limit("default")),
    pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT: (_U32, _power_limit("default")),
    pynvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT: (_I32, _margin("shutdown")),
    pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT: (_I32, _margin("slowdown")),
    pynvml.NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT: (_I32, _margin("memory")),
    pynvml.NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT: (_I32, _margin("gpu")),
    pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES: (_U64, _only_nvlink5(_traffic(1))),
    pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES: (_U64, _only_nvlink5(_traffic(1))),
    pynvml.NVML_FI_DEV_RESET_STATUS: (_U32, _recovery_is(pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET)),
    pynvml.NVML_FI_DEV_DRAIN_AND_RESET_STATUS: (_U32, _recovery_is(pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET)),
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: (
        _U32,
        lambda gpu, _: gpu.recovery_action if gpu.board.recovery_action else None,
    ),
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN: (_U64, _never),
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN: (_U64, _never),
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN: (_U64, _never),
}

# Ranges of counters that stand at zero: PCIe errors, NVLink 5 errors and events, its error-correction history.
FIELDS |= {
    field: (_U64, _quiet_pcie)
    for field in range(pynvml.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, pynvml.NVML_FI_DEV_PCIE_COUNT_LANE_ERROR + 1)
}
FIELDS |= {
    field: (_U64, _only_nvlink5(_quiet_link))
    for first, last in (
        (pynvml.NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS, pynvml.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER),
        (pynvml.NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0, pynvml.NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_15),
    )
    for field in range(first, last + 1)
}

# The speed of each link by a field of its own, from the days of six links and then of twelve.
FIELDS |= {
    field: (_U32, lambda gpu, _, link=link: _link_speed(gpu, link))
    for link, field in enumerate(
        [
            *range(pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_L0, pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_L5 + 1),
            *range(pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_L6, pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_L11 + 1),
        ]
    )
}
