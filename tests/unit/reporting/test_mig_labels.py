"""The labels of MIG devices by strategy: GFD's names, and what is said where they differ or there are none."""

import re

import pytest
from msgspec.structs import replace

from node_agent.model.gpu import Gpu, PartitionMode
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Partition, PartitionUuid, Placement
from node_agent.reporting.label_names import meaning
from node_agent.reporting.labels import labels
from node_agent.reporting.mig_labels import MigOffer
from node_agent.sharing.shares import Shared, Strategy
from tests.fakes import builders

MIB = 1 << 20
FOUR = Shared(strategy=Strategy.TIME_SLICING, replicas=4, resource="nvidia.com/gpu")


def gpu(index: int, *, cut: bool = True, product: str = "NVIDIA H200") -> Gpu:
    mode = PartitionMode.ENABLED if cut else PartitionMode.DISABLED
    return replace(builders.gpu(index, product=product), partition_mode=mode, memory=143771 * MIB)


def device(profile: str = "1g.18gb", of: int = 0, start: int = 0, slices: int = 1) -> Partition:
    return Partition(
        uuid=PartitionUuid(f"MIG-{of}-{profile}-{start}"),
        parent=builders.uuid(of),
        profile=profile,
        placement=Placement(start=start, length=slices),
        instance=start + 1,
        compute_instance=0,
        index=start,
        slices=slices,
        compute_slices=slices,
        memory=16384 * MIB * slices,
        multiprocessors=16 * slices,
        copy_engines=slices,
        decoders=1,
    )


def said(
    strategy: str, gpus: list[Gpu], *devices: Partition, shared: Shared | None = None, whole: tuple[int, ...] = ()
) -> dict[str, str]:
    """The labels without their prefix; the GPUs ``whole`` are offered as such whatever their mode."""
    cut = frozenset(one.uuid for one in gpus if one.partition_mode is PartitionMode.ENABLED and one.index not in whole)
    offer = MigOffer(strategy=strategy, devices=tuple((one, shared) for one in devices), cut=cut)  # type: ignore[arg-type]
    found = labels(Inventory(generation=1, gpus=tuple(gpus)), mig=offer) or {}
    assert [key for key in found if not meaning(key)] == []
    assert all(re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value) for value in found.values())
    return {key.removeprefix("nvidia.com/"): value for key, value in found.items()}


def test_with_strategy_mixed_each_profile_has_a_set_of_its_own_and_the_gpus_keep_theirs() -> None:
    found = said("mixed", [gpu(0), gpu(1)], device(), device(start=1), device("3g.71gb", of=1, start=4, slices=3))
    assert {key: value for key, value in found.items() if key.startswith("mig-1g")} == {
        "mig-1g.18gb.count": "2",
        "mig-1g.18gb.engines.copy": "1",
        "mig-1g.18gb.engines.decoder": "1",
        "mig-1g.18gb.engines.encoder": "0",
        "mig-1g.18gb.engines.jpeg": "0",
        "mig-1g.18gb.engines.ofa": "0",
        "mig-1g.18gb.memory": "16384",
        "mig-1g.18gb.multiprocessors": "16",
        "mig-1g.18gb.product": "NVIDIA-H200-MIG-1g.18gb",
        "mig-1g.18gb.replicas": "1",
        "mig-1g.18gb.sharing-strategy": "none",
        "mig-1g.18gb.slices.ci": "1",
        "mig-1g.18gb.slices.gi": "1",
    }
    assert (found["mig-3g.71gb.count"], found["mig-3g.71gb.slices.gi"]) == ("1", "3")
    assert (found["gpu.count"], found["gpu.product"], found["gpu.memory"]) == ("2", "NVIDIA-H200", "143771")
    assert (found["gpu.replicas"], found["mig.strategy"]) == ("0", "mixed")


def test_on_a_node_that_is_half_cut_the_gpus_have_no_number_of_shares_in_common() -> None:
    found = said("mixed", [gpu(0), gpu(1, cut=False)], device())
    assert "gpu.replicas" not in found
    assert found["gpu.count"] == "2"


def test_a_gpu_that_is_cut_on_demand_is_offered_as_a_whole() -> None:
    assert said("mixed", [gpu(0), gpu(1)], whole=(0, 1))["gpu.replicas"] == "1"


def test_an_attribute_of_a_profile_is_a_part_of_the_name() -> None:
    found = said("mixed", [gpu(0)], device("1g.18gb+me"))
    assert found["mig-1g.18gb.me.product"] == "NVIDIA-H200-MIG-1g.18gb.me"


def test_shares_of_mig_devices_show_as_those_of_gpus_do() -> None:
    found = said("mixed", [gpu(0)], device(), shared=FOUR)
    assert found["mig-1g.18gb.product"] == "NVIDIA-H200-MIG-1g.18gb-SHARED"
    assert (found["mig-1g.18gb.replicas"], found["mig-1g.18gb.sharing-strategy"]) == ("4", "time-slicing")
    renamed = said("mixed", [gpu(0)], device(), shared=replace(FOUR, renamed=True))
    assert renamed["mig-1g.18gb.product"] == "NVIDIA-H200-MIG-1g.18gb"


def test_a_profile_on_two_models_has_no_product() -> None:
    found = said("mixed", [gpu(0), gpu(1, product="NVIDIA H100")], device(), device(of=1))
    assert "mig-1g.18gb.product" not in found
    assert found["mig-1g.18gb.count"] == "2"


def test_with_strategy_single_the_gpus_labels_are_those_of_the_mig_devices() -> None:
    found = said("single", [gpu(0), gpu(1)], device(), device(start=1), device(of=1))
    assert (found["gpu.product"], found["gpu.count"], found["gpu.memory"]) == ("NVIDIA-H200-MIG-1g.18gb", "3", "16384")
    assert (found["gpu.replicas"], found["gpu.multiprocessors"], found["gpu.engines.copy"]) == ("1", "16", "1")
    assert not [key for key in found if key.startswith("mig-")]


def test_with_strategy_single_devices_that_differ_or_are_none_make_the_product_an_invalid_one() -> None:
    found = said("single", [gpu(0), gpu(1)])
    assert (found["gpu.product"], found["gpu.count"]) == ("NVIDIA-H200-MIG-INVALID", "0")
    assert (found["gpu.replicas"], found["gpu.memory"]) == ("0", "0")
    assert "gpu.sharing-strategy" not in found


def test_with_strategy_single_whole_gpus_beside_cut_ones_are_what_is_offered() -> None:
    found = said("single", [gpu(0), gpu(1, cut=False)])
    assert (found["gpu.product"], found["gpu.count"]) == ("NVIDIA-H200", "2")


def test_with_strategy_single_and_no_gpu_cut_nothing_is_said_of_mig_devices() -> None:
    found = said("single", [gpu(0, cut=False)])
    assert (found["gpu.product"], found["gpu.count"], found["gpu.replicas"]) == ("NVIDIA-H200", "1", "1")


@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
def test_a_long_model_leaves_room_for_what_is_added(strategy: str) -> None:
    long = gpu(0, product="NVIDIA " + "X" * 80)
    found = said(strategy, [long], device("1g.18gb+me"), shared=FOUR)
    added = {"none": "", "single": "-MIG-1g.18gb.me-SHARED", "mixed": ""}[strategy]
    assert len(found["gpu.product"]) == 63
    assert found["gpu.product"].endswith(added)
    assert len(said("single", [long])["gpu.product"]) == 63
