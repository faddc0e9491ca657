"""How a GPU of AMD's is, by its files: what it does not tell is absent, and what cannot be read is said to be so."""

from pathlib import Path

import pytest

from node_agent.errors import DeviceLost
from node_agent.hardware.amd.readings import read
from node_agent.hardware.simulated.amd import SimulatedAmdNode
from node_agent.health.findings import findings
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Reason
from node_agent.model.pci import pci_address

GPU, PLACE = GpuUuid("GPU-4cbc8b2b2e1ad900"), pci_address("0000:05:00.0")


@pytest.fixture
def folder(node: SimulatedAmdNode, sysfs: Path) -> Path:
    return sysfs / "bus/pci/devices" / PLACE


def test_a_healthy_gpu_tells_how_it_is_and_nothing_is_wrong(folder: Path, sysfs: Path) -> None:
    found = read(sysfs, GPU, PLACE)
    assert (found.memory_used, found.utilization, found.temperature, found.power) == (297 << 20, 0.0, 41, 140.0)
    assert found.uncorrected_ecc_errors == 0
    assert (found.figures, found.failed, findings(found)) == (None, {}, ())


def test_figures_come_where_they_are_asked_for(folder: Path, sysfs: Path) -> None:
    figures = read(sysfs, GPU, PLACE, figures=True).figures
    assert figures is not None
    assert figures.memory is not None
    assert (figures.memory.used, figures.memory.total) == (297 << 20, 205822885888)
    assert (figures.sm_clock, figures.memory_clock, figures.memory_temperature) == (132, None, 35)
    assert (figures.memory_utilization, figures.corrected_errors, figures.uncorrected_errors) == (0.0, 0, 0)


def test_errors_that_could_not_be_corrected_are_summed_over_all_blocks(
    node: SimulatedAmdNode, folder: Path, sysfs: Path
) -> None:
    node.change(GPU, uncorrected=2)
    (folder / "ras/gfx_err_count").write_text("ue: 1\nce: 7\n")
    found = read(sysfs, GPU, PLACE, figures=True)
    assert found.uncorrected_ecc_errors == 3
    assert found.figures is not None
    assert found.figures.corrected_errors == 7
    (finding,) = findings(found)
    assert finding.reason is Reason.ECC


def test_a_gpu_that_counts_no_errors_says_nothing_of_them(folder: Path, sysfs: Path) -> None:
    for path in (folder / "ras").iterdir():
        path.unlink()
    assert read(sysfs, GPU, PLACE).uncorrected_ecc_errors is None


def test_a_gpu_with_a_sensor_at_its_edge_only_tells_that_ones(folder: Path, sysfs: Path) -> None:
    (folder / "hwmon/hwmon0/temp2_input").rename(folder / "hwmon/hwmon0/temp1_input")
    (folder / "hwmon/hwmon0/power1_average").rename(folder / "hwmon/hwmon0/power1_input")
    found = read(sysfs, GPU, PLACE)
    assert (found.temperature, found.power) == (41, 140.0)


def test_a_gpu_without_sensors_tells_nothing_and_nothing_failed(folder: Path, sysfs: Path) -> None:
    for path in [*(folder / "hwmon/hwmon0").iterdir(), folder / "gpu_busy_percent", folder / "mem_info_vram_used"]:
        path.unlink()
    found = read(sysfs, GPU, PLACE, figures=True)
    assert (found.temperature, found.power, found.utilization, found.memory_used) == (None, None, None, None)
    assert found.figures is not None
    assert found.figures.memory is None
    assert found.failed == found.figures.failed == {}


def test_errors_that_cannot_be_counted_are_a_finding_of_their_own(folder: Path, sysfs: Path) -> None:
    (folder / "ras/umc_err_count").unlink()
    (folder / "ras/umc_err_count").mkdir()
    found = read(sysfs, GPU, PLACE)
    assert found.failed.keys() == {"uncorrected_ecc_errors"}
    assert [finding.reason for finding in findings(found)] == [Reason.QUERY_FAILED]


def test_while_the_driver_resets_a_gpu_the_errors_of_a_block_that_cannot_be_asked_are_not_over(
    node: SimulatedAmdNode, folder: Path, sysfs: Path
) -> None:
    (folder / "ras/gfx_err_count").write_text("ue: 0\nce: 0\n")
    (folder / "ras/umc_err_count").write_text("Query currently inaccessible\n")
    found = read(sysfs, GPU, PLACE)
    assert found.uncorrected_ecc_errors is None
    assert "umc_err_count" in found.failed["uncorrected_ecc_errors"]
    assert [finding.reason for finding in findings(found)] == [Reason.QUERY_FAILED]


def test_a_gpu_that_has_left_the_bus_is_lost(node: SimulatedAmdNode, folder: Path, sysfs: Path) -> None:
    node.lose(GPU)
    with pytest.raises(DeviceLost, match=GPU):
        read(sysfs, GPU, PLACE)


def test_a_gpu_that_was_never_seen_is_lost(folder: Path, sysfs: Path) -> None:
    with pytest.raises(DeviceLost):
        read(sysfs, GPU, None)


def test_a_gpu_in_whose_place_another_one_sits_is_lost(folder: Path, sysfs: Path) -> None:
    (folder / "unique_id").write_text("00000000deadbeef\n")
    with pytest.raises(DeviceLost):
        read(sysfs, GPU, PLACE)


def test_a_gpu_that_amdgpu_was_told_to_let_go_of_is_lost(folder: Path, sysfs: Path) -> None:
    (sysfs / "bus/pci/drivers/amdgpu" / PLACE).unlink()
    with pytest.raises(DeviceLost):
        read(sysfs, GPU, PLACE)
