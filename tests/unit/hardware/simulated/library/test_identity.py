"""What a GPU says of itself."""

import uuid
from ctypes import byref

import pynvml
import pytest

from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import WITH_GPUS, gpu, gpus

# Profile, name, brand, architecture, compute capability, PCI device and subsystem of its first GPU.
IDENTITIES = [
    ("h200-8", "NVIDIA H200", 14, 9, (9, 0), 0x233510DE, 0x18BE10DE),
    ("h100-8", "NVIDIA H100 80GB HBM3", 14, 9, (9, 0), 0x233010DE, 0x16C110DE),
    ("a100-80gb-8", "NVIDIA A100-SXM4-80GB", 14, 7, (8, 0), 0x20B210DE, 0x146310DE),
    ("a100-40gb-8", "NVIDIA A100-SXM4-40GB", 14, 7, (8, 0), 0x20B010DE, 0x134F10DE),
    ("a100-pcie-4", "NVIDIA A100-PCIE-40GB", 14, 7, (8, 0), 0x20F110DE, 0x145F10DE),
    ("a30-2", "NVIDIA A30", 14, 7, (8, 0), 0x20B710DE, 0x153210DE),
    ("v100-8", "Tesla V100-SXM2-16GB", 2, 5, (7, 0), 0x1DB110DE, 0x121210DE),
    ("l40s-8", "NVIDIA L40S", 14, 8, (8, 9), 0x26B910DE, 0x185110DE),
    ("l4-2", "NVIDIA L4", 14, 8, (8, 9), 0x27B810DE, 0x16CA10DE),
    ("t4-4", "Tesla T4", 14, 6, (7, 5), 0x1EB810DE, 0x12A210DE),
    ("b200-8", "NVIDIA B200", 14, 10, (10, 0), 0x290110DE, 0x199910DE),
    ("gb200-4", "NVIDIA GB200", 14, 10, (10, 0), 0x294110DE, 0x204610DE),
    ("gb10-1", "NVIDIA GB10", 14, 10, (12, 1), 0x2E1210DE, 0x21EC10DE),
    ("vgpu-1", "GRID A100D-20C", 9, 7, (8, 0), 0x20B510DE, 0x158910DE),
]

CORES = [
    ("h200-8", 16896),
    ("a100-40gb-8", 6912),
    ("v100-8", 5120),
    ("t4-4", 2560),
    ("l40s-8", 18176),
    ("b200-8", 18944),
]


@pytest.mark.parametrize("identity", IDENTITIES, ids=lambda identity: identity[0])
def test_a_board_is_what_nvidia_calls_it(simulate: Simulate, identity: tuple[object, ...]) -> None:
    profile, *expected = identity
    simulate(str(profile))
    pci = pynvml.nvmlDeviceGetPciInfo(gpu(0))
    assert expected == [
        pynvml.nvmlDeviceGetName(gpu(0)),
        pynvml.nvmlDeviceGetBrand(gpu(0)),
        pynvml.nvmlDeviceGetArchitecture(gpu(0)),
        pynvml.nvmlDeviceGetCudaComputeCapability(gpu(0)),
        pci.pciDeviceId,
        pci.pciSubSystemId,
    ]


@pytest.mark.parametrize(("profile", "cores"), CORES)
def test_cores_are_those_of_all_multiprocessors(simulate: Simulate, profile: str, cores: int) -> None:
    simulate(profile)
    assert pynvml.nvmlDeviceGetNumGpuCores(gpu(0)) == cores


@pytest.mark.parametrize("name", WITH_GPUS)
def test_uuids_are_well_formed_and_all_different(simulate: Simulate, name: str) -> None:
    simulate(name)
    uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in gpus()]
    assert len(set(uuids)) == len(uuids)
    assert all(f"GPU-{uuid.UUID(text.removeprefix('GPU-'))}" == text for text in uuids)


def test_uuids_and_serials_follow_from_the_profile_alone() -> None:
    seen = []
    for _ in range(2):
        with install(SimulatedNode(load_profile("h200-8"))):
            pynvml.nvmlInit()
            seen.append([(pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetSerial(handle)) for handle in gpus()])
            pynvml.nvmlShutdown()
    assert seen[0] == seen[1]


def test_gpus_of_two_nodes_differ(simulate: Simulate) -> None:
    simulate("a100-40gb-8")
    one = {pynvml.nvmlDeviceGetUUID(handle) for handle in gpus()}
    simulate("a100-80gb-8")
    assert one.isdisjoint(pynvml.nvmlDeviceGetUUID(handle) for handle in gpus())


def test_serials_have_thirteen_digits(h200: SimulatedNode) -> None:
    serials = [pynvml.nvmlDeviceGetSerial(handle) for handle in gpus()]
    assert all(len(serial) == 13 and serial.isdigit() for serial in serials)
    assert len(set(serials)) == 8


