"""Command line over environment over file over defaults; no document does anything but resolve or raise ConfigError."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from node_agent.config.check import known_paths
from node_agent.config.file import File
from node_agent.config.notices import flat
from node_agent.config.resolve import PROBLEMS_SHOWN, check, resolve
from node_agent.config.settings import Settings
from node_agent.errors import ConfigError

NVIDIA_FILE = """
version: v1
flags:
  migStrategy: "none"
  failOnInitError: true
  nvidiaDriverRoot: "/"
  plugin:
    passDeviceSpecs: false
    deviceListStrategy:
    - envvar
    deviceIDStrategy: uuid
  gfd:
    oneshot: false
    noTimestamp: false
    outputFile: /etc/kubernetes/node-feature-discovery/features.d/gfd
    sleepInterval: 60s
sharing:
  timeSlicing:
    renameByDefault: false
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def test_without_any_source_everything_is_a_default() -> None:
    found = resolve(None, {}, {})
    assert found.settings == Settings()
    assert found.values == flat(File())
    assert set(found.origin) == set(found.values)
    assert set(found.origin.values()) == {"default"}
    assert found.notices == ()


def test_a_file_of_nvidias_is_read_as_it_is(file: Path) -> None:
    file.write_text(NVIDIA_FILE)
    found = resolve(file, {}, {})
    assert found.settings.device_list_strategies == ("envvar",)
    assert [rule.shares for rule in found.settings.sharing.rules] == [4]
    assert found.values["sharing.timeSlicing.failRequestsGreaterThanOne"] is True
    assert [text.partition(":")[0] for text in found.notices] == [
        "flags.failOnInitError",
        "flags.plugin.deviceListStrategy",
    ]


def test_command_line_lies_over_environment_over_file_over_defaults(file: Path) -> None:
    file.write_text("flags: {nvidiaDriverRoot: /f, nvidiaDevRoot: /f}\nagent: {nodeName: f, paths: {cdiDir: /f}}")
    found = resolve(file, {"NVIDIA_DEV_ROOT": "/e", "NODE_NAME": "e"}, {"agent.nodeName": "c", "agent.log.level": None})
    expected: dict[str, tuple[object, str]] = {
        "flags.nvidiaDriverRoot": ("/f", str(file)),
        "flags.nvidiaDevRoot": ("/e", "environment variable NVIDIA_DEV_ROOT"),
        "agent.nodeName": ("c", "command line"),
        "agent.paths.cdiDir": ("/f", str(file)),
        "agent.log.level": ("info", "default"),
    }
    assert {path: (found.values[path], found.origin[path]) for path in expected} == expected
    assert found.settings.node_name == "c"
    assert found.settings.dev_root == Path("/e")


def test_the_file_may_be_named_by_a_variable_and_an_option_beats_it(file: Path, tmp_path: Path) -> None:
    file.write_text("agent: {nodeName: by-variable}")
    (tmp_path / "other.yaml").write_text("agent: {nodeName: by-option}")
    assert resolve(None, {"CONFIG_FILE": str(file)}, {}).settings.node_name == "by-variable"
    assert resolve(tmp_path / "other.yaml", {"CONFIG_FILE": str(file)}, {}).settings.node_name == "by-option"
    assert resolve(None, {"CONFIG_FILE": ""}, {}).settings == Settings()


def test_one_problem_is_one_line_with_its_path_and_where_it_came_from(file: Path) -> None:
    file.write_text("flags: {renameByDefault: true}")
    with pytest.raises(ConfigError) as caught:
        resolve(file, {}, {})
    assert str(caught.value) == (
        f"flags.renameByDefault: unknown key; did you mean sharing.timeSlicing.renameByDefault? ({file})"
    )


def test_all_problems_of_all_sources_are_named_at_once(file: Path) -> None:
    file.write_text("flags: {migStrategy: x}\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}")
    with pytest.raises(ConfigError) as caught:
        resolve(file, {"PASS_DEVICE_SPECS": "maybe"}, {"agent.log.level": "loud", "agent.nope": 1})
    assert [line.strip().partition(": ")[0] for line in str(caught.value).splitlines()] == [
        "5 problems:",
        "flags.migStrategy",
        "sharing.timeSlicing.resources[0].replicas",
        "flags.plugin.passDeviceSpecs",
        "agent.log.level",
        "agent.nope",
    ]
    assert str(caught.value).count(f"({file})") == 2
    assert str(caught.value).count("(environment variable PASS_DEVICE_SPECS)") == 1
    assert str(caught.value).count("(command line)") == 2


