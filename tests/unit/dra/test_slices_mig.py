"""MIG devices in the slices: those that lie on GPUs, and those that claims make."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from node_agent.dra.features import Feature, without
from node_agent.dra.slices import Pool, PoolSettings, at_rest, laid_out, pool_of, remembered
from node_agent.dra.taints import taints_of
from node_agent.hardware.simulated import profile_names
from node_agent.model.device import DeviceKind, PublishedDevice
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Reason, Severity
from node_agent.model.health import Instance as Confined
from node_agent.model.inventory import Inventory, MissingGpu
from node_agent.model.partition import Part, Piece, Place, Placement
from node_agent.partition.choose import order
from node_agent.partition.layout import Rules, rules_of
from tests.fakes.builders import cut, partition
from tests.fakes.builders import without as dropped
from tests.fakes.nodes import inventory_of
from tests.unit.dra import scheduler

DEMAND = PoolSettings(on_demand=lambda gpu: True)
WITH_GROUPS = replace(DEMAND, groups=True)


def pool(node: Inventory, settings: PoolSettings = DEMAND) -> Pool:
    return pool_of(laid_out(node, settings), lambda device: ())


def devices(found: Pool) -> dict[str, Any]:
    return {device["name"]: device for one in found.slices for device in one.content.get("devices", ())}


def kinds(found: Pool) -> list[str]:
    return [device["attributes"]["type"]["string"] for device in devices(found).values()]


def rules(node: Inventory, number: int = 0) -> Rules:
    return rules_of(node.profiles[node.gpus[number].uuid])


# What lies on GPUs


def test_a_partition_is_a_device_with_its_parents_place_and_its_own_share() -> None:
    node = inventory_of("h200-8")
    gpu = node.gpus[2]
    found = pool(cut(node, {2: [partition(gpu, "3g.71gb", 4, length=4)]}), PoolSettings())
    device = devices(found)[f"{gpu.name}-mig-3g-71gb-4"]
    told = {name: next(iter(value.values())) for name, value in device["attributes"].items()}
    whole = devices(pool(node, PoolSettings()))[gpu.name]["attributes"]
    assert (told["type"], told["parentUUID"], told["profile"], told["uuid"]) == (
        "mig",
        gpu.uuid,
        "3g.71gb",
        partition(gpu, "3g.71gb").uuid,
    )
    for inherited in ("productName", "architecture", "driverVersion", "resource.kubernetes.io/numaNode"):
        assert device["attributes"][inherited] == whole[inherited]
    assert not {"nvlinkDomain", "serial", "clique"} & told.keys()
    capacity = {name: value["value"] for name, value in device["capacity"].items()}
    assert capacity == {
        "memory": "48Gi",
        "multiprocessors": "48",
        "copyEngines": "0",
        "decoders": "0",
        "encoders": "0",
        "jpegEngines": "0",
        "ofaEngines": "0",
        **{f"memorySlice{i}": "1" for i in range(4, 8)},
    }
    published = found.devices[device["name"]]
    assert (published.kind, published.gpus) == (DeviceKind.MIG, (gpu.uuid,))
    assert published.part == Part(profile="3g.71gb", placement=Placement(start=4, length=4))


def test_parts_of_one_instance_are_told_apart_by_where_they_begin() -> None:
    node = inventory_of("h200-8")
    parts = [partition(node.gpus[0], "1c.3g.71gb", 0, length=4, number=i, computes=(i, 1)) for i in range(3)]
    found = pool(cut(node, {0: parts}), PoolSettings())
    name = node.gpus[0].name
    made = [f"{name}-mig-1c-3g-71gb-0-c{start}" for start in range(3)]
    assert [each for each in found.devices if "mig" in each] == made
    held = [found.devices[each].part for each in made]  # type: ignore[index]
    assert [part.computes for part in held if part] == [(0, 1), (1, 1), (2, 1)]


def test_a_gpu_that_is_cut_is_not_whole_and_costs_the_others_nothing() -> None:
    node = inventory_of("h200-8")
    for lying in ([], [partition(node.gpus[3], "1g.18gb")]):
        found = pool(cut(node, {3: lying}), PoolSettings())
        assert kinds(found) == ["gpu"] * 7 + ["mig"] * len(lying)
        assert node.gpus[3].name not in found.devices
        assert len(found.slices) == 1, "nothing is counted"


def test_a_partition_whose_profile_has_no_name_is_left_out_and_nothing_else() -> None:
    node = inventory_of("h200-8")
    gpu = node.gpus[0]
    lying = [replace(partition(gpu, "1g.18gb"), profile="profile 99"), partition(gpu, "1g.18gb", 1, number=1)]
    assert kinds(pool(cut(node, {0: lying}), PoolSettings())) == ["gpu"] * 7 + ["mig"]


# What claims make


def test_every_profile_at_every_place_is_a_device_beside_the_whole_gpu() -> None:
    node = inventory_of("h200-8")
    found = pool(node)
    assert kinds(found) == ["gpu"] * 8 + ["mig"] * 200
    board = rules(node)
    for gpu in node.gpus:
        parts = [device.part for device in found.devices.values() if device.gpus == (gpu.uuid,) and device.part]
        assert parts == [Part(profile=piece.profile, placement=piece.placement) for piece in order(board)]


def test_a_device_that_is_yet_to_be_made_has_its_profiles_capacity_and_no_uuid() -> None:
    node = inventory_of("h200-8")
    name = node.gpus[0].name
    device = devices(pool(node))[f"{name}-mig-1g-18gb-me-6"]
    profile = rules(node).by_name["1g.18gb+me"]
    assert device["attributes"]["profile"] == {"string": "1g.18gb+me"}
    assert "uuid" not in device["attributes"]
    capacity = {key: value["value"] for key, value in device["capacity"].items()}
    assert capacity["multiprocessors"] == str(profile.multiprocessors)
    assert (capacity["ofaEngines"], capacity["decoders"]) == ("1", "1")
    assert not any(key.startswith("memorySlice") for key in capacity)


@pytest.mark.parametrize(
    ("profile", "groups", "counted"),
    [
        ("h200-8", False, (208, 4, 2)),
        ("h200-8", True, (215, 4, 2)),
        ("a100-40gb-16", False, (416, 7, 3)),
    ],
)
def test_how_many_devices_and_slices_a_node_takes(profile: str, groups: bool, counted: tuple[int, int, int]) -> None:
    """Those of a board that needs a reset are counted as if it did not: that is the most that there can be."""
    node = inventory_of(profile)
    hopper = inventory_of("h200-8").gpus[0].compute_capability
    node = replace(node, gpus=tuple(replace(gpu, compute_capability=hopper) for gpu in node.gpus))
    found = pool(node, WITH_GROUPS if groups else DEMAND)
    names = [one.name for one in found.slices]
    assert (
        len(found.devices),
        sum(name.startswith("devices") for name in names),
        sum(name.startswith("counters") for name in names),
    ) == counted
    for one in found.slices:
        scheduler.check_limits(one.content)


@pytest.mark.parametrize("profile", profile_names())
def test_the_api_takes_what_any_node_publishes(profile: str) -> None:
    found = pool(inventory_of(profile), WITH_GROUPS)
    scheduler.of(found.slices)
    for one in found.slices:
        scheduler.check_limits(one.content)
    assert set(devices(found)) == found.devices.keys()


def possible(node: Inventory, held: Collection[Place]) -> bool:
    """Whether GPUs and partitions can be held together: by the driver's rules, not by counters."""
    for gpu in {place.gpu for place in held}:
        here = [place.part for place in held if place.gpu == gpu]
        parts = [part for part in here if part is not None]
        pieces = [Piece(profile=part.profile, placement=part.placement) for part in parts]
        if len(parts) < len(here) > 1 or not rules_of(node.profiles[gpu]).legal(pieces):
            return False
    return True


