"""Amounts are read as Kubernetes reads them."""

import re

import pytest

from node_agent.config.quantities import PATTERN, amount


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("0", 0),
        ("1", 1),
        ("20Gi", 20 * 1024**3),
        ("500M", 500_000_000),
        ("1.5Ki", 1536),
        ("2k", 2000),
        ("1Pi", 1024**5),
    ],
)
def test_an_amount_is_that_many_bytes(text: str, meant: int) -> None:
    assert re.search(PATTERN, text)
    assert amount(text) == meant


def test_a_bare_number_counts_bytes() -> None:
    assert amount(4096) == 4096


@pytest.mark.parametrize("text", ["", "Gi", "-1Gi", "1 Gi", "1GB", "1gi", "1.Gi", ".5Gi", "1e3", "1Gi ", "Gi1"])
def test_what_is_no_amount_does_not_follow_the_pattern(text: str) -> None:
    assert not re.search(PATTERN, text)
