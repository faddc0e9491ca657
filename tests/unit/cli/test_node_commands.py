"""The commands that look at a node themselves: topology, explain, cdi generate, labels; all on simulated nodes."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pynvml
import pytest

from node_agent.cli.shared import chosen_node, look
from node_agent.cli.simulated import simulation
from node_agent.config.resolve import resolve
from node_agent.hardware.machine import machine_of
from node_agent.hardware.sysfs import Sysfs
from node_agent.reporting.labels import labels
from tests.unit.cli.conftest import Run

LOOKING = [
    ["topology"],
    ["explain", "preferred", "--size", "1"],
    ["cdi", "generate"],
    ["labels"],
]


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_driver_that_cannot_be_asked_is_one_clear_line(run: Run, broken_driver: Path, words: list[str]) -> None:
    outcome = run(*words, "--simulate", broken_driver)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "node-agent: nvmlInit: Function Not Found (NVML error 13)\n"


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_node_that_does_not_exist_is_answered_with_those_that_do(run: Run, words: list[str]) -> None:
    outcome = run(*words, "--simulate", "h200")
    assert outcome.code == 1
    assert outcome.err.startswith("node-agent: no profile is named 'h200'; there are ")
    assert "h200-8" in outcome.err


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_bad_configuration_is_refused_before_anything_is_looked_at(run: Run, folder: Path, words: list[str]) -> None:
    (folder / "config.yaml").write_text("version: v1\nflag: {}\n")
    outcome = run(*words, "--simulate", "l4-2", "--config", folder / "config.yaml")
    assert (outcome.code, outcome.out) == (1, "")
    assert "flag" in outcome.err


def test_the_simulated_node_may_be_named_by_a_variable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_AGENT_SIMULATE", "l4-2")
    assert "nvidia.com/gpu.product=NVIDIA-L4" in run("labels").lines


def test_a_command_leaves_no_files_of_the_simulated_node(run: Run) -> None:
    spec = json.loads(run("cdi", "generate", "--simulate", "l4-2").out)
    tree = Path("/tmp", Path(spec["containerEdits"]["mounts"][0]["hostPath"]).parts[2])
    assert tree.name.startswith("node-agent-")
    assert not tree.exists()


def test_who_simulates_no_node_sees_the_real_one(folder: Path) -> None:
    with chosen_node(None, None, {"agent.nodeName": "node-a"}) as (settings, stat):
        assert (settings.node_name, settings.paths.sysfs_root) == ("node-a", Path("/sys"))
        assert stat is os.stat


# topology


def test_topology_shows_the_links_as_a_table_and_as_a_drawing(run: Run) -> None:
    outcome = run("topology", "--simulate", "gb200-4")
    assert outcome.code == 0
    header, first, *_ = outcome.lines
    assert header.split()[-4:] == ["CPU", "affinity", "NUMA", "node"]
    assert first.split()[:5] == ["gpu-0", "X", *["NV18"] * 3]
    assert "4 × NVIDIA GB200" in outcome.lines


def test_topology_as_json_has_every_gpu_and_every_pair(run: Run) -> None:
    found = json.loads(run("topology", "--simulate", "gb200-4", "-o", "json").out)
    assert [gpu["numa_node"] for gpu in found["gpus"]] == [0, 0, 1, 1]
    assert {link["word"] for link in found["links"]} == {"NV18"}
    assert len(found["links"]) == 6


@pytest.mark.parametrize(
    ("option", "gone", "left"),
    [("--no-table", "CPU affinity", "2 × NVIDIA L4"), ("--no-drawing", "2 × NVIDIA L4", "CPU affinity")],
)
def test_either_view_may_be_left_out(run: Run, option: str, gone: str, left: str) -> None:
    out = run("topology", "--simulate", "l4-2", option).out
    assert gone not in out
    assert left in out


def test_the_topology_of_a_node_without_gpus_is_said_to_have_none(run: Run) -> None:
    outcome = run("topology", "--simulate", "none")
    assert (outcome.code, outcome.out) == (0, "No GPUs.\n")


# explain


def chosen(run: Run, *words: object, node: str = "l40s-8") -> set[str]:
    """The GPUs of the line that is marked as the choice."""
    outcome = run("explain", "preferred", "--simulate", node, *words)
    assert outcome.code == 0, outcome.err
    (line,) = [line for line in outcome.lines if line.startswith("→")]
    return {word for word in line.split() if word.startswith("gpu-")}


def test_explain_names_the_choice_its_rivals_and_the_reason(run: Run) -> None:
    outcome = run("explain", "preferred", "--simulate", "l40s-8", "--size", 4)
    assert outcome.code == 0
    assert outcome.lines[0].startswith("gpu-0 gpu-1 gpu-2 gpu-3: 4 GPUs of NUMA node 0")
    assert [line for line in outcome.lines if line.endswith("less bandwidth")]


@pytest.mark.parametrize("available", ["gpu-6,gpu-7,gpu-2", "6, 7, 2"])
def test_only_the_gpus_that_are_free_are_chosen_from(run: Run, available: str) -> None:
    assert chosen(run, "--size", 2, "--available", available) == {"gpu-6", "gpu-7"}


def test_gpus_may_be_named_by_their_uuid(run: Run, folder: Path) -> None:
    with simulation("l4-2", folder / "node") as simulated:
        second = simulated.node.faults.gpu(1).uuid
    assert chosen(run, "--size", 1, "--available", second, node="l4-2") == {"gpu-1"}


def test_what_must_be_included_is_among_the_chosen(run: Run) -> None:
    assert "gpu-5" in chosen(run, "--size", 2, "--must-include", "gpu-5")
    assert chosen(run, "--size", 2, "--available", "gpu-2", "--must-include", "gpu-5") == {"gpu-2", "gpu-5"}


def test_a_gpu_that_the_node_does_not_have_is_answered_with_those_that_it_has(run: Run) -> None:
    outcome = run("explain", "preferred", "--simulate", "l4-2", "--size", 1, "--available", "gpu-9")
    assert outcome.code == 1
    assert outcome.err == "node-agent: no GPU is 'gpu-9'; the node has gpu-0 (index 0), gpu-1 (index 1)\n"


def test_more_gpus_must_not_be_included_than_are_asked_for(run: Run) -> None:
    outcome = run("explain", "preferred", "--simulate", "l4-2", "--size", 1, "--must-include", "0,1")
    assert outcome.code == 1
    assert "2 GPUs cannot be among 1: raise --size or shorten --must-include" in outcome.err


@pytest.mark.parametrize("size", ["0", "-1", "two"])
def test_a_size_that_is_none_is_refused(run: Run, size: str) -> None:
    assert run("explain", "preferred", "--simulate", "l4-2", "--size", size).code == 2


def test_who_asks_for_more_than_there_is_gets_all_that_there_is(run: Run) -> None:
    assert chosen(run, "--size", 9, node="l4-2") == {"gpu-0", "gpu-1"}


# cdi


def test_the_spec_is_printed_as_json_and_nothing_else(run: Run) -> None:
    outcome = run("cdi", "generate", "--simulate", "l4-2")
    assert outcome.code == 0
    spec = json.loads(outcome.out)
    assert spec["kind"] == "node-agent.gpu.nvidia.com/gpu"
    assert {device["name"] for device in spec["devices"]} > {"all"}
    assert all(line.startswith("left out: ") for line in outcome.err.splitlines())


def test_the_spec_is_written_to_a_folder_that_is_made_for_it(run: Run, folder: Path) -> None:
    outcome = run("cdi", "generate", "--simulate", "l4-2", "--output", folder / "etc" / "cdi")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.splitlines()[-1] == f"wrote {folder}/etc/cdi"
    (written,) = (folder / "etc" / "cdi").iterdir()
    assert json.loads(written.read_text())["kind"] == "node-agent.gpu.nvidia.com/gpu"


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(run: Run, folder: Path) -> None:
    (folder / "file").write_text("")
    outcome = run("cdi", "generate", "--simulate", "l4-2", "--output", folder / "file")
    assert outcome.code == 1
    assert f"cannot change the CDI spec {folder}/file/" in outcome.err


def test_a_node_without_gpus_has_no_spec(run: Run) -> None:
    outcome = run("cdi", "generate", "--simulate", "none")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "node-agent: the node has no GPU, so there is no spec\n"


# labels


def said(run: Run, node: object) -> Mapping[str, str]:
    outcome = run("labels", "--simulate", node)
    assert outcome.code == 0, outcome.err
    assert outcome.lines == sorted(outcome.lines)
    return {key.removeprefix("nvidia.com/"): value for key, _, value in (line.partition("=") for line in outcome.lines)}


def test_labels_are_printed_as_lines_of_key_and_value(run: Run) -> None:
    found = said(run, "gb200-4")
    assert (found["gpu.product"], found["gpu.count"], found["gpu.mode"]) == ("NVIDIA-GB200", "4", "compute")
    assert found["gpu.clique"].endswith(".1")


def test_a_display_card_among_four_a100_is_not_counted(run: Run) -> None:
    found = said(run, "mixed-5")
    assert (found["gpu.product"], found["gpu.count"]) == ("NVIDIA-A100-SXM4-80GB", "4")
    assert (found["gpu.memory"], found["gpu.mode"]) == ("81920", "compute")


TWO_MODELS = """
summary: Two models, the lesser one first on the bus
driver: {version: 580.95.05, cuda: "13.0"}
numa: {0: "0-3"}
gpus:
  - {board: l4, bus: "0000:01:00.0", minor: 0}
  - {board: h200-sxm, bus: "0000:02:00.0", minor: 1}
