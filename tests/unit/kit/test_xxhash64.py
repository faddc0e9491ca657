"""The hash is that of its specification: values that other programs compute of the same bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.kit.xxhash64 import xxh64


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_the_hash_of_known_bytes_is_the_known_one(data: bytes, value: int) -> None:
    assert xxh64(data) == value


@given(st.binary(max_size=200), st.integers(min_value=0, max_value=2**64 - 1))
def test_any_bytes_and_any_seed_give_eight_bytes_that_another_seed_changes(data: bytes, seed: int) -> None:
    assert 0 <= xxh64(data, seed) < 2**64
    assert xxh64(data, seed) != xxh64(data, seed ^ 1)
