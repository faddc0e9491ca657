"""Any bytes are either plain values or a ConfigError, quickly and in little memory."""

import importlib
import time
from collections.abc import Iterator

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from node_agent.config import document
from node_agent.config.document import DEPTH_LIMIT, VALUES_LIMIT
from node_agent.errors import ConfigError


@pytest.fixture(params=["libyaml", "python"], autouse=True, scope="module")
def _parser(request: pytest.FixtureRequest) -> Iterator[None]:
    """PyYAML with libyaml, and built without it: all that follows holds for both."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.delattr(yaml, "CSafeLoader")
        importlib.reload(document)
        yield
    importlib.reload(document)


def read(data: bytes) -> object:
    return document.read(data)


def test_an_empty_document_says_nothing() -> None:
    assert read(b"") is None
    assert read(b"---\n# only a comment\n") is None


def test_json_is_read_as_well() -> None:
    assert read(b'{"version": "v1", "flags": {"gdsEnabled": true, "x": [1, null, 2.5]}}') == {
        "version": "v1",
        "flags": {"gdsEnabled": True, "x": [1, None, 2.5]},
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("-3", -3),
        ("0x1f", 31),
        ("017", 15),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("no", False),
        ("~", None),
        ("null", None),
        ("none", "none"),
        ('"4"', "4"),
        ("1:30", "1:30"),
        ("0:1", "0:1"),
        ("2026-01-31", "2026-01-31"),
        ("1.2.3", "1.2.3"),
        ("08", "08"),
        ("1s", "1s"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("1e999", "1e999"),
        ("9" * 5000, "9" * 5000),
        ("=", "="),
    ],
)
def test_a_plain_value_has_the_type_that_nvidias_programs_give_it(text: str, value: object) -> None:
    found = read(f"key: {text}".encode())
    assert isinstance(found, dict)
    assert found == {"key": value}
    assert type(found["key"]) is type(value)


def test_keys_are_text_whatever_they_look_like() -> None:
    assert read(b"1: a\ntrue: b\nnull: c\n1.0: d") == {"1": "a", "true": "b", "null": "c", "1.0": "d"}


def test_aliases_and_merged_sections_stand_for_what_they_name() -> None:
    text = b"base: &base {x: 1, y: 2}\none: {<<: *base, x: 3}\ntwo: {<<: *base}\nthree: *base"
    assert read(text) == {
        "base": {"x": 1, "y": 2},
        "one": {"x": 3, "y": 2},
        "two": {"x": 1, "y": 2},
        "three": {"x": 1, "y": 2},
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"a: 1\nb: 2\na: 3", "line 3: the key a is there twice"),
        (b"x:\n  a: 1\n  a: 1", "line 3: the key a is there twice"),
        (b"a: 1\n'a': 2", "line 2: the key a is there twice"),
        (b"a: !!python/object:os.system x", "line 1: the tag tag:yaml.org,2002:python/object:os.system"),
        (b"a: !!int x", "line 1: the tag tag:yaml.org,2002:int has no meaning here"),
        (b"a: !other {x: 1}", "line 1: the tag !other has no meaning here"),
        (b"a: &a [*a]", "stands for nothing that has ended before"),
        (b"- &a 1\n- &a [*a]", "line 2: *a stands for nothing that has ended before"),
        (b"a: *b", "line 1: *b stands for nothing"),
        (b"a: [1, 2", "no valid YAML: .*line 1"),
        (b"a: b: c", "no valid YAML: .*line 1"),
        (b"? [a]\n: b", "no valid YAML: .*unhashable key"),
        (b"a\n---\nb", "no valid YAML: expected a single document"),
        (b"a: \x00", "no valid YAML: .*characters are not allowed"),
        (b"\xff\xfe\x00", "no valid YAML"),
        (b"a: \x80", "no valid YAML: unacceptable character"),
        (b"<<: 3", "no valid YAML: .*merging"),
        (b"a:\n\t- b", "no valid YAML: .*tab|no valid YAML: .*cannot start any token"),
        (b"[" * (DEPTH_LIMIT + 1), "line 1: too deep or too large"),
        (b"{a: " * (DEPTH_LIMIT + 1), "line 1: too deep or too large"),
        (b"[" * 500_000, "no valid YAML|too deep"),
    ],
)
def test_what_a_configuration_has_no_need_of_is_an_error_in_one_line(text: bytes, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint.replace("*b", r"\*b").replace("*a", r"\*a")) as caught:
        read(text)
    assert "\n" not in str(caught.value)


def bomb(levels: int, fan: int) -> bytes:
    """A short text whose aliases stand for ``fan ** levels`` values."""
    lines = [b"a0: &a0 [" + b",".join([b"x"] * fan) + b"]"]
    for level in range(1, levels):
        aliases = b",".join([b"*a%d" % (level - 1)] * fan)
        lines.append(b"a%d: &a%d [%s]" % (level, level, aliases))
    return b"\n".join(lines)


def merge_bomb(levels: int, fan: int) -> bytes:
    """The same with sections that are merged into one another."""
    merges = (b",".join([b"*a%d" % (level - 1)] * fan) for level in range(1, levels))
    return b"\n".join([b"a0: &a0 {x: 1}", *(b"a%d: &a%d {<<: [%s]}" % (n, n, m) for n, m in enumerate(merges, 1))])


@pytest.mark.parametrize("text", [bomb(9, 9), bomb(3, 100), merge_bomb(9, 9), merge_bomb(30, 2)])
def test_aliases_that_stand_for_millions_of_values_are_refused_at_once(text: bytes) -> None:
    began = time.process_time()
    with pytest.raises(ConfigError, match="too deep or too large"):
        read(text)
    assert time.process_time() - began < 2


def test_as_many_values_as_a_file_may_hold_are_read() -> None:
    values = read(b"[" + b"1," * (VALUES_LIMIT - 2) + b"]")
    assert isinstance(values, list)
    assert len(values) == VALUES_LIMIT - 2
    with pytest.raises(ConfigError, match="too large"):
        read(b"[" + b"1," * VALUES_LIMIT + b"]")


@given(st.binary(max_size=300))
def test_any_bytes_are_values_or_a_config_error(data: bytes) -> None:
    try:
        read(data)
    except ConfigError as error:
        assert str(error)


@given(st.text(alphabet="ab:-[]{}&*!<>|?#'\"\n 0.,%@`\\~", max_size=80))
def test_any_yaml_looking_text_is_values_or_a_config_error(text: str) -> None:
    try:
        read(text.encode())
    except ConfigError as error:
        assert "\n" not in str(error)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(PLAIN)
def test_plain_values_written_as_yaml_come_back_as_they_were(value: object) -> None:
    assert read(yaml.safe_dump(value).encode()) == value
