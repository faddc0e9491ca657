"""No set of allocations that the scheduler may make has two holders on one GPU; proved by making all of them."""

from collections.abc import Collection, Mapping
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from node_agent.dra.slices import Pool, PoolSettings, laid_out, pool_of, remembered
from node_agent.dra.taints import taints_of
from node_agent.hardware.simulated import profile_names
from node_agent.model.device import PublishedDevice
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory, MissingGpu
from node_agent.model.partition import Place
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
        held = [place for name in allocated for place in pool.devices[name].places]  # type: ignore[index]
        assert not any(one.overlaps(other) for one, other in combinations(held, 2)), allocated


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
        stray = {Place(gpu=gpu) for name, gpus in self.allocated.items() if name not in names for gpu in gpus}
        self.pool = pool_of(layout, lambda device: taints_of(device, HealthReport(), now, stray))
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
