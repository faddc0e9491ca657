"""How calls cross the border of C: buffers, sizes, version words, NULLs, handles, and functions that are not there."""

import ctypes
from collections.abc import Callable
from ctypes import byref, c_uint, c_ulonglong, create_string_buffer, pointer, sizeof
from typing import Any

import pynvml
import pytest

from node_agent.hardware.simulated import SimulatedNode
from node_agent.hardware.simulated.library.calls import CALLS
from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import c_call, gpu, gpus

TEXTS = [
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetBoardPartNumber",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetInforomImageVersion",
]
SYSTEM_TEXTS = ["nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion"]

VERSIONED: list[tuple[str, Callable[[], Any]]] = [
    ("nvmlDeviceGetMemoryInfo_v2", pynvml.c_nvmlMemory_v2_t),
    ("nvmlDeviceGetGpuFabricInfoV", pynvml.c_nvmlGpuFabricInfo_v2_t),
    ("nvmlDeviceGetMarginTemperature", pynvml.c_nvmlMarginTemperature_v1_t),
    ("nvmlDeviceGetTemperatureV", pynvml.c_nvmlTemperature_v1_t),
    ("nvmlDeviceGetSramEccErrorStatus", pynvml.c_nvmlEccSramErrorStatus_v1_t),
    ("nvmlDeviceGetRepairStatus", pynvml.c_nvmlRepairStatus_t),
    ("nvmlDeviceGetAddressingMode", pynvml.c_nvmlDeviceAddressingMode_t),
]

# Figures of the C header that the binding's classes must agree with.
SIZES = [
    (pynvml.c_nvmlMemory_t, 24),
    (pynvml.c_nvmlMemory_v2_t, 40),
    (pynvml.nvmlPciInfo_t, 68),
    (pynvml.c_nvmlProcessInfo_v3_t, 24),
    (pynvml.c_nvmlEventData_t, 32),
    (pynvml.c_nvmlGpuInstanceProfileInfo_v2_t, 152),
    (pynvml.c_nvmlComputeInstanceProfileInfo_v2_t, 136),
    (pynvml.c_nvmlGpuInstanceInfo_t, 24),
    (pynvml.c_nvmlComputeInstanceInfo_t, 32),
    (pynvml.c_nvmlGpuInstancePlacement_t, 8),
    (pynvml.c_nvmlDeviceAttributes, 40),
    (pynvml.c_nvmlFieldValue_t, 40),
    (pynvml.c_nvmlGpuFabricInfo_t, 28),
    (pynvml.c_nvmlGpuFabricInfo_v2_t, 36),
    (pynvml.c_nvmlGpuFabricInfo_v3_t, 40),
    (pynvml.c_nvmlRowRemapperHistogramValues, 20),
    (pynvml.c_nvmlPlatformInfo_v2_t, 44),
]

VERSION_WORDS = [
    (pynvml.nvmlMemory_v2, 2, pynvml.c_nvmlMemory_v2_t),
    (pynvml.nvmlGpuInstanceProfileInfo_v2, 2, pynvml.c_nvmlGpuInstanceProfileInfo_v2_t),
    (pynvml.nvmlComputeInstanceProfileInfo_v2, 2, pynvml.c_nvmlComputeInstanceProfileInfo_v2_t),
    (pynvml.nvmlGpuFabricInfo_v2, 2, pynvml.c_nvmlGpuFabricInfo_v2_t),
    (pynvml.nvmlGpuFabricInfo_v3, 3, pynvml.c_nvmlGpuFabricInfo_v3_t),
    (pynvml.nvmlPlatformInfo_v2, 2, pynvml.c_nvmlPlatformInfo_v2_t),
    (pynvml.nvmlRepairStatus_v1, 1, pynvml.c_nvmlRepairStatus_t),
    (pynvml.nvmlMarginTemperature_v1, 1, pynvml.c_nvmlMarginTemperature_v1_t),
    (pynvml.nvmlDeviceAddressingMode_v1, 1, pynvml.c_nvmlDeviceAddressingMode_t),
    (pynvml.nvmlEccSramErrorStatus_v1, 1, pynvml.c_nvmlEccSramErrorStatus_v1_t),
    (pynvml.nvmlTemperature_v1, 1, pynvml.c_nvmlTemperature_v1_t),
]