@pytest.mark.parametrize("text", ["flags: {migStrategy: x}", "flags: 5", "flags: [migStrategy]"])
def test_a_mistake_shows_even_where_another_source_lies_over_it(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"^flags.*: expected .*\({file}\)$"):
        resolve(file, {"MIG_STRATEGY": "none"}, {})


def test_a_file_full_of_mistakes_is_answered_soon_and_in_moderation(file: Path) -> None:
    file.write_text("flags:\n" + "\n".join(f"  key{number}: 1" for number in range(9000)))
    with pytest.raises(ConfigError, match=f"^{PROBLEMS_SHOWN} or more problems:") as caught:
        resolve(file, {}, {})
    assert len(str(caught.value).splitlines()) == PROBLEMS_SHOWN + 1


def test_checking_a_text_names_the_same_problems_as_resolving_it(file: Path) -> None:
    texts = ["flags: {migStrategy: x, y: 1}", "a: [", "- 1", "agent: {rescanInterval: 2h}", "version: v2\nz: 1"]
    for text in texts:
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            resolve(file, {}, {})
        assert all(problem in str(caught.value) for problem in check(text, str(file)))
        assert check(text, str(file))


@pytest.mark.parametrize("text", ["", NVIDIA_FILE, "agent: {log: {level: debug}}"])
def test_a_good_text_has_no_problems(text: str) -> None:
    assert check(text, "config.yaml") == []


def test_text_that_is_no_unicode_is_a_problem_and_no_crash() -> None:
    assert check("agent: {nodeName: \ud800}", "config.yaml") != []


def test_yaml_is_not_loaded_where_there_is_no_file() -> None:
    program = (
        "import sys; from node_agent.config.resolve import resolve; resolve(None, {}, {}); print('yaml' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


NAMES = sorted({path.rpartition(".")[2].removesuffix("[]") for path in known_paths()})
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 10**20),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(
        ["v1", "all", "30s", "1h", "/", "/dev", ":9400", ":99999", "mixed", "mps", "gpu", "nvidia.com/gpu"]
    ),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=25,
)


def resolves(text: bytes) -> bool:
    """Whether a file with this text resolves; anything but a ConfigError that says something is a failure."""
    with tempfile.NamedTemporaryFile() as named:
        named.write(text)
        named.flush()
        try:
            found = resolve(Path(named.name), {}, {})
        except ConfigError as error:
            assert str(error)
            return False
        assert isinstance(found.settings, Settings)
        assert check(text.decode("utf-16" if text.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"), "f") == []
        return True


@given(TREES)
def test_any_yaml_document_resolves_or_is_a_config_error(tree: object) -> None:
    resolves(yaml.safe_dump(tree, allow_unicode=True).encode())


@given(st.binary(max_size=200))
def test_any_bytes_resolve_or_are_a_config_error(data: bytes) -> None:
    resolves(data)


VALID: dict[str, st.SearchStrategy[Any]] = {
    "flags": st.fixed_dictionaries({}, optional={
        "migStrategy": st.sampled_from(["none", "single", "mixed"]),
        "gdsEnabled": st.booleans() | st.none(),
        "nvidiaDriverRoot": st.sampled_from(["/", "/run/nvidia/driver"]),
        "plugin": st.fixed_dictionaries({}, optional={
            "deviceListStrategy": st.lists(st.sampled_from(["envvar", "volume-mounts", "cdi-cri"]), min_size=1),
            "deviceIDStrategy": st.sampled_from(["uuid", "index"]),
        }),
    }) | st.none(),
    "sharing": st.fixed_dictionaries({}, optional={
        "timeSlicing": st.fixed_dictionaries({
            "resources": st.lists(
                st.fixed_dictionaries({"name": st.sampled_from(["gpu", "a.b"]), "replicas": st.integers(2, 99)}),
                min_size=1,
            )
        }),
    }),
    "agent": st.fixed_dictionaries({}, optional={
        "rescanInterval": st.integers(1, 3600) | st.sampled_from(["1s", "1h", "1m30s"]),
        "health": st.fixed_dictionaries({"ignoredXids": st.lists(st.integers(0, 200))}),
        "devices": st.fixed_dictionaries({"exclude": st.lists(st.integers(0, 16) | st.sampled_from(["*T4*"]))}),
    }),
}  # fmt: skip


@given(st.fixed_dictionaries({}, optional=VALID))
def test_every_valid_document_resolves(tree: dict[str, object]) -> None:
    assert resolves(yaml.safe_dump(tree).encode())
