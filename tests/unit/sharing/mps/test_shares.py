"""What each share of a GPU under MPS may take."""

from typing import Any

import pytest
from msgspec.structs import replace

from node_agent.errors import MpsImpossible
from node_agent.model.gpu import ComputeCapability, DeviceName, Gpu, GpuUuid
from node_agent.model.pci import PciAddress
from node_agent.model.unit import Unit
from node_agent.sharing.mps.plan import Limits
from node_agent.sharing.mps.shares import wanted_for
from node_agent.sharing.shares import Shared, Strategy
from tests.fakes.builders import partition
from tests.unit.sharing.mps.conftest import GIB

GPU = Gpu(
    uuid=GpuUuid("GPU-0"),
    name=DeviceName("gpu-0"),
    index=0,
    product="H100",
    pci=PciAddress("0000:00:00.0"),
    memory=80 * GIB,
    compute_capability=ComputeCapability(major=9, minor=0),
)

UNIT = Unit(gpu=GPU)


def shared(replicas: int = 4, **more: Any) -> Shared:
    return Shared(strategy=Strategy.MPS, replicas=replicas, resource="nvidia.com/gpu", **more)


@pytest.mark.parametrize(
    ("how", "memory", "threads"),
    [
        (shared(), 20 * GIB, 25),
        (shared(3), 80 * GIB // 3, 33),
        (shared(1), None, None),
        (shared(1, memory=10 * GIB, threads=50), 10 * GIB, 50),
        (shared(memory=10 * GIB), 10 * GIB, 25),
        (shared(threads=100), 20 * GIB, 100),
        (shared(memory=30 * GIB, overcommit=True), 30 * GIB, 25),
        (shared(48), 80 * GIB // 48, 2),
    ],
)
def test_shares_are_even_parts_unless_the_rule_says_what_they_are(
    how: Shared, memory: int | None, threads: int | None
) -> None:
    limits = Limits(memory={GPU.uuid: memory} if memory else {}, threads=threads)
    assert wanted_for(UNIT, how, "12.8").limits == limits


def test_a_daemon_has_the_one_gpu_and_the_users_of_the_rule() -> None:
    wanted = wanted_for(UNIT, shared(multi_user=True), "12.8")
    assert (wanted.devices, wanted.multi_user) == ((GPU.uuid,), True)


def test_a_gpu_of_unknown_size_is_shared_without_limits_of_memory() -> None:
    assert wanted_for(Unit(gpu=replace(GPU, memory=None)), shared(), None).limits == Limits(threads=25)


@pytest.mark.parametrize(
    ("how", "cuda", "why"),
    [
        (shared(49), "12.8", "49 shares of gpu-0 are too many: it takes 48 MPS clients at once"),
        (shared(61), "13.1", "61 shares of gpu-0 are too many: it takes 60 MPS clients at once"),
        (shared(memory=21 * GIB), "12.8", "4 shares of 21504 MiB are more than the 81920 MiB that gpu-0 has"),
    ],
)
def test_a_rule_that_a_gpu_cannot_serve_is_refused_with_the_figures(how: Shared, cuda: str, why: str) -> None:
    with pytest.raises(MpsImpossible, match=why):
        wanted_for(UNIT, how, cuda)


def test_an_old_gpu_has_no_limited_shares() -> None:
    pascal = replace(GPU, compute_capability=ComputeCapability(major=6, minor=1))
    with pytest.raises(MpsImpossible, match=r"gpu-0 has compute capability 6\.1"):
        wanted_for(Unit(gpu=pascal), shared(), "12.8")


def test_the_shares_of_a_partition_are_parts_of_what_it_has_and_as_many_as_it_takes_clients() -> None:
    whole = replace(GPU, multiprocessors=132)
    one = replace(partition(whole, "1g.10gb"), memory=10 * GIB, multiprocessors=16)
    unit = Unit(gpu=whole, partition=one)
    wanted = wanted_for(unit, shared(2), "12.8")
    assert (wanted.devices, wanted.limits.memory) == ((one.uuid,), {one.uuid: 5 * GIB})
    with pytest.raises(MpsImpossible, match=r"6 shares of 1g\.10gb at 0 of gpu-0 are too many: it takes 5 MPS clients"):
        wanted_for(unit, shared(6), "12.8")