@pytest.mark.parametrize("profile", ["h200-8", "b200-8"])
@settings(max_examples=10)
@given(random=st.randoms(use_true_random=False))
def test_no_gpu_is_given_out_twice_whole_in_groups_and_in_pieces(profile: str, random: Any) -> None:
    """And whatever the driver can make may be allocated: the counters forbid no more than they must."""
    node = inventory_of(profile)
    found = pool(node, WITH_GROUPS)
    sched = scheduler.of(found.slices)
    wishes = list(found.devices)
    random.shuffle(wishes)
    allocated: list[str] = []
    held: list[Place] = []
    for name in wishes[:150]:
        places = found.devices[name].places
        free = possible(node, [*held, *places])
        assert sched.may_allocate(name, allocated) == free, (name, allocated)
        if free:
            allocated.append(name)
            held += places


def test_static_gpus_and_those_that_claims_cut_share_a_node() -> None:
    node = inventory_of("h200-8")
    static = cut(node, {1: [partition(node.gpus[1], "1g.18gb", 0, length=1)]})
    demanded = {gpu.uuid for gpu in node.gpus[4:]}
    found = pool(static, PoolSettings(on_demand=lambda gpu: gpu.uuid in demanded))
    assert kinds(found) == ["gpu"] * 7 + ["mig"] * (100 + 1)
    assert "consumesCounters" not in devices(found)[f"{node.gpus[1].name}-mig-1g-18gb-0"]
    assert all("consumesCounters" in devices(found)[gpu.name] for gpu in node.gpus if gpu is not node.gpus[1])


