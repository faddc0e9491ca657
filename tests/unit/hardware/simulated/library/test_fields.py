"""Field values: many readings in one call, each with an outcome of its own."""

import time
from typing import Any

import msgspec
import pynvml
import pytest

from node_agent.hardware.simulated import SimulatedNode
from node_agent.hardware.simulated.library.fields import FIELDS
from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import WITH_GPUS, gpu, gpus

U32, U64, I32 = (
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
    pynvml.NVML_VALUE_TYPE_SIGNED_INT,
)
MEMBERS = {U32: "uiVal", U64: "ullVal", I32: "siVal"}


def ask(field: int | tuple[int, int], index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetFieldValues(gpu(index), [field])[0]


def value(field: int | tuple[int, int], index: int = 0) -> int:
    answer = ask(field, index)
    assert answer.nvmlReturn == pynvml.NVML_SUCCESS
    found: int = getattr(answer.value, MEMBERS[answer.valueType])
    return found


def code(field: int | tuple[int, int], index: int = 0) -> int:
    found: int = ask(field, index).nvmlReturn
    return found


def test_each_field_has_an_outcome_of_its_own(h200: SimulatedNode) -> None:
    wanted = [
        pynvml.NVML_FI_DEV_ECC_CURRENT,
        pynvml.NVML_FI_DEV_RETIRED_DBE,
        9999,
        (pynvml.NVML_FI_DEV_NVLINK_GET_STATE, 30),
    ]
    answers = pynvml.nvmlDeviceGetFieldValues(gpu(0), wanted)
    assert [answer.nvmlReturn for answer in answers] == [0, 3, 3, 3]
    assert answers[0].value.uiVal == 1


def test_a_field_says_when_it_was_read(h200: SimulatedNode) -> None:
    before = time.time_ns() // 1000
    answer = ask(pynvml.NVML_FI_DEV_ECC_CURRENT)
    assert before <= answer.timestamp <= time.time_ns() // 1000
    assert answer.latencyUsec >= 0


@pytest.mark.parametrize("name", WITH_GPUS)
def test_every_field_answers_or_says_why_not(simulate: Simulate, name: str) -> None:
    simulate(name)
    for handle in gpus():
        answers = pynvml.nvmlDeviceGetFieldValues(handle, sorted(FIELDS))
        assert {answer.nvmlReturn for answer in answers} <= {pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_SUPPORTED}


def test_a_lost_gpu_answers_no_field(h200: SimulatedNode) -> None:
    handle = gpu(0)
    h200.faults.lose(0)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_ECC_CURRENT])


# Memory


def test_errors_are_fields_too(h200: SimulatedNode) -> None:
    h200.faults.ecc(0, "corrected", 3)
    h200.faults.ecc(0, "uncorrected", 2, location="sram")
    h200.faults.restore(0)
    h200.faults.ecc(0, "uncorrected", 1)
    volatile = [value(field) for field in (pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL)]
    lasting = [value(field) for field in (pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL, pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL)]
    memory = [value(field) for field in (pynvml.NVML_FI_DEV_ECC_DBE_VOL_DEV, pynvml.NVML_FI_DEV_ECC_DBE_AGG_DEV)]
    assert (volatile, lasting, memory) == ([0, 1], [3, 3], [1, 1])


def test_remapped_rows_are_fields_too(h200: SimulatedNode) -> None:
    h200.faults.remap_rows(0, correctable=1, uncorrectable=2, pending=True, failure=False)
    fields = range(pynvml.NVML_FI_DEV_REMAPPED_COR, pynvml.NVML_FI_DEV_REMAPPED_FAILURE + 1)
    assert [value(field) for field in fields] == [1, 2, 1, 0]


