"""The doctor on a simulated node with one fault at a time: driver, GPUs, CDI, runtime and machine."""

import asyncio
import json
from pathlib import Path

import pytest

from node_agent.cdi.names import file_name
from node_agent.doctor import examine, machine
from node_agent.doctor.finding import Result
from node_agent.model.gpu import GpuUuid
from tests.fakes.names import KIND
from tests.unit.doctor.conftest import Patient, only

CDI_OFF = '[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n'


async def test_a_sound_node_has_no_failure_but_what_is_not_there(patient: Patient) -> None:
    found = await patient.examined()
    assert found.node == "node-a"
    assert {one.check for one in found.findings if one.result is Result.FAILED} == {
        "kubelet.device-plugins",
        "kubelet.pod-resources",
    }
    assert all(one.fix for one in found.findings if one.result in (Result.WARNING, Result.FAILED))


# Driver


async def test_a_module_that_is_not_loaded(patient: Patient) -> None:
    patient.place.simulated.node.faults.driver("not-loaded")
    patient.rewritten()
    assert "modprobe nvidia" in (await patient.failure("driver.module")).fix
    assert "modprobe" in (await patient.failure("driver.library")).what
    (skipped,) = await patient.of("gpus.present")
    assert skipped.result is Result.SKIPPED


async def test_a_library_of_another_version_than_the_module(patient: Patient) -> None:
    patient.place.simulated.node.faults.driver("version-mismatch", version="570.124.06")
    patient.rewritten()
    found = await patient.failure("driver.library")
    assert "different driver versions" in found.what
    assert "LD_LIBRARY_PATH" in found.fix


async def test_files_of_another_version_than_the_loaded_driver(patient: Patient) -> None:
    for file in patient.tree.rglob("lib*.so.580.95.05"):
        file.rename(file.with_name(file.name.replace("580.95.05", "570.1.2")))
    found = await patient.failure("driver.version")
    assert "found libcuda.so.570.1.2 instead" in found.what


async def test_a_gpu_that_another_driver_has(patient: Patient) -> None:
    device = next((patient.tree / "sys/bus/pci/drivers/nvidia").glob("0000*"))
    link = patient.tree / "sys/bus/pci/devices" / device.name / "driver"
    link.unlink()
    link.symlink_to("../../../../bus/pci/drivers/nouveau")
    found = await patient.failure("driver.bound")
    assert found.what == f"the GPU {device.name} is driven by nouveau, not by nvidia"


@pytest.mark.parametrize("node", ["nvidia-uvm", "nvidiactl", "nvidia3"])
async def test_a_device_node_that_is_not_there(patient: Patient, node: str) -> None:
    (patient.tree / "dev" / node).unlink()
    found = await patient.failure("driver.nodes")
    assert f"/dev/{node}: not there" in found.what
    assert "nvidia-modprobe" in found.fix


async def test_no_daemon_that_keeps_the_drivers_state(patient: Patient) -> None:
    (patient.tree / "run/nvidia-persistenced/socket").unlink()
    assert "nvidia-persistenced" in (await patient.warning("driver.persistence")).fix


# GPUs


async def test_a_gpu_that_has_fallen_off_the_bus(patient: Patient) -> None:
    patient.place.simulated.node.faults.lose(3)
    found = await patient.failure("gpus.present")
    assert "GPU_IS_LOST" in found.what or "fallen off the bus" in found.what


async def test_a_gpu_that_needs_replacement_and_one_that_is_hot(patient: Patient) -> None:
    faults = patient.place.simulated.node.faults
    faults.remap_rows("gpu-0", failure=True)
    faults.slow_down("gpu-1", ["hw-thermal-slowdown"])
    found = {one.result: one for one in await patient.of("gpus.health")}
    assert found[Result.FAILED].what.startswith("gpu-0: row remapping failed")
    assert found[Result.FAILED].fix == "replace the board"
    assert found[Result.WARNING].what.startswith("gpu-1: heat slows it down")
    assert GpuUuid(found[Result.FAILED].where) == faults.gpu("gpu-0").uuid


async def test_a_fabric_that_its_manager_has_not_brought_up(patient: Patient) -> None:
    patient.place.simulated.node.faults.fabric(state="in-progress")
    found = await patient.of("gpus.fabric")
    assert [one.result for one in found] == [Result.FAILED] * 8
    assert all("nvidia-fabricmanager" in one.fix for one in found)


@pytest.mark.parametrize("place", ["l4-2"], indirect=True)
async def test_gpus_without_switches_and_without_mig_miss_neither(patient: Patient) -> None:
    assert only(await patient.of("gpus.fabric"), Result.SKIPPED).what == "no NVSwitch joins the GPUs"
    only(await patient.of("gpus.mig"), Result.SKIPPED)


# CDI and the runtime


async def test_a_cdi_folder_that_is_not_there(patient: Patient) -> None:
    (patient.place.folder / "cdi").rmdir()
    assert "mount the host's /var/run/cdi" in (await patient.warning("cdi.folder")).fix


async def test_a_spec_that_is_no_spec_and_one_whose_files_are_gone(patient: Patient) -> None:
    path = patient.place.folder / "cdi" / file_name(KIND)
    path.write_text("{}")
    assert "cannot be used" in (await patient.failure("cdi.spec")).what
    gone = {"containerPath": "/a", "hostPath": "/nonexistent/libcuda.so.1"}
    device = {"name": "x", "containerEdits": {"mounts": [gone]}}
    path.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": KIND, "devices": [device]}))
    assert "/nonexistent/libcuda.so.1" in (await patient.failure("cdi.spec")).what


