"""The library while it is open: when it starts anew, and which GPUs it lists."""

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from node_agent.errors import DeviceLost, DriverUnavailable
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.model.gpu import GpuUuid


def bind(sysfs: Path, *addresses: str) -> None:
    """Let the kernel's nvidia driver drive these devices and no others."""
    folder = sysfs / "bus/pci/drivers/nvidia"
    folder.mkdir(parents=True, exist_ok=True)
    for entry in folder.iterdir():
        entry.unlink()
    for address in (*addresses, "bind", "module"):
        (folder / address).touch()


def listed(session: Session) -> list[GpuUuid]:
    session.ensure_open()
    return [gpu.uuid for gpu in session.refresh()[0]]


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    return tmp_path / "sys"


@pytest.fixture
def uuids(session: Session) -> tuple[GpuUuid, ...]:
    return session.gpus


def test_gpus_are_listed_in_the_drivers_order(session: Session) -> None:
    found, missing = session.refresh()
    assert [gpu.index for gpu in found] == list(range(8))
    assert len({gpu.uuid for gpu in found}) == 8
    assert missing == []


def test_opening_twice_is_one_init(session: Session, node: SimulatedNode) -> None:
    session.ensure_open()
    session.ensure_open()
    assert node.faults._driver._initialised == 1


def test_a_lost_gpu_is_missing_with_its_index_and_the_drivers_reason(
    session: Session, node: SimulatedNode, uuids: tuple[GpuUuid, ...]
) -> None:
    node.faults.lose(3)
    found, missing = session.refresh()
    assert [gpu.uuid for gpu in found] == [uuid for uuid in uuids if uuid != uuids[3]]
    assert [(gpu.index, gpu.uuid) for gpu in missing] == [(3, None)]
    assert "NVML error 15" in missing[0].reason


@pytest.mark.parametrize("code", ["NO_PERMISSION", "INSUFFICIENT_POWER", "IRQ_ISSUE", "UNKNOWN", "RESET_REQUIRED"])
def test_any_reason_to_refuse_a_handle_costs_that_gpu_only(session: Session, node: SimulatedNode, code: str) -> None:
    node.faults.fail("nvmlDeviceGetHandleByIndex_v2", code, times=1)
    found, missing = session.refresh()
    assert [gpu.index for gpu in found] == list(range(1, 8))
    assert [gpu.index for gpu in missing] == [0]


def test_a_second_gpu_of_the_same_uuid_is_missing(node: SimulatedNode, session: Session, uuids: list[GpuUuid]) -> None:
    node.faults.gpu(5).uuid = uuids[2]
    found, missing = session.refresh()
    assert len(found) == 7
    assert missing[0].index == 5
    assert f"it says that it is {uuids[2]}, as the GPU with index 2 does" in missing[0].reason


