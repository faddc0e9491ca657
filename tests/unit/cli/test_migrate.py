"""``node-agent migrate``: files in; configurations out, the list to the error output, an overlay to a folder."""

import json
from pathlib import Path

import yaml

from tests.unit.cli.conftest import Run
from tests.unit.migrate.samples import DCGM_EXPORTER, DEVICE_PLUGIN


def test_what_is_printed_is_a_configuration_that_the_agent_calls_good(run: Run, folder: Path) -> None:
    (folder / "values.yaml").write_text("{migStrategy: mixed, gdsEnabled: true}")
    outcome = run("migrate", folder / "values.yaml")
    assert outcome.code == 0
    assert outcome.err.splitlines() == [
        "configuration  migStrategy: flags.migStrategy",
        "no equal       gdsEnabled: GPUDirect Storage devices are not offered yet",
    ]
    (folder / "config.yaml").write_text(outcome.out)
    assert run("config", "check", folder / "config.yaml").code == 0


def test_several_files_are_one_migration_and_the_list_says_which_file(run: Run, folder: Path) -> None:
    (folder / "plugin.yaml").write_text(DEVICE_PLUGIN)
    (folder / "dcgm.yaml").write_text(DCGM_EXPORTER)
    outcome = run("migrate", folder / "plugin.yaml", folder / "dcgm.yaml", "-o", "json")
    found = json.loads(outcome.out)
    assert outcome.err == ""
    assert found["monitoring"] is True
    assert {one["path"].partition(": ")[0] for one in found["findings"]} >= {"plugin.yaml", "dcgm.yaml"}
    assert found["daemonset"]["spec"]["template"]["metadata"]["labels"] == {"team": "ml"}
    assert yaml.safe_load(found["configurations"]["shared"])["agent"]["metrics"] == {"names": "current"}


def test_an_overlay_is_written_to_a_new_folder_and_never_over_another(run: Run, folder: Path) -> None:
    (folder / "values.yaml").write_text(DEVICE_PLUGIN)
    outcome = run("migrate", folder / "values.yaml", "--write", folder / "overlay")
    assert (outcome.code, outcome.out) == (0, "")
    assert run("config", "check", folder / "overlay" / "configs").code == 0
    assert (folder / "overlay" / "kustomization.yaml").exists()

    again = run("migrate", folder / "values.yaml", "--write", folder / "overlay")
    assert again.code == 1
    assert "name a new folder" in again.err


def test_a_file_that_cannot_be_used_is_named_with_what_is_wrong(run: Run, folder: Path) -> None:
    (folder / "values.yaml").write_text("kind: Secret")
    outcome = run("migrate", folder / "values.yaml")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == f"node-agent: {folder}/values.yaml: kind: expected ConfigMap or ClusterPolicy; got Secret\n"
