"""What a GPU measures, at rest and under load."""

import time

import pynvml
import pytest

from node_agent.hardware.simulated import SimulatedNode
from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import gpu

GPU_SENSOR = pynvml.NVML_TEMPERATURE_GPU


# Power


@pytest.mark.parametrize(
    ("profile", "idle", "limits"),
    [
        ("h200-8", 76, (200, 700, 700)),
        ("a100-40gb-8", 52, (100, 400, 400)),
        ("v100-8", 42, (150, 300, 300)),
        ("t4-4", 14, (60, 70, 70)),
        ("l40s-8", 35, (100, 350, 350)),
        ("b200-8", 140, (200, 1000, 1000)),
    ],
)
def test_power_is_in_milliwatts(simulate: Simulate, profile: str, idle: int, limits: tuple[int, int, int]) -> None:
    simulate(profile)
    lowest, default, highest = (1000 * limit for limit in limits)
    assert pynvml.nvmlDeviceGetPowerUsage(gpu(0)) == 1000 * idle
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu(0)) == default
    assert pynvml.nvmlDeviceGetPowerManagementLimit(gpu(0)) == default
    assert pynvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu(0)) == default
    assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu(0)) == [lowest, highest]


def test_full_load_draws_the_limit(h200: SimulatedNode) -> None:
    h200.faults.load(0, 1.0)
    assert pynvml.nvmlDeviceGetPowerUsage(gpu(0)) == 700_000
    assert pynvml.nvmlDeviceGetPowerUsage(gpu(1)) == 76_000


def test_a_board_without_limits_still_draws_power(simulate: Simulate) -> None:
    simulate("gb10-1")
    assert pynvml.nvmlDeviceGetPowerUsage(gpu(0)) == 5000
    for call in (
        pynvml.nvmlDeviceGetEnforcedPowerLimit,
        pynvml.nvmlDeviceGetPowerManagementDefaultLimit,
        pynvml.nvmlDeviceGetPowerManagementLimitConstraints,
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call(gpu(0))


def test_energy_only_grows_and_faster_under_load(h200: SimulatedNode) -> None:
    h200.faults.load(1, 1.0)
    before = [pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu(index)) for index in (0, 1)]
    time.sleep(0.05)
    after = [pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu(index)) for index in (0, 1)]
    idle, busy = (late - early for early, late in zip(before, after, strict=True))
    assert busy > 5 * idle > 0


def test_energy_stays_when_the_load_ends(h200: SimulatedNode) -> None:
    h200.faults.load(0, 1.0)
    time.sleep(0.02)
    busy = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu(0))
    h200.faults.load(0, 0.0)
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu(0)) >= busy


# Heat


def test_load_makes_hot(h200: SimulatedNode) -> None:
    cold = pynvml.nvmlDeviceGetTemperature(gpu(0), GPU_SENSOR)
    h200.faults.load(0, 0.5)
    assert pynvml.nvmlDeviceGetTemperature(gpu(0), GPU_SENSOR) == cold + 20
    assert pynvml.nvmlDeviceGetTemperatureV(gpu(0), GPU_SENSOR) == cold + 20


def test_there_is_one_sensor(h200: SimulatedNode) -> None:
    for call in (pynvml.nvmlDeviceGetTemperature, pynvml.nvmlDeviceGetTemperatureV):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call(gpu(0), 1)


@pytest.mark.parametrize(
    ("profile", "limits"),
    [("a100-40gb-8", [92, 89, 95, 85]), ("v100-8", [90, 87, 85, 83]), ("t4-4", [96, 93, None, 85])],
)
def test_older_boards_tell_their_limits(simulate: Simulate, profile: str, limits: list[int | None]) -> None:
    simulate(profile)
    for threshold, limit in enumerate(limits):
        if limit is None:
            with pytest.raises(pynvml.NVMLError_NotSupported):
                pynvml.nvmlDeviceGetTemperatureThreshold(gpu(0), threshold)
        else:
            assert pynvml.nvmlDeviceGetTemperatureThreshold(gpu(0), threshold) == limit


@pytest.mark.parametrize("profile", ["h200-8", "l40s-8", "gb200-4"])
def test_newer_boards_tell_how_far_the_limit_is(simulate: Simulate, profile: str) -> None:
    node = simulate(profile)
    cold = pynvml.nvmlDeviceGetMarginTemperature(gpu(0))
    node.faults.load(0, 1.0)
    assert 0 < pynvml.nvmlDeviceGetMarginTemperature(gpu(0)) == cold - 40
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetTemperatureThreshold(gpu(0), 0)


# Clocks and utilisation