"""


def test_two_models_are_both_told_of(run: Run, folder: Path) -> None:
    (folder / "two.yaml").write_text(TWO_MODELS)
    found = said(run, folder / "two.yaml")
    assert "gpu.product" not in found
    assert (found["gpu.NVIDIA-L4.count"], found["gpu.NVIDIA-H200.count"], found["gpu.count"]) == ("1", "1", "2")


def test_two_models_have_the_same_labels_however_often_one_looks(folder: Path) -> None:
    (folder / "two.yaml").write_text(TWO_MODELS)
    with simulation(str(folder / "two.yaml"), folder / "node") as simulated:
        settings = resolve(None, {}, simulated.flags).settings
        seen = [labels(look(settings)) for _ in range(10)]
    assert seen[0]
    assert seen == [seen[0]] * 10


def test_a_change_of_mig_devices_leaves_the_labels(folder: Path) -> None:
    with simulation("a30-2", folder / "node") as simulated:
        settings = resolve(None, {}, simulated.flags).settings
        before = labels(look(settings))
        for call in ("nvmlDeviceGetMigMode", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstances"):
            simulated.node.faults.fail(call, pynvml.NVML_ERROR_NOT_FOUND, gpu=1)
        seen = [labels(look(settings)) for _ in range(10)]
    assert before is not None
    assert before["nvidia.com/gpu.product"] == "NVIDIA-A30"
    assert seen == [before] * 10


def test_the_firmwares_name_of_the_machine_and_the_classes_of_the_gpus_reach_the_labels(folder: Path) -> None:
    with simulation("l4-2", folder / "node") as simulated:
        (simulated.tree / "sys/class/dmi/id").mkdir(parents=True)
        (simulated.tree / "sys/class/dmi/id/product_name").write_text("X9SRA/X9SRA-3\n")
        sysfs, inventory = Sysfs(root=simulated.tree / "sys"), look(resolve(None, {}, simulated.flags).settings)
        found = labels(inventory, machine=machine_of(sysfs, inventory.gpus))
    assert found is not None
    assert (found["nvidia.com/gpu.machine"], found["nvidia.com/gpu.mode"]) == ("X9SRAX9SRA-3", "compute")


def test_a_node_without_gpus_has_no_labels(run: Run) -> None:
    outcome = run("labels", "--simulate", "none")
    assert (outcome.code, outcome.out) == (0, "")
