"""The slices in ``tests/golden/slices`` are what the agent creates, to the letter."""

import json

import pytest

from tests.golden.slices_examples import EXAMPLES, FOLDER, PROFILES, written
from tests.unit.dra import scheduler

# Written down by looking at the nodes: devices without and with groups.
DEVICES = {"h200-8": (8, 15), "gb200-4": (4, 7), "mixed-5": (4, 7), "gb10-1": (1, 1), "none": (0, 0)}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_what_the_agent_creates(example: str) -> None:
    assert written(example) == (FOLDER / f"{example}.json").read_text(), (
        "run python -m tests.golden.slices_examples, and look at the difference"
    )


def test_there_is_no_example_that_nothing_makes() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(EXAMPLES)


@pytest.mark.parametrize("profile", PROFILES)
def test_an_example_has_the_devices_that_the_node_has(profile: str) -> None:
    for example, expected in zip((profile, f"{profile}-groups"), DEVICES[profile], strict=True):
        slices = json.loads((FOLDER / f"{example}.json").read_text())
        assert sum(len(item["spec"].get("devices", ())) for item in slices) == expected


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_scheduler_can_use_an_example(example: str) -> None:
    slices = json.loads((FOLDER / f"{example}.json").read_text())
    scheduler.Scheduler(item["spec"] for item in slices)
    for item in slices:
        scheduler.check_limits(item["spec"])
        assert item["spec"]["pool"] == {"name": "node-1", "generation": 1, "resourceSliceCount": len(slices)}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_small(example: str) -> None:
    """A GPU takes about 1 kB, as it travels; the whole of a large slice stays far below what the API takes."""
    for item in json.loads((FOLDER / f"{example}.json").read_text()):
        devices = item["spec"].get("devices", ())
        assert len(json.dumps(item, separators=(",", ":"))) <= 600 + 1500 * len(devices)
