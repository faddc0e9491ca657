"""What a claim has been allocated becomes holds, or words that say why it cannot."""

import pytest
from msgspec.structs import replace

from node_agent.allocation.claims import check_still_the_same, grant_for
from node_agent.allocation.grants import Door, Hold, Holder, State
from node_agent.errors import AllocationError, UnknownDevice
from node_agent.model.device import DeviceKind, PublishedDevice
from node_agent.model.gpu import device_name
from node_agent.model.partition import Part, Placement
from tests.fakes.builders import uuid
from tests.unit.allocation.support import DEVICES, DRIVER, POOL, allocated, claim, device, grant, uid_of


def test_a_claim_holds_what_was_allocated_in_the_order_of_its_results() -> None:
    made = grant_for(claim("a", allocated("gpu-3", "first/big"), allocated("group-2-0", "second")), DRIVER, DEVICES)
    assert made.holder == Holder(door=Door.CLAIM, id=uid_of("a"), name="default/a")
    assert made.holds == (
        Hold(device="gpu-3", gpus=(uuid(3),), request="first/big", pool=POOL),
        Hold(device="group-2-0", gpus=(uuid(0), uuid(1)), request="second", pool=POOL),
    )
    assert made.state is State.PREPARING


def test_shares_and_admin_access_are_kept() -> None:
    results = (allocated("gpu-0", share_id="0f0e"), allocated("gpu-1", admin=True))
    made = grant_for(claim("a", *results), DRIVER, DEVICES)
    assert [(hold.share_id, hold.admin) for hold in made.holds] == [("0f0e", False), (None, True)]


def test_devices_of_other_drivers_are_not_ours() -> None:
    made = grant_for(claim("a", allocated("nic-0", driver="net.example.com"), "gpu-0"), DRIVER, DEVICES)
    assert [hold.device for hold in made.holds] == ["gpu-0"]


@pytest.mark.parametrize("nothing", [None, (), (allocated("nic-0", driver="net.example.com"),)])
def test_a_claim_without_a_device_of_ours_has_nothing_to_prepare(nothing: tuple[()] | None) -> None:
    with pytest.raises(AllocationError, match=f"claim default/a has no device of {DRIVER} allocated"):
        grant_for(replace(claim("a"), results=nothing), DRIVER, DEVICES)


def test_a_device_that_is_not_published_is_named_with_those_that_are() -> None:
    published = {"gpu-1": device("gpu-1", 1), "gpu-0": device("gpu-0", 0)}
    with pytest.raises(UnknownDevice, match=r"default/a has gpu-7 of pool node-a .* this node has gpu-0, gpu-1"):
        grant_for(claim("a", "gpu-0", "gpu-7"), DRIVER, published)
    with pytest.raises(UnknownDevice, match="this node has no device"):
        grant_for(claim("a", "gpu-7"), DRIVER, {})


def test_a_name_that_stands_for_another_gpu_by_now_is_refused_with_both_uuids() -> None:
    with pytest.raises(UnknownDevice) as refused:
        check_still_the_same(grant("a", 0), grant_for(claim("a", "gpu-0"), DRIVER, {"gpu-0": device("gpu-0", 5)}))
    assert f"gpu-0, which was {uuid(0)} when it was prepared and is {uuid(5)} now" in str(refused.value)
    assert "delete the pod and its claim" in str(refused.value)


def test_a_mig_device_is_held_as_the_part_that_it_is_and_refused_once_it_is_another() -> None:
    parts = [Part(profile=profile, placement=Placement(start=0, length=4)) for profile in ("3g.71gb", "4g.71gb")]
    first, other = (
        {"gpu-0-mig": PublishedDevice(name=device_name("gpu-0-mig"), kind=DeviceKind.MIG, gpus=(uuid(0),), part=part)}
        for part in parts
    )
    held = grant_for(claim("a", "gpu-0-mig"), DRIVER, first)
    assert held.holds[0].part == parts[0]
    with pytest.raises(UnknownDevice, match=f"was 3g.71gb at 0 of {uuid(0)} when it was prepared and is 4g.71gb at 0"):
        check_still_the_same(held, grant_for(claim("a", "gpu-0-mig"), DRIVER, other))


def test_a_name_that_the_claim_did_not_have_before_is_no_change() -> None:
    check_still_the_same(grant("a", 0), grant_for(claim("a", "gpu-1"), DRIVER, DEVICES))
