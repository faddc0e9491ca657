"""The labels in ``tests/golden/labels`` are what the agent says of the simulated nodes, to the letter."""

import json
import re

import pytest

from node_agent.config.quantities import amount
from node_agent.reporting.label_names import meaning
from tests.golden import slices_examples
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


@pytest.mark.parametrize("profile", slices_examples.PROFILES)
def test_the_count_and_the_memory_are_those_that_claims_see(profile: str) -> None:
    slices = json.loads((slices_examples.FOLDER / f"{profile}.json").read_text())
    devices = [one for item in slices for one in item["spec"].get("devices", ())]
    gpus = [one for one in devices if one["attributes"]["type"] == {"string": "gpu"}]
    found = dict(line.split("=") for line in (FOLDER / f"{profile}.txt").read_text().splitlines())
    assert int(found.get("nvidia.com/gpu.count", 0)) == len(gpus)
    for gpu in gpus:
        memory = gpu.get("capacity", {}).get("memory", {}).get("value")
        assert found.get("nvidia.com/gpu.memory") == (memory and str(amount(memory) >> 20))
