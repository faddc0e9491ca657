"""What KAI Scheduler reads of a node, v0.12.0 but where v0.17.0 is named.

``Node`` states how its package node_info counts GPUs and how a fraction of one is taken off.
"""

import json
from dataclasses import dataclass, field

import pytest

from node_agent.hardware.simulated import profile_names
from tests.contract.published import Published, published
from tests.golden.cdi_examples import FOLDER as CDI_EXAMPLES

GPU = "nvidia.com/gpu"
WITHOUT_MEMORY = ("none", "gb10-1")


@dataclass(kw_only=True)
class Node:
    """KAI's idea of a node: what is idle of it, and how many of its GPUs have fractions of pods on them."""

    seen: Published
    idle: int = field(init=False)
    shared: int = 0

    def __post_init__(self) -> None:
        self.idle = self.seen.allocatable[GPU]

    @property
    def memory(self) -> int | None:
        """MiB of each GPU, None where it is not known: then no pod that asks for memory is placed."""
        text = self.seen.labels.get("nvidia.com/gpu.memory", "")
        if not text.isdecimal():
            return None
        told = int(text) if int(text) < 1 << 20 else int(text) >> 20
        return told - told % 100

    @property
    def count(self) -> int:
        return int(self.seen.labels.get("nvidia.com/gpu.count") or self.seen.allocatable[GPU])

    def take_fraction(self) -> None:
        """The first fraction on another GPU takes one off where there are no more of them than the label counts."""
        self.shared += 1
        if self.count < self.idle + self.shared:
            self.idle -= 1

    @property
    def is_mig(self) -> bool:
        return any(resource.startswith("nvidia.com/mig-") for resource in self.seen.allocatable)

    @property
    def dra_gpus(self) -> int:
        """v0.17.0: every device of the slices of a driver with ``gpu`` in its name."""
        return len(self.seen.devices)


def node(profile: str = "h200-8", **flags: object) -> Node:
    return Node(seen=published(profile, **flags))


@pytest.mark.parametrize("profile", [name for name in profile_names() if name not in WITHOUT_MEMORY])
def test_the_memory_of_a_gpu_is_known_in_mib_where_all_gpus_of_a_node_have_as_much(profile: str) -> None:
    read = node(profile)
    memory = {gpu.memory for gpu in read.seen.inventory.gpus}
    (told,) = memory
    assert told is not None
    assert read.memory == (told >> 20) // 100 * 100


@pytest.mark.parametrize("profile", WITHOUT_MEMORY)
def test_a_gpu_without_memory_of_its_own_has_no_label_and_gets_no_pod_that_asks_for_some(profile: str) -> None:
    assert node(profile).memory is None


@pytest.mark.parametrize("exclude", [[], ["7"], ["gpu-0", "5"]])
def test_the_count_is_of_the_gpus_that_may_be_asked_for_so_that_a_fraction_takes_one_off(exclude: list[str]) -> None:
    """One that is left to others, and was counted, would be given out for fractions."""
    read = node(agent_devices_exclude=exclude)
    offered = 8 - len(exclude)
    assert (read.count, read.idle) == (offered, offered)
    for taken in range(1, offered + 1):
        read.take_fraction()
        assert read.idle == offered - taken


@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_where_mig_devices_are_offered_the_label_names_the_strategy(strategy: str) -> None:
    """Without it a pod that asks for a MIG device is placed nowhere."""
    read = node("a30-2", flags_migStrategy=strategy)
    assert read.seen.labels["nvidia.com/mig.strategy"] == strategy
    assert read.is_mig is (strategy == "mixed")


def test_with_one_front_door_each_gpu_counts_once_and_with_both_twice() -> None:
    """v0.17.0 adds the devices of the slices to what is allocatable, and gives no fractions where there are such."""
    by_limits, by_claims, by_both = (
        node(agent_frontDoors_dra=False),
        node(agent_frontDoors_devicePlugin=False),
        node(),
    )
    assert (by_limits.idle, by_limits.dra_gpus) == (8, 0)
    assert (by_claims.idle, by_claims.dra_gpus) == (0, 8)
    assert (by_both.idle, by_both.dra_gpus) == (8, 8)


def test_groups_and_mig_devices_on_demand_would_each_be_counted_as_a_gpu() -> None:
    assert node(agent_dra_groups=True).dra_gpus > 8
    assert node(agent_mig_onDemand=["*"]).dra_gpus > 8


def test_the_pod_that_reserves_a_gpu_sees_that_one_alone() -> None:
    """It asks NVML, and gives up where there is not exactly one. NVIDIA's runtime, in whose class it runs, would add
    every GPU to an image that says so: the variable keeps it from that.
    """
    spec = json.loads((CDI_EXAMPLES / "h200-8.json").read_text())
    gpus = [one["containerEdits"] for one in spec["devices"] if one["name"].startswith("GPU-")]
    seen = [[node["path"] for node in gpu["deviceNodes"]] for gpu in gpus]
    assert seen == [[f"/dev/nvidia{number}"] for number in range(8)]
    assert "NVIDIA_VISIBLE_DEVICES=void" in spec["containerEdits"]["env"]


def test_a_level_of_its_topology_is_a_label_that_all_nodes_of_a_fabric_share() -> None:
    assert node("gb200-4").seen.labels["nvidia.com/gpu.clique"]
    assert "nvidia.com/gpu.clique" not in node().seen.labels
