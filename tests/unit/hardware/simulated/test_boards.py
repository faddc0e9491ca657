"""The shipped boards against NVIDIA's own figures, read through the binding as any program would."""

from typing import Any, NamedTuple

import pynvml
import pytest

from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import WITH_GPUS, gpu, gpus, profile_of_one

MIB = 1 << 20


class Figures(NamedTuple):
    """MiB of memory, multiprocessors, top clocks in MHz, watts, PCIe generation and NVLinks."""

    memory: int
    sms: int
    sm_clock: int
    memory_clock: int
    watts: int
    pcie: int
    links: int


BOARDS = {
    "h200-sxm": Figures(143771, 132, 1980, 3201, 700, 5, 18),
    "h100-sxm": Figures(81559, 132, 1980, 2619, 700, 5, 18),
    "a100-sxm4-80gb": Figures(81920, 108, 1410, 1593, 400, 4, 12),
    "a100-sxm4-40gb": Figures(40960, 108, 1410, 1215, 400, 4, 12),
    "a100-pcie-40gb": Figures(40960, 108, 1410, 1215, 250, 4, 12),
    "a30": Figures(24576, 56, 1440, 1215, 165, 4, 4),
    "v100-sxm2-16gb": Figures(16384, 80, 1530, 877, 300, 3, 6),
    "l40s": Figures(46068, 142, 2520, 9001, 350, 4, 0),
    "l4": Figures(23034, 58, 2040, 6251, 72, 4, 0),
    "t4": Figures(15360, 40, 1590, 5001, 70, 3, 0),
    "b200-sxm": Figures(183359, 148, 1965, 3996, 1000, 5, 18),
    "gb200": Figures(189471, 152, 2062, 3996, 1200, 6, 18),
}

# Cores of one multiprocessor by compute capability.
CORES = {(7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 9): 128, (9, 0): 128, (10, 0): 128}


class Shape(NamedTuple):
    """A MIG profile: name, id, slices, how many fit, MiB, multiprocessors, copy, decode, JPEG and OFA engines."""

    name: str
    id: int
    slices: int
    fit: int
    mib: int
    sms: int
    copy: int
    decode: int
    jpeg: int
    ofa: int


SHAPES: dict[str, list[Shape]] = {
    "h100-sxm": [
        Shape("1g.10gb", 19, 1, 7, 9984, 16, 1, 1, 1, 0),
        Shape("2g.20gb", 14, 2, 3, 20096, 32, 2, 2, 2, 0),
        Shape("3g.40gb", 9, 3, 2, 40448, 60, 3, 3, 3, 0),
        Shape("4g.40gb", 5, 4, 1, 40448, 64, 4, 4, 4, 0),
        Shape("7g.80gb", 0, 7, 1, 81152, 132, 8, 7, 7, 1),
        Shape("1g.10gb+me", 20, 1, 1, 9984, 16, 1, 1, 1, 1),
        Shape("1g.20gb", 15, 1, 4, 20096, 26, 1, 1, 1, 0),
    ],
    "a100-sxm4-80gb": [
        Shape("1g.10gb", 19, 1, 7, 9728, 14, 1, 0, 0, 0),
        Shape("2g.20gb", 14, 2, 3, 19968, 28, 2, 1, 0, 0),
        Shape("3g.40gb", 9, 3, 2, 40192, 42, 3, 2, 0, 0),
        Shape("4g.40gb", 5, 4, 1, 40192, 56, 4, 2, 0, 0),
        Shape("7g.80gb", 0, 7, 1, 81152, 98, 7, 5, 1, 1),
        Shape("1g.10gb+me", 20, 1, 1, 9728, 14, 1, 1, 1, 1),
        Shape("1g.20gb", 15, 1, 4, 19968, 14, 1, 1, 0, 0),
    ],
    "a100-sxm4-40gb": [
        Shape("1g.5gb", 19, 1, 7, 4864, 14, 1, 0, 0, 0),
        Shape("2g.10gb", 14, 2, 3, 9856, 28, 2, 1, 0, 0),
        Shape("3g.20gb", 9, 3, 2, 19968, 42, 3, 2, 0, 0),
        Shape("4g.20gb", 5, 4, 1, 19968, 56, 4, 2, 0, 0),
        Shape("7g.40gb", 0, 7, 1, 40192, 98, 7, 5, 1, 1),
        Shape("1g.5gb+me", 20, 1, 1, 4864, 14, 1, 1, 1, 1),
        Shape("1g.10gb", 15, 1, 4, 9856, 14, 1, 1, 0, 0),
    ],
    "a30": [
        Shape("1g.6gb", 14, 1, 4, 5952, 14, 1, 0, 0, 0),
        Shape("2g.12gb", 5, 2, 2, 11968, 28, 2, 2, 0, 0),
        Shape("4g.24gb", 0, 4, 1, 24064, 56, 4, 4, 1, 1),
        Shape("1g.6gb+me", 21, 1, 1, 5952, 14, 1, 1, 1, 1),
        Shape("2g.12gb+me", 6, 2, 1, 11968, 28, 2, 2, 1, 1),
    ],
    "b200-sxm": [
        Shape("1g.23gb", 19, 1, 7, 22528, 18, 2, 1, 1, 0),
        Shape("2g.45gb", 14, 2, 3, 45312, 36, 4, 2, 2, 0),
        Shape("3g.90gb", 9, 3, 2, 91136, 70, 6, 3, 3, 0),
        Shape("4g.90gb", 5, 4, 1, 91136, 72, 8, 4, 4, 0),
        Shape("7g.180gb", 0, 7, 1, 182000, 148, 16, 7, 7, 1),
        Shape("1g.23gb+me", 20, 1, 1, 22528, 18, 2, 1, 1, 1),
        Shape("1g.45gb", 15, 1, 4, 45312, 30, 2, 1, 1, 0),
    ],
    "gb200": [
        Shape("1g.23gb", 19, 1, 7, 22528, 18, 2, 1, 1, 0),
        Shape("2g.47gb", 14, 2, 3, 46592, 38, 4, 2, 2, 0),
        Shape("3g.93gb", 9, 3, 2, 94208, 72, 6, 3, 3, 0),
        Shape("4g.93gb", 5, 4, 1, 94208, 76, 8, 4, 4, 0),
        Shape("7g.186gb", 0, 7, 1, 188416, 152, 16, 7, 7, 1),
        Shape("1g.23gb+me", 20, 1, 1, 22528, 18, 2, 1, 1, 1),
        Shape("1g.47gb", 15, 1, 4, 46592, 32, 2, 1, 1, 0),
    ],
}


