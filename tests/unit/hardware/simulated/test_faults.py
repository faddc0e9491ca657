"""Faults: each one shows where a real one would, ends when told, and a wrong request changes nothing."""

import threading
import time
from pathlib import Path
from typing import Any

import pynvml
import pytest

from node_agent.errors import SimulationError
from node_agent.hardware.simulated import SimulatedNode
from tests.unit.hardware.simulated.conftest import Simulate
from tests.unit.hardware.simulated.support import gpu, gpus


def names() -> list[str | int]:
    """The names of all GPUs, or the code by which one refuses to tell."""
    found: list[str | int] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            found.append(pynvml.nvmlDeviceGetName(gpu(index)))
        except pynvml.NVMLError as error:
            found.append(error.value)
    return found


def code_of(call: Any, *arguments: Any) -> int:
    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        code: int = error.value
        return code
    return 0


LOST = pynvml.NVML_ERROR_GPU_IS_LOST
H200 = "NVIDIA H200"


# Which GPU


@pytest.mark.parametrize("selector", [2, "2", "gpu-0"])
def test_a_gpu_goes_by_index_or_name(h200: SimulatedNode, selector: int | str) -> None:
    assert h200.faults.gpu(selector).slot == 2


def test_a_gpu_goes_by_uuid(h200: SimulatedNode) -> None:
    assert h200.faults.gpu(pynvml.nvmlDeviceGetUUID(gpu(6))).slot == 6


@pytest.mark.parametrize("selector", [8, "8", "gpu-8", "gpu-", "GPU-0", "", "-1"])
def test_an_unknown_gpu_lists_the_known_ones(h200: SimulatedNode, selector: int | str) -> None:
    uuid = pynvml.nvmlDeviceGetUUID(gpu(0))
    with pytest.raises(SimulationError, match=f"no GPU is '{selector}'; there are 0 = gpu-2 = {uuid}; 1 = gpu-3"):
        h200.faults.gpu(selector)


def test_a_node_without_gpus_says_so(simulate: Simulate) -> None:
    with pytest.raises(SimulationError, match="no GPU is '0'; there are none"):
        simulate("none").faults.xid(0, 79)


# Lost and found


def test_a_lost_gpu_fails_alone(h200: SimulatedNode) -> None:
    h200.faults.lose(3)
    assert names() == [H200, H200, H200, LOST, H200, H200, H200, H200]


def test_every_way_to_a_lost_gpu_fails(h200: SimulatedNode) -> None:
    handle, uuid, bus = gpu(3), pynvml.nvmlDeviceGetUUID(gpu(3)), pynvml.nvmlDeviceGetPciInfo(gpu(3)).busId
    h200.faults.lose(3)
    assert code_of(pynvml.nvmlDeviceGetHandleByIndex, 3) == LOST
    assert code_of(pynvml.nvmlDeviceGetHandleByUUID, uuid) == LOST
    assert code_of(pynvml.nvmlDeviceGetHandleByPciBusId, bus) == LOST
    assert code_of(pynvml.nvmlDeviceGetTopologyCommonAncestor, handle, gpu(0)) == LOST
    assert code_of(pynvml.nvmlDeviceGetP2PStatus, gpu(0), handle, 2) == LOST


def test_a_lost_gpu_still_counts(h200: SimulatedNode) -> None:
    h200.faults.lose(3)
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 8
    assert names()[3] == LOST


def test_a_restored_gpu_is_as_after_a_reset(h200: SimulatedNode) -> None:
    handle = gpu(3)
    h200.faults.recovery_action(3, "gpu-reset")
    h200.faults.ecc(3, "uncorrected", 2)
    h200.faults.start_process(3, 4711)
    h200.faults.lose(3)
    h200.faults.restore(3)
    assert pynvml.nvmlDeviceGetName(handle) == H200
    assert pynvml.nvmlDeviceGetFieldValues(handle, [230])[0].value.uiVal == 0
    assert pynvml.nvmlDeviceGetTotalEccErrors(handle, 1, pynvml.NVML_VOLATILE_ECC) == 0
    assert pynvml.nvmlDeviceGetTotalEccErrors(handle, 1, pynvml.NVML_AGGREGATE_ECC) == 2
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []


def test_an_unplugged_gpu_is_gone_after_the_next_init(h200: SimulatedNode) -> None:
    uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in gpus()]
    h200.faults.unplug(3)
    assert names()[3] == LOST
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert [pynvml.nvmlDeviceGetUUID(handle) for handle in gpus()] == [*uuids[:3], *uuids[4:]]
    assert code_of(pynvml.nvmlDeviceGetHandleByUUID, uuids[3]) == pynvml.NVML_ERROR_NOT_FOUND


def test_a_handle_of_a_gpu_that_the_library_never_saw_is_invalid(h200: SimulatedNode) -> None:
    handle = gpu(3)
    h200.faults.unplug(3)
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert code_of(pynvml.nvmlDeviceGetName, handle) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_a_gpu_plugged_in_shows_after_the_next_init_as_it_was(h200: SimulatedNode) -> None:
    before = [(pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetMinorNumber(handle)) for handle in gpus()]
    h200.faults.unplug(0)
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    h200.faults.plug(0)
    assert pynvml.nvmlDeviceGetCount() == 7
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert [(pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetMinorNumber(handle)) for handle in gpus()] == before


# Calls that fail


def test_a_named_call_fails_on_one_gpu(h200: SimulatedNode) -> None:
    h200.faults.fail("nvmlDeviceGetName", "UNKNOWN", gpu=5)
    assert names() == [H200] * 5 + [999] + [H200] * 2
    assert pynvml.nvmlDeviceGetUUID(gpu(5))


def test_a_named_call_fails_on_all_gpus(h200: SimulatedNode) -> None:
    h200.faults.fail("nvmlDeviceGetName", "NO_PERMISSION")
    assert names() == [pynvml.NVML_ERROR_NO_PERMISSION] * 8


@pytest.mark.parametrize("code", ["GPU_IS_LOST", "gpu_is_lost", 15, "15"])
def test_an_error_goes_by_name_or_number(h200: SimulatedNode, code: str | int) -> None:
    h200.faults.fail("nvmlDeviceGetName", code, gpu=0)
    assert names()[0] == LOST


def test_a_call_fails_as_often_as_told(h200: SimulatedNode) -> None:
    h200.faults.fail("nvmlDeviceGetMinorNumber", "TIMEOUT", gpu=0, times=2)
    outcomes = [code_of(pynvml.nvmlDeviceGetMinorNumber, gpu(0)) for _ in range(4)]
    assert outcomes == [10, 10, 0, 0]


def test_failing_calls_follow_each_other(h200: SimulatedNode) -> None:
    h200.faults.fail("nvmlDeviceGetMinorNumber", "TIMEOUT", times=1)
    h200.faults.fail("nvmlDeviceGetMinorNumber", "UNKNOWN", times=1)
    assert [code_of(pynvml.nvmlDeviceGetMinorNumber, gpu(0)) for _ in range(3)] == [10, 999, 0]


def test_calls_without_a_gpu_can_fail_too(h200: SimulatedNode) -> None:
    for call, name in (
        (pynvml.nvmlSystemGetDriverVersion, "nvmlSystemGetDriverVersion"),
        (pynvml.nvmlInit, "nvmlInitWithFlags"),
        (pynvml.nvmlEventSetCreate, "nvmlEventSetCreate"),
        (pynvml.nvmlDeviceGetCount, "nvmlDeviceGetCount_v2"),
    ):
        h200.faults.fail(name, "UNKNOWN", times=1)
        assert code_of(call) == 999
        assert code_of(call) == 0
    pynvml.nvmlShutdown()


def test_a_call_on_a_mig_device_is_a_call_on_its_gpu(simulate: Simulate) -> None:
    node = simulate("a30-2")
    device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), 0)
    node.faults.fail("nvmlDeviceGetName", "UNKNOWN", gpu=1)
    assert code_of(pynvml.nvmlDeviceGetName, device) == 999
    assert code_of(pynvml.nvmlDeviceGetName, gpu(0)) == 0


def test_clearing_lets_all_calls_work_again(h200: SimulatedNode) -> None:
    h200.faults.fail("nvmlDeviceGetName", "UNKNOWN")
    h200.faults.fail("nvmlDeviceGetUUID", "UNKNOWN", gpu=1)
    h200.faults.clear()
    assert names() == [H200] * 8
    assert code_of(pynvml.nvmlDeviceGetUUID, gpu(1)) == 0


