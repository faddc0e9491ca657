"""Which GPUs a pod gets. Users met: two slices on one card although another was free (B17), an id that was repeated in
the environment until no program could start (B18), and a choice that took seconds on large nodes (B20).

Shared GPUs are not offered yet: what decides about them is tried by itself.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from node_agent.cdi.names import qualified
from node_agent.deviceplugin.answer import Naming, answer
from node_agent.deviceplugin.offer import OfferedDevice
from node_agent.deviceplugin.selection import GPU_RESOURCE
from node_agent.model.inventory import Inventory
from node_agent.topology.preferred import DeviceId, Pool, PreferredRequest, preferred
from node_agent.topology.score import scores
from tests.fakes.builders import h200_node, l4_pair
from tests.faults.conftest import Place, Simulate

LIMIT_SECONDS = 0.1
"""Of one answer; the kubelet waits for it with everything else that it has to do."""


def shares(inventory: Inventory, each: int) -> Pool:
    """Each GPU as so many devices."""
    parents = {DeviceId(f"{gpu.uuid}::{number}"): gpu.uuid for gpu in inventory.gpus for number in range(each)}
    return Pool(scores=scores(inventory), parents=parents)


def cards(ids: tuple[DeviceId, ...]) -> list[str]:
    return sorted(device.partition("::")[0] for device in ids)


def test_two_shares_come_from_two_cards_and_the_answer_is_always_the_same() -> None:
    """Four shares of each of two GPUs, one of the second in use."""
    node = l4_pair()
    pool = shares(node, 4)
    free = frozenset(device for device in pool.parents if device != f"{node.gpus[1].uuid}::0")
    answers = {preferred(PreferredRequest(available=free, size=2), pool).ids for _ in range(20)}

    assert len(answers) == 1
    assert cards(answers.pop()) == sorted(gpu.uuid for gpu in node.gpus)


@pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations", "envvar", "volume-mounts"])
def test_a_thousand_shares_of_one_gpu_name_it_once(strategy: str) -> None:
    gpu = l4_pair().gpus[0]
    devices = [OfferedDevice(id=f"{gpu.uuid}::{number}", gpu=gpu.uuid, index=0) for number in range(1000)]
    given = answer(devices, [strategy], Naming(qualified=qualified))

    text = repr((given.cdi_names, given.environment, given.mounts, given.annotations))
    assert text.count(gpu.uuid) == 1


def test_shares_of_two_gpus_name_each_once_and_in_the_order_given() -> None:
    first, second = l4_pair().gpus
    devices = [
        OfferedDevice(id=f"{gpu.uuid}::{number}", gpu=gpu.uuid, index=gpu.index)
        for gpu, number in ((second, 0), (first, 0), (second, 1))
    ]
    given = answer(devices, ["cdi-cri", "envvar"], Naming(qualified=qualified))

    assert given.cdi_names == (qualified(second.uuid), qualified(first.uuid))
    assert given.environment["NVIDIA_VISIBLE_DEVICES"] == f"{second.uuid},{first.uuid}"


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