@pytest.mark.parametrize("name", WITH_GPUS)
def test_minors_are_those_of_the_profile(simulate: Simulate, name: str) -> None:
    node = simulate(name)
    minors = [pynvml.nvmlDeviceGetMinorNumber(handle) for handle in gpus()]
    assert minors == [place.minor for place in node.profile.gpus]


@pytest.mark.parametrize("name", WITH_GPUS)
def test_the_two_spellings_of_a_bus_id_name_one_place(simulate: Simulate, name: str) -> None:
    node = simulate(name)
    for place, handle in zip(node.profile.gpus, gpus(), strict=True):
        pci = pynvml.nvmlDeviceGetPciInfo(handle)
        numbers = tuple(int(part, 16) for part in place.bus.removesuffix(".0").split(":"))
        assert (pci.domain, pci.bus, pci.device) == numbers
        assert pci.busId == pynvml.NVML_DEVICE_PCI_BUS_ID_FMT % numbers
        assert pci.busIdLegacy == pynvml.NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT % numbers


def test_part_numbers_and_firmware(h200: SimulatedNode) -> None:
    assert pynvml.nvmlDeviceGetBoardPartNumber(gpu(0)) == "695-2G520-0280-000"
    assert pynvml.nvmlDeviceGetVbiosVersion(gpu(0)) == "96.00.A5.00.03"
    assert pynvml.nvmlDeviceGetInforomImageVersion(gpu(0)) == "G520.0280.02.02"
    assert pynvml.nvmlDeviceGetInforomVersion(gpu(0), pynvml.NVML_INFOROM_OEM) == "2.1"
    assert pynvml.nvmlDeviceGetInforomVersion(gpu(0), pynvml.NVML_INFOROM_ECC) == "7.16"
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetInforomVersion(gpu(0), pynvml.NVML_INFOROM_POWER)


def test_the_firmware_of_the_gpu_is_the_drivers(h200: SimulatedNode) -> None:
    assert pynvml.nvmlDeviceGetGspFirmwareVersion(gpu(0)) == b"580.95.05"
    assert pynvml.nvmlDeviceGetGspFirmwareMode(gpu(0)) == [1, 1]


def test_modules_do_not_follow_the_index(h200: SimulatedNode) -> None:
    assert [pynvml.nvmlDeviceGetModuleId(handle) for handle in gpus()] == [2, 4, 3, 1, 7, 5, 8, 6]


@pytest.mark.parametrize(("profile", "mode"), [("h200-8", 0), ("h100-vm-8", 1), ("a100-40gb-16", 1), ("vgpu-1", 2)])
def test_a_guest_knows_that_it_is_one(simulate: Simulate, profile: str, mode: int) -> None:
    simulate(profile)
    assert pynvml.nvmlDeviceGetVirtualizationMode(gpu(0)) == mode


@pytest.mark.parametrize(("profile", "mode"), [("gb200-4", 2), ("h200-8", 0)])
def test_coherent_boards_translate_addresses(simulate: Simulate, profile: str, mode: int) -> None:
    simulate(profile)
    assert pynvml.nvmlDeviceGetAddressingMode(gpu(0)) == mode
    assert pynvml.nvmlDeviceGetC2cModeInfoV(gpu(0)).isC2cEnabled == (1 if mode else 0)


def test_a_tray_knows_its_place_in_the_rack(simulate: Simulate) -> None:
    simulate("gb200-4")
    info = pynvml.c_nvmlPlatformInfo_v2_t()
    pynvml.nvmlDeviceGetPlatformInfo(gpu(2), byref(info))
    assert info.chassisSerialNumber == "1821225190234"
    assert [ord(field) for field in (info.slotNumber, info.trayIndex, info.hostId, info.peerType, info.moduleId)] == [
        12,
        4,
        1,
        1,
        3,
    ]


def test_only_a_display_gpu_drives_a_display(simulate: Simulate) -> None:
    simulate("mixed-5")
    assert [pynvml.nvmlDeviceGetDisplayMode(handle) for handle in gpus()] == [0, 0, 0, 1, 0]
    assert [pynvml.nvmlDeviceGetName(handle) for handle in gpus()][2:4] == [
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA DGX Display",
    ]


@pytest.mark.parametrize(("profile", "board"), [("a100-40gb-8", 0x700), ("a100-40gb-16", 0x4), ("h200-8", 0x1B00)])
def test_a_board_id_is_its_bus_and_device(simulate: Simulate, profile: str, board: int) -> None:
    simulate(profile)
    assert pynvml.nvmlDeviceGetBoardId(gpu(0)) == board
    assert pynvml.nvmlDeviceGetMultiGpuBoard(gpu(0)) == 0


def test_all_gpus_are_on_pcie(h200: SimulatedNode) -> None:
    assert {pynvml.nvmlDeviceGetBusType(handle) for handle in gpus()} == {pynvml.NVML_BUS_TYPE_PCIE}
