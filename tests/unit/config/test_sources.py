"""Each source becomes a layer of plain values; layers lie on top of each other and remember where a value came from."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.config.check import known_paths
from node_agent.config.sources import (
    SIZE_LIMIT,
    VARIABLES,
    Layer,
    from_document,
    from_environment,
    from_file,
    from_flags,
    nested,
    overlay,
)
from node_agent.errors import ConfigError


def said(**environment: str) -> dict[str, object]:
    """What the environment says, by path."""
    tree, _ = overlay(from_environment(environment))
    return {path: value for path in VARIABLES if (value := at(tree, path)) is not None}


def at(tree: object, path: str) -> object:
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


@pytest.mark.parametrize(
    ("variable", "text", "path", "value"),
    [
        ("MIG_STRATEGY", "mixed", "flags.migStrategy", "mixed"),
        ("FAIL_ON_INIT_ERROR", "true", "flags.failOnInitError", True),
        ("FAIL_ON_INIT_ERROR", "0", "flags.failOnInitError", False),
        ("MPS_ROOT", "/run/nvidia/mps", "flags.mpsRoot", "/run/nvidia/mps"),
        ("NVIDIA_DRIVER_ROOT", "/run/nvidia/driver", "flags.nvidiaDriverRoot", "/run/nvidia/driver"),
        ("NVIDIA_DEV_ROOT", "/", "flags.nvidiaDevRoot", "/"),
        ("GDRCOPY_ENABLED", "T", "flags.gdrcopyEnabled", True),
        ("GDS_ENABLED", "TRUE", "flags.gdsEnabled", True),
        ("MOFED_ENABLED", "False", "flags.mofedEnabled", False),
        ("USE_NODE_FEATURE_API", "f", "flags.useNodeFeatureAPI", False),
        ("DEVICE_DISCOVERY_STRATEGY", "nvml", "flags.deviceDiscoveryStrategy", "nvml"),
        ("PASS_DEVICE_SPECS", "1", "flags.plugin.passDeviceSpecs", True),
        ("DEVICE_LIST_STRATEGY", "envvar", "flags.plugin.deviceListStrategy", ["envvar"]),
        ("DEVICE_LIST_STRATEGY", "envvar, cdi-cri,", "flags.plugin.deviceListStrategy", ["envvar", "cdi-cri"]),
        ("DEVICE_ID_STRATEGY", "index", "flags.plugin.deviceIDStrategy", "index"),
        ("CDI_ANNOTATION_PREFIX", "x.io/", "flags.plugin.cdiAnnotationPrefix", "x.io/"),
        ("NVIDIA_CTK_PATH", "/usr/bin/nvidia-ctk", "flags.plugin.nvidiaCTKPath", "/usr/bin/nvidia-ctk"),
        ("CONTAINER_DRIVER_ROOT", "/driver-root", "flags.plugin.containerDriverRoot", "/driver-root"),
        ("SHARED_DEVICES_ALLOCATION_POLICY", "packed", "flags.plugin.sharedDevicesAllocationPolicy", "packed"),
        ("GFD_ONESHOT", "true", "flags.gfd.oneshot", True),
        ("GFD_SLEEP_INTERVAL", "30s", "flags.gfd.sleepInterval", "30s"),
        ("GFD_SLEEP_INTERVAL", "30000000000", "flags.gfd.sleepInterval", 3e10),
        ("IMEX_CHANNEL_IDS", "0", "imex.channelIDs", [0]),
        ("IMEX_REQUIRED", "true", "imex.required", True),
        ("NODE_NAME", "gpu-1", "agent.nodeName", "gpu-1"),
        ("DP_DISABLE_HEALTHCHECKS", "all", "agent.health.ignoredXids", "all"),
        ("DP_DISABLE_HEALTHCHECKS", "xids", "agent.health.ignoredXids", "all"),
        ("DP_DISABLE_HEALTHCHECKS", "79,48", "agent.health.ignoredXids", [13, 31, 43, 45, 68, 109, 79, 48]),
        ("DP_ENABLE_HEALTHCHECKS", "13, 31", "agent.health.enabledXids", [13, 31]),
        ("DP_ENABLE_HEALTHCHECKS", "all", "agent.health.enabledXids", "all"),
    ],
)
def test_a_variable_means_its_key(variable: str, text: str, path: str, value: object) -> None:
    assert said(**{variable: text}) == {path: value}


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("GDS_ENABLED", "maybe", "maybe"),
        ("IMEX_CHANNEL_IDS", "0,x", [0, "x"]),
        ("IMEX_CHANNEL_IDS", "9" * 5000, ["9" * 5000]),
        ("IMEX_CHANNEL_IDS", "٣", ["٣"]),
        ("DP_ENABLE_HEALTHCHECKS", "79,oops", [79, "oops"]),
    ],
)
def test_text_that_a_variable_cannot_mean_is_left_for_the_check_to_refuse(
    variable: str, text: str, value: object
) -> None:
    assert list(said(**{variable: text}).values()) == [value]


def test_an_empty_variable_says_nothing() -> None:
    assert said(MIG_STRATEGY="", NODE_NAME="  ") == {}


def test_of_two_variables_for_one_key_the_first_counts() -> None:
    both = {"CONTAINER_DRIVER_ROOT": "/a", "DRIVER_ROOT_CTR_PATH": "/b"}
    assert said(**both) == {"flags.plugin.containerDriverRoot": "/b"}
    assert said(**{**both, "DRIVER_ROOT_CTR_PATH": ""}) == {"flags.plugin.containerDriverRoot": "/a"}


def test_every_variable_is_for_a_key_that_exists_and_for_one_only() -> None:
    assert set(VARIABLES) <= set(known_paths())
    names = [name for _, several in VARIABLES.values() for name in several]
    assert len(names) == len(set(names))


@given(st.dictionaries(st.sampled_from([name for _, names in VARIABLES.values() for name in names]), st.text()))
def test_no_environment_stops_the_reading(environment: dict[str, str]) -> None:
    for layer in from_environment(environment):
        assert layer.origin.removeprefix("environment variable ") in environment


def test_options_that_were_not_given_say_nothing_and_paths_are_text() -> None:
    layer = from_flags(
        {
            "agent.paths.cdiDir": Path("/cdi"),
            "agent.nodeName": None,
            "agent.log.level": "debug",
            "agent.devices.exclude": (0, Path("/x")),
        }
    )
    assert layer.origin == "command line"
    assert layer.values == {
        "agent": {"paths": {"cdiDir": "/cdi"}, "log": {"level": "debug"}, "devices": {"exclude": [0, "/x"]}}
    }


def test_keys_without_a_value_say_nothing_at_any_depth() -> None:
    text = b"version:\nflags:\n  mpsRoot: ~\nimex:\nsharing: {mps: , timeSlicing: {resources: [{name: a, devices: }]}}"
    tree, origins = overlay([from_document(text, "f")])
    assert tree == {"flags": {}, "sharing": {"timeSlicing": {"resources": [{"name": "a"}]}}}
    assert origins == {"sharing.timeSlicing.resources": "f"}


def test_a_key_without_a_value_takes_nothing_away_from_a_layer_below() -> None:
    layers = [from_document(b"version: v1\nflags: {mpsRoot: /mps}", "f"), from_document(b"flags: {mpsRoot: }", "g")]
    assert overlay(layers)[0] == {"version": "v1", "flags": {"mpsRoot": "/mps"}}


@pytest.mark.parametrize("text", [b"", b"---", b"# nothing\n", b"{}"])
def test_an_empty_file_says_nothing(text: bytes) -> None:
    assert from_document(text, "f").values == {}


@pytest.mark.parametrize("text", [b"- a", b"text", b"7", b"[]", b"false"])
def test_a_file_that_holds_no_keys_is_an_error_that_names_it(text: bytes) -> None:
    with pytest.raises(ConfigError, match=r"f\.yaml: expected keys and their values, such as version: v1; got "):
        from_document(text, "f.yaml")


def test_a_file_that_is_no_yaml_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match=r"/f\.yaml: no valid YAML: .*line 2"):
        from_file(tmp_path / "f.yaml")


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/gone\.yaml: cannot be read: No such file"):
        from_file(tmp_path / "gone.yaml")
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        from_file(tmp_path)


def test_a_file_that_is_too_large_is_refused_and_one_just_within_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"version: v1".ljust(SIZE_LIMIT))
    assert from_file(path).values == {"version": "v1"}
    path.write_bytes(b"version: v1".ljust(SIZE_LIMIT + 1))
    with pytest.raises(ConfigError, match="more than 1 MiB"):
        from_file(path)


def test_later_layers_lie_over_earlier_ones_key_by_key() -> None:
    tree, origins = overlay(
        [
            Layer(origin="file", values=nested({"a.x": 1, "a.y": [1, 2], "b": {}})),
            Layer(origin="environment", values=nested({"a.y": [3], "c.d.e": 4})),
            Layer(origin="command line", values=nested({"c.d.e": 5})),
        ]
    )
    assert tree == {"a": {"x": 1, "y": [3]}, "b": {}, "c": {"d": {"e": 5}}}
    assert origins == {"a.x": "file", "a.y": "environment", "c.d.e": "command line"}


def test_laying_over_changes_no_layer() -> None:
    below = Layer(origin="file", values=nested({"a.x": 1}))
    overlay([below, Layer(origin="environment", values=nested({"a.x": 2, "a.y": 3}))])
    assert below.values == {"a": {"x": 1}}