async def test_a_spec_of_the_running_agent_is_sound(patient: Patient) -> None:
    async with patient.place.kubelet.running(), patient.place.agent():
        await patient.place.kubelet.until("nvidia.com/gpu", allocatable=8)
        found = only(await patient.of("cdi.spec"), Result.OK)
    assert "devices" in found.what


async def test_another_file_that_defines_the_agents_kind(patient: Patient) -> None:
    other = patient.place.folder / "cdi" / "mine.yaml"
    other.write_text(f"cdiVersion: 0.5.0\nkind: {KIND}\ndevices: []\n")
    assert (await patient.failure("cdi.kinds")).where == str(other)


@pytest.mark.parametrize(
    ("config", "result", "said"),
    [
        (f"version = 2\n{CDI_OFF}", Result.FAILED, "enable_cdi off"),
        ("version = 2\n", Result.WARNING, "does not say enable_cdi"),
        ("version = 3\n", Result.OK, "takes CDI names"),
        (f"version = 2\n{CDI_OFF.replace('false', 'true')}", Result.OK, "takes CDI names"),
        ("version = [", Result.SKIPPED, "cannot be read"),
    ],
)
async def test_a_containerd_that_does_not_take_cdi_names(
    patient: Patient, config: str, result: Result, said: str
) -> None:
    patient.write("etc/containerd/config.toml", config)
    found = only(await patient.of("cdi.runtime"), result)
    assert said in found.what


async def test_what_containerd_imports_counts(patient: Patient) -> None:
    patient.write("etc/containerd/config.toml", 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    patient.write("etc/containerd/conf.d/cdi.toml", CDI_OFF)
    assert "enable_cdi off" in (await patient.failure("cdi.runtime")).what


async def test_a_containerd_that_reads_other_folders_than_the_agents(patient: Patient) -> None:
    folders = '[plugins."io.containerd.cri.v1.runtime"]\ncdi_spec_dirs = ["/etc/cdi"]\n'
    patient.write("etc/containerd/config.toml", f"version = 3\n{folders}")
    settings = patient.place.settings(agent_paths_cdiDir="/var/run/cdi")
    assert "reads specs in /etc/cdi only" in (await patient.failure("cdi.runtime", settings)).what


# The machine


async def test_too_few_inotify_instances(patient: Patient) -> None:
    patient.write("proc/sys/fs/inotify/max_user_instances", "8\n")
    assert "sysctl" in (await patient.warning("machine.inotify")).fix
    patient.write("proc/sys/fs/inotify/max_user_instances", "8192\n")
    only(await patient.of("machine.inotify"), Result.OK)


async def test_a_full_disk(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, result in ((machine.LEAST_BYTES + 1, Result.WARNING), (0, Result.FAILED)):
        monkeypatch.setattr(machine, "ENOUGH_BYTES", 1 << 62)
        monkeypatch.setattr(machine, "LEAST_BYTES", 1 if free else 1 << 61)
        found = only(await patient.of("machine.state"), result)
        assert found.where == str(patient.place.folder / "state")


@pytest.mark.parametrize(("answer", "result"), [(0, Result.OK), (5, Result.WARNING)])
def test_a_clock_that_nobody_keeps_right(answer: int, result: Result) -> None:
    only(list(machine.clock(lambda: answer)), result)


def test_the_kernel_answers_how_the_clock_is_kept() -> None:
    (found,) = machine.clock()
    assert found.result in (Result.OK, Result.WARNING)


def test_a_process_that_may_open_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ENOUGH_FILES", 1 << 40)
    assert only(list(machine.files()), Result.WARNING).fix


async def test_an_examination_changes_nothing(patient: Patient) -> None:
    def files() -> list[Path]:
        return sorted(patient.place.folder.rglob("*"))

    before = await asyncio.to_thread(files)
    await patient.examined()
    assert await asyncio.to_thread(files) == before


async def test_a_driver_that_hangs_is_said_and_ends_no_examination(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "DRIVER_SECONDS", 0.5)
    patient.place.simulated.node.faults.hang("nvmlDeviceGetCount_v2", 1.5)
    found = await patient.failure("driver.library")
    assert "it hangs" in found.what
    assert "dmesg" in found.fix
    assert await patient.of("machine.files")


async def test_a_gpu_in_which_the_driver_hangs_does_not_answer(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "DRIVER_SECONDS", 1.0)
    patient.place.simulated.node.faults.hang("nvmlDeviceGetTemperature", 2.0, gpu="gpu-5")
    found = await patient.examined()
    assert (
        "gpu-5 does not answer"
        in only([one for one in found.findings if one.check == "gpus.health"], Result.FAILED).what
    )
    # Nor is anything said for it that nobody knows.
    fabric = only([one for one in found.findings if one.check == "gpus.fabric"], Result.SKIPPED)
    assert fabric.what == "gpu-5 cannot be asked"


async def test_a_file_that_cannot_be_read_costs_its_own_check_only(patient: Patient) -> None:
    odd = patient.place.folder / "cdi" / "nvidia.yaml"
    odd.mkdir()
    found = only(await patient.of("cdi.kinds"), Result.SKIPPED)
    assert (found.what, found.where) == ("it cannot be looked at: Is a directory", str(odd))
    assert await patient.of("machine.files")
