"""The labels of nodes that are cut say what is offered of them by limits, strategy by strategy."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from node_agent.agent.live import selection_of
from node_agent.agent.node_labels import node_labels
from node_agent.cli.shared import look
from node_agent.cli.simulated import simulation
from node_agent.config.resolve import resolve
from node_agent.hardware.machine import UNKNOWN

TWO = """
summary: Two H200
driver: {{version: 580.95.05, cuda: "13.0"}}
numa: {{0: "0-3"}}
gpus:
  - {{board: h200-sxm, bus: "0000:01:00.0", minor: 0{first}}}
  - {{board: h200-sxm, bus: "0000:02:00.0", minor: 1{second}}}
"""
THREE = ", mig: [1g.18gb@0, 1g.18gb@1, 3g.71gb@4]"
ALIKE = ", mig: [1g.18gb@0, 1g.18gb@1]"
NONE = ", mig: []"


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="labels-", dir="/tmp") as name:
        yield Path(name)


def said(folder: Path, strategy: str, first: str = "", second: str = "", **flags: object) -> dict[str, str]:
    """The labels without their prefix, of a node whose GPUs are cut so."""
    profile = folder / "two.yaml"
    profile.write_text(TWO.format(first=first, second=second))
    with simulation(str(profile), folder / "node") as simulated:
        given = {key.replace("_", "."): value for key, value in flags.items()}
        settings = resolve(None, {"MIG_STRATEGY": strategy}, {**simulated.flags, **given}).settings
        found = node_labels(selection_of(settings), look(settings), UNKNOWN)
    assert found is not None
    return {key.removeprefix("nvidia.com/"): value for key, value in found.items()}


def test_with_strategy_mixed_each_profile_is_counted_beside_the_gpus(folder: Path) -> None:
    found = said(folder, "mixed", THREE, ALIKE)
    assert {key: value for key, value in found.items() if key.endswith((".count", ".replicas"))} == {
        "gpu.count": "2",
        "gpu.replicas": "0",
        "mig-1g.18gb.count": "4",
        "mig-1g.18gb.replicas": "1",
        "mig-3g.71gb.count": "1",
        "mig-3g.71gb.replicas": "1",
    }
    assert found["mig-3g.71gb.product"] == "NVIDIA-H200-MIG-3g.71gb"
    assert (found["mig-1g.18gb.slices.gi"], found["mig-3g.71gb.slices.gi"]) == ("1", "3")


@pytest.mark.parametrize(
    ("first", "second", "product", "count"),
    [
        (ALIKE, ALIKE, "NVIDIA-H200-MIG-1g.18gb", "4"),
        (ALIKE, NONE, "NVIDIA-H200-MIG-1g.18gb", "2"),
        (ALIKE, "", "NVIDIA-H200", "2"),
        (THREE, ALIKE, "NVIDIA-H200-MIG-INVALID", "0"),
        (NONE, NONE, "NVIDIA-H200-MIG-INVALID", "0"),
        ("", "", "NVIDIA-H200", "2"),
    ],
    ids=["alike", "one-empty", "one-whole", "differ", "empty", "none-cut"],
)
def test_with_strategy_single_the_product_and_count_are_of_what_is_offered(
    folder: Path, first: str, second: str, product: str, count: str
) -> None:
    found = said(folder, "single", first, second)
    assert (found["gpu.product"], found["gpu.count"], found["mig.strategy"]) == (product, count, "single")


def test_with_strategy_none_nothing_is_said_of_mig_devices(folder: Path) -> None:
    found = said(folder, "none", THREE)
    assert not [key for key in found if key.startswith("mig-")]
    assert "mig.strategy" not in found


def test_of_a_gpu_that_claims_cut_no_mig_device_is_counted(folder: Path) -> None:
    found = said(folder, "mixed", THREE, ALIKE, agent_mig_onDemand=[0, 1])
    assert not [key for key in found if key.startswith("mig-")]
    assert found["gpu.replicas"] == "1"


def test_a_gpu_that_is_left_to_others_is_counted_nowhere_nor_are_its_mig_devices(folder: Path) -> None:
    found = said(folder, "mixed", "", ALIKE, agent_devices_exclude=["1"])
    assert found["gpu.count"] == "1"
    assert not [key for key in found if key.startswith("mig-")]
    assert found["gpu.product"] == "NVIDIA-H200"


def test_with_strategy_single_a_gpu_that_is_left_to_others_does_not_hide_that_the_rest_are_cut(folder: Path) -> None:
    found = said(folder, "single", ALIKE, THREE, agent_devices_exclude=["1"])
    assert (found["gpu.product"], found["gpu.count"]) == ("NVIDIA-H200-MIG-1g.18gb", "2")


def test_how_the_others_are_shared_is_told_although_one_is_left_out(folder: Path) -> None:
    found = said(folder, "none", agent_devices_exclude=["1"], agent_sharing_rules=[{"replicas": 4}])
    assert (found["gpu.count"], found["gpu.replicas"]) == ("1", "4")
    assert (found["gpu.product"], found["gpu.sharing-strategy"]) == ("NVIDIA-H200-SHARED", "time-slicing")


def test_where_every_gpu_is_left_out_the_labels_describe_the_hardware(folder: Path) -> None:
    assert said(folder, "none", agent_devices_exclude=["*"]) == said(folder, "none")
