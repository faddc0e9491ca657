"""What the examination says of a node with AMD's GPUs."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from socket import AF_UNIX, socket

import pytest

from node_agent.agent.hardware import driver_roots
from node_agent.cli.simulated import AmdSimulation, any_simulation
from node_agent.config.resolve import resolve
from node_agent.config.settings import Settings
from node_agent.doctor.examine import examine
from node_agent.doctor.finding import Finding, Result
from node_agent.doctor.owners import node_labels
from node_agent.doctor.place import Place
from node_agent.model.inventory import Inventory
from node_agent.model.vendor import AMD


@dataclass
class Patient:
    folder: Path
    simulated: AmdSimulation

    def settings(self, **more: object) -> Settings:
        folders = {
            f"agent.paths.{key}": str(self.folder / key) for key in ("kubeletDir", "cdiDir", "stateDir", "runDir")
        }
        given = {key.replace("_", "."): value for key, value in more.items()}
        return resolve(None, {}, {**self.simulated.flags, **folders, "agent.nodeName": "node-a", **given}).settings

    async def findings(self, **more: object) -> dict[str, list[Finding]]:
        """What is said, by check."""
        settings = self.settings(**more)
        found = await examine(settings, self.simulated.stat, self.folder / "agent.sock")
        by_check: dict[str, list[Finding]] = {}
        for finding in found.findings:
            by_check.setdefault(finding.check, []).append(finding)
        return by_check


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Patient]:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with (
        tempfile.TemporaryDirectory(prefix="amd-", dir="/tmp") as name,
        any_simulation("mi300x-8", Path(name) / "n") as simulated,
    ):
        assert isinstance(simulated, AmdSimulation)
        yield Patient(folder=Path(name), simulated=simulated)


async def test_a_node_that_is_well_has_its_driver_its_gpus_and_their_nodes(patient: Patient) -> None:
    found = await patient.findings()
    for check in ("driver.module", "driver.bound", "driver.nodes", "gpus.present", "gpus.health"):
        assert [one.result for one in found[check]] == [Result.OK], found[check]
    assert "driver.library" not in found


async def test_a_missing_node_is_named(patient: Patient) -> None:
    (patient.simulated.tree / "dev/kfd").unlink()
    (first, *_) = (await patient.findings())["driver.nodes"]
    assert first.result is Result.FAILED
    assert "/dev/kfd" in first.what


async def test_a_module_that_is_not_loaded_is_said_with_what_to_do(patient: Patient) -> None:
    for path in sorted((patient.simulated.tree / "sys/module/amdgpu").iterdir()):
        path.unlink()
    (patient.simulated.tree / "sys/module/amdgpu").rmdir()
    (finding,) = (await patient.findings())["driver.module"]
    assert finding.result is Result.FAILED
    assert "modprobe amdgpu" in finding.fix


async def test_a_driver_without_gpus_is_a_warning(patient: Patient) -> None:
    for gpu in patient.simulated.node.uuids:
        patient.simulated.lose(gpu)
    found = await patient.findings()
    assert [one.result for one in found["driver.bound"]] == [Result.WARNING]
    assert "driver.nodes" not in found


async def test_gpus_that_are_left_to_others_are_named(patient: Patient) -> None:
    (finding,) = (await patient.findings(agent_devices_exclude=["0"]))["gpus.excluded"]
    assert (finding.result, finding.what) == (Result.OK, "left to others: gpu-0")


def test_hami_which_serves_nvidias_name_is_in_nobodys_way(patient: Patient) -> None:
    settings = patient.settings()
    place = Place(
        settings=settings,
        roots=driver_roots(settings),
        stat=patient.simulated.stat,
        inventory=Inventory(generation=1, vendor=AMD),
    )
    (finding,) = node_labels({"metadata": {"name": "node-a", "labels": {"gpu": "on"}}}, place)
    assert finding.result is Result.OK


@pytest.mark.parametrize("name", ["amd.com_gpu", "amd.com_cpx_nps1"])
async def test_amds_device_plugin_beside_the_agent_is_a_rival_and_nvidias_is_none(patient: Patient, name: str) -> None:
    """Their sockets: of whole GPUs, and of partitions where each kind of them is a resource of its own."""
    folder = patient.folder / "kubeletDir/device-plugins"
    folder.mkdir(parents=True)
    with socket(AF_UNIX) as theirs, socket(AF_UNIX) as nvidias:
        for one, path in ((theirs, folder / name), (nvidias, folder / "nvidia-gpu.sock")):
            one.bind(str(path))
            one.listen()
        (finding,) = (await patient.findings())["owners.device-plugin"]
    assert (finding.result, finding.where) == (Result.FAILED, str(folder / name))
    assert "AMD's device plugin" in finding.what


async def test_nothing_is_said_of_programs_that_are_for_nvidias_gpus(patient: Patient) -> None:
    found = await patient.findings()
    assert "owners.labels" not in found
    assert [one.what for one in found["owners.device-plugin"]] == ["no other device plugin for AMD's GPUs"]
