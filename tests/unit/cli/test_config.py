"""``node-agent config``: which files are refused and why, and where the values in force come from."""

import json
from pathlib import Path

import pytest

from tests.fakes.config_map import MountedConfigMap
from tests.unit.cli.conftest import Run

GOOD = """
version: v1
flags:
  migStrategy: none
agent:
  log: {level: debug}
  http: {address: "[fe80::1]:8080"}
"""
BAD = """
version: v1
flags:
  migStrategie: none
agent:
  log: {level: loud}
"""
NOT_SERVED = """
version: v1
flags: {migStrategy: single, gdsEnabled: true}
"""


@pytest.fixture
def written(folder: Path) -> Path:
    return folder / "config.yaml"


def test_a_good_file_is_called_good(run: Run, written: Path) -> None:
    written.write_text(GOOD)
    outcome = run("config", "check", written)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.lines[-1] == f"{written} is good"


def test_every_mistake_of_a_file_is_named_with_its_path_and_what_would_be_right(run: Run, written: Path) -> None:
    written.write_text(BAD)
    outcome = run("config", "check", written)
    assert (outcome.code, outcome.out) == (1, "")
    typo, level = outcome.err.splitlines()
    assert "flags.migStrategie" in typo
    assert "migStrategy" in typo
    assert "agent.log.level" in level
    assert "debug" in level


def test_what_is_valid_and_not_served_yet_is_noted_and_does_no_harm(run: Run, written: Path) -> None:
    written.write_text(NOT_SERVED)
    outcome = run("config", "check", written)
    assert outcome.code == 0
    (note,) = [line for line in outcome.lines if line.startswith("note: ")]
    assert "flags.gdsEnabled" in note


@pytest.mark.parametrize(("text", "code"), [(GOOD, 0), (BAD, 1)])
def test_a_file_may_come_on_standard_input(run: Run, text: str, code: int) -> None:
    outcome = run("config", "check", "-", stdin=text)
    assert outcome.code == code
    assert outcome.out == ("- is good\n" if code == 0 else "")


def test_a_file_that_is_not_there_is_one_clear_line(run: Run, folder: Path) -> None:
    outcome = run("config", "check", folder / "none.yaml")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == f"node-agent: cannot read {folder}/none.yaml: No such file or directory\n"


def test_a_folder_without_a_configuration_is_an_error(run: Run, folder: Path) -> None:
    outcome = run("config", "check", folder)
    assert outcome.code != 0
    assert f"{folder}: there is no configuration in this folder" in outcome.err


@pytest.mark.parametrize("text", ["[", "a: b: c", "just words", "\x00"])
def test_what_is_no_configuration_at_all_is_refused(run: Run, text: str) -> None:
    outcome = run("config", "check", "-", stdin=text)
    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    assert outcome.err


# What is in force


def rows(run: Run, *words: object) -> dict[str, list[str]]:
    outcome = run("config", "show", *words)
    assert outcome.code == 0, outcome.err
    return {line.split()[0]: line.split()[1:] for line in outcome.lines if line and not line.startswith("note")}


