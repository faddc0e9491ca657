"""Which devices of a GPU are listed, and what becomes of those that pods hold when it is offered in another form."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.config.settings import SharingRule
from node_agent.deviceplugin.listing import former_devices, listing
from node_agent.deviceplugin.offer import OfferedDevice
from node_agent.deviceplugin.selection import Form, Rule, Selection
from node_agent.model.gpu import GpuUuid, PartitionMode
from node_agent.model.inventory import Inventory
from node_agent.model.partition import DeviceUuid
from node_agent.model.unit import Unit
from node_agent.sharing.shares import parts_of
from tests.unit.deviceplugin.conftest import RESOURCE, gpu, node

SHARED = "nvidia.com/gpu.shared"
WHOLE = Selection()
FOUR = SharingRule(strategy="time-slicing", shares=4)


def sharing(*rules: SharingRule) -> Selection:
    return Selection(sharing=rules)


def pods(*held: str) -> list[Grant]:
    """Pods that have these devices by their limits, each as ``resource/id``."""
    grants = []
    for name in held:
        resource, _, device = name.rpartition("/")
        owner, share = parts_of(device)
        holder = Holder(door=Door.LIMIT, id=name, name=resource)
        grants.append(Grant(holder=holder, holds=(Hold(device=device, gpus=(GpuUuid(owner),), share_id=share),)))
    return grants


def listed(
    selection: Selection,
    *held: str,
    resource: str = RESOURCE,
    inventory: Inventory | None = None,
    served: tuple[GpuUuid, ...] = (),
) -> tuple[OfferedDevice, ...]:
    inventory = inventory or node(1)
    forms = selection.forms(inventory)
    former = former_devices(pods(*held), forms, served)
    return listing(resource, forms, former=former, trouble=lambda _: None, served=served)


def healthy(devices: Iterable[OfferedDevice]) -> list[str]:
    return [device.id for device in devices if device.healthy]


def waiting(devices: Iterable[OfferedDevice]) -> dict[str, str | None]:
    return {device.id: device.trouble for device in devices if not device.healthy}


def gone(devices: Iterable[OfferedDevice]) -> list[str]:
    return [device.id for device in devices if device.gone]


def test_a_gpu_that_is_not_shared_is_one_device_named_by_its_uuid() -> None:
    assert [(one.id, one.shared, one.numa_node) for one in listed(WHOLE, inventory=node(2))] == [
        ("GPU-0", None, 0),
        ("GPU-1", None, 1),
    ]


def test_a_shared_gpu_is_as_many_devices_as_it_has_replicas_all_on_its_numa_node() -> None:
    devices = listed(sharing(FOUR), inventory=node(2))
    assert healthy(devices) == [f"GPU-{i}::{k}" for i in range(2) for k in range(4)]
    assert [device.numa_node for device in devices] == [0] * 4 + [1] * 4
    assert {device.shared.replicas for device in devices if device.shared} == {4}


def test_shares_with_a_name_of_their_own_are_no_devices_of_the_other_name() -> None:
    some = sharing(replace(FOUR, devices=("1",), resource=SHARED))
    assert healthy(listed(some, inventory=node(2))) == ["GPU-0"]
    assert healthy(listed(some, inventory=node(2), resource=SHARED)) == [f"GPU-1::{k}" for k in range(4)]
    assert some.resources == (SHARED, RESOURCE)


def test_a_gpu_in_mig_mode_is_neither_whole_nor_shared() -> None:
    cut = Inventory(generation=1, gpus=(replace(gpu(0), partition_mode=PartitionMode.ENABLED),))
    assert listed(WHOLE, inventory=cut) == listed(sharing(FOUR), inventory=cut) == ()
    pending = Inventory(generation=1, gpus=(replace(gpu(0), partition_mode=PartitionMode.ENABLE_PENDING),))
    assert healthy(listed(WHOLE, inventory=pending)) == ["GPU-0"]


def test_while_an_mps_daemon_is_left_its_clients_keep_their_shares_and_nobody_gets_another() -> None:
    inventory, left = node(2), GpuUuid("GPU-0")
    devices = listed(sharing(FOUR), f"{RESOURCE}/GPU-0::1", inventory=inventory, served=(left,))
    assert healthy(devices) == ["GPU-0::1", *(f"GPU-1::{k}" for k in range(4))]
    assert set(waiting(devices).values()) == {f"waits until pods have given back {RESOURCE}/GPU-0::1"}
    ending = listed(WHOLE, inventory=inventory, served=(left,))
    assert waiting(ending) == {"GPU-0": "its MPS daemon is ending"}
    assert healthy(ending) == ["GPU-1"]


def test_a_trouble_of_the_gpu_is_one_of_all_its_shares() -> None:
    inventory = node(2)
    forms = sharing(FOUR).forms(inventory)
    reasons: dict[DeviceUuid, str] = {GpuUuid("GPU-0"): "Xid 79"}
    devices = listing(RESOURCE, forms, former={}, trouble=reasons.get)
    assert waiting(devices) == {f"GPU-0::{k}": "Xid 79" for k in range(4)}
    assert healthy(devices) == [f"GPU-1::{k}" for k in range(4)]


def test_what_pods_hold_of_the_form_that_is_offered_makes_no_difference() -> None:
    for selection, held in ((WHOLE, "GPU-0"), (sharing(FOUR), "GPU-0::2")):
        assert former_devices(pods(f"{RESOURCE}/{held}"), selection.forms(node(1))) == {}
        assert listed(selection, f"{RESOURCE}/{held}") == listed(selection)


class TestOneGpuIsSharedWhileAPodHasIt:
    def test_the_pod_is_one_of_the_sharers_and_the_others_can_be_given_out_at_once(self) -> None:
        devices = listed(sharing(FOUR), f"{RESOURCE}/GPU-0")
        assert healthy(devices) == ["GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-0"]
        assert gone(devices) == ["GPU-0"]
        assert waiting(devices) == {"GPU-0::3": f"waits until pods have given back {RESOURCE}/GPU-0"}

    def test_eight_gpus_with_four_shares_each_are_thirty_two_devices_while_a_pod_has_one_whole(self) -> None:
        assert len(healthy(listed(sharing(FOUR), f"{RESOURCE}/GPU-3", inventory=node(8)))) == 32

    def test_shares_of_another_name_leave_its_place_free_and_the_old_name_lists_it_no_more(self) -> None:
        renamed = sharing(replace(FOUR, resource=SHARED))
        assert healthy(listed(renamed, f"{RESOURCE}/GPU-0", resource=SHARED)) == ["GPU-0::0", "GPU-0::1", "GPU-0::2"]
        assert listed(renamed, f"{RESOURCE}/GPU-0") == ()

    def test_once_it_is_given_back_all_shares_are_there(self) -> None:
        assert healthy(listed(sharing(FOUR))) == [f"GPU-0::{k}" for k in range(4)]

    def test_under_mps_all_shares_wait_for_the_pod(self) -> None:
        devices = listed(sharing(replace(FOUR, strategy="mps")), f"{RESOURCE}/GPU-0")
        assert healthy(devices) == ["GPU-0"]
        assert list(waiting(devices)) == [f"GPU-0::{k}" for k in range(4)]


class TestOneGpuIsWholeAgainWhilePodsHaveShares:
    HELD = (f"{RESOURCE}/GPU-0::0", f"{RESOURCE}/GPU-0::1", f"{RESOURCE}/GPU-0::3")

    def test_the_shares_in_use_stay_and_the_whole_gpu_waits_for_them(self) -> None:
        devices = listed(WHOLE, *self.HELD, inventory=node(2))
        assert healthy(devices) == ["GPU-0::0", "GPU-0::1", "GPU-0::3", "GPU-1"]
        assert waiting(devices) == {"GPU-0": f"waits until pods have given back {', '.join(self.HELD)}"}
        assert gone(devices) == ["GPU-0::0", "GPU-0::1", "GPU-0::3"]

    def test_the_last_one_keeps_the_whole_gpu_back_as_well(self) -> None:
        assert healthy(listed(WHOLE, self.HELD[2])) == ["GPU-0::3"]
        assert healthy(listed(WHOLE)) == ["GPU-0"]

    def test_a_pod_that_had_the_whole_gpu_before_keeps_it(self) -> None:
        devices = listed(WHOLE, f"{RESOURCE}/GPU-0", self.HELD[0])
        assert healthy(devices) == ["GPU-0", "GPU-0::0"]
        assert gone(devices) == ["GPU-0::0"]


def test_fewer_shares_are_offered_so_that_all_users_together_are_no_more_than_wanted() -> None:
    two = sharing(replace(FOUR, shares=2))
    assert healthy(listed(two, f"{RESOURCE}/GPU-0::3")) == ["GPU-0::0", "GPU-0::3"]
    assert healthy(listed(two, f"{RESOURCE}/GPU-0::2", f"{RESOURCE}/GPU-0::3")) == ["GPU-0::2", "GPU-0::3"]
    assert healthy(listed(two, f"{RESOURCE}/GPU-0::1", f"{RESOURCE}/GPU-0::3")) == ["GPU-0::1", "GPU-0::3"]


def test_fewer_shares_under_mps_are_offered_beside_those_in_use() -> None:
    two = sharing(replace(FOUR, strategy="mps", shares=2))
    assert healthy(listed(two, f"{RESOURCE}/GPU-0::3")) == ["GPU-0::0", "GPU-0::3"]


@pytest.mark.parametrize("name", ["nvidia.com/h200", SHARED])
def test_a_gpu_that_is_whole_under_another_name_waits_for_the_pod_that_has_it_under_the_old_one(name: str) -> None:
    moved = Selection(rules=(Rule(pattern="*", resource=name),))
    assert waiting(listed(moved, f"{RESOURCE}/GPU-0", resource=name)) == {
        "GPU-0": f"waits until pods have given back {RESOURCE}/GPU-0"
    }


def test_what_claims_hold_is_no_device_of_pods_with_limits() -> None:
    holder = Holder(door=Door.CLAIM, id="uid", name="team/claim")
    claim = Grant(holder=holder, holds=(Hold(device="gpu-0", gpus=(GpuUuid("GPU-0"),)),))
    assert former_devices([claim], sharing(FOUR).forms(node(1))) == {}


numbers = st.sets(st.integers(0, 9), max_size=6)


@given(replicas=st.integers(0, 10), held=numbers, whole=st.booleans(), mps=st.booleans())
def test_whatever_pods_hold_a_gpu_gets_no_more_users_than_it_is_offered_for_unless_it_has_more(
    replicas: int, held: set[int], whole: bool, mps: bool
) -> None:
    names = [f"GPU-0::{number}" for number in sorted(held)] + ["GPU-0"] * whole
    rule = SharingRule(strategy="mps" if mps else "time-slicing", shares=replicas)
    devices = listed(sharing(rule) if replicas else WHOLE, *(f"{RESOURCE}/{name}" for name in names))
    found = healthy(devices)
    assert set(names) <= set(found)
    assert len(found) == len(set(found)) <= max(replicas or 1, len(names))
    assert set(gone(devices)) <= set(names)


@given(replicas=st.integers(1, 10), held=numbers)
def test_under_time_slicing_every_place_that_no_pod_has_is_offered(replicas: int, held: set[int]) -> None:
    names = [f"{RESOURCE}/GPU-0::{number}" for number in held]
    devices = listed(sharing(replace(FOUR, shares=replicas)), *names)
    assert len(healthy(devices)) == max(replicas, len(names))


def test_each_form_knows_its_devices() -> None:
    assert list(Form(unit=Unit(gpu=gpu(0)), resource=RESOURCE).names) == ["GPU-0"]
