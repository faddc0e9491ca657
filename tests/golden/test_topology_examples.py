"""The objects in ``tests/golden/topology`` are what the agent writes, to the letter."""

import json
import re

import pytest

from tests.golden.topology_examples import EXAMPLES, FOLDER, written

# By looking at the nodes: the zones with GPUs. Those of GPU memory alone have none, and gaps between their numbers.
GPUS = {
    "h200-8": {"node-0": 4, "node-1": 4},
    "a100-80gb-8": {"node-0": 4, "node-1": 4},
    "gb200-4": {"node-0": 2, "node-1": 2},
    "l4-2": {"node-0": 1, "node-1": 1},
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_what_the_agent_writes(example: str) -> None:
    assert written(example) == (FOLDER / f"{example}.json").read_text(), (
        "run python -m tests.golden.topology_examples, and look at the difference"
    )


def test_there_is_no_example_that_nothing_makes() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_reader_finds_cpus_memory_and_gpus_in_zones_of_the_form_that_it_reads(example: str) -> None:
    zones = json.loads((FOLDER / f"{example}.json").read_text())["zones"]
    names = [zone["name"] for zone in zones]
    amounts = {zone["name"]: {one["name"]: int(one["available"]) for one in zone["resources"]} for zone in zones}
    assert all(re.fullmatch("node-[0-9]+", name) for name in names)
    assert all(zone["type"] == "Node" and [cost["name"] for cost in zone["costs"]] == names for zone in zones)
    assert {name: of["nvidia.com/gpu"] for name, of in amounts.items() if "nvidia.com/gpu" in of} == GPUS[example]
    assert all("memory" in of for of in amounts.values())
    assert all("cpu" in of for of in amounts.values() if "nvidia.com/gpu" in of)
