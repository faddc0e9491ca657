"""Which GPUs the rules share, and into what."""

from collections.abc import Collection, Sequence
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from node_agent.config.settings import SharingRule
from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import Inventory, MissingGpu
from node_agent.model.partition import Partition
from node_agent.model.unit import Unit
from node_agent.sharing.shares import Interval, Shared, Shares, Strategy, names_of, parts_of, share_name, shares
from tests.fakes.builders import cut, gpu, inventory, partition, uuid

GPU, A100 = "nvidia.com/gpu", "nvidia.com/a100"
NODE = inventory([gpu(0), gpu(1), gpu(2, product="NVIDIA A100-SXM4-80GB"), gpu(3, product="NVIDIA A100-SXM4-80GB")])
FOUR = SharingRule(strategy="time-slicing", shares=4)
MPS = SharingRule(strategy="mps", shares=10, fail_requests_greater_than_one=True)


def whole(node: Inventory = NODE, *, only: Collection[int] = range(9)) -> dict[Unit, str]:
    """What is offered of a node where nothing is shared."""
    units = [Unit(gpu=one) for one in node.gpus if one.index in only]
    return {unit: A100 if "A100" in unit.gpu.product else GPU for unit in units}


def shared(*rules: SharingRule, node: Inventory = NODE) -> dict[int, Shared]:
    """What each GPU is, by its index."""
    found = shares(node, rules, whole(node)).gpus
    return {one.index: found[one.uuid] for one in node.gpus if one.uuid in found}


def replicas(*rules: SharingRule) -> dict[int, int]:
    return {index: one.replicas for index, one in shared(*rules).items()}


def test_without_rules_nothing_is_shared() -> None:
    assert shares(NODE, (), whole()) == Shares()


def test_a_rule_of_a_resource_shares_its_gpus_and_no_others() -> None:
    assert replicas(replace(FOUR, of=GPU)) == {0: 4, 1: 4}
    assert replicas(replace(FOUR, of=A100)) == {2: 4, 3: 4}
    assert replicas(FOUR) == {0: 4, 1: 4, 2: 4, 3: 4}


def test_shares_keep_the_name_of_their_gpu_unless_the_rule_has_another() -> None:
    renamed = replace(FOUR, resource="nvidia.com/gpu.shared")
    assert [one.resource for one in shared(FOUR).values()] == [GPU, GPU, A100, A100]
    assert [one.resource for one in shared(renamed).values()] == ["nvidia.com/gpu.shared"] * 4
    assert [one.renamed for one in (*shared(FOUR).values(), *shared(renamed).values())] == [False] * 4 + [True] * 4


@pytest.mark.parametrize(
    ("devices", "indices"),
    [
        (("*",), [0, 1, 2, 3]),
        (("1", "3"), [1, 3]),
        ((uuid(2),), [2]),
        (("gpu-0", "*A100*"), [0, 2, 3]),
        (("7",), []),
    ],
)
def test_a_rule_means_all_gpus_or_certain_ones(devices: tuple[str, ...], indices: Sequence[int]) -> None:
    assert list(shared(replace(FOUR, devices=devices))) == indices


@pytest.mark.parametrize(("first", "indices"), [(1, [0]), (3, [0, 1, 2]), (9, [0, 1, 2, 3])])
def test_a_rule_may_mean_so_many_gpus_the_first_ones(first: int, indices: Sequence[int]) -> None:
    assert list(shared(replace(FOUR, first=first))) == indices


def test_a_number_of_gpus_counts_those_of_the_rules_resource() -> None:
    assert list(shared(replace(FOUR, of=A100, first=1))) == [2]


def test_no_other_gpu_takes_the_place_of_one_that_cannot_be_read() -> None:
    rest = replace(NODE, gpus=NODE.gpus[1:], missing=(MissingGpu(index=0, reason="lost", uuid=uuid(0)),))
    assert list(shared(replace(FOUR, first=2), node=rest)) == [1]


def test_one_that_cannot_be_read_and_is_remembered_has_one_place() -> None:
    remembered = replace(NODE, missing=(MissingGpu(index=0, reason="lost", uuid=uuid(0)),))
    assert list(shared(replace(FOUR, first=2), node=remembered)) == [0, 1]


def test_of_several_rules_that_mean_a_gpu_the_first_one_holds() -> None:
    assert replicas(replace(MPS, devices=("0",)), FOUR) == {0: 10, 1: 4, 2: 4, 3: 4}