def test_a_lost_gpu_is_lost_before_anything_else(h200: SimulatedNode) -> None:
    handle = gpu(0)
    h200.faults.fail("nvmlDeviceGetName", "UNKNOWN", times=1)
    h200.faults.lose(0)
    assert code_of(pynvml.nvmlDeviceGetName, handle) == LOST


# Calls that hang


def test_a_call_hangs_as_long_as_told(h200: SimulatedNode) -> None:
    h200.faults.hang("nvmlDeviceGetName", 0.1, gpu=0, times=1)
    started = time.monotonic()
    assert pynvml.nvmlDeviceGetName(gpu(0)) == H200
    assert time.monotonic() - started >= 0.1


def test_other_calls_and_gpus_do_not_wait(h200: SimulatedNode) -> None:
    h200.faults.hang("nvmlDeviceGetName", 30, gpu=0)
    started = time.monotonic()
    assert pynvml.nvmlDeviceGetUUID(gpu(0))
    assert pynvml.nvmlDeviceGetName(gpu(1)) == H200
    assert time.monotonic() - started < 20


def test_clearing_frees_who_hangs(h200: SimulatedNode) -> None:
    h200.faults.hang("nvmlDeviceGetName", 30, gpu=0)
    answers: list[str] = []
    waiter = threading.Thread(target=lambda: answers.append(pynvml.nvmlDeviceGetName(gpu(0))))
    waiter.start()
    time.sleep(0.05)
    assert answers == []
    h200.faults.clear()
    waiter.join(timeout=30)
    assert answers == [H200]


def test_faults_can_be_set_while_a_call_hangs(h200: SimulatedNode) -> None:
    h200.faults.hang("nvmlDeviceGetName", 1.0, gpu=0)
    codes: list[int] = []
    handle = gpu(0)
    waiter = threading.Thread(target=lambda: codes.append(code_of(pynvml.nvmlDeviceGetName, handle)))
    waiter.start()
    time.sleep(0.05)
    h200.faults.lose(0)
    waiter.join(timeout=30)
    assert codes == [LOST]


# The driver


@pytest.mark.parametrize(
    ("state", "under_users", "at_init"),
    [
        ("not-loaded", pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED),
        ("version-mismatch", pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH),
    ],
)
def test_a_driver_that_goes_away_stays_away_for_its_users(
    h200: SimulatedNode, state: str, under_users: int, at_init: int
) -> None:
    handle = gpu(0)
    h200.faults.driver(state)
    assert code_of(pynvml.nvmlDeviceGetName, handle) == under_users
    h200.faults.driver("loaded")
    assert code_of(pynvml.nvmlDeviceGetName, handle) == pynvml.NVML_ERROR_UNKNOWN
    pynvml.nvmlShutdown()
    h200.faults.driver(state)
    assert code_of(pynvml.nvmlInit) == at_init
    h200.faults.driver("loaded")
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetName(handle) == H200


def test_a_new_driver_has_a_new_version(h200: SimulatedNode) -> None:
    h200.faults.driver("loaded", version="590.48.01")
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlSystemGetDriverVersion() == "590.48.01"
    assert pynvml.nvmlDeviceGetGspFirmwareVersion(gpu(0)) == b"590.48.01"


def test_loading_the_driver_forgets_what_it_was_told(h200: SimulatedNode) -> None:
    pynvml.nvmlDeviceSetComputeMode(gpu(0), pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    h200.faults.load(0, 1.0)
    time.sleep(0.5)
    before = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu(0))
    h200.faults.driver("loaded")
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetComputeMode(gpu(0)) == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu(0)) < before


def test_loading_the_driver_does_not_bring_a_lost_gpu_back(h200: SimulatedNode) -> None:
    h200.faults.recovery_action(3, "node-reboot")
    h200.faults.lose(3)
    h200.faults.driver("loaded")
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert names()[3] == LOST
    assert h200.faults.gpu(3).recovery_action == 2


# Links


def test_a_link_goes_down_at_both_ends(simulate: Simulate) -> None:
    node = simulate("v100-8")
    node.faults.link(0, 0, up=False)
    assert pynvml.nvmlDeviceGetNvLinkState(gpu(0), 0) == 0
    assert [pynvml.nvmlDeviceGetNvLinkState(gpu(1), link) for link in range(6)] == [0, 1, 1, 1, 1, 1]
    node.faults.link(1, 0, up=True)
    assert pynvml.nvmlDeviceGetNvLinkState(gpu(0), 0) == 1


