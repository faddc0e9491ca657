"""A sealed file says exactly what was written, or that it does not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.kit.sealed import seal, unseal

PAYLOAD = b'{"a": [1, 2]}'


@given(value=st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_the_payload_comes_back_byte_for_byte(value: object) -> None:
    payload = json.dumps(value).encode()
    assert unseal(seal(payload, 1), 1) == payload


def test_another_version_is_refused_by_its_number() -> None:
    with pytest.raises(ValueError, match="version 2; this agent reads version 1"):
        unseal(seal(PAYLOAD, 2), 1)


def test_a_changed_payload_is_refused_for_its_checksum() -> None:
    with pytest.raises(ValueError, match="checksum"):
        unseal(seal(PAYLOAD, 1).replace(b"[1, 2]", b"[1, 3]"), 1)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"\xff", PAYLOAD])
def test_what_was_never_sealed_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        unseal(content, 1)