def test_a_driver_that_answers_unknown_for_every_gpu_is_unavailable(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetHandleByIndex_v2", "UNKNOWN")
    with pytest.raises(DriverUnavailable, match="device cgroup"):
        session.refresh()


def test_eight_lost_gpus_are_eight_missing_gpus_and_no_driver_trouble(session: Session, node: SimulatedNode) -> None:
    for gpu in range(8):
        node.faults.lose(gpu)
    found, missing = session.refresh()
    assert (len(found), len(missing)) == (0, 8)


def test_a_failing_count_is_the_drivers_trouble(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetCount_v2", "UNKNOWN")
    with pytest.raises(DriverUnavailable, match="nvmlDeviceGetCount"):
        session.refresh()


def test_a_handle_of_a_gpu_that_is_not_listed_is_refused_as_lost(session: Session) -> None:
    with pytest.raises(DeviceLost, match="does not list GPU-elsewhere"):
        session.handle(GpuUuid("GPU-elsewhere"))


def test_a_healthy_gpu_is_found_while_a_look_up_by_uuid_would_fail(
    session: Session, node: SimulatedNode, uuids: tuple[GpuUuid, ...]
) -> None:
    node.faults.fail("nvmlDeviceGetHandleByUUID", "GPU_IS_LOST")
    session.refresh()
    assert session.calls(pynvml.nvmlDeviceGetIndex, session.handle(uuids[7])) == 7


def test_a_closed_session_has_no_handles(session: Session, uuids: tuple[GpuUuid, ...]) -> None:
    session.close()
    with pytest.raises(DriverUnavailable, match="not open"):
        session.handle(uuids[0])


def test_closing_twice_shuts_down_once(session: Session) -> None:
    session.close()
    session.close()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_closing_a_driver_that_is_gone_is_no_trouble(session: Session, node: SimulatedNode) -> None:
    node.faults.driver("not-loaded")
    session.close()
    node.faults.driver("loaded")
    assert len(listed(session)) == 8


@pytest.mark.parametrize("state", ["not-loaded", "version-mismatch"])
def test_a_driver_that_cannot_be_opened_says_so_and_is_opened_later(
    node: SimulatedNode, sysfs: Path, state: str
) -> None:
    node.faults.driver(state)
    session = Session(sysfs=sysfs)
    with pytest.raises(DriverUnavailable):
        session.ensure_open()
    node.faults.driver("loaded")
    assert len(listed(session)) == 8
    session.close()


@pytest.mark.parametrize(("code", "advice"), [("UNKNOWN", "restart the pod"), ("NO_PERMISSION", "privileged")])
def test_any_failure_to_open_is_the_drivers_trouble(node: SimulatedNode, sysfs: Path, code: str, advice: str) -> None:
    node.faults.fail("nvmlInitWithFlags", code)
    with pytest.raises(DriverUnavailable, match=advice) as caught:
        Session(sysfs=sysfs).ensure_open()
    assert caught.value.call == "nvmlInit"


def test_a_gpu_that_the_kernel_binds_later_is_listed_at_the_next_look(node: SimulatedNode, sysfs: Path) -> None:
    bind(sysfs, "0000:1b:00.0")
    node.faults.unplug(7)
    session = Session(sysfs=sysfs)
    assert len(listed(session)) == 7
    node.faults.plug(7)
    assert len(listed(session)) == 7, "NVML lists GPUs at its first init only"
    bind(sysfs, "0000:1b:00.0", "0000:df:00.0")
    assert len(listed(session)) == 8
    assert session.generation == 1
    session.close()


def test_a_gpu_that_was_unbound_is_not_listed_at_the_next_look(node: SimulatedNode, sysfs: Path) -> None:
    bind(sysfs, "0000:1b:00.0", "0000:df:00.0")
    session = Session(sysfs=sysfs)
    assert len(listed(session)) == 8
    node.faults.unplug(7)
    bind(sysfs, "0000:1b:00.0")
    assert len(listed(session)) == 7
    assert session.refresh()[1] == []
    session.close()


def test_a_kernel_with_the_same_gpus_does_not_restart_the_library(node: SimulatedNode, sysfs: Path) -> None:
    bind(sysfs, "0000:1b:00.0")
    session = Session(sysfs=sysfs)
    listed(session)
    bind(sysfs, "0000:1b:00.0")
    listed(session)
    assert session.generation == 0
    session.close()


@pytest.fixture
def bare() -> Iterator[SimulatedNode]:
    """A node whose eight GPUs all show up late."""
    node = SimulatedNode(load_profile("h200-8"))
    for gpu in range(8):
        node.faults.unplug(gpu)
    with install(node):
        yield node


def test_a_node_without_gpus_is_asked_anew_at_each_look(bare: SimulatedNode, sysfs: Path) -> None:
    session = Session(sysfs=sysfs)
    assert listed(session) == []
    bare.faults.plug(4)
    assert listed(session) == [bare.faults.gpu(4).uuid]
    session.close()
