"""A snapshot of the node is consistent in itself, and two of them compare by what they show."""

from typing import Any

import pytest
from msgspec.structs import fields, replace

from node_agent.model.gpu import DeviceName, Gpu, GpuUuid
from node_agent.model.inventory import DriverInfo, Inventory, MissingGpu
from node_agent.model.links import Link, LinkGraph, pair
from node_agent.model.pci import pci_address
from node_agent.model.vendor import AMD
from tests.fakes import builders


def gpu(number: int, uuid: str = "", name: str = "", bus: int | None = None) -> Gpu:
    return Gpu(
        uuid=GpuUuid(uuid or f"GPU-{number}"),
        name=DeviceName(name or f"gpu-{number}"),
        index=number,
        product="NVIDIA H200",
        pci=pci_address(f"0000:{number if bus is None else bus:02x}:00.0"),
    )


def test_a_gpu_is_found_by_its_uuid() -> None:
    inventory = Inventory(gpus=(gpu(0), gpu(1)))
    assert inventory.by_uuid == {"GPU-0": gpu(0), "GPU-1": gpu(1)}
    assert inventory.by_uuid is inventory.by_uuid


def test_partitions_are_found_by_their_uuids_in_the_order_of_their_gpus() -> None:
    node = builders.l4_pair()
    late, early = (builders.partition(each, "1g.5gb", number=each.index + 3) for each in reversed(node.gpus))
    inventory = builders.cut(node, {1: [late], 0: [early]})
    assert inventory.partitions == {early.uuid: early, late.uuid: late}
    assert list(inventory.partitions) == [early.uuid, late.uuid]


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        (gpu(1, uuid="GPU-0"), "two GPUs of one node have the UUID GPU-0"),
        (gpu(1, name="gpu-0"), "two GPUs of one node have the name gpu-0"),
        (gpu(1, bus=0), "two GPUs of one node have the PCI address 0000:00:00.0"),
    ],
)
def test_two_gpus_with_one_identity_are_an_error(second: Gpu, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Inventory(gpus=(gpu(0), second))


def test_a_driver_that_cannot_be_asked_shows_no_gpus() -> None:
    assert Inventory(problem="no driver").gpus == ()
    with pytest.raises(ValueError, match="cannot be asked"):
        Inventory(problem="no driver", gpus=(gpu(0),))


def test_two_snapshots_that_show_the_same_differ_at_most_in_their_generation() -> None:
    one = Inventory(generation=1, gpus=(gpu(0),))
    assert one.same_content(Inventory(generation=7, gpus=(gpu(0),)))
    assert one != Inventory(generation=7, gpus=(gpu(0),))


def test_a_difference_in_any_field_but_the_generation_is_a_difference() -> None:
    plain = Inventory()
    other: dict[str, Any] = {
        "vendor": AMD,
        "driver": DriverInfo(version="580.1"),
        "gpus": (gpu(0),),
        "links": LinkGraph(links={pair(GpuUuid("GPU-0"), GpuUuid("GPU-1")): Link(nvlinks=1)}),
        "missing": (MissingGpu(index=1, reason="lost"),),
        "profiles": {GpuUuid("GPU-0"): ()},
        "instances": {GpuUuid("GPU-0"): ()},
        "unlisted": {GpuUuid("GPU-0"): "it does not tell"},
        "problem": "no driver",
        "without_library": True,
    }
    assert {field.name for field in fields(Inventory)} == {"generation", *other}
    for name, value in other.items():
        assert not plain.same_content(replace(plain, **{name: value})), name


def test_looking_a_gpu_up_changes_nothing_in_a_comparison() -> None:
    looked_at, fresh = Inventory(gpus=(gpu(0),)), Inventory(gpus=(gpu(0),))
    assert looked_at.by_uuid
    assert looked_at == fresh


def test_a_snapshot_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        Inventory().generation = 1  # type: ignore[misc]
