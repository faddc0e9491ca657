"""Which GPUs a pod gets. Users met a choice that took seconds on large nodes (B20)."""

import time
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from node_agent.model.inventory import Inventory
from node_agent.topology.preferred import DeviceId, Pool, PreferredRequest, preferred
from node_agent.topology.score import scores
from tests.fakes.builders import h200_node
from tests.fakes.names import GPU_RESOURCE
from tests.faults.conftest import Place, Simulate

LIMIT_SECONDS = 1.0
"""Of one answer, which takes milliseconds and may take seconds; how many is what the benchmarks measure."""


def shares(inventory: Inventory, each: int) -> Pool:
    """Each GPU as so many devices."""
    parents = {DeviceId(f"{gpu.uuid}::{number}"): gpu.uuid for gpu in inventory.gpus for number in range(each)}
    return Pool(scores=scores(inventory), parents=parents)


@pytest.mark.parametrize("wanted", [1, 32, 56, 64])
def test_a_choice_among_sixty_four_devices_on_eight_gpus_is_a_matter_of_milliseconds(wanted: int) -> None:
    pool = shares(h200_node(), 8)
    request = PreferredRequest(available=frozenset(pool.parents), size=wanted)
    assert fastest(lambda: len(preferred(request, pool).ids)) == (wanted, True)


async def test_a_choice_among_sixteen_gpus_takes_milliseconds_over_the_wire_and_asks_no_driver(
    simulate: Simulate,
) -> None:
    large = simulate("a100-40gb-16")
    quiet = replace(large.settings, rescan_interval=60.0, health=replace(large.settings.health, probe_interval=60.0))
    async with large.serving(quiet):
        calls = large.count_calls()
        taken = []
        for number, size in enumerate((8, 4, 3, 1)):
            began = time.monotonic()
            ids, _ = await large.kubelet.admit(f"pod-{number}", GPU_RESOURCE, size)
            taken.append(time.monotonic() - began)
            assert len(ids) == size
        # The wait for events goes on; nothing else is asked.
        assert set(calls) <= {"nvmlEventSetWait_v2"}

    assert min(taken) < LIMIT_SECONDS


async def test_a_pod_that_wants_all_gets_all(h200: Place) -> None:
    async with h200.serving():
        ids, _ = await h200.kubelet.admit("trainer", GPU_RESOURCE, 8)
        assert set(ids) == set(h200.uuids)


def fastest(work: Callable[[], int]) -> tuple[int, bool]:
    """The answer, and whether the fastest of three tries kept the limit: others use the machine, too."""
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        answered = work()
        taken.append(time.perf_counter() - began)
    return answered, min(taken) < LIMIT_SECONDS
