"""Words of the configuration that mean GPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.model.naming import matches, named, names
from tests.fakes.builders import gpu

L4 = gpu(3, product="NVIDIA L4")


@pytest.mark.parametrize("word", [L4.uuid, "3", "gpu-3", "NVIDIA L4", "*l4", "NVIDIA*"])
def test_a_gpu_is_meant_by_uuid_index_name_or_product(word: str) -> None:
    assert names(word, L4)
    assert named(["gpu-9", word], L4)


@pytest.mark.parametrize("word", ["GPU-3", "33", "gpu-33", "L4", ""])
def test_a_part_of_a_name_means_nothing(word: str) -> None:
    assert not names(word, L4)
    assert not named([word], L4)


@pytest.mark.parametrize(
    ("pattern", "product", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H100", "NVIDIA H100 80GB HBM3", False),
        ("*H100*", "NVIDIA H100 80GB HBM3", True),
        ("*(Pascal)", "TITAN X (Pascal)", True),
        ("TITAN X .Pascal.", "TITAN X (Pascal)", False),
        ("1g.24gb", "1gX24gb", False),
        ("", "", True),
        ("*", "", True),
    ],
)
def test_only_the_star_is_special_in_a_pattern(pattern: str, product: str, expected: bool) -> None:
    assert matches(pattern, product) is expected


@given(st.text())
def test_every_text_matches_itself_and_the_star(text: str) -> None:
    assert matches(text, text)
    assert matches("*", text)
