"""Every mistake in a file is found at once and named with its path, what would be valid, and what was given."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.config.check import Problem, known_paths, problems, shown
from node_agent.config.file import File
from node_agent.config.sources import Layer, nested, overlay


def complaints(path: str, value: object) -> list[str]:
    return [str(problem) for problem in problems(nested({path: value}))]


SHARED: dict[str, Any] = {"name": "nvidia.com/gpu", "replicas": 2}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", "v1"),
        ("flags", {}),
        ("flags.migStrategy", "mixed"),
        ("flags.mpsRoot", ""),
        ("flags.mpsRoot", "/run/nvidia/mps"),
        ("flags.plugin.deviceListStrategy", "envvar"),
        ("flags.plugin.deviceListStrategy", ["envvar", "cdi-cri"]),
        ("flags.gfd.sleepInterval", "1m30s"),
        ("flags.gfd.sleepInterval", "infinite"),
        ("flags.gfd.sleepInterval", 60_000_000_000),
        ("flags.gfd.outputFile", ""),
        ("resources.gpus", [{"pattern": "*H200*", "name": "big"}]),
        ("sharing.timeSlicing.resources", [SHARED]),
        ("sharing.mps.failRequestsGreaterThanOne", False),
        ("imex.channelIDs", []),
        ("imex.channelIDs", [0]),
        ("agent.rescanInterval", 30),
        ("agent.rescanInterval", 1.5),
        ("agent.health.ignoredXids", "all"),
        ("agent.health.ignoredXids", []),
        ("agent.devices.exclude", [0, "GPU-1", "*T400*"]),
        *(("agent.http.address", text) for text in ("", ":9400", "127.0.0.1:9400", "[::1]:9400", "localhost:1")),
    ],
)
def test_what_is_valid_has_no_problem_of_its_own(path: str, value: object) -> None:
    assert [text for text in complaints(path, value) if text.startswith(f"{path}:")] == []


def test_the_nearest_cause_is_named_for_one_that_is_not_there() -> None:
    (complaint,) = complaints("agent.health.rules", [{"causes": ["termal-throttling"], "action": "degrade"}])
    assert complaint.endswith('got "termal-throttling"; did you mean thermal-throttling?')


UUID = "8d0a4a55-3a52-4e1f-9d6b-0123456789ab"


@pytest.mark.parametrize("devices", [
    "all", 1, [0], ["0", "0:1"], [f"GPU-{UUID}"], [f"MIG-{UUID}"], [f"MIG-GPU-{UUID}/7/0", 3],
])  # fmt: skip
def test_shared_devices_may_be_named_in_every_way_that_nvidia_knows(devices: object) -> None:
    assert complaints("sharing.timeSlicing.resources", [{**SHARED, "devices": devices}]) == []


@pytest.mark.parametrize(
    ("devices", "at"),
    [
        ("some", ""), (0, ""), (-1, ""), (2.0, ""), (True, ""), ([], ""), ({}, ""),
        ([-1], "[0]"), (["0", "0:1:2"], "[1]"), (["GPU-1"], "[0]"), ([f"MIG-GPU-{UUID}"], "[0]"), ([["0"]], "[0]"),
    ],
)  # fmt: skip
def test_shared_devices_named_in_another_way_are_a_problem(devices: object, at: str) -> None:
    (complaint,) = complaints("sharing.timeSlicing.resources", [{**SHARED, "devices": devices}])
    assert complaint.startswith(f"sharing.timeSlicing.resources[0].devices{at}: expected ")


@pytest.mark.parametrize("replicas", [0, 1, -1, "4", 1.5, 2.0, True, [2], {"n": 2}])
def test_a_bad_replica_count_is_named_with_its_path_and_the_allowed_range(replicas: object) -> None:
    (complaint,) = complaints("sharing.mps.resources", [{**SHARED, "replicas": replicas}])
    expected = "sharing.mps.resources[0].replicas: expected a whole number of at least 2; got "
    assert complaint == f"{expected}{shown(replicas)}"


@pytest.mark.parametrize("replicas", [0, -1, "4", 1.5, None])
def test_a_bad_replica_count_of_our_own_rules_is_named_in_the_same_way(replicas: object) -> None:
    (complaint,) = complaints("agent.sharing.rules", [{"replicas": replicas}])
    assert complaint.startswith("agent.sharing.rules[0].replicas: ")
    assert "expected a whole number of at least 1 with mps, 2 with time-slicing" in complaint


def test_an_absent_replica_count_is_named_too() -> None:
    (complaint,) = complaints("sharing.mps.resources", [SHARED, {"name": "nvidia.com/gpu"}])
    assert complaint == "sharing.mps.resources[1].replicas: is missing; expected a whole number of at least 2"


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("version", "v2", 'version: expected v1; got "v2"'),
        ("version", 1, "version: expected v1; got 1"),
        ("flags", 5, "flags: expected a section with migStrategy, failOnInitError, mpsRoot, "),
        ("flags", [], "flags: expected a section with "),
        ("flags.migStrategy", "mixd", 'flags.migStrategy: expected none, single or mixed; got "mixd"'),
        ("flags.gdsEnabled", "true", 'flags.gdsEnabled: expected true or false; got "true"'),
        ("flags.gdsEnabled", 1, "flags.gdsEnabled: expected true or false; got 1"),
        ("flags.nvidiaDriverRoot", "run", 'flags.nvidiaDriverRoot: expected an absolute path; got "run"'),
        ("flags.nvidiaDriverRoot", "", 'flags.nvidiaDriverRoot: expected an absolute path; got ""'),
        (
            "flags.plugin.deviceListStrategy",
            "envvar,cdi-cri",
            "flags.plugin.deviceListStrategy: expected envvar, volume-mounts, cdi-annotations or cdi-cri, or a list of "
            'these; got "envvar,cdi-cri"',
        ),
        (
            "flags.plugin.deviceListStrategy",
            ["cdi"],
            'flags.plugin.deviceListStrategy[0]: expected envvar, volume-mounts, cdi-annotations or cdi-cri; got "cdi"',
        ),
        ("flags.plugin.deviceListStrategy", [], "flags.plugin.deviceListStrategy: expected envvar, "),
        ("flags.gfd.sleepInterval", "soon", "flags.gfd.sleepInterval: expected a duration such as 60s, or infinite"),
        ("resources.gpus", [{"name": "x"}], "resources.gpus[0].pattern: is missing; expected some text"),
        ("resources.gpus", [{"pattern": "", "name": "x"}], 'resources.gpus[0].pattern: expected some text; got ""'),
        ("resources.gpus", {"pattern": "x"}, "resources.gpus: expected a list of a section with pattern, name; got a"),
        ("sharing.timeSlicing", {}, "sharing.timeSlicing.resources: is missing; expected a list of at least one"),
        (
            "sharing.timeSlicing.resources",
            [],
            "sharing.timeSlicing.resources: expected a list of at least one resource; got an empty list",
        ),
        ("sharing.timeSlicing.resources", [7], "sharing.timeSlicing.resources[0]: expected a section with name, "),
        ("imex.channelIDs", [1], "imex.channelIDs[0]: expected 0; got 1"),
        ("imex.channelIDs", [0, 0], "imex.channelIDs: expected [] or [0]: there is one channel per node; got a list"),
        ("agent.rescanInterval", "30", "agent.rescanInterval: expected a duration from 1s to 1h, such as 30s or "),
        ("agent.rescanInterval", True, "agent.rescanInterval: expected a duration from 1s to 1h, "),
        ("agent.health.ignoredXids", "79", "agent.health.ignoredXids: expected all, or a list of numbers of Xids; "),
        ("agent.health.ignoredXids", [79, "x"], "agent.health.ignoredXids[1]: expected the number of an Xid; got "),
        (
            "agent.health.rules",
            [{"causes": ["termal-throttling"], "action": "degrade"}],
            "agent.health.rules[0].causes[0]: expected gpu-lost, query-failed, ",
        ),
        (
            "agent.health.rules",
            [{"xids": [48], "action": "withdrawn"}],
            "agent.health.rules[0].action: expected ignore, count, degrade, withdraw or evict; "
            'got "withdrawn"; did you mean withdraw?',
        ),
        (
            "agent.health.rules",
            [{"xids": [48], "axtion": "count"}],
            "agent.health.rules[0].axtion: unknown key; ",
        ),
        ("agent.devices.exclude", [-1], "agent.devices.exclude[0]: expected an index, a UUID, a name or a product; "),
        ("agent.sharing.rules", [{"replicas": 2, "memoryPerShare": "20GB"}], "agent.sharing.rules[0].memoryPerShare: "),
        (
            "agent.sharing.rules",
            [{"replicas": 2, "devices": []}],
            "agent.sharing.rules[0].devices: expected a list of ",
        ),
        ("agent.sharing.placement", "random", "agent.sharing.placement: expected spread, packed or distinct; got "),
        ("agent.log.level", "loud", 'agent.log.level: expected debug, info, warning or error; got "loud"'),
        ("agent.http.address", "9400", "agent.http.address: expected a host, a colon and a port up to 65535, such "),
        ("agent.http.address", "::1:9400", "agent.http.address: expected a host, a colon and a port up to 65535, "),
    ],
)
def test_a_wrong_value_is_named_with_its_path_what_is_allowed_and_what_was_given(
    path: str, value: object, complaint: str
) -> None:
    found = complaints(path, value)
    assert len(found) == 1
    assert found[0].startswith(complaint)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("flags.renameByDefault", "sharing.timeSlicing.renameByDefault"),
        ("flags.passDeviceSpecs", "flags.plugin.passDeviceSpecs"),
        ("flags.plugin.migStrategy", "flags.migStrategy"),
        ("flags.plugin.deviceIdStrategy", "flags.plugin.deviceIDStrategy"),
        ("flags.migstrategy", "flags.migStrategy"),
        ("flags.mig-strategy", "flags.migStrategy"),
        ("flags.failOnInitErorr", "flags.failOnInitError"),
        ("sharing.timeslicing", "sharing.timeSlicing"),
        ("sharing.replicas", "sharing.timeSlicing.resources[].replicas"),
        ("timeSlicing", "sharing.timeSlicing"),
        ("migStrategy", "flags.migStrategy"),
        ("flag", "flags"),
        ("agent.cdiDir", "agent.paths.cdiDir"),
        ("agent.log.lvel", "agent.log.level"),
        ("kubeletDirectory", "agent.paths.kubeletDir"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest_valid_one(path: str, meant: str) -> None:
    assert complaints(path, True) == [f"{path}: unknown key; did you mean {meant}?"]


def test_an_unknown_key_that_resembles_none_gets_the_list_of_what_there_is() -> None:
    assert complaints("agent.log.zzz", 1) == ["agent.log.zzz: unknown key; there is level, format"]


def test_an_unknown_key_in_an_item_of_a_list_has_the_number_of_the_item_in_its_path() -> None:
    (complaint,) = complaints("sharing.mps.resources", [SHARED, {**SHARED, "replica": 2}])
    assert complaint == "sharing.mps.resources[1].replica: unknown key; did you mean sharing.mps.resources[1].replicas?"


def test_an_unknown_key_is_an_error_even_without_a_value_and_a_known_one_without_a_value_is_none() -> None:
    assert complaints("flags.renameByDefault", None) == [
        "flags.renameByDefault: unknown key; did you mean sharing.timeSlicing.renameByDefault?"
    ]
    assert complaints("flags.migStrategy", None) == []
    assert complaints("sharing.mps", None) == []
    (complaint,) = complaints("sharing.mps.resources", None)
    assert complaint.startswith("sharing.mps.resources: is missing; ")


def test_all_mistakes_are_found_and_not_only_the_first() -> None:
    found = list(
        problems(
            {
                "version": "v3",
                "flags": {"migStrategy": "x", "plugin": {"deviceIDStrategy": 1}, "nope": 1},
                "sharing": {"timeSlicing": {"resources": [{"replicas": 1}, 2]}},
                "agent": [],
            }
        )
    )
    assert [problem.path for problem in found] == [
        "version",
        "flags.migStrategy",
        "flags.plugin.deviceIDStrategy",
        "flags.nope",
        "sharing.timeSlicing.resources[0].replicas",
        "sharing.timeSlicing.resources[0].name",
        "sharing.timeSlicing.resources[1]",
        "agent",
    ]


@pytest.mark.parametrize("value", [None, 3, "text", ["x"]])
def test_a_document_that_is_no_section_is_one_problem_without_a_path(value: object) -> None:
    (problem,) = problems(value)
    assert str(problem).startswith("expected a section with version, flags, resources, sharing, imex, agent; got ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 1000, f'"{"x" * 60}"'),
        ("größe", '"größe"'),
        ('"', '"\\""'),
        (True, "true"),
        (None, "null"),
        (-1.5, "-1.5"),
        ([[]] * 1000, "a list"),
        ([], "an empty list"),
        ({"a": 1}, "a section"),
    ],
)
def test_a_given_value_is_shown_in_a_few_words(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_problem_without_a_path_is_its_message() -> None:
    assert str(Problem(path="", message="no YAML")) == "no YAML"
    assert str(Problem(path="a.b", message="wrong")) == "a.b: wrong"


NAMES = sorted({path.rpartition(".")[2].removesuffix("[]") for path in known_paths()})
KEYS = st.sampled_from([*NAMES, "", "x.y"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["v1", "all"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_any_values_are_compared_without_a_crash_and_without_problems_only_if_they_convert(value: object) -> None:

    said = overlay([Layer(origin="f", values={"the": value})])[0].get("the") if isinstance(value, dict) else value
    try:
        msgspec.convert(said, File)
    except msgspec.ValidationError:
        assert list(problems(value))
    else:
        assert all("unknown key" in str(problem) for problem in problems(value))
