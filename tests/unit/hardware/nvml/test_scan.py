"""What a scan tells of each GPU, and what is left when queries fail."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from node_agent.errors import DriverUnavailable
from node_agent.hardware.nvml.scan import scan
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.provider import GpuFacts, Scan
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.profile import NodeProfile
from node_agent.model.gpu import ComputeCapability, PartitionMode
from node_agent.model.inventory import DriverInfo

GIB = 1 << 30

# A query of NVML, and the one attribute that it costs when it fails.
QUERIES = {
    "nvmlDeviceGetName": "product",
    "nvmlDeviceGetMinorNumber": "minor",
    "nvmlDeviceGetBrand": "brand",
    "nvmlDeviceGetArchitecture": "architecture",
    "nvmlDeviceGetNumGpuCores": "multiprocessors",
    "nvmlDeviceGetMigMode": "partition_mode",
    "nvmlDeviceGetMemoryInfo_v2": "memory",
    "nvmlDeviceGetEccMode": "ecc_enabled",
    "nvmlDeviceGetAddressingMode": "addressing_mode",
    "nvmlDeviceGetNvLinkVersion": "nvlink_generation",
    "nvmlDeviceGetPowerManagementLimit": "power_limit",
    "nvmlDeviceGetSerial": "serial",
    "nvmlDeviceGetVbiosVersion": "vbios",
}


def differences(before: GpuFacts, after: GpuFacts) -> Mapping[str, Any]:
    names = [name for name in GpuFacts.__struct_fields__ if getattr(before, name) != getattr(after, name)]
    return {name: getattr(after, name) for name in names}


def with_board(**changes: Any) -> NodeProfile:
    """The eight H200s with boards that differ in something."""
    profile = load_profile("h200-8")
    (name, board) = next(iter(profile.boards.items()))
    return msgspec.structs.replace(profile, boards={name: msgspec.structs.replace(board, **changes)})


def scan_once(profile: NodeProfile, sysfs: Path) -> Scan:
    with install(SimulatedNode(profile)):
        session = Session(sysfs=sysfs)
        found = scan(session)
        session.close()
    return found


def test_every_fact_of_a_gpu_is_read(session: Session, node: SimulatedNode) -> None:
    facts = scan(session).gpus[0]
    assert facts == GpuFacts(
        uuid=session.gpus[0],
        index=0,
        product="NVIDIA H200",
        pci=facts.pci,
        minor=2,
        brand="Nvidia",
        architecture="Hopper",
        compute_capability=ComputeCapability(major=9, minor=0),
        memory=150754820096,
        multiprocessors=132,
        partition_mode=PartitionMode.DISABLED,
        ecc_enabled=True,
        addressing_mode="None",
        nvlink_generation=4,
        power_limit=700,
        device_id=0x2335,
        subsystem_id=0x18BE10DE,
        serial=node.faults.gpu(0).serial,
        vbios="96.00.A5.00.03",
    )
    assert facts.pci == "0000:1b:00.0"


def test_the_driver_tells_its_versions(session: Session) -> None:
    assert scan(session).driver == DriverInfo(version="580.95.05", cuda="13.0", library="13.580.95.05")


def test_without_libcuda_the_driver_still_tells_its_cuda_version(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlSystemGetCudaDriverVersion_v2", "LIBRARY_NOT_FOUND")
    assert scan(session).driver.cuda == "13.0"


def test_versions_that_the_driver_does_not_tell_are_absent(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlSystemGetDriverVersion", "NOT_SUPPORTED")
    node.faults.fail("nvmlSystemGetNVMLVersion", "UNKNOWN")
    found = scan(session)
    assert found.driver == DriverInfo(version=None, cuda="13.0", library=None)
    assert len(found.gpus) == 8


@pytest.mark.parametrize(("call", "attribute"), QUERIES.items())
def test_a_failing_query_costs_only_its_attribute_and_says_why(
    session: Session, node: SimulatedNode, call: str, attribute: str
) -> None:
    before = scan(session)
    node.faults.fail(call, "UNKNOWN", gpu=4)
    after = scan(session)
    assert [differences(*pair) for i, pair in enumerate(zip(before.gpus, after.gpus, strict=True)) if i != 4] == [
        {}
    ] * 7
    changed = differences(before.gpus[4], after.gpus[4])
    assert changed.keys() == {attribute, "failed"}
    assert changed["failed"].keys() == {attribute}
    assert "NVML error 999" in changed["failed"][attribute]
    assert after.missing == ()


@pytest.mark.parametrize(("call", "attribute"), QUERIES.items())
def test_an_unsupported_query_leaves_its_attribute_out_without_a_failure(
    session: Session, node: SimulatedNode, call: str, attribute: str
) -> None:
    before = scan(session).gpus[4]
    node.faults.fail(call, "NOT_SUPPORTED", gpu=4)
    node.faults.fail("nvmlDeviceGetMemoryInfo", "NOT_SUPPORTED", gpu=4)
    after = scan(session).gpus[4]
    assert differences(before, after).keys() == {attribute}
    if attribute != "product":
        assert getattr(after, attribute) is None


@pytest.mark.parametrize(
    ("profile", "generation", "mode"),
    [("gb200-4", 5, "ATS"), ("v100-8", 2, "None"), ("a100-80gb-8", 3, "None"), ("l4-2", None, "None")],
)
def test_a_gpu_tells_the_generation_of_its_nvlinks_and_whether_it_is_coherent(
    tmp_path: Path, profile: str, generation: int | None, mode: str
) -> None:
    for gpu in scan_once(load_profile(profile), tmp_path).gpus:
        assert (gpu.nvlink_generation, gpu.addressing_mode) == (generation, mode)


def test_a_nvlink_that_does_not_answer_leaves_the_generation_to_the_next_one(
    session: Session, node: SimulatedNode
) -> None:
    real = pynvml.nvmlDeviceGetNvLinkVersion
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pynvml, "nvmlDeviceGetNvLinkVersion", lambda handle, link: real(handle, link) if link > 2 else 0)
        assert {gpu.nvlink_generation for gpu in scan(session).gpus} == {4}


def test_a_gpu_whose_name_cannot_be_read_goes_by_its_pci_device(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetName", "CORRUPTED_INFOROM", gpu=1)
    assert scan(session).gpus[1].product == "NVIDIA 2335"


def test_the_older_memory_query_serves_where_the_newer_one_is_not_there(tmp_path: Path) -> None:
    profile = load_profile("h200-8")
    old = msgspec.structs.replace(profile.driver, missing_symbols=("nvmlDeviceGetMemoryInfo_v2",))
    found = scan_once(msgspec.structs.replace(profile, driver=old), tmp_path)
    assert {gpu.memory for gpu in found.gpus} == {150754820096}


def test_a_gpu_without_memory_of_its_own_has_no_memory_and_not_zero(tmp_path: Path) -> None:
    found = scan_once(with_board(memory=None), tmp_path)
    assert [gpu.memory for gpu in found.gpus] == [None] * 8
    assert all(gpu.failed == {} for gpu in found.gpus)


def test_a_memory_of_zero_is_no_memory(tmp_path: Path) -> None:
    board = next(iter(load_profile("h200-8").boards.values()))
    assert board.memory is not None
    none = msgspec.structs.replace(board.memory, total_mib=0, reserved_mib=0)
    assert {gpu.memory for gpu in scan_once(with_board(memory=none), tmp_path).gpus} == {None}


@pytest.mark.parametrize(
    ("brand", "expected"),
    [("tesla", "Tesla"), ("nvidia-vws", "NvidiaVWS"), ("geforce-rtx", "GeForceRTX"), ("unknown", None)],
)
def test_brands_are_named_as_nvidia_names_them(tmp_path: Path, brand: str, expected: str | None) -> None:
    assert scan_once(with_board(brand=brand), tmp_path).gpus[0].brand == expected


@pytest.mark.parametrize(
    ("architecture", "expected"), [("volta", "Volta"), ("ada", "Ada Lovelace"), ("rubin", "Rubin"), ("unknown", None)]
)
def test_architectures_are_named_as_nvidia_names_them(tmp_path: Path, architecture: str, expected: str | None) -> None:
    assert scan_once(with_board(architecture=architecture), tmp_path).gpus[0].architecture == expected


@pytest.mark.parametrize(
    ("capability", "sms", "cores_per_sm", "expected"),
    [
        ((7, 0), 80, 64, 80),
        ((7, 5), 40, 64, 40),
        ((8, 0), 108, 64, 108),
        ((8, 9), 142, 128, 142),
        ((12, 1), 48, 128, 48),
    ],
)
def test_multiprocessors_follow_from_cores_and_compute_capability(
    tmp_path: Path, capability: tuple[int, int], sms: int, cores_per_sm: int, expected: int
) -> None:
    profile = with_board(compute_capability=capability, sms=sms, cores_per_sm=cores_per_sm)
    assert scan_once(profile, tmp_path).gpus[0].multiprocessors == expected


def test_multiprocessors_of_an_unknown_architecture_are_not_guessed(tmp_path: Path) -> None:
    assert scan_once(with_board(compute_capability=(99, 0)), tmp_path).gpus[0].multiprocessors is None


@pytest.mark.parametrize(
    ("enabled", "pending", "mode"),
    [
        (False, False, PartitionMode.DISABLED),
        (True, True, PartitionMode.ENABLED),
        (False, True, PartitionMode.ENABLE_PENDING),
        (True, False, PartitionMode.DISABLE_PENDING),
    ],
)
def test_a_pending_change_of_mig_mode_shows(
    session: Session, node: SimulatedNode, enabled: bool, pending: bool, mode: PartitionMode
) -> None:
    mig = node.faults.gpu(6).mig
    assert mig is not None
    mig.enabled, mig.pending = enabled, pending
    assert scan(session).gpus[6].partition_mode is mode


def test_a_gpu_lost_at_start_is_missing_and_the_others_are_unchanged(session: Session, node: SimulatedNode) -> None:
    before = scan(session).gpus
    node.faults.lose(3)
    after = scan(session)
    assert after.gpus == before[:3] + before[4:]
    assert [gpu.index for gpu in after.missing] == [3]


def test_a_gpu_lost_in_the_middle_of_a_scan_is_missing_by_its_uuid(session: Session, node: SimulatedNode) -> None:
    uuid = node.faults.gpu(3).uuid
    node.faults.fail("nvmlDeviceGetBrand", "GPU_IS_LOST", gpu=3)
    after = scan(session)
    assert [(gpu.index, gpu.uuid) for gpu in after.missing] == [(3, uuid)]
    assert len(after.gpus) == 7


@pytest.mark.parametrize("code", ["UNKNOWN", "GPU_IS_LOST", "RESET_REQUIRED"])
def test_a_gpu_without_a_pci_address_is_missing(session: Session, node: SimulatedNode, code: str) -> None:
    node.faults.fail("nvmlDeviceGetPciInfo_v3", code, gpu=3)
    assert [gpu.index for gpu in scan(session).missing] == [3]


def test_a_driver_reloaded_underneath_is_unavailable_for_one_look_and_opened_anew(
    session: Session, node: SimulatedNode
) -> None:
    scan(session)
    node.faults.driver("loaded", version="590.48.01")
    with pytest.raises(DriverUnavailable):
        scan(session)
    after = scan(session)
    assert after.driver.version == "590.48.01"
    assert len(after.gpus) == 8
    assert session.generation


def test_a_driver_that_stays_away_is_unavailable_until_it_is_back(session: Session, node: SimulatedNode) -> None:
    node.faults.driver("not-loaded")
    for _ in range(3):
        with pytest.raises(DriverUnavailable, match="modprobe nvidia"):
            scan(session)
    node.faults.driver("loaded")
    assert len(scan(session).gpus) == 8


def test_a_library_of_another_version_than_the_module_says_what_to_do(session: Session, node: SimulatedNode) -> None:
    node.faults.driver("version-mismatch")
    with pytest.raises(DriverUnavailable, match="reload the module or reboot the node"):
        scan(session)


def test_a_driver_that_vanishes_between_two_gpus_does_not_leave_half_a_scan(
    session: Session, node: SimulatedNode
) -> None:
    node.faults.fail("nvmlDeviceGetBrand", "DRIVER_NOT_LOADED", gpu=5)
    with pytest.raises(DriverUnavailable):
        scan(session)


def test_a_library_that_is_not_installed_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    with pytest.raises(DriverUnavailable, match="comes with the driver: install it"):
        scan(Session(sysfs=tmp_path))


def test_an_old_driver_without_the_newer_functions_still_lists_its_gpus(tmp_path: Path) -> None:
    profile = load_profile("h200-8")
    missing = ("nvmlDeviceGetMigMode", "nvmlDeviceGetArchitecture", "nvmlDeviceGetNumGpuCores")
    old = msgspec.structs.replace(profile.driver, missing_symbols=missing)
    gpu = scan_once(msgspec.structs.replace(profile, driver=old), tmp_path).gpus[0]
    assert (gpu.partition_mode, gpu.architecture, gpu.multiprocessors) == (None, None, None)
    assert (gpu.memory, gpu.failed) == (150754820096, {})
