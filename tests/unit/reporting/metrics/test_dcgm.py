"""The families of DCGM-exporter: names, types, units, and what has no series."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from node_agent.hardware.figures import Activity, Figures
from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.reporting.metrics.dcgm import FIELDS, Names, families
from node_agent.reporting.metrics.devices import devices, labelled
from node_agent.reporting.metrics.families import Family, Number
from tests.unit.reporting.metrics.conftest import NAMING, NOW, A, B, look, node

# The default list of DCGM-exporter up to 4.8, but for the driver's version, which is a label.
DEFAULT = {
    "DCGM_FI_DEV_SM_CLOCK": "gauge",
    "DCGM_FI_DEV_MEM_CLOCK": "gauge",
    "DCGM_FI_DEV_MEMORY_TEMP": "gauge",
    "DCGM_FI_DEV_GPU_TEMP": "gauge",
    "DCGM_FI_DEV_POWER_USAGE": "gauge",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "counter",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "counter",
    "DCGM_FI_DEV_GPU_UTIL": "gauge",
    "DCGM_FI_DEV_MEM_COPY_UTIL": "gauge",
    "DCGM_FI_DEV_ENC_UTIL": "gauge",
    "DCGM_FI_DEV_DEC_UTIL": "gauge",
    "DCGM_FI_DEV_XID_ERRORS": "gauge",
    "DCGM_FI_DEV_FB_FREE": "gauge",
    "DCGM_FI_DEV_FB_USED": "gauge",
    "DCGM_FI_DEV_FB_RESERVED": "gauge",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "counter",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": "counter",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "gauge",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "gauge",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "gauge",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "gauge",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "gauge",
    "DCGM_FI_PROF_DRAM_ACTIVE": "gauge",
    "DCGM_FI_PROF_PCIE_TX_BYTES": "gauge",
    "DCGM_FI_PROF_PCIE_RX_BYTES": "gauge",
}

# Those of 4.9, in the same order.
CURRENT = {
    "DCGM_FI_DEV_SM_CLOCK_HERTZ",
    "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ",
    "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS",
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS",
    "DCGM_FI_DEV_BOARD_POWER_WATTS",
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL",
    "DCGM_FI_DEV_PCIE_REPLAY_TOTAL",
    "DCGM_FI_DEV_GPU_UTIL_RATIO",
    "DCGM_FI_DEV_MEMORY_UTIL_RATIO",
    "DCGM_FI_DEV_ENC_UTIL_RATIO",
    "DCGM_FI_DEV_DEC_UTIL_RATIO",
    "DCGM_FI_DEV_XID_ERROR",
    "DCGM_FI_DEV_FB_CAPACITY_BYTES",
    "DCGM_FI_DEV_FB_FREE_BYTES",
    "DCGM_FI_DEV_FB_USED_BYTES",
    "DCGM_FI_DEV_FB_RESERVED_BYTES",
    "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",
    "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL",
    "DCGM_FI_DEV_ROW_REMAP_FAILED",
    "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND",
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
    "DCGM_FI_PROF_TENSOR_UTIL_RATIO",
    "DCGM_FI_PROF_DRAM_UTIL_RATIO",
    "DCGM_FI_PROF_PCIE_TX_BYTES",
    "DCGM_FI_PROF_PCIE_RX_BYTES",
}


def told(
    inventory: Inventory,
    names: Names = "legacy",
    last: Mapping[GpuUuid, int] | None = None,
    counts: Mapping[tuple[GpuUuid, int], int] | None = None,
    **readings: Any,
) -> list[Family]:
    throughput = 1_024_000_000.0
    seen = {gpu: replace(look(**readings), nvlink_throughput=throughput) for gpu in (A, B)}
    found = labelled(devices(inventory, seen, [], NOW), NAMING, per_share=False)
    return families(found, last or {}, counts or {}, names)


def values(found: Sequence[Family], name: str) -> list[Number]:
    (family,) = (one for one in found if one.name == name)
    return [one.value for one in family.series]


def test_the_default_families_have_their_names_and_types() -> None:
    kinds = {family.name: family.kind for family in told(node())}
    assert {name: kinds.get(name) for name in DEFAULT} == DEFAULT


def test_the_newer_names_take_the_place_of_the_older_ones_and_never_stand_beside_them() -> None:
    newer = {family.name for family in told(node(), "current")}
    assert newer >= CURRENT
    renamed = {field.name for field in FIELDS if field.current} | {"DCGM_FI_DEV_XID_ERRORS"}
    assert not newer & renamed


def test_figures_are_in_the_units_of_the_older_names() -> None:
    found = told(node(whole=True))
    assert values(found, "DCGM_FI_DEV_SM_CLOCK")[0] == 345
    assert values(found, "DCGM_FI_DEV_POWER_USAGE")[0] == 76.0
    assert values(found, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")[0] == 1234
    assert values(found, "DCGM_FI_DEV_GPU_UTIL")[0] == 50
    assert values(found, "DCGM_FI_DEV_MEM_COPY_UTIL")[0] == 25
    assert values(found, "DCGM_FI_DEV_FB_USED")[0] == 2048
    assert values(found, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL")[0] == 1000


def test_and_in_those_of_the_newer_names() -> None:
    found = told(node(whole=True), "current")
    assert values(found, "DCGM_FI_DEV_SM_CLOCK_HERTZ")[0] == 345_000_000
    assert values(found, "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL")[0] == pytest.approx(1.234)
    assert values(found, "DCGM_FI_DEV_GPU_UTIL_RATIO")[0] == 0.5
    assert values(found, "DCGM_FI_DEV_FB_USED_BYTES")[0] == 2 << 30
    assert values(found, "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND")[0] == 1_024_000_000


def test_counts_are_whole_and_measures_are_not() -> None:
    found = told(node(whole=True))
    assert isinstance(values(found, "DCGM_FI_DEV_GPU_TEMP")[0], int)
    assert isinstance(values(found, "DCGM_FI_DEV_ROW_REMAP_FAILURE")[0], int)
    assert not isinstance(values(found, "DCGM_FI_DEV_ROW_REMAP_FAILURE")[0], bool)
    assert isinstance(values(told(node(whole=True), power=76), "DCGM_FI_DEV_POWER_USAGE")[0], float)


def test_what_a_gpu_cannot_tell_has_no_series_instead_of_a_zero() -> None:
    found = told(node(whole=True), temperature=None, power=None, figures=Figures())
    assert not values(found, "DCGM_FI_DEV_GPU_TEMP")
    assert not values(found, "DCGM_FI_DEV_POWER_USAGE")
    assert not values(found, "DCGM_FI_DEV_FB_USED")


@pytest.mark.parametrize(("degrees", "shown"), [(200, [200, 200]), (201, [])])
def test_a_temperature_beyond_reason_is_that_of_a_missing_sensor(degrees: int, shown: list[int]) -> None:
    found = told(node(whole=True), temperature=degrees, figures=Figures(memory_temperature=degrees))
    assert values(found, "DCGM_FI_DEV_GPU_TEMP") == shown
    assert values(found, "DCGM_FI_DEV_MEMORY_TEMP") == shown


def test_an_instance_has_its_own_memory_the_boards_figures_and_no_utilization() -> None:
    found = told(node())
    assert values(found, "DCGM_FI_DEV_FB_USED") == [2048, 1024, 0]
    assert values(found, "DCGM_FI_DEV_GPU_TEMP") == [29, 29, 29]
    assert values(found, "DCGM_FI_DEV_GPU_UTIL") == [50]


def test_an_instance_is_at_work_by_itself_where_the_gpu_tells() -> None:
    whole = Activity(graphics=0.5, tensor=0.25)
    activities = {None: whole, 7: Activity(graphics=0.7), 8: Activity(graphics=0.8)}
    found = told(node(), figures=Figures(activities=activities))
    assert values(found, "DCGM_FI_PROF_GR_ENGINE_ACTIVE") == [0.5, pytest.approx(0.7), pytest.approx(0.8)]
    assert values(found, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE") == [0.25]


def test_the_last_xid_is_a_gauge_that_says_what_it_means_and_is_absent_before_the_first() -> None:
    assert not values(told(node(whole=True)), "DCGM_FI_DEV_XID_ERRORS")
    found = told(node(whole=True), last={A: 79})
    (family,) = (one for one in found if one.name == "DCGM_FI_DEV_XID_ERRORS")
    (series,) = family.series
    assert series.value == 79
    assert 'err_code="79",err_msg="' in series.labels


def test_xids_are_counted_by_gpu_and_number() -> None:
    found = told(node(whole=True), counts={(A, 31): 2, (A, 79): 1, (GpuUuid("GPU-gone"), 31): 5})
    (family,) = (one for one in found if one.name == "DCGM_EXP_XID_ERRORS_TOTAL")
    assert [(one.labels.rpartition(",")[2], one.value) for one in family.series] == [('xid="31"', 2), ('xid="79"', 1)]


def test_no_name_comes_twice() -> None:
    styles: tuple[Names, ...] = ("legacy", "current")
    for names in styles:
        found = [family.name for family in told(node(), names)]
        assert len(set(found)) == len(found)
