"""Which MIG devices are offered under which names, by strategy; and that what does not fit costs nothing else."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import pytest
from msgspec.structs import replace

from node_agent.config.settings import SharingRule
from node_agent.deviceplugin.selection import Rule, Selection
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Partition
from tests.fakes.builders import cut, partition
from tests.fakes.names import GPU_RESOURCE
from tests.unit.deviceplugin.conftest import gpu, node

Strategy: TypeAlias = Literal["none", "single", "mixed"]

NODE = node(2)
SMALL, LARGE = "1g.18gb", "3g.71gb"


def parts(number: int, *profiles: str) -> list[Partition]:
    return [
        partition(gpu(number), profile, start, number=10 * number + start) for start, profile in enumerate(profiles)
    ]


def offered(inventory: Inventory, strategy: Strategy, **more: Any) -> dict[str, list[str]]:
    """The ids that are offered, by resource."""
    found: dict[str, list[str]] = {}
    for form in Selection(strategy=strategy, **more).forms(inventory).values():
        found.setdefault(form.resource, []).extend(form.names)
    return found


def notes(inventory: Inventory, strategy: Strategy) -> Sequence[str]:
    return Selection(strategy=strategy).notes(inventory)


def ids(*parts: Partition) -> list[str]:
    return [one.uuid for one in parts]


def test_a_node_without_mig_is_the_same_by_every_strategy() -> None:
    for strategy in ("none", "single", "mixed"):
        assert offered(NODE, strategy) == {GPU_RESOURCE: ["GPU-0", "GPU-1"]}
        assert notes(NODE, strategy) == ()


def test_without_a_strategy_whole_gpus_are_offered_and_a_note_says_what_would_offer_the_others() -> None:
    inventory = cut(NODE, {1: parts(1, SMALL)})
    assert offered(inventory, "none") == {GPU_RESOURCE: ["GPU-0"]}
    (note,) = notes(inventory, "none")
    assert "gpu-1 is in MIG mode" in note
    assert "single or mixed" in note


def test_mixed_names_each_profile_and_whole_gpus_go_on() -> None:
    small, large, media = parts(1, SMALL, LARGE, f"{SMALL}+me")
    inventory = cut(NODE, {1: [small, large, media]})
    assert offered(inventory, "mixed") == {
        GPU_RESOURCE: ["GPU-0"],
        "nvidia.com/mig-1g.18gb": [small.uuid],
        "nvidia.com/mig-3g.71gb": [large.uuid],
        "nvidia.com/mig-1g.18gb.me": [media.uuid],
    }
    assert notes(inventory, "mixed") == ()


def test_a_compute_instance_smaller_than_its_gpu_instance_is_a_resource_of_its_own() -> None:
    one = partition(gpu(0), f"1c.{LARGE}", 0, length=4, number=1, computes=(2, 1))
    inventory = cut(NODE, {0: [one]})
    assert offered(inventory, "mixed") == {GPU_RESOURCE: ["GPU-1"], "nvidia.com/mig-1c.3g.71gb": [one.uuid]}


def test_a_profile_that_no_resource_can_be_named_by_costs_no_other() -> None:
    strange, small = replace(parts(0, SMALL)[0], profile="profile 99"), partition(gpu(0), SMALL, 4, number=4)
    inventory = cut(NODE, {0: [strange, small]})
    assert offered(inventory, "mixed") == {GPU_RESOURCE: ["GPU-1"], "nvidia.com/mig-1g.18gb": [small.uuid]}
    assert notes(inventory, "mixed") == ("profile 99 at 0 of gpu-0: no resource can be named by its profile",)


def test_single_offers_equal_mig_devices_as_gpus() -> None:
    first, second = parts(0, SMALL, SMALL), parts(1, SMALL)
    assert offered(cut(NODE, {0: first, 1: second}), "single") == {GPU_RESOURCE: ids(*first, *second)}


def test_single_offers_no_mig_devices_that_differ_and_says_which() -> None:
    inventory = cut(NODE, {0: parts(0, SMALL, LARGE), 1: parts(1, SMALL)})
    assert offered(inventory, "single") == {}
    assert notes(inventory, "single") == (
        "nvidia.com/gpu: flags.migStrategy single offers no MIG devices that differ: there are 1g.18gb, 3g.71gb",
    )


def test_single_offers_whole_gpus_and_no_mig_devices_beside_them() -> None:
    inventory = cut(NODE, {1: parts(1, SMALL)})
    assert offered(inventory, "single") == {GPU_RESOURCE: ["GPU-0"]}
    (note,) = notes(inventory, "single")
    assert (
        note == "nvidia.com/gpu: flags.migStrategy single offers whole GPUs, and no MIG devices (1g.18gb) beside them"
    )


def test_single_holds_for_each_name_so_that_two_models_may_be_cut_in_two_ways() -> None:
    a100 = gpu(1, product="NVIDIA A100-SXM4-80GB")
    inventory = cut(Inventory(generation=1, gpus=(gpu(0), a100)), {0: parts(0, SMALL), 1: parts(1, "1g.10gb")})
    found = offered(inventory, "single", rules=(Rule(pattern="*A100*", resource="nvidia.com/a100"),))
    assert found == {GPU_RESOURCE: ids(*parts(0, SMALL)), "nvidia.com/a100": ids(*parts(1, "1g.10gb"))}


@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
def test_a_gpu_in_mig_mode_without_mig_devices_costs_no_other_its_own(strategy: Strategy) -> None:
    inventory = cut(NODE, {0: parts(0, SMALL, SMALL), 1: []})
    assert bool(offered(inventory, strategy)) == (strategy != "none")
    assert "gpu-1 is in MIG mode and has no MIG devices: nothing of it can be used" in notes(inventory, strategy)
    assert offered(cut(NODE, {0: [], 1: []}), strategy) == {}


def test_a_gpu_whose_mig_devices_cannot_be_listed_says_why_and_the_others_go_on() -> None:
    inventory = replace(cut(NODE, {0: parts(0, SMALL), 1: []}), unlisted={gpu(1).uuid: "Unknown Error"})
    assert offered(inventory, "mixed") == {"nvidia.com/mig-1g.18gb": ids(*parts(0, SMALL))}
    assert notes(inventory, "mixed") == ("gpu-1: its MIG devices cannot be listed: Unknown Error",)


def test_a_gpu_that_claims_cut_is_offered_whole_and_none_of_its_parts_is() -> None:
    inventory = cut(NODE, {0: parts(0, SMALL), 1: parts(1, SMALL)})
    found = offered(inventory, "mixed", on_demand=("gpu-1",))
    assert found == {GPU_RESOURCE: ["GPU-1"], "nvidia.com/mig-1g.18gb": ids(*parts(0, SMALL))}


@pytest.mark.parametrize("word", ["GPU-0", "0", "gpu-0", "*H200*"])
def test_who_is_left_out_is_left_out_with_its_mig_devices(word: str) -> None:
    assert offered(cut(NODE, {0: parts(0, SMALL), 1: []}), "mixed", exclude=(word,)) == {}


def test_one_mig_device_can_be_left_out_by_uuid_or_index() -> None:
    first, second = parts(0, SMALL, SMALL)
    inventory = cut(node(1), {0: [first, second]})
    for word in (first.uuid, f"0:{first.index}"):
        assert offered(inventory, "mixed", exclude=(word,)) == {"nvidia.com/mig-1g.18gb": [second.uuid]}


def test_rules_give_profiles_other_names_and_are_expected_to_come_back() -> None:
    inventory = cut(NODE, {0: parts(0, SMALL, LARGE), 1: []})
    rules = (Rule(pattern="1g.*", resource="nvidia.com/slice"),)
    selection = Selection(strategy="mixed", partition_rules=rules)
    assert offered(inventory, "mixed", partition_rules=rules).keys() == {"nvidia.com/slice", "nvidia.com/mig-3g.71gb"}
    assert selection.resources_on(inventory) == (GPU_RESOURCE, "nvidia.com/slice", "nvidia.com/mig-3g.71gb")
    assert all(map(selection.may_use, ("nvidia.com/slice", "nvidia.com/mig-7g.141gb", GPU_RESOURCE)))
    assert not any(map(Selection().may_use, ("nvidia.com/mig-7g.141gb", "nvidia.com/other")))


def test_mig_devices_are_shared_as_gpus_are() -> None:
    (one,) = parts(0, SMALL)
    rule = SharingRule(strategy="time-slicing", shares=2, of="nvidia.com/mig-1g.18gb")
    found = offered(cut(node(1), {0: [one]}), "mixed", sharing=(rule,))
    assert found == {"nvidia.com/mig-1g.18gb": [f"{one.uuid}::0", f"{one.uuid}::1"]}
