"""The specs in ``cdi/examples`` are what the agent writes, byte for byte, on every machine and as any user."""

import json
from pathlib import Path

import pytest

from node_agent.cdi.validate import validate_document
from tests.fakes.names import KIND
from tests.golden.cdi_examples import EXAMPLES, FOLDER, written


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_what_the_agent_writes(example: str, tmp_path: Path) -> None:
    assert written(example, tmp_path).decode() == (FOLDER / f"{example}.json").read_text(), (
        "run python -m tests.golden.cdi_examples, and look at the difference"
    )


def test_there_is_no_example_that_nothing_makes() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_a_valid_spec_of_the_agents_kind(example: str) -> None:
    document = json.loads((FOLDER / f"{example}.json").read_bytes())
    validate_document(document)
    assert document["kind"] == KIND


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_example_names_the_machine_it_was_made_on(example: str) -> None:
    text = (FOLDER / f"{example}.json").read_text()
    assert "/tmp/pytest" not in text
    assert str(Path.home()) not in text