def test_without_any_link_two_gpus_are_not_joined(simulate: Simulate) -> None:
    node = simulate("a100-pcie-4")
    for link in range(12):
        assert pynvml.nvmlDeviceGetP2PStatus(gpu(0), gpu(1), 2) == 0
        node.faults.link(0, link, up=False)
    assert pynvml.nvmlDeviceGetP2PStatus(gpu(0), gpu(1), 2) == 5


@pytest.mark.parametrize(("profile", "code"), [("v100-8", 74), ("h200-8", 74), ("b200-8", 149)])
def test_a_link_that_fails_is_reported_as_its_generation_does(simulate: Simulate, profile: str, code: int) -> None:
    node = simulate(profile)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(gpu(0), pynvml.nvmlEventTypeXidCriticalError, events)

    node.faults.link(0, 2, up=False, xid=True)

    assert pynvml.nvmlEventSetWait_v2(events, 1000).eventData == code
    assert pynvml.nvmlDeviceGetNvLinkState(gpu(0), 2) == 0


def test_a_pcie_link_is_held_down_until_it_is_mended(h200: SimulatedNode) -> None:
    h200.faults.load(0, 1.0)
    h200.faults.pcie(0, generation=3, width=8)
    assert pynvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu(0)) == 3
    assert pynvml.nvmlDeviceGetPcieSpeed(gpu(0)) == 8000
    assert pynvml.nvmlDeviceGetCurrPcieLinkWidth(gpu(0)) == 8
    assert pynvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu(0)) == 5
    assert pynvml.nvmlDeviceGetMaxPcieLinkWidth(gpu(0)) == 16
    assert pynvml.nvmlDeviceGetCurrPcieLinkWidth(gpu(1)) == 16

    h200.faults.pcie(0)

    assert pynvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu(0)) == 5
    assert pynvml.nvmlDeviceGetCurrPcieLinkWidth(gpu(0)) == 16


def test_a_pcie_link_is_never_better_than_its_board(simulate: Simulate) -> None:
    node = simulate("t4-4")
    node.faults.pcie(0, generation=6, width=32)
    assert pynvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu(0)) == 1
    assert pynvml.nvmlDeviceGetCurrPcieLinkWidth(gpu(0)) == 16


def test_sysfs_shows_a_pcie_link_that_is_held_down(h200: SimulatedNode, tmp_path: Path) -> None:
    h200.write_tree(tmp_path)
    h200.faults.pcie(0, generation=2, width=4)
    folder = tmp_path / "sys/bus/pci/devices" / h200.profile.gpus[0].bus
    assert (folder / "current_link_width").read_text().strip() == "4"
    assert (folder / "current_link_speed").read_text().strip() == "5.0 GT/s PCIe"
    assert (folder / "max_link_width").read_text().strip() == "16"


