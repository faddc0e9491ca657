"""No set of allocations that the scheduler may make has two holders on one GPU; proved by making all of them."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from node_agent.dra.slices import Pool, PoolSettings, laid_out, pool_of, remembered
from node_agent.dra.taints import HELD, taints_of
from node_agent.hardware.simulated import load_profile, profile_names
from node_agent.model.device import PublishedDevice
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory, MissingGpu
from tests.fakes.builders import bridged_node, cube_mesh, h200_node, lopsided_node, pcie_node, without
from tests.fakes.nodes import inventory_of
from tests.unit.dra import scheduler
from tests.unit.dra.test_slices import nodes

GROUPS = PoolSettings(groups=True)


def published(node: Inventory) -> Pool:
    return pool_of(laid_out(node, GROUPS), lambda gpu: ())


def gpus_of(names: Collection[str], devices: Mapping[Any, PublishedDevice]) -> list[GpuUuid]:
    return [gpu for name in names for gpu in devices[name].gpus]


@pytest.mark.parametrize("profile", profile_names())
def test_no_allocation_gives_a_gpu_out_twice(profile: str) -> None:
    """All sets of devices that the scheduler may allocate together, one by one."""
    node = inventory_of(profile)
    small = replace(node, gpus=node.gpus[:8], links=node.links.among(gpu.uuid for gpu in node.gpus[:8]))
    pool = published(small)
    for allocated in scheduler.of(pool.slices).allocations():
        held = gpus_of(allocated, pool.devices)
        assert len(held) == len(set(held)), allocated


def test_these_are_all_allocations_that_there_are() -> None:
    """Of one GPU two, of a pair those of its two GPUs and itself, and so on: ((2² + 1)² + 1)² + 1."""
    allocations = list(scheduler.of(published(h200_node()).slices).allocations())
    assert len(allocations) == len(set(allocations)) == 677


@pytest.mark.parametrize("node", [h200_node(), lopsided_node(), cube_mesh(), bridged_node(), pcie_node()])
def test_devices_that_share_no_gpu_may_always_be_allocated_together(node: Inventory) -> None:
    """The counters forbid no more than they must."""
    pool = published(node)
    sched = scheduler.of(pool.slices)
    for one, other in combinations(pool.devices.values(), 2):
        assert sched.may_allocate(other.name, [one.name]) == (not set(one.gpus) & set(other.gpus))


@given(nodes(most=40), st.randoms(use_true_random=False))
def test_on_nodes_of_any_size_and_wiring_neither(node: Inventory, random: Any) -> None:
    pool = published(node)
    sched = scheduler.of(pool.slices)
    if not any("sharedCounters" in one.content for one in pool.slices):
        return
    allocated: list[str] = []
    wishes = list(pool.devices)
    random.shuffle(wishes)
    for name in wishes:
        free = not set(pool.devices[name].gpus) & set(gpus_of(allocated, pool.devices))
        assert sched.may_allocate(name, allocated) == free
        if free:
            allocated.append(name)
    assert len(gpus_of(allocated, pool.devices)) == len(node.gpus)


# MIG devices to come


def with_mig_devices(pool: Pool, profile: str) -> tuple[list[Mapping[str, Any]], dict[str, set[tuple[str, int]]]]:
    """The pool with every MIG device of two of its GPUs, in the layout that ``slices`` leaves room for.

    Also the hardware of each device: GPU and memory slice.
    """
    mig = next(iter(load_profile(profile).boards.values())).mig
    assert mig is not None
    sets, devices, hardware = [], [], {}
    for number in (0, 1):
        slices = {f"memory-slice-{i}": {"value": "1"} for i in range(mig.memory_slices)}
        sets.append({"name": f"gpu-{number}-mig", "counters": slices})
        for shape in mig.profiles:
            for start in shape.starts:
                name = f"gpu-{number}-mig-{shape.id}-{start}"
                taken = range(start, start + shape.size)
                part = f"{1000 * shape.size // mig.memory_slices}m"
                drawn = [
                    {"counterSet": "gpus-0", "counters": {f"gpu-{number}": {"value": part}}},
                    {"counterSet": sets[-1]["name"], "counters": {f"memory-slice-{i}": {"value": "1"} for i in taken}},
                ]
                kind = {"type": {"string": "mig"}}
                devices.append({"name": name, "attributes": kind, "consumesCounters": drawn})
                hardware[name] = {(f"gpu-{number}", i) for i in taken}
    names = {device.gpus[0]: device.name for device in pool.devices.values() if len(device.gpus) == 1}
    for device in pool.devices.values():
        hardware[device.name] = {(names[gpu], i) for gpu in device.gpus for i in range(mig.memory_slices)}
    return [*(one.content for one in pool.slices), {"sharedCounters": sets}, {"devices": devices}], hardware


@pytest.mark.parametrize("profile", ["h200-8", "a100-80gb-8"])
@settings(max_examples=50)
@given(random=st.randoms(use_true_random=False))
def test_mig_devices_fit_beside_groups_and_gpus(profile: str, random: Any) -> None:
    pool = published(inventory_of(profile))
    contents, hardware = with_mig_devices(pool, profile)
    for content in contents:
        scheduler.check_limits({**content, "devices": list(content.get("devices", ()))[:64]})
    sched = scheduler.Scheduler(contents)
    allocated: list[str] = []
    wishes = list(sched.devices)
    random.shuffle(wishes)
    for name in wishes:
        taken = set().union(*(hardware[other] for other in allocated))
        assert sched.may_allocate(name, allocated) == (not taken & hardware[name]), (name, allocated)
        if not taken & hardware[name]:
            allocated.append(name)


# Over time


class Node(RuleBasedStateMachine):
    """A node on which GPUs drop out and come back and the agent is started anew, while claims come and go.

    The scheduler knows what is published now and what it has allocated. What is allocated is prepared, so the agent
    knows it too: from its ledger, which survives.
    """

    def __init__(self) -> None:
        super().__init__()
        self.away: set[int] = set()
        self.known = Inventory()
        self.generation = 0
        self.allocated: dict[str, frozenset[GpuUuid]] = {}

    @initialize(node=st.sampled_from([h200_node(), bridged_node(), lopsided_node(), cube_mesh()]))
    def comes_up(self, node: Inventory) -> None:
        self.whole = node
        self.look()

    def look(self) -> None:
        self.generation += 1
        missing = tuple(MissingGpu(index=i, uuid=self.whole.gpus[i].uuid, reason="lost") for i in sorted(self.away))
        now = replace(without(self.whole, *self.away), generation=self.generation, missing=missing)
        self.known = remembered(self.known, now)
        layout = laid_out(self.known, GROUPS)
        names = {device.published.name for device in layout.devices}
        stray = {gpu: HELD for name, gpus in self.allocated.items() if name not in names for gpu in gpus}
        self.pool = pool_of(layout, lambda gpus: taints_of(gpus, HealthReport(), now, stray))
        self.scheduler = scheduler.of(self.pool.slices)

    @rule(index=st.integers(0, 7))
    def a_gpu_drops_out(self, index: int) -> None:
        self.away |= {index} if index < len(self.whole.gpus) else set()
        self.look()

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def a_gpu_comes_back(self, data: st.DataObject) -> None:
        self.away.discard(data.draw(st.sampled_from(sorted(self.away))))
        self.look()

    @rule()
    def the_agent_is_started_anew(self) -> None:
        self.known = Inventory()
        # What it does not even know is not missing: the driver tells no UUID of a GPU that it cannot read.
        self.look()

    @rule(data=st.data())
    def a_claim_is_allocated(self, data: st.DataObject) -> None:
        free = [name for name in self.scheduler.devices if self.scheduler.may_allocate(name, self.allocated)]
        if free:
            name = data.draw(st.sampled_from(sorted(free)))
            self.allocated[name] = frozenset(self.pool.devices[name].gpus)  # type: ignore[index]

    @precondition(lambda self: self.allocated)
    @rule(data=st.data())
    def a_claim_ends(self, data: st.DataObject) -> None:
        del self.allocated[data.draw(st.sampled_from(sorted(self.allocated)))]
        self.look()

    @invariant()
    def nobody_shares_a_gpu(self) -> None:
        held = [gpu for gpus in self.allocated.values() for gpu in gpus]
        assert len(held) == len(set(held)), self.allocated

    @invariant()
    def no_counter_is_below_zero(self) -> None:
        """It would block the whole pool."""
        if hasattr(self, "scheduler"):
            assert all(left >= 0 for left in self.scheduler.left(self.allocated).values())

    @invariant()
    def a_name_that_is_allocated_still_means_the_same_gpus(self) -> None:
        for name, gpus in self.allocated.items():
            device = self.pool.devices.get(name)  # type: ignore[call-overload]
            assert device is None or frozenset(device.gpus) == gpus


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=60, stateful_step_count=30)