@pytest.mark.parametrize("board", BOARDS)
def test_a_board_has_its_figures(simulate: Simulate, board: str) -> None:
    simulate(profile_of_one(board))
    capability = pynvml.nvmlDeviceGetCudaComputeCapability(gpu(0))
    found = Figures(
        memory=pynvml.nvmlDeviceGetMemoryInfo(gpu(0)).total // MIB,
        sms=pynvml.nvmlDeviceGetNumGpuCores(gpu(0)) // CORES[capability],
        sm_clock=pynvml.nvmlDeviceGetMaxClockInfo(gpu(0), pynvml.NVML_CLOCK_SM),
        memory_clock=pynvml.nvmlDeviceGetMaxClockInfo(gpu(0), pynvml.NVML_CLOCK_MEM),
        watts=pynvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu(0)) // 1000,
        pcie=pynvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu(0)),
        links=field(pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT),
    )
    assert found == BOARDS[board]


def field(number: int) -> int:
    """A field value, or 0 where the board has none."""
    answer = pynvml.nvmlDeviceGetFieldValues(gpu(0), [number])[0]
    value: int = answer.value.uiVal if answer.nvmlReturn == pynvml.NVML_SUCCESS else 0
    return value


def shapes() -> list[Shape]:
    """The MIG profiles of the first GPU, in the order of their enumeration."""
    found = []
    for enum in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            found.append(shape(pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu(0), enum)))
        except pynvml.NVMLError_NotSupported:
            continue
    return found


def shape(info: Any) -> Shape:
    return Shape(
        name=info.name.removeprefix("MIG "),
        id=info.id,
        slices=info.sliceCount,
        fit=info.instanceCount,
        mib=info.memorySizeMB,
        sms=info.multiprocessorCount,
        copy=info.copyEngineCount,
        decode=info.decoderCount,
        jpeg=info.jpegCount,
        ofa=info.ofaCount,
    )


@pytest.mark.parametrize("board", SHAPES)
def test_a_board_is_cut_to_its_shapes(simulate: Simulate, board: str) -> None:
    simulate(profile_of_one(board))
    pynvml.nvmlDeviceSetMigMode(gpu(0), 1)
    assert shapes() == SHAPES[board]


@pytest.mark.parametrize("board", SHAPES)
def test_as_many_of_a_shape_can_be_made_as_it_says(simulate: Simulate, board: str) -> None:
    simulate(profile_of_one(board))
    pynvml.nvmlDeviceSetMigMode(gpu(0), 1)
    for wanted in SHAPES[board]:
        made = [pynvml.nvmlDeviceCreateGpuInstance(gpu(0), wanted.id) for _ in range(wanted.fit)]
        with pytest.raises(pynvml.NVMLError_InsufficientResources):
            pynvml.nvmlDeviceCreateGpuInstance(gpu(0), wanted.id)
        for instance in made:
            pynvml.nvmlGpuInstanceDestroy(instance)


@pytest.mark.parametrize("name", WITH_GPUS)
def test_gpus_of_one_model_are_alike(simulate: Simulate, name: str) -> None:
    node = simulate(name)
    names = {place.board: set[str]() for place in node.profile.gpus}
    for place, handle in zip(node.profile.gpus, gpus(), strict=True):
        names[place.board].add(pynvml.nvmlDeviceGetName(handle))
    assert all(len(found) == 1 for found in names.values())
    assert len(names) == (2 if name == "mixed-5" else 1)