def test_retired_pages_are_fields_too(simulate: Simulate) -> None:
    node = simulate("t4-4")
    node.faults.retire_pages(0, "single-bit", [0x1000])
    node.faults.retire_pages(0, "double-bit", [0x2000, 0x3000])
    fields = range(pynvml.NVML_FI_DEV_RETIRED_SBE, pynvml.NVML_FI_DEV_RETIRED_PENDING + 1)
    assert [value(field) for field in fields] == [1, 2, 1]
    assert code(pynvml.NVML_FI_DEV_REMAPPED_COR) == pynvml.NVML_ERROR_NOT_SUPPORTED


# Power and heat


def test_power_limits_are_fields_too(h200: SimulatedNode) -> None:
    fields = range(pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT + 1)
    assert [value(field) for field in fields] == [76_000, 76_000, 200_000, 700_000, 700_000, 700_000]


def test_margins_are_signed(h200: SimulatedNode) -> None:
    fields = range(pynvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, pynvml.NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT + 1)
    assert [value(field) for field in fields] == [-8, -2, 0, 0]
    assert ask(fields[0]).valueType == I32


@pytest.mark.parametrize(("profile", "memory"), [("h200-8", 31), ("a100-40gb-8", 39), ("l40s-8", None), ("t4-4", None)])
def test_only_some_memories_have_a_sensor(simulate: Simulate, profile: str, memory: int | None) -> None:
    simulate(profile)
    if memory is None:
        assert code(pynvml.NVML_FI_DEV_MEMORY_TEMP) == pynvml.NVML_ERROR_NOT_SUPPORTED
    else:
        assert value(pynvml.NVML_FI_DEV_MEMORY_TEMP) == memory


def test_energy_is_a_field_too(h200: SimulatedNode) -> None:
    assert value(pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION) <= pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu(0))


# Links


@pytest.mark.parametrize(
    ("profile", "count", "speed"),
    [("h200-8", 18, 26562), ("a100-40gb-8", 12, 25000), ("v100-8", 6, 25781), ("b200-8", 18, 53125)],
)
def test_links_have_a_number_and_a_speed(simulate: Simulate, profile: str, count: int, speed: int) -> None:
    simulate(profile)
    assert value(pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT) == count
    assert value(pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON) == speed
    assert value(pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_L0) == speed
    assert {value((pynvml.NVML_FI_DEV_NVLINK_GET_SPEED, link)) for link in range(count)} == {speed}


def test_a_link_that_is_down_has_no_speed(h200: SimulatedNode) -> None:
    h200.faults.link(0, 7, up=False)
    assert value((pynvml.NVML_FI_DEV_NVLINK_GET_SPEED, 7)) == 0
    assert value((pynvml.NVML_FI_DEV_NVLINK_GET_STATE, 7)) == 0
    assert value(pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_L7) == 0
    assert value(pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON) == 26562
    assert value(pynvml.NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT) == 17


def test_a_direct_link_names_the_far_ends_number(simulate: Simulate) -> None:
    simulate("v100-8")
    assert value((pynvml.NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID, 1)) == 0
    assert value(pynvml.NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT) == 0


def test_a_switch_does_not_tell_the_far_ends_number(h200: SimulatedNode) -> None:
    assert code((pynvml.NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID, 1)) == pynvml.NVML_ERROR_NOT_SUPPORTED


@pytest.mark.parametrize(
    "field",
    [
        pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT,
        pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON,
        (pynvml.NVML_FI_DEV_NVLINK_GET_STATE, 0),
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0),
    ],
)
def test_boards_without_nvlink_have_none_of_it(simulate: Simulate, field: int | tuple[int, int]) -> None:
    simulate("l40s-8")
    assert code(field) == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_traffic_grows_with_the_load_and_the_links(h200: SimulatedNode) -> None:
    one_link, all_links = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0), (138, 0xFFFFFFFF)
    assert value(one_link) == value(all_links) == 0
    h200.faults.load(0, 1.0)
    time.sleep(0.02)
    h200.faults.load(0, 0.0)
    assert value(all_links) == pytest.approx(18 * value(one_link), rel=0.01)
    assert value(one_link) > 10_000