def test_each_value_is_shown_with_its_source(run: Run, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written.write_text(GOOD)
    monkeypatch.setenv("NODE_NAME", "node-a")
    found = rows(run, "--config", written)
    assert found["agent.log.level"] == ["debug", str(written)]
    assert found["agent.nodeName"][0] == "node-a"
    assert "NODE_NAME" in " ".join(found["agent.nodeName"][1:])
    assert found["agent.log.format"] == ["text", "default"]


def test_the_environment_is_stronger_than_the_file(run: Run, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written.write_text(NOT_SERVED)
    monkeypatch.setenv("MIG_STRATEGY", "mixed")
    assert rows(run, "--config", written)["flags.migStrategy"][0] == "mixed"


def test_brackets_in_a_value_are_shown(run: Run, written: Path) -> None:
    written.write_text(GOOD)
    assert rows(run, "--config", written)["agent.http.address"][0] == "[fe80::1]:8080"


def test_what_is_not_served_yet_is_noted(run: Run, written: Path) -> None:
    written.write_text(NOT_SERVED)
    assert [line for line in run("config", "show", "--config", written).lines if line.startswith("note: flags.gds")]


def test_a_bad_file_is_refused_with_its_mistakes(run: Run, written: Path) -> None:
    written.write_text(BAD)
    outcome = run("config", "show", "--config", written)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("node-agent: ")
    assert "flags.migStrategie" in outcome.err


def test_a_file_that_is_not_there_cannot_be_shown(run: Run, folder: Path) -> None:
    assert run("config", "show", "--config", folder / "none").code == 2


# A folder of named configurations


@pytest.fixture
def mounted(folder: Path) -> MountedConfigMap:
    return MountedConfigMap(folder / "configs", {"good": GOOD, "default": "version: v1"})


def test_every_entry_of_a_folder_is_checked(run: Run, mounted: MountedConfigMap) -> None:
    assert run("config", "check", mounted.folder).code == 0
    mounted.write({"good": GOOD, "bad": BAD, "worse": "sharing: ["})
    outcome = run("config", "check", mounted.folder)
    assert outcome.code == 1
    assert [line.rpartition("/")[2] for line in outcome.lines if "is good" in line] == ["good is good"]
    assert "bad" in outcome.err
    assert "no valid YAML" in outcome.err


def test_the_named_configuration_of_the_node_is_shown_with_what_chose_it(run: Run, mounted: MountedConfigMap) -> None:
    outcome = run("config", "show", "--config-dir", mounted.folder, "--label", "good")
    (level,) = [line for line in outcome.lines if line.startswith("agent.log.level")]
    assert "debug" in level
    assert "good, chosen by label" in level


def test_without_a_label_the_fallback_is_shown(run: Run, mounted: MountedConfigMap) -> None:
    outcome = run("config", "show", "--config-dir", mounted.folder)
    assert (outcome.code, "debug" in outcome.out) == (0, False)


def test_a_label_that_names_no_entry_is_an_error_for_people(run: Run, mounted: MountedConfigMap) -> None:
    outcome = run("config", "show", "--config-dir", mounted.folder, "--label", "god")
    assert outcome.code != 0
    assert "there is no such configuration; there is default, good" in outcome.err


def test_the_schema_is_printed_as_json(run: Run) -> None:
    outcome = run("config", "schema")
    assert json.loads(outcome.out)["$ref"] == "#/$defs/File"


RULED = """
version: v1
agent:
  health:
    ignoredXids: [79]
    rules:
      - {xids: [31], action: withdraw, after: 3, within: 10m, clearedBy: operator}
      - {causes: [thermal-throttling], action: evict}
"""


def test_it_is_said_what_a_fault_costs_and_which_rule_says_so(run: Run, written: Path) -> None:
    written.write_text(RULED)
    outcome = run("config", "health", "31", "79", "48", "thermal-throttling", "ecc", "--config", written)
    _, *rows = [line.split("  ") for line in outcome.lines]
    assert [[word.strip() for word in row if word.strip()] for row in rows] == [
        ["Xid 31", "withdraw, after 3 in 600 s", "operator", "agent.health.rules[0]"],
        ["Xid 79", "ignore", "recovery", "agent.health.ignoredXids"],
        ["Xid 48", "withdraw", "recovery", "catalogue of Xids"],
        ["thermal-throttling", "evict", "probe", "agent.health.rules[1]"],
        ["ecc", "withdraw", "probe", "default"],
    ]


def test_without_a_name_all_causes_are_shown_and_the_xids_that_the_configuration_changes(
    run: Run, written: Path
) -> None:
    written.write_text(RULED)
    titles = {line.partition("  ")[0] for line in run("config", "health", "--config", written).lines}
    assert {"Xid 31", "Xid 79", "gpu-lost", "mps-daemon-dead"} <= titles
    assert "Xid 48" not in titles


def test_a_cause_that_is_none_is_refused_with_the_nearest(run: Run) -> None:
    outcome = run("config", "health", "termal-throttling")
    assert outcome.code == 2
    assert "did you mean thermal-throttling?" in outcome.err
