"""What NodeResourceTopologyMatch of scheduler-plugins v0.34.7 makes of the agent's topology object.

``fits`` states how that plugin reads the object (its packages noderesourcetopology and nodeconfig). The plugin itself
reads one in ``tests/node/test_scheduler_plugins.py``.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.golden.topology_examples import FOLDER

GPU = "nvidia.com/gpu"
NATIVE = ("cpu", "memory")
PROFILES = ("h200-8", "a100-80gb-8", "gb200-4", "l4-2")


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One node as the plugin sees it: the object, and what the Node says to be allocatable."""

    topology: Any
    allocatable: dict[str, int] = field(default_factory=dict)

    @property
    def policy(self) -> tuple[str, str]:
        """Policy and scope; unknown values count as none and container."""
        told = {one["name"]: one["value"] for one in self.topology["attributes"]}
        policy, scope = told.get("topologyManagerPolicy", ""), told.get("topologyManagerScope", "")
        known = policy in ("none", "best-effort", "restricted", "single-numa-node")
        return policy if known else "none", scope if scope in ("container", "pod") else "container"

    @property
    def free(self) -> dict[int, dict[str, int]]:
        """What is available by NUMA node; zones of another type or name are passed over."""
        return {
            int(zone["name"].removeprefix("node-")): {one["name"]: int(one["available"]) for one in zone["resources"]}
            for zone in self.topology["zones"]
            if zone["type"] == "Node" and zone["name"].removeprefix("node-").isdecimal()
        }

    def fits(self, guaranteed: bool = True, **wanted: int) -> bool:
        """Whether a pod gets through the filter: what is asked for has to be free on one NUMA node.

        CPUs and memory count for guaranteed pods alone. What no zone has is the node's as a whole, unless it is native.
        """
        if self.policy[0] != "single-numa-node":
            return True
        requests = {GPU if name == "gpus" else name: amount for name, amount in wanted.items()}
        if not requests.keys() <= self.allocatable.keys():
            return False
        bound = [name for name in requests if name in NATIVE or any(name in zone for zone in self.free.values())]
        return any(
            all(name in zone and (self._is_lax(name, guaranteed) or zone[name] >= requests[name]) for name in bound)
            for zone in self.free.values()
        )

    @staticmethod
    def _is_lax(name: str, guaranteed: bool) -> bool:
        return name in NATIVE and not guaranteed


def reader(profile: str, **changes: str) -> Reader:
    topology = json.loads((FOLDER / f"{profile}.json").read_text())
    attributes = [one | {"value": changes.get(one["name"], one["value"])} for one in topology["attributes"]]
    gpus = {"h200-8": 8, "a100-80gb-8": 8, "gb200-4": 4, "l4-2": 2}[profile]
    allocatable = {GPU: gpus, "cpu": 1 << 10, "memory": 1 << 50}
    return Reader(topology=topology | {"attributes": attributes}, allocatable=allocatable)


@pytest.mark.parametrize("profile", PROFILES)
def test_policy_and_scope_are_read_as_the_kubelet_has_them(profile: str) -> None:
    assert reader(profile).policy == ("single-numa-node", "pod")


@pytest.mark.parametrize("profile", PROFILES)
def test_every_zone_is_read_and_has_what_is_native(profile: str) -> None:
    """A pod that asks for CPUs would be turned away by each zone that does not list them."""
    read = reader(profile)
    assert len(read.free) == len(read.topology["zones"])
    assert any(set(NATIVE) <= zone.keys() for zone in read.free.values())
    assert read.fits(cpu=1, memory=1 << 30)


@pytest.mark.parametrize(("profile", "most"), [("h200-8", 4), ("a100-80gb-8", 4), ("gb200-4", 2), ("l4-2", 1)])
def test_a_pod_fits_whose_gpus_are_on_one_numa_node_and_no_larger_one(profile: str, most: int) -> None:
    read = reader(profile)
    assert max(zone.get(GPU, 0) for zone in read.free.values()) == most
    assert read.fits(gpus=most)
    assert not read.fits(gpus=most + 1)
    assert read.fits(gpus=most, cpu=2, guaranteed=False)


def test_a_node_whose_kubelet_does_not_insist_takes_every_pod() -> None:
    for policy in ("none", "best-effort", "restricted"):
        assert reader("h200-8", topologyManagerPolicy=policy).fits(gpus=8)


def test_a_pod_whose_resource_the_node_does_not_have_is_turned_away_before_the_zones_are_looked_at() -> None:
    """So GPUs that claims alone can have are no GPUs for it: ``nvidia.com/gpu`` is not allocatable then."""
    read = reader("h200-8")
    assert not Reader(topology=read.topology, allocatable={"cpu": 96, "memory": 1 << 40}).fits(gpus=1)


@pytest.mark.parametrize("profile", PROFILES)
def test_each_zone_has_the_distance_to_every_zone_and_ten_to_itself(profile: str) -> None:
    """LeastNUMANodes scores by them, and counts a missing one as 255."""
    zones = reader(profile).topology["zones"]
    names = [zone["name"] for zone in zones]
    for zone in zones:
        costs = {one["name"]: one["value"] for one in zone["costs"]}
        assert list(costs) == names
        assert costs[zone["name"]] == 10


@pytest.mark.parametrize("profile", PROFILES)
def test_the_over_reserving_cache_finds_a_fingerprint_and_its_method(profile: str) -> None:
    """Without the one a node is never looked at anew, without the other its method is guessed."""
    told = {one["name"]: one["value"] for one in reader(profile).topology["attributes"]}
    # Of no pods at all.
    assert told["nodeTopologyPodsFingerprint"] == "pfp0v001ef46db3751d8e999"
    assert told["nodeTopologyPodsFingerprintMethod"] == "all"
