"""What Volcano reads of a node: v1.12 and later for HyperNodes by label, v1.16.0-alpha.1 for all else."""

import re

import pytest

from node_agent.hardware.simulated import profile_names
from tests.contract.published import published

CLIQUE = "nvidia.com/gpu.clique"
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def matches(label_match: dict[str, str], labels: dict[str, str]) -> bool:
    """Whether a HyperNode's member with the selector ``labelMatch.matchLabels`` takes a node in."""
    return all(labels.get(key) == value for key, value in label_match.items())


def test_a_hypernode_takes_in_the_nodes_of_one_nvlink_domain_and_no_others() -> None:
    tray = published("gb200-4").labels
    domain = {CLIQUE: tray[CLIQUE]}
    assert matches(domain, published("gb200-4").labels)
    assert not any(matches(domain, published(name).labels) for name in profile_names() if name != "gb200-4")


def test_the_domain_is_a_legal_value_of_a_selector() -> None:
    assert LABEL_VALUE.fullmatch(published("gb200-4").labels[CLIQUE])


@pytest.mark.parametrize("profile", profile_names())
@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
def test_nothing_is_offered_that_its_own_device_plugins_offer(profile: str, strategy: str) -> None:
    """They register ``volcano.sh/gpu-…`` and ``volcano.sh/vgpu-…``; a node with all three of the latter is theirs."""
    offered = published(profile, flags_migStrategy=strategy).allocatable
    assert all(re.fullmatch(r"nvidia\.com/(gpu|mig-.+)", resource) for resource in offered)


def test_gpus_that_its_vgpu_plugin_has_are_in_no_front_door_and_in_no_count() -> None:
    shared = published(agent_devices_exclude=["gpu-6", "gpu-7"])
    assert shared.allocatable == {"nvidia.com/gpu": 6}
    assert {one["name"] for one in shared.devices} == {f"gpu-{number}" for number in range(6)}
    assert shared.labels["nvidia.com/gpu.count"] == "6"