# Wrong requests


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (lambda faults: faults.xid(0, 0), "no Xid is 0; there are 1 to 999"),
        (lambda faults: faults.recovery_action(0, "reset"), "no recovery action is 'reset'; there are none, gpu-reset"),
        (lambda faults: faults.load(0, 1.5), "a load of 1.5 is not between 0 and 1"),
        (
            lambda faults: faults.ecc(0, "double"),
            "no kind of memory error is 'double'; there are corrected, uncorrected",
        ),
        (lambda faults: faults.ecc(0, "corrected", location="cbu"), "no memory location is 'cbu'; there are"),
        (lambda faults: faults.remap_rows(0, spent={"all": 1}), "no bank state is 'all'; there are high, partial"),
        (lambda faults: faults.retire_pages(0, "double-bit", [1]), r"GPU 0 \(NVIDIA H200\) does not retire pages"),
        (lambda faults: faults.retire_pages(0, "rust", [1]), "no cause is 'rust'; there are single-bit, double-bit"),
        (lambda faults: faults.link(0, 18, up=False), "no link is 18; there are 0 to 17"),
        (lambda faults: faults.link_errors(0, 0, "loops"), "no link counter is 'loops'; there are replay, recovery"),
        (lambda faults: faults.fail("nvmlDeviceGetNam", 3), "no call is 'nvmlDeviceGetNam'; .*nvmlDeviceGetName"),
        (lambda faults: faults.fail("nvmlDeviceGetName", "ODD"), "no NVML error is 'ODD'; there are UNINITIALIZED"),
        (lambda faults: faults.fail("nvmlDeviceGetName", 0), "no NVML error is 0"),
        (lambda faults: faults.hang("nvmlSleep", 1), "no call is 'nvmlSleep'"),
        (lambda faults: faults.driver("gone"), "no driver state is 'gone'; there are loaded, not-loaded"),
        (lambda faults: faults.start_process(0, 1, kind="batch"), "no kind of process is 'batch'; there are compute"),
        (lambda faults: faults.stop_process(0, 7), "no process is 7; there are none"),
        (lambda faults: faults.slow_down(0, ["cold"]), "no reason is 'cold'; there are sw-power-cap"),
    ],
)
def test_a_wrong_request_names_the_right_ones(h200: SimulatedNode, request_: Any, message: str) -> None:
    before = everything(h200)
    with pytest.raises(SimulationError, match=message):
        request_(h200.faults)
    assert everything(h200) == before


def everything(node: SimulatedNode) -> str:
    """The state of all GPUs as text."""
    return "\n".join(str(node.faults.gpu(slot)) for slot in range(8)) + str(node.faults._driver.call_faults)


@pytest.mark.parametrize(
    ("profile", "request_", "message"),
    [
        ("gb10-1", lambda faults: faults.ecc(0, "corrected"), "has no ECC"),
        ("v100-8", lambda faults: faults.remap_rows(0, pending=True), "does not remap rows"),
        ("v100-8", lambda faults: faults.recovery_action(0, "gpu-reset"), "has no recovery action"),
        ("l40s-8", lambda faults: faults.link(0, 0, up=False), "no link is 0; there are none"),
        ("gb10-1", lambda faults: faults.pcie(0, width=8), "has no PCIe link"),
    ],
)
def test_a_board_is_not_given_what_it_lacks(simulate: Simulate, profile: str, request_: Any, message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        request_(simulate(profile).faults)


@pytest.mark.parametrize(("code", "action"), [(79, 2), (48, 1), (31, 0)])
def test_after_a_fatal_xid_the_driver_asks_for_its_usual_recovery_if_told_to(
    simulate: Simulate, code: int, action: int
) -> None:
    node = simulate("h200-8")
    node.faults.xid(3, code, recovery=True)
    assert node.faults.gpu(3).recovery_action == action
    assert node.faults.gpu(2).recovery_action == 0


def test_a_driver_that_cannot_ask_for_recovery_reports_the_xid_alone(simulate: Simulate) -> None:
    node = simulate("t4-4")
    node.faults.xid(0, 79, recovery=True)
    assert node.faults.gpu(0).recovery_action == 0


def lying(node: SimulatedNode) -> dict[str, int]:
    """What lies on the first GPU, with the driver's ids."""
    mig = node.faults.gpu(0).mig
    assert mig is not None
    return {f"{one.profile.name}@{one.start}": one.id for one in mig.instances.values() if one.compute}


def test_a_gpu_is_cut_as_another_program_would_and_what_fits_is_left_alone(h200: SimulatedNode) -> None:
    h200.faults.cut(0, ["4g.71gb@0", "2g.35gb@4"])
    before = lying(h200)
    h200.faults.cut(0, ["4g.71gb@0", "3g.71gb@4"])
    assert lying(h200).keys() == {"4g.71gb@0", "3g.71gb@4"}
    assert lying(h200)["4g.71gb@0"] == before["4g.71gb@0"]
    h200.faults.cut(0, enabled=False)
    assert (lying(h200), h200.faults.gpu(0).mig_enabled) == ({}, False)


def test_what_does_not_fit_is_refused_with_the_form(h200: SimulatedNode) -> None:
    for parts in (["8g.1gb@0"], ["1g.18gb"], ["4g.71gb@0", "4g.71gb@4"], ["3g.71gb@0", "3g.71gb@0", "4g.71gb@0"]):
        with pytest.raises(SimulationError, match="does not fit; the form is 1g"):
            h200.faults.cut(0, parts)
