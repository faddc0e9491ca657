"""GPUs left out and resources named by product."""

import pytest

from node_agent.deviceplugin.selection import Rule, Selection
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kubelet.embedded import EmbeddedKubelet
from node_agent.model.inventory import Inventory
from tests.fakes.names import GPU_RESOURCE
from tests.unit.deviceplugin.conftest import World, gpu

A100, T4 = gpu(0, product="NVIDIA A100-PCIE-40GB"), gpu(1, product="Tesla T4")
BY_MODEL = (
    Rule(pattern="*A100*", resource="nvidia.com/a100"),
    Rule(pattern="*", resource="nvidia.com/other"),
)


@pytest.mark.parametrize("word", ["GPU-1", "1", "gpu-1", "Tesla T4", "*t4", "TESLA*"])
def test_a_gpu_is_left_out_by_uuid_index_name_or_product(word: str) -> None:
    selection = Selection(exclude=[word])
    assert selection.resource_of(T4) is None
    assert selection.resource_of(A100) == GPU_RESOURCE


def test_gpus_that_are_left_out_are_others_to_give_and_people_are_told_so() -> None:
    node = Inventory(generation=1, gpus=(A100, T4))
    assert Selection(exclude=["*T4"]).left_to_others(node) == (T4,)
    assert Selection(exclude=["*T4"]).notes(node) == ("gpu-1: left to others by agent.devices.exclude",)
    assert Selection(exclude=["GPU-9"]).left_to_others(node) == ()
    assert Selection(exclude=["GPU-9"]).notes(node) == ()


def test_a_gpu_that_moves_to_another_name_is_offered_by_none_and_left_to_nobody() -> None:
    node = Inventory(generation=1, gpus=(A100, T4))
    moving = Selection(moving=[T4.uuid])
    assert list(moving.forms(node)) == [A100.uuid]
    assert moving.left_to_others(node) == ()
    assert moving.notes(node) == ()


def test_the_first_rule_that_matches_names_the_resource() -> None:
    selection = Selection(rules=BY_MODEL)
    assert [selection.resource_of(one) for one in (A100, T4)] == ["nvidia.com/a100", "nvidia.com/other"]
    assert selection.resources == ("nvidia.com/a100", "nvidia.com/other", GPU_RESOURCE)


def test_without_rules_every_gpu_is_the_usual_resource() -> None:
    assert Selection().resources == (GPU_RESOURCE,)
    assert Selection().resource_of(A100) == GPU_RESOURCE


async def test_two_models_of_one_node_are_two_resources_at_the_kubelet(world: World, kubelet: EmbeddedKubelet) -> None:
    world.inventory = Latest(Inventory(generation=1, gpus=(A100, T4)))
    world.selection.set(Selection(rules=BY_MODEL))
    plugins = [world.plugin(kubelet.folder, resource) for resource in ("nvidia.com/a100", "nvidia.com/other")]
    async with kubelet.running(), running(plugins[0].run()), running(plugins[1].run()):
        assert set((await kubelet.until("nvidia.com/a100", allocatable=1)).devices) == {"GPU-0"}
        assert set((await kubelet.until("nvidia.com/other", allocatable=1)).devices) == {"GPU-1"}