@pytest.mark.parametrize(
    ("profile", "top", "idle"),
    [
        ("h200-8", [1980, 1980, 3201, 1545], [345, 345, 3201, 765]),
        ("l40s-8", [2520, 2520, 9001, 1965], [210, 210, 405, 1185]),
    ],
)
def test_clocks_rise_with_the_load(simulate: Simulate, profile: str, top: list[int], idle: list[int]) -> None:
    node = simulate(profile)
    assert [pynvml.nvmlDeviceGetMaxClockInfo(gpu(0), kind) for kind in range(4)] == top
    assert [pynvml.nvmlDeviceGetClockInfo(gpu(0), kind) for kind in range(4)] == idle
    node.faults.load(0, 0.1)
    assert [pynvml.nvmlDeviceGetClockInfo(gpu(0), kind) for kind in range(4)] == top
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetClockInfo(gpu(0), 4)


@pytest.mark.parametrize(("profile", "idle"), [("h200-8", 0), ("l40s-8", 8), ("t4-4", 8)])
def test_some_boards_rest_in_a_lower_state(simulate: Simulate, profile: str, idle: int) -> None:
    node = simulate(profile)
    assert pynvml.nvmlDeviceGetPerformanceState(gpu(0)) == pynvml.nvmlDeviceGetPowerState(gpu(0)) == idle
    node.faults.load(0, 1.0)
    assert pynvml.nvmlDeviceGetPerformanceState(gpu(0)) == 0


def test_an_idle_gpu_says_that_it_is_idle(h200: SimulatedNode) -> None:
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu(0)) == 1
    h200.faults.load(0, 1.0)
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu(0)) == 0
    assert pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu(0)) == 0


def test_reasons_to_slow_down_can_be_given(h200: SimulatedNode) -> None:
    h200.faults.load(0, 1.0)
    h200.faults.slow_down(0, ["hw-slowdown", "hw-thermal-slowdown"])
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu(0)) == 0x48
    assert pynvml.nvmlDeviceGetSupportedClocksEventReasons(gpu(0)) & 0x48 == 0x48
    h200.faults.slow_down(0, [])
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu(0)) == 0


def test_utilisation_is_the_load_in_percent(h200: SimulatedNode) -> None:
    h200.faults.load(0, 0.75)
    rates = pynvml.nvmlDeviceGetUtilizationRates(gpu(0))
    assert (rates.gpu, rates.memory) == (75, 45)


@pytest.mark.parametrize(
    "call",
    [
        pynvml.nvmlDeviceGetEncoderUtilization,
        pynvml.nvmlDeviceGetDecoderUtilization,
        pynvml.nvmlDeviceGetJpgUtilization,
        pynvml.nvmlDeviceGetOfaUtilization,
    ],
)
def test_media_engines_rest(h200: SimulatedNode, call: object) -> None:
    assert callable(call)
    assert call(gpu(0)) == [0, 167_000]


@pytest.mark.parametrize("call", [pynvml.nvmlDeviceGetUtilizationRates, pynvml.nvmlDeviceGetEncoderUtilization])
def test_utilisation_is_not_measured_with_mig_on(simulate: Simulate, call: object) -> None:
    simulate("a30-2")
    assert callable(call)
    call(gpu(0))
    for device in (gpu(1), pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), 0)):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call(device)


# PCIe


@pytest.mark.parametrize(
    ("profile", "generation", "idle", "mbits"), [("h200-8", 5, 5, 32000), ("l40s-8", 4, 1, 2500), ("t4-4", 3, 1, 2500)]
)
def test_some_boards_slow_their_link_down_at_rest(
    simulate: Simulate, profile: str, generation: int, idle: int, mbits: int
) -> None:
    node = simulate(profile)
    assert pynvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu(0)) == generation
    assert pynvml.nvmlDeviceGetGpuMaxPcieLinkGeneration(gpu(0)) == generation
    assert pynvml.nvmlDeviceGetPcieLinkMaxSpeed(gpu(0)) == generation
    assert pynvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu(0)) == idle
    assert pynvml.nvmlDeviceGetPcieSpeed(gpu(0)) == mbits
    node.faults.load(0, 1.0)
    assert pynvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu(0)) == generation


def test_the_link_keeps_its_width(simulate: Simulate) -> None:
    simulate("mixed-5")
    assert [pynvml.nvmlDeviceGetMaxPcieLinkWidth(gpu(index)) for index in (0, 3)] == [16, 8]
    assert [pynvml.nvmlDeviceGetCurrPcieLinkWidth(gpu(index)) for index in (0, 3)] == [16, 8]


def test_traffic_follows_the_load(h200: SimulatedNode) -> None:
    for counter in (pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES):
        assert pynvml.nvmlDeviceGetPcieThroughput(gpu(0), counter) == 0
        assert pynvml.nvmlDeviceGetPcieReplayCounter(gpu(0)) == 0
    h200.faults.load(0, 0.5)
    assert pynvml.nvmlDeviceGetPcieThroughput(gpu(0), 0) == 10_000_000
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetPcieThroughput(gpu(0), 2)
