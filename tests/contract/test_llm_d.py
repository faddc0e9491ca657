"""What llm-d reads of a node and asks for: its charts (modelservice 0.4.12) and its autoscaler (WVA 0.5.1)."""

import re

import pytest
import yaml

from node_agent.hardware.simulated import profile_names
from tests.contract.published import Published, published
from tests.node.examples import EXAMPLES

GPU = "nvidia.com/gpu"
CLASSES = EXAMPLES.parent / "daemonset" / "components" / "claims" / "deviceclasses.yaml"


def accelerators(node: Published) -> dict[str, int]:
    """The autoscaler's inventory of a node: what it may ask for, by the labels that tell the model and its memory."""
    model, memory = node.labels.get("nvidia.com/gpu.product"), node.labels.get("nvidia.com/gpu.memory", "")
    return {model: node.allocatable[GPU]} if model and memory.isdecimal() and node.allocatable[GPU] else {}


@pytest.mark.parametrize(("profile", "model", "count"), [("h200-8", "NVIDIA-H200", 8), ("gb200-4", "NVIDIA-GB200", 4)])
def test_the_autoscaler_finds_the_gpus_by_model_and_by_what_limits_may_have(
    profile: str, model: str, count: int
) -> None:
    assert accelerators(published(profile)) == {model: count}


def test_by_claims_alone_the_autoscaler_finds_no_gpu() -> None:
    assert accelerators(published(agent_frontDoors_devicePlugin=False)) == {}


def test_gpus_that_are_left_to_others_are_not_in_its_inventory() -> None:
    assert accelerators(published(agent_devices_exclude=["0", "1"])) == {"NVIDIA-H200": 6}


def test_shared_gpus_are_another_model_to_it_and_as_many_as_their_shares() -> None:
    rule = {"devices": ["*"], "replicas": 4}
    assert accelerators(published(agent_sharing_rules=[rule])) == {"NVIDIA-H200-SHARED": 32}


@pytest.mark.parametrize("profile", [name for name in profile_names() if name not in ("none", "mixed-5")])
def test_the_model_is_a_value_that_a_node_affinity_can_name(profile: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9_.]*[A-Za-z0-9]", published(profile).labels["nvidia.com/gpu.product"])


def test_the_class_of_its_claims_is_shipped_and_takes_whole_gpus() -> None:
    """``accelerator.dra: true`` renders ``exactly`` so many devices of the class gpu.nvidia.com."""
    classes = {one["metadata"]["name"]: one for one in yaml.safe_load_all(CLASSES.read_text())}
    (selector,) = classes["gpu.nvidia.com"]["spec"]["selectors"]
    assert "'gpu'" in selector["cel"]["expression"] or '"gpu"' in selector["cel"]["expression"]
    kinds = {one["attributes"]["type"]["string"] for one in published().devices}
    assert kinds == {"gpu"}