def test_where_a_reset_would_be_needed_the_present_mode_says_what_there_is() -> None:
    node = inventory_of("a100-40gb-8")
    assert kinds(pool(node)) == ["gpu"] * 8
    assert kinds(pool(cut(node, {5: []}))) == ["gpu"] * 7 + ["mig"] * len(rules(node).pieces)


def test_a_gpu_without_mig_is_whole_whatever_the_configuration_says() -> None:
    assert set(kinds(pool(inventory_of("l40s-8")))) == {"gpu"}


# What claims do changes nothing


def test_what_claims_make_changes_no_layout() -> None:
    node = inventory_of("h200-8")
    made = cut(node, {0: [partition(node.gpus[0], "3g.71gb", 0, length=4)]})
    assert at_rest(made, DEMAND) == at_rest(node, DEMAND)
    assert pool(made) == pool(node)
    assert at_rest(made, PoolSettings()) != at_rest(node, PoolSettings())


def test_a_gpu_that_drops_out_keeps_its_partitions() -> None:
    node = inventory_of("h200-8")
    lost = dropped(node, 2)
    missing = MissingGpu(index=2, uuid=node.gpus[2].uuid, reason="lost")
    profiles = {gpu: shapes for gpu, shapes in node.profiles.items() if gpu != node.gpus[2].uuid}
    after = remembered(node, replace(lost, missing=(missing,), profiles=profiles))
    assert pool(after).devices == pool(node).devices
    static = cut(node, {2: [partition(node.gpus[2], "3g.71gb", 0, length=4)]})
    after = remembered(static, replace(lost, missing=(missing,), profiles=profiles))
    assert pool(after, PoolSettings()).devices == pool(static, PoolSettings()).devices


# Taints


def tainted(node: Inventory, report: HealthReport, withheld: Collection[Place] = ()) -> set[str]:
    found = pool_of(laid_out(node, DEMAND), lambda device: taints_of(device, report, node, withheld))
    effects = {name: {taint["effect"] for taint in one.get("taints", ())} for name, one in devices(found).items()}
    return {name for name, found in effects.items() if found - {"None"}}


def report(gpu: GpuUuid, instance: Confined | None = None) -> HealthReport:
    cause = Cause(reason=Reason.XID, severity=Severity.WITHDRAWN, message="Xid", since=0.0, code=95, instance=instance)
    return HealthReport(devices={gpu: DeviceHealth(causes=(cause,))})


def of_gpu(found: Mapping[Any, PublishedDevice], gpu: Gpu) -> set[str]:
    return {str(name) for name, device in found.items() if gpu.uuid in device.gpus}


def test_a_trouble_of_a_gpu_reaches_all_that_can_be_made_of_it() -> None:
    node = inventory_of("h200-8")
    assert tainted(node, report(node.gpus[1].uuid)) == of_gpu(pool(node).devices, node.gpus[1])


def test_a_trouble_that_is_confined_to_an_instance_reaches_its_device_alone() -> None:
    node = inventory_of("h200-8")
    gpu = node.gpus[1]
    lying = [partition(gpu, "3g.71gb", start, length=4, number=number) for number, start in ((1, 0), (2, 4))]
    assert tainted(cut(node, {1: lying}), report(gpu.uuid, Confined(id=2))) == {f"{gpu.name}-mig-3g-71gb-4"}


def test_what_lies_in_the_way_withholds_the_whole_gpu_and_every_piece_that_needs_its_slices() -> None:
    node = inventory_of("h200-8")
    gpu = node.gpus[0]
    stray = Part(profile="1g.18gb", placement=Placement(start=6, length=1))
    found = tainted(node, HealthReport(), [Place(gpu=gpu.uuid, part=stray)])
    expected = {
        name
        for name, device in pool(node).devices.items()
        if gpu.uuid in device.gpus and (device.part is None or device.part.overlaps(stray))
    }
    assert found == expected
    assert gpu.name in found and f"{gpu.name}-mig-1g-18gb-6" in found and f"{gpu.name}-mig-1g-18gb-5" not in found


# Servers that lack features


def test_without_counters_there_are_whole_gpus_and_what_lies_on_others() -> None:
    node = inventory_of("h200-8")
    static = cut(node, {1: [partition(node.gpus[1], "1g.18gb", 0, length=1)]})
    demanded = {gpu.uuid for gpu in node.gpus[4:]}
    slices = pool(static, PoolSettings(groups=True, on_demand=lambda gpu: gpu.uuid in demanded)).slices
    kept = [device for one in without(slices, frozenset({Feature.COUNTERS})) for device in one.content["devices"]]
    assert [device["attributes"]["type"]["string"] for device in kept] == ["gpu"] * 7 + ["mig"]
    assert not any("consumesCounters" in device for device in kept)