def test_one_share_under_mps_is_still_a_share_since_it_has_limits() -> None:
    assert replicas(replace(MPS, shares=1, devices=("2",))) == {2: 1}


def test_all_that_a_rule_says_of_its_shares_holds_for_each_gpu() -> None:
    rule = replace(MPS, memory_per_share=20 << 30, thread_percentage_per_share=25, overcommit=True, multi_user=True)
    assert shared(rule)[3] == Shared(
        strategy=Strategy.MPS,
        replicas=10,
        resource=A100,
        at_most_one=True,
        memory=20 << 30,
        threads=25,
        overcommit=True,
        multi_user=True,
    )


@pytest.mark.parametrize(("given", "asked"), [("Default", None), ("Short", Interval.SHORT), ("Long", Interval.LONG)])
def test_an_interval_is_asked_for_where_it_is_another_than_the_default(
    given: Literal["Default", "Short", "Long"], asked: Interval | None
) -> None:
    assert shared(replace(FOUR, time_slice=given))[0].interval is asked


def test_a_gpu_that_is_not_offered_is_not_shared() -> None:
    found = shares(NODE, [FOUR], whole(only=[0]))
    assert list(found.gpus) == [uuid(0)]


def test_a_word_that_means_no_gpu_is_said_and_the_others_hold() -> None:
    found = shares(NODE, [replace(FOUR, devices=("0", "GPU-typo", "9"))], whole())
    assert list(found.gpus) == [uuid(0)]
    assert [note.split("'")[1] for note in found.notes] == ["GPU-typo", "9"]


def test_a_word_for_a_gpu_that_cannot_be_read_at_the_moment_is_no_mistake() -> None:
    node = replace(NODE, missing=(MissingGpu(index=7, reason="lost", uuid=GpuUuid("GPU-7")),))
    assert shares(node, [replace(FOUR, devices=("GPU-7", "7"))], whole(node)).notes == ()


@given(st.integers(1, 50), st.integers(0, 20))
def test_each_device_of_a_gpu_tells_its_gpu_and_its_number(count: int, index: int) -> None:
    one = Shared(strategy=Strategy.TIME_SLICING, replicas=count, resource=GPU)
    names = names_of(uuid(index), one)
    assert [parts_of(name) for name in names] == [(uuid(index), str(number)) for number in range(count)]
    assert len(set(names)) == count


def test_a_whole_gpu_is_its_uuid() -> None:
    assert names_of(uuid(1), None) == (uuid(1),)
    assert parts_of(uuid(1)) == (uuid(1), None)
    assert share_name(uuid(1), 3) == f"{uuid(1)}::3"


def test_the_driver_counts_the_intervals_from_the_default_to_the_long_one() -> None:
    assert {interval: interval.number for interval in Interval} == {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}


PARTS = [partition(NODE.gpus[3], "1g.10gb", start, number=start) for start in (0, 2)]
CUT = cut(NODE, {3: PARTS})
OF_PARTS = {
    **whole(CUT, only=[0, 1, 2]),
    **{Unit(gpu=CUT.gpus[3], partition=one): "nvidia.com/mig-1g.10gb" for one in PARTS},
}


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        (replace(FOUR, of="nvidia.com/mig-1g.10gb"), PARTS),
        (replace(FOUR, devices=("3",)), PARTS),
        (replace(FOUR, devices=("3:2",)), PARTS[1:]),
        (replace(FOUR, devices=(PARTS[0].uuid,)), PARTS[:1]),
        (replace(FOUR, of="nvidia.com/mig-1g.10gb", first=1), PARTS[:1]),
        (replace(FOUR, devices=("3:1",)), []),
    ],
)
def test_partitions_are_shared_as_gpus_are_by_resource_gpu_index_or_uuid(
    rule: SharingRule, found: list[Partition]
) -> None:
    result = shares(CUT, [rule], OF_PARTS)
    assert list(result.gpus) == [one.uuid for one in found]
    assert bool(result.notes) == (not found)


def test_a_share_of_a_partition_tells_its_partition_and_its_number() -> None:
    assert parts_of(f"{PARTS[0].uuid}::3") == (PARTS[0].uuid, "3")
    assert parts_of("MIG-GPU-5c0f/7/0::1") == ("MIG-GPU-5c0f/7/0", "1")
