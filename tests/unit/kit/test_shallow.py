"""JSON that strangers have nested."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.kit.shallow import DEEPEST, decoded, shallow

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def cut(value: Any, deepest: int) -> Any:
    """The same, said plainly."""
    if not isinstance(value, dict | list):
        return value
    if deepest == 0:
        return None
    if isinstance(value, list):
        return [cut(one, deepest - 1) for one in value]
    return {key: cut(one, deepest - 1) for key, one in value.items()}


@given(JSON, st.integers(0, 6), st.booleans())
def test_what_lies_too_deep_is_null_and_all_else_as_it_was(value: Any, deepest: int, ascii_only: bool) -> None:
    document = json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    assert json.loads(shallow(document, deepest)) == cut(json.loads(document), deepest)


@given(JSON)
def test_what_is_usual_is_read_as_it_stands(value: Any) -> None:
    assert decoded(json.dumps(value).encode()) == value


@pytest.mark.parametrize("opening, closing", [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("times", [DEEPEST, 5000, 200_000])
def test_no_depth_stops_the_reading(opening: bytes, closing: bytes, times: int) -> None:
    found = decoded(b'{"deep": ' + opening * times + b"1" + closing * times + b', "beside": "]}"}')
    assert found["beside"] == "]}"


@given(st.binary())
def test_any_bytes_are_read_or_refused(document: bytes) -> None:
    shallow(document)
    try:
        decoded(document)
    except msgspec.DecodeError as error:
        assert str(error)
