"""The label chooses among named configurations as NVIDIA's config manager would, and what cannot be had is refused."""

from pathlib import Path

import pytest

from node_agent.config.named import USUAL_LABEL, Choice, Named, choose, named_in
from node_agent.config.resolve import Resolved, sources
from node_agent.errors import ConfigError
from tests.fakes.config_map import MountedConfigMap

USUAL = Named(folder=Path("/configs"))
QUIET, LOUD = "agent: {log: {level: error}}", "agent: {log: {level: debug}}"


@pytest.fixture
def mounted(tmp_path: Path) -> MountedConfigMap:
    return MountedConfigMap(tmp_path / "configs", {"quiet": QUIET, "loud": LOUD})


def resolved(mounted: MountedConfigMap, label: str | None, **environment: str) -> Resolved:
    return sources(None, environment, {}, mounted.folder).resolve(label)


# The choice


@pytest.mark.parametrize(
    ("names", "wanted", "default", "fallbacks", "chosen"),
    [
        (["a", "b"], "b", "a", ["named"], "b"),
        (["a", "b"], None, "a", ["named"], "a"),
        (["a", "b"], "", "a", ["named"], "a"),
        (["a", "default"], None, "", ["named", "single"], "default"),
        (["a"], None, "", ["named", "single"], "a"),
        (["a", "b"], None, "", ["named", "single", "empty"], ""),
        ([], None, "", ["single", "empty"], ""),
        (["a"], None, "", ["empty", "single"], ""),
    ],
)
def test_the_label_goes_before_the_default_and_that_before_the_fallbacks(
    names: list[str], wanted: str | None, default: str, fallbacks: list[str], chosen: str
) -> None:
    among = Named(folder=Path("/configs"), default=default, fallbacks=tuple(fallbacks))
    assert choose(names, wanted, among).name == chosen


def test_what_chose_is_said() -> None:
    assert choose(["a"], "a", USUAL) == Choice(name="a", reason=f"label {USUAL_LABEL}=a")
    assert choose(["a"], None, USUAL).reason == "fallback strategy single"


def test_a_label_that_names_nothing_is_refused_and_no_fallback_steps_in() -> None:
    with pytest.raises(ConfigError, match=f"label {USUAL_LABEL}=c: there is no such configuration; there is a, b"):
        choose(["a", "b"], "c", USUAL)


def test_a_default_that_is_not_there_is_refused_too() -> None:
    with pytest.raises(ConfigError, match="DEFAULT_CONFIG=c: there is no such configuration; there is none"):
        choose([], None, Named(folder=Path("/configs"), default="c"))


def test_where_nothing_decides_the_message_says_what_would() -> None:
    with pytest.raises(ConfigError, match=f"label the node {USUAL_LABEL}=NAME or set DEFAULT_CONFIG; there is a, b"):
        choose(["a", "b"], None, USUAL)


# Variables


def test_without_a_folder_there_are_no_named_configurations() -> None:
    assert named_in(None, {"DEFAULT_CONFIG": "a"}) is None


def test_nvidias_variables_say_where_they_are_and_how_to_choose() -> None:
    environment = {
        "CONFIG_FILE_SRCDIR": "/available-configs",
        "DEFAULT_CONFIG": "whole",
        "FALLBACK_STRATEGIES": "single, empty",
        "NODE_LABEL": "example.com/gpus",
    }
    assert named_in(None, environment) == Named(
        folder=Path("/available-configs"), label="example.com/gpus", default="whole", fallbacks=("single", "empty")
    )


def test_the_command_lines_folder_goes_before_the_variables() -> None:
    found = named_in(Path("/mine"), {"CONFIG_FILE_SRCDIR": "/theirs"})
    assert found == Named(folder=Path("/mine"), label=USUAL_LABEL, fallbacks=("named", "single"))


def test_a_strategy_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="FALLBACK_STRATEGIES: expected named, single, empty; got 'sinlge'"):
        named_in(Path("/a"), {"FALLBACK_STRATEGIES": "sinlge"})


# The mounted folder


def test_the_entry_that_the_label_names_is_in_force_and_named_as_the_source(mounted: MountedConfigMap) -> None:
    found = resolved(mounted, "loud")
    assert found.settings.log.level == "debug"
    (document,) = found.documents
    assert document == f"{mounted / 'loud'}, chosen by label {USUAL_LABEL}=loud"
    assert found.origin["agent.log.level"] == document


def test_no_configuration_by_strategy_is_all_defaults(mounted: MountedConfigMap) -> None:
    found = resolved(mounted, None, FALLBACK_STRATEGIES="empty")
    assert (found.documents, set(found.origin.values())) == ((), {"default"})


def test_the_named_configuration_lies_over_the_file_and_under_the_environment(
    mounted: MountedConfigMap, tmp_path: Path
) -> None:
    file = tmp_path / "base.yaml"
    file.write_text("agent: {log: {level: warning, format: json}, nodeName: of-the-file}")
    found = sources(file, {"NODE_NAME": "of-the-environment"}, {}, mounted.folder).resolve("quiet")
    assert (found.settings.log.level, found.settings.log.form) == ("error", "json")
    assert found.settings.node_name == "of-the-environment"
    assert found.said == {"agent": {"log": {"level": "error", "format": "json"}, "nodeName": "of-the-file"}}


def test_a_mistake_is_placed_in_its_entry(mounted: MountedConfigMap) -> None:
    mounted.write({"bad": "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 0}]}}"})
    with pytest.raises(ConfigError, match=rf"replicas: expected .* at least 2; got 0 \({mounted / 'bad'}, chosen by"):
        resolved(mounted, "bad")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path}/none: cannot be read: No such file"):
        sources(None, {}, {}, tmp_path / "none").resolve("a")


def test_a_plain_folder_serves_as_well_as_a_mounted_one(tmp_path: Path) -> None:
    (tmp_path / "loud").write_text(LOUD)
    (tmp_path / "folder").mkdir()
    found = sources(None, {}, {}, tmp_path)
    assert found.resolve(None).settings.log.level == "debug"
    before = found.identity()
    (tmp_path / "loud").write_text(f"{QUIET}\n")
    assert found.identity() != before


def test_in_the_middle_of_a_swap_all_is_of_the_new_version(mounted: MountedConfigMap) -> None:
    found = sources(None, {}, {}, mounted.folder)
    before = found.identity()
    mounted.swap({"new": LOUD})
    assert found.identity() != before
    assert found.resolve("new").settings.log.level == "debug"
    with pytest.raises(ConfigError, match="there is no such configuration; there is new"):
        found.resolve("quiet")


def test_a_file_in_a_mounted_folder_is_another_one_after_a_swap(mounted: MountedConfigMap) -> None:
    found = sources(mounted / "loud", {}, {})
    before = found.identity()
    mounted.write({"loud": QUIET})
    assert found.identity() != before
    assert found.resolve().settings.log.level == "error"