@pytest.mark.parametrize(("structure", "size"), SIZES, ids=lambda value: getattr(value, "__name__", value))
def test_structures_have_their_size_in_c(structure: type[ctypes.Structure], size: int) -> None:
    assert sizeof(structure) == size


@pytest.mark.parametrize(("word", "version", "structure"), VERSION_WORDS)
def test_a_version_word_is_a_version_and_a_size(word: int, version: int, structure: type[ctypes.Structure]) -> None:
    assert word == version << 24 | sizeof(structure)


# Text


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_just_fits_is_given_whole(h200: SimulatedNode, name: str) -> None:
    text = getattr(pynvml, name)(gpu(0))
    buffer = create_string_buffer(len(text) + 1)
    assert c_call(name, gpu(0), buffer, c_uint(len(text) + 1)) == pynvml.NVML_SUCCESS
    assert buffer.value.decode() == text


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_does_not_fit_is_not_cut(h200: SimulatedNode, name: str) -> None:
    text = getattr(pynvml, name)(gpu(0))
    buffer = create_string_buffer(96)
    assert c_call(name, gpu(0), buffer, c_uint(len(text))) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert buffer.value == b""


@pytest.mark.parametrize("name", SYSTEM_TEXTS)
def test_versions_that_do_not_fit_are_not_cut(h200: SimulatedNode, name: str) -> None:
    buffer = create_string_buffer(96)
    assert c_call(name, buffer, c_uint(5)) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert c_call(name, buffer, c_uint(96)) == pynvml.NVML_SUCCESS


def test_a_size_that_lies_about_its_buffer_does_not_write_past_it(h200: SimulatedNode) -> None:
    assert (
        c_call("nvmlDeviceGetName", gpu(0), create_string_buffer(4), c_uint(96)) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    )


def test_text_without_a_size_goes_by_its_buffer(h200: SimulatedNode) -> None:
    small = (ctypes.c_char * 4)()
    assert c_call("nvmlDeviceGetGspFirmwareVersion", gpu(0), small) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert pynvml.nvmlDeviceGetGspFirmwareVersion(gpu(0)) == b"580.95.05"


# Structures