def test_newer_links_count_bytes_too(simulate: Simulate) -> None:
    node = simulate("b200-8")
    node.faults.load(0, 1.0)
    time.sleep(0.01)
    node.faults.load(0, 0.0)
    sent = value((pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, 0))
    assert sent == pytest.approx(1024 * value((pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0)), rel=0.01)
    assert value((pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, 0)) == 0


def test_older_links_do_not(h200: SimulatedNode) -> None:
    for field in (pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, pynvml.NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_3):
        assert code((field, 0)) == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_errors_of_links_are_counted_by_link_and_in_all(h200: SimulatedNode) -> None:
    h200.faults.link_errors(0, 2, "crc-flit", 4)
    h200.faults.link_errors(0, 2, "crc-data", 1)
    h200.faults.link_errors(0, 3, "replay", 2)
    assert value((pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC, 2)) == 5
    assert value((pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC, 3)) == 0
    assert value((pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, 3)) == 2
    assert value(pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL) == 4
    assert value(pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL) == 2
    assert value(pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL) == 0


# Recovery and abilities


@pytest.mark.parametrize(
    ("action", "number", "reset", "drain"),
    [
        ("none", 0, 0, 0),
        ("gpu-reset", 1, 1, 0),
        ("node-reboot", 2, 0, 0),
        ("drain-p2p", 3, 0, 0),
        ("drain-and-reset", 4, 0, 1),
        ("recover-imex-domain", 5, 0, 0),
    ],
)
def test_the_recovery_action_is_a_field_only(
    h200: SimulatedNode, action: str, number: int, reset: int, drain: int
) -> None:
    h200.faults.recovery_action(0, action)
    assert value(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION) == number
    assert value(pynvml.NVML_FI_DEV_RESET_STATUS) == reset
    assert value(pynvml.NVML_FI_DEV_DRAIN_AND_RESET_STATUS) == drain
    assert value(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 1) == 0


@pytest.mark.parametrize(
    ("profile", "known"), [("h200-8", True), ("v100-8", False), ("t4-4", False), ("vgpu-1", False)]
)
def test_older_boards_know_no_recovery_action(simulate: Simulate, profile: str, known: bool) -> None:
    simulate(profile)
    expected = pynvml.NVML_SUCCESS if known else pynvml.NVML_ERROR_NOT_SUPPORTED
    assert code(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION) == expected


@pytest.mark.parametrize(("profile", "resetless"), [("h200-8", 1), ("b200-8", 1), ("a100-40gb-8", 0), ("a30-2", 0)])
def test_newer_boards_change_mig_mode_without_a_reset(simulate: Simulate, profile: str, resetless: int) -> None:
    simulate(profile)
    assert value(pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED) == resetless


def test_coherent_boards_have_a_link_between_their_chips(simulate: Simulate) -> None:
    simulate("gb200-4")
    assert value(pynvml.NVML_FI_DEV_C2C_LINK_GET_MAX_BW) == 450_000
    simulate("h200-8")
    assert code(pynvml.NVML_FI_DEV_C2C_LINK_COUNT) == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_pcie_errors_are_none(h200: SimulatedNode) -> None:
    assert value(pynvml.NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR) == 0
    assert value(pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER) == 0


def test_a_board_may_lack_single_fields(simulate: Simulate) -> None:
    node = simulate("h200-8")
    found = node.faults.gpu(0)
    found.board = msgspec.structs.replace(found.board, unsupported_fields=(pynvml.NVML_FI_DEV_ECC_CURRENT,))
    assert code(pynvml.NVML_FI_DEV_ECC_CURRENT) == pynvml.NVML_ERROR_NOT_SUPPORTED
    assert code(pynvml.NVML_FI_DEV_ECC_PENDING) == pynvml.NVML_SUCCESS
