"""The labels in ``tests/golden/labels`` are what the agent says of the simulated nodes, to the letter."""

import re

import pytest

from node_agent.reporting.label_names import meaning
from tests.golden.labels_examples import EXAMPLES, FOLDER, written

KEY = re.compile(r"(node-agent\.gpu\.)?nvidia\.com/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_what_the_agent_says(example: str) -> None:
    assert written(example) == (FOLDER / f"{example}.txt").read_text(), (
        "run python -m tests.golden.labels_examples, and look at the difference"
    )


def test_there_is_no_example_that_nothing_makes() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_legal_and_each_label_has_a_meaning(example: str) -> None:
    for line in (FOLDER / f"{example}.txt").read_text().splitlines():
        key, _, value = line.partition("=")
        assert KEY.fullmatch(key), key
        assert VALUE.fullmatch(value), line
        assert meaning(key), key