@pytest.mark.parametrize(("name", "structure"), VERSIONED, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize("word", [0, 1, 0x01000000, 0x07000028, 0xFFFFFFFF])
def test_a_wrong_version_word_is_a_mismatch(
    h200: SimulatedNode, name: str, structure: Callable[[], Any], word: int
) -> None:
    info = structure()
    info.version = word
    assert c_call(name, gpu(0), byref(info)) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_a_version_of_a_larger_structure_than_was_passed_is_a_mismatch(h200: SimulatedNode) -> None:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    info.version = pynvml.nvmlGpuFabricInfo_v3
    assert c_call("nvmlDeviceGetGpuFabricInfoV", gpu(0), byref(info)) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_structures_can_be_passed_by_pointer_too(h200: SimulatedNode) -> None:
    info = pynvml.c_nvmlMemory_t()
    assert c_call("nvmlDeviceGetMemoryInfo", gpu(0), pointer(info)) == pynvml.NVML_SUCCESS
    assert info.total == 150754820096


def test_fields_that_an_older_structure_lacks_are_left_out(h200: SimulatedNode) -> None:
    info = pynvml.c_nvmlGpuFabricInfo_t()
    pynvml.nvmlDeviceGetGpuFabricInfo(gpu(0), byref(info))
    assert info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED


@pytest.mark.parametrize(
    "name",
    ["nvmlDeviceGetMinorNumber", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetBrand"],
)
def test_null_for_the_result_is_invalid(h200: SimulatedNode, name: str) -> None:
    assert c_call(name, gpu(0), None) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_null_for_text_is_invalid(h200: SimulatedNode) -> None:
    assert c_call("nvmlDeviceGetName", gpu(0), None, c_uint(96)) == pynvml.NVML_ERROR_INVALID_ARGUMENT


# Lists


def test_a_list_first_tells_how_long_it_is(h200: SimulatedNode) -> None:
    h200.faults.start_process(0, 101)
    h200.faults.start_process(0, 102)
    count = c_uint(0)
    code = c_call("nvmlDeviceGetComputeRunningProcesses_v3", gpu(0), byref(count), None)
    assert (code, count.value) == (pynvml.NVML_ERROR_INSUFFICIENT_SIZE, 2)


def test_a_list_that_does_not_fit_tells_how_long_it_is(h200: SimulatedNode) -> None:
    h200.faults.start_process(0, 101)
    h200.faults.start_process(0, 102)
    count, room = c_uint(1), (pynvml.c_nvmlProcessInfo_v3_t * 1)()
    code = c_call("nvmlDeviceGetComputeRunningProcesses_v3", gpu(0), byref(count), room)
    assert (code, count.value, room[0].pid) == (pynvml.NVML_ERROR_INSUFFICIENT_SIZE, 2, 0)


def test_an_empty_list_needs_no_room(h200: SimulatedNode) -> None:
    count = c_uint(0)
    assert c_call("nvmlDeviceGetComputeRunningProcesses_v3", gpu(0), byref(count), None) == pynvml.NVML_SUCCESS


def test_a_list_without_a_count_is_invalid(h200: SimulatedNode) -> None:
    room = (pynvml.c_nvmlProcessInfo_v3_t * 1)()
    assert c_call("nvmlDeviceGetComputeRunningProcesses_v3", gpu(0), None, room) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_a_list_whose_length_the_caller_must_know_may_come_by_pointer(a100: SimulatedNode) -> None:
    count, room = c_uint(0), (pynvml.c_nvmlGpuInstancePlacement_t * 7)()
    first = ctypes.cast(room, ctypes.POINTER(pynvml.c_nvmlGpuInstancePlacement_t))
    code = c_call("nvmlDeviceGetGpuInstancePossiblePlacements_v2", gpu(0), c_uint(19), first, byref(count))
    assert (code, count.value) == (pynvml.NVML_SUCCESS, 7)
    assert [(place.start, place.size) for place in room] == [(start, 1) for start in range(7)]


def test_an_array_that_is_visibly_too_small_is_not_written_past(a100: SimulatedNode) -> None:
    count, room = c_uint(0), (pynvml.c_nvmlGpuInstancePlacement_t * 3)()
    code = c_call("nvmlDeviceGetGpuInstancePossiblePlacements_v2", gpu(0), c_uint(19), room, byref(count))
    assert code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE


# Handles and functions


@pytest.mark.parametrize("address", [0, 1, 0x510000000001, 0x5FFFFFFFF000])
def test_a_made_up_handle_is_invalid(h200: SimulatedNode, address: int) -> None:
    handle = ctypes.cast(address, pynvml.c_nvmlDevice_t)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(handle)


def test_a_handle_of_another_kind_is_invalid(h200: SimulatedNode) -> None:
    event_set = ctypes.cast(pynvml.nvmlEventSetCreate(), pynvml.c_nvmlDevice_t)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(event_set)
    for call in (pynvml.nvmlEventSetFree, pynvml.nvmlGpuInstanceGetInfo, pynvml.nvmlComputeInstanceGetInfo):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call(gpu(0))


def test_handles_are_the_same_each_time(h200: SimulatedNode) -> None:
    addresses = [[ctypes.cast(handle, ctypes.c_void_p).value for handle in gpus()] for _ in range(2)]
    assert addresses[0] == addresses[1]
    assert len(set(addresses[0])) == 8


@pytest.mark.parametrize("name", ["nvmlDeviceGetNothing", "nvmlDeviceGetHicVersion", "free"])
def test_a_function_that_nobody_wrote_is_not_found(h200: SimulatedNode, name: str) -> None:
    with pytest.raises(AttributeError, match=f"undefined symbol: {name}"):
        getattr(pynvml.nvmlLib, name)
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml._nvmlGetFunctionPointer(name)


def test_an_older_library_lacks_newer_functions(simulate: Simulate) -> None:
    node = simulate("t4-4")
    for name in node.profile.driver.missing_symbols:
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            pynvml._nvmlGetFunctionPointer(name)
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetMemoryInfo(gpu(0), version=pynvml.nvmlMemory_v2)
    assert pynvml.nvmlDeviceGetMemoryInfo(gpu(0)).total == 15360 << 20


def test_every_function_carries_a_name_of_the_c_library() -> None:
    assert all(name.startswith("nvml") for name in CALLS)


def test_numbers_may_be_passed_as_python_or_c_numbers(h200: SimulatedNode) -> None:
    count = c_ulonglong(0)
    for link in (3, c_uint(3)):
        assert c_call("nvmlDeviceGetNvLinkErrorCounter", gpu(0), link, c_uint(0), byref(count)) == pynvml.NVML_SUCCESS
