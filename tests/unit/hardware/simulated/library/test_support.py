"""Who lacks what: each kind of board answers NOT_SUPPORTED where the real one does, and nowhere else."""

from collections.abc import Callable
from ctypes import byref
from typing import Any

import pynvml
import pytest

from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import gpu

VOLATILE, UNCORRECTED = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
XID = pynvml.nvmlEventTypeXidCriticalError


def field(number: int) -> Callable[[Any], None]:
    """Ask for one field value and raise what it answers."""

    def ask(handle: Any) -> None:
        code = pynvml.nvmlDeviceGetFieldValues(handle, [number])[0].nvmlReturn
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)

    return ask


def fabric(handle: Any) -> None:
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(pynvml.c_nvmlGpuFabricInfo_v2_t()))


def register(handle: Any) -> None:
    pynvml.nvmlDeviceRegisterEvents(handle, XID, pynvml.nvmlEventSetCreate())


CALLS: dict[str, Callable[[Any], object]] = {
    "name": pynvml.nvmlDeviceGetName,
    "uuid": pynvml.nvmlDeviceGetUUID,
    "pci": pynvml.nvmlDeviceGetPciInfo,
    "minor": pynvml.nvmlDeviceGetMinorNumber,
    "serial": pynvml.nvmlDeviceGetSerial,
    "part number": pynvml.nvmlDeviceGetBoardPartNumber,
    "memory": pynvml.nvmlDeviceGetMemoryInfo,
    "bar1": pynvml.nvmlDeviceGetBAR1MemoryInfo,
    "utilization": pynvml.nvmlDeviceGetUtilizationRates,
    "power": pynvml.nvmlDeviceGetPowerUsage,
    "power limit": pynvml.nvmlDeviceGetEnforcedPowerLimit,
    "energy": pynvml.nvmlDeviceGetTotalEnergyConsumption,
    "temperature": lambda handle: pynvml.nvmlDeviceGetTemperature(handle, 0),
    "memory temperature": field(pynvml.NVML_FI_DEV_MEMORY_TEMP),
    "threshold": lambda handle: pynvml.nvmlDeviceGetTemperatureThreshold(handle, 0),
    "margin": pynvml.nvmlDeviceGetMarginTemperature,
    "margin field": field(pynvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT),
    "event reasons": pynvml.nvmlDeviceGetCurrentClocksEventReasons,
    "ecc mode": pynvml.nvmlDeviceGetEccMode,
    "volatile ecc": lambda handle: pynvml.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, VOLATILE),
    "aggregate ecc": lambda handle: pynvml.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, 1),
    "remapped rows": pynvml.nvmlDeviceGetRemappedRows,
    "histogram": pynvml.nvmlDeviceGetRowRemapperHistogram,
    "retired pages": lambda handle: pynvml.nvmlDeviceGetRetiredPages(handle, 0),
    "pcie": pynvml.nvmlDeviceGetCurrPcieLinkWidth,
    "replays": pynvml.nvmlDeviceGetPcieReplayCounter,
    "nvlink": lambda handle: pynvml.nvmlDeviceGetNvLinkState(handle, 0),
    "fabric": fabric,
    "mig mode": pynvml.nvmlDeviceGetMigMode,
    "numa node": pynvml.nvmlDeviceGetNumaNodeId,
    "module": pynvml.nvmlDeviceGetModuleId,
    "gsp": pynvml.nvmlDeviceGetGspFirmwareVersion,
    "recovery action": field(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
    "xids": register,
    "compute mode": pynvml.nvmlDeviceGetComputeMode,
    "persistence": pynvml.nvmlDeviceGetPersistenceMode,
}

# What each kind of board lacks; all other calls answer.
LACKS = {
    "h200-8": {"threshold", "retired pages", "numa node"},
    "a100-40gb-8": {"margin", "margin field", "retired pages", "fabric", "numa node"},
    "a100-pcie-4": {"margin", "margin field", "retired pages", "fabric", "numa node", "module"},
    "v100-8": {
        *("margin", "margin field", "remapped rows", "histogram", "fabric", "mig mode", "numa node", "gsp"),
        "recovery action",
    },
    "l40s-8": {
        *("memory temperature", "threshold", "retired pages", "nvlink", "fabric", "mig mode", "numa node", "module"),
    },
    "gb200-4": {"threshold", "retired pages"},
    "gb10-1": {
        *("serial", "part number", "memory", "bar1", "power limit", "memory temperature", "threshold", "margin"),
        *("margin field", "ecc mode", "volatile ecc", "aggregate ecc", "remapped rows", "histogram", "retired pages"),
        *("pcie", "replays", "nvlink", "fabric", "mig mode", "numa node", "module", "recovery action"),
    },
    "vgpu-1": {
        *("serial", "part number", "power", "power limit", "energy", "temperature", "memory temperature", "threshold"),
        *("margin", "margin field", "event reasons", "remapped rows", "histogram", "retired pages", "pcie", "replays"),
        *("nvlink", "fabric", "numa node", "module", "gsp", "recovery action", "xids"),
    },
}

# A MIG device answers only for what is its own.
MIG_DEVICE_HAS = {"name", "uuid", "memory", "bar1", "volatile ecc", "compute mode"}


def lacking(handle: Any) -> set[str]:
    missing = set()
    for name, call in CALLS.items():
        try:
            call(handle)
        except pynvml.NVMLError_NotSupported:
            missing.add(name)
    return missing


@pytest.mark.parametrize("profile", LACKS)
def test_a_board_lacks_what_the_real_one_lacks(simulate: Simulate, profile: str) -> None:
    simulate(profile)
    assert lacking(gpu(0)) == LACKS[profile]


def test_an_old_driver_lacks_functions_besides(simulate: Simulate) -> None:
    simulate("t4-4")
    outcomes = {}
    for name, call in CALLS.items():
        try:
            call(gpu(0))
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound) as error:
            outcomes[name] = error.value
    absent = {name for name, code in outcomes.items() if code == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
    assert absent == {"margin", "event reasons", "fabric", "numa node", "module", "gsp"}
    assert outcomes.keys() - absent == {
        *("memory temperature", "margin field", "remapped rows", "histogram", "nvlink", "mig mode", "recovery action"),
    }


def test_a_gpu_that_is_cut_answers_for_less(simulate: Simulate) -> None:
    simulate("a30-2")
    whole, parent = lacking(gpu(0)), lacking(gpu(1))
    assert parent - whole == {"utilization", "volatile ecc", "remapped rows", "histogram"}
    assert whole - parent == set()


def test_a_mig_device_answers_for_its_own(simulate: Simulate) -> None:
    simulate("a30-2")
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), 0)
    assert CALLS.keys() - lacking(device) == MIG_DEVICE_HAS


@pytest.mark.parametrize("name", CALLS)
def test_a_lost_gpu_answers_nothing(simulate: Simulate, name: str) -> None:
    node = simulate("h200-8")
    handle = gpu(0)
    node.faults.lose(0)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        CALLS[name](handle)
