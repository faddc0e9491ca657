"""What is in a resource's list, and why a device of it must not be given out."""

from typing import Any

import pytest
from msgspec.structs import replace

from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.deviceplugin.offer import (
    Offer,
    OfferedDevice,
    check_request,
    forget,
    is_ours,
    place_of,
    pool_of,
    taken,
    trouble_of,
    with_absent,
)
from node_agent.deviceplugin.selection import Selection
from node_agent.errors import AllocationError
from node_agent.model.gpu import GpuUuid, PartitionMode
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Instance, Reason, Severity
from node_agent.model.inventory import Inventory, MissingGpu
from node_agent.model.partition import Place
from node_agent.model.unit import Unit
from node_agent.model.vendor import NVIDIA
from node_agent.sharing.shares import Shared, Strategy, parts_of
from node_agent.topology.preferred import Policy
from tests.fakes.builders import cut, partition
from tests.unit.deviceplugin.conftest import RESOURCE, device, gpu, node

A, B = GpuUuid("GPU-0"), GpuUuid("GPU-1")
FIRST, SECOND = Unit(gpu=gpu(0)), Unit(gpu=gpu(1))


def report(severity: Severity) -> HealthReport:
    cause = Cause(reason=Reason.ECC, severity=severity, message="3 errors", since=0.0)
    return HealthReport(devices={A: DeviceHealth(causes=(cause,))})


def whole(*numbers: int) -> tuple[OfferedDevice, ...]:
    return tuple(device(number) for number in numbers)


def test_a_degraded_gpu_is_still_given_out_and_a_withdrawn_one_is_not() -> None:
    assert trouble_of(FIRST, report(Severity.DEGRADED), {}, None) is None
    assert trouble_of(FIRST, report(Severity.WITHDRAWN), {}, None) == "3 errors"
    assert trouble_of(SECOND, report(Severity.WITHDRAWN), {}, None) is None


def test_a_gpu_that_no_container_can_be_given_says_so() -> None:
    assert trouble_of(FIRST, HealthReport(), {}, reachable={A}) is None
    assert trouble_of(SECOND, HealthReport(), {}, reachable={A}) == "no CDI spec names it yet"


def test_a_gpu_that_a_claim_holds_says_whose_it_is() -> None:
    assert trouble_of(FIRST, HealthReport(), {A: "held by claim x"}, reachable=()) == "held by claim x"


def test_what_is_gone_stays_in_the_list_with_the_drivers_reason() -> None:
    before = whole(0, 1)
    lost = MissingGpu(index=1, uuid=B, reason="it has fallen off the bus")
    now = Inventory(generation=2, gpus=node(2).gpus[:1], missing=(lost,))

    devices = with_absent(whole(0), before, now)

    assert [(device.id, device.trouble) for device in devices] == [
        ("GPU-0", None),
        ("GPU-1", "it has fallen off the bus"),
    ]


def test_the_drivers_own_trouble_is_the_reason_where_all_are_gone() -> None:
    before = whole(0)
    lost = tuple(MissingGpu(index=0, uuid=device.gpu, reason="the driver is not loaded") for device in before)
    (found,) = with_absent((), before, Inventory(generation=2, missing=lost, problem="the driver is not loaded"))
    assert found.trouble == "the driver is not loaded"
    assert not found.gone


def test_a_gpu_that_left_without_a_word_is_said_to_be_unlisted() -> None:
    before = whole(0)
    (found,) = with_absent((), before, Inventory(generation=2))
    assert found.trouble == "the driver no longer lists it"


def test_a_gpu_that_was_put_into_mig_mode_is_gone_with_that_reason() -> None:
    before = whole(0)
    now = Inventory(generation=2, gpus=(replace(gpu(0), partition_mode=PartitionMode.ENABLED),))
    (found,) = with_absent((), before, now)
    assert found.gone
    assert "MIG mode" in str(found.trouble)


def test_gone_devices_are_forgotten_once_no_pod_holds_them() -> None:
    gone = with_absent((), whole(0, 1, 2), Inventory(generation=2))
    offer = Offer(resource="nvidia.com/gpu", devices=gone, pool=pool_of(Inventory(), ()))

    assert [device.id for device in forget(offer, held={"GPU-1"}).devices] == ["GPU-1"]
    assert forget(offer, held=()).devices == ()


def test_what_is_forgotten_counts_for_nothing_in_the_choice_among_the_others() -> None:
    """Else its GPU would seem to be in use."""
    before = (*whole(0), replace(device(0), id="GPU-0::0", gone=True))
    offer = Offer(resource="nvidia.com/gpu", devices=before, pool=pool_of(node(1), before))
    assert offer.pool.totals == (2,)
    assert forget(offer, held=()).pool == pool_of(node(1), whole(0))
    assert forget(offer, held=()).pool.totals == (1,)


def test_a_device_that_is_there_is_never_forgotten() -> None:
    present = tuple(replace(one, trouble="3 errors") for one in whole(0, 1, 2))
    offer = Offer(resource="nvidia.com/gpu", devices=present, pool=pool_of(Inventory(), ()))
    assert forget(offer, held=()) == offer


def test_a_device_that_is_back_is_listed_once_and_healthy() -> None:
    before = with_absent((), whole(0), Inventory(generation=2))
    (found,) = with_absent(whole(0), before, node(1))
    assert found.healthy


@pytest.mark.parametrize(
    ("resource", "device", "ours"),
    [
        ("nvidia.com/gpu", "GPU-1", True),
        ("nvidia.com/of-an-earlier-configuration", "GPU-1", True),
        ("nvidia.com/gpu.shared", "GPU-1::3", True),
        ("nvidia.com/mig-1g.5gb", "MIG-1", True),
        ("nvidia.com/GA102GL_A10", "0000:3b:00.0", False),
        ("example.com/gpu", "GPU-1", False),
    ],
)
def test_whether_what_a_pod_holds_is_ours_is_known_by_its_form(resource: str, device: str, ours: bool) -> None:
    assert is_ours(resource, device, NVIDIA) == ours


def test_what_a_device_takes_is_known_by_its_id_and_of_a_partition_while_it_lives() -> None:
    one = partition(gpu(1), "1g.18gb", 3)
    inventory = cut(node(2), {1: [one]})
    assert place_of("GPU-1::3", Inventory()) == place_of("GPU-1", inventory) == Place(gpu=B)
    assert place_of(one.uuid, inventory) == place_of(f"{one.uuid}::2", inventory) == Place(gpu=B, part=one.part)
    assert place_of(one.uuid, node(2)) is None


def shares(
    gpu: int, *numbers: int, strategy: Strategy = Strategy.TIME_SLICING, one: bool = False
) -> list[OfferedDevice]:
    how = Shared(strategy=strategy, replicas=10, resource=RESOURCE, at_most_one=one)
    return [replace(device(gpu), id=f"GPU-{gpu}::{number}", shared=how) for number in numbers]


def test_several_shares_of_one_gpu_can_be_had_where_nothing_forbids_it() -> None:
    check_request(RESOURCE, shares(0, 0, 1), Policy.SPREAD)
    check_request(RESOURCE, shares(0, 0, 1), Policy.PACKED)


def test_where_one_share_is_the_most_two_are_refused_with_the_reason() -> None:
    with pytest.raises(
        AllocationError, match="2 were asked for and at most 1 can be had: it is shared by time-slicing"
    ):
        check_request(RESOURCE, [*shares(0, 0, one=True), *shares(1, 0, one=True)], Policy.SPREAD)
    check_request(RESOURCE, shares(0, 0, one=True), Policy.SPREAD)


def test_under_mps_the_reason_is_that_a_container_has_one_daemon() -> None:
    with pytest.raises(AllocationError, match=r"at most 1 can be had: .* the client of one MPS daemon only"):
        check_request(RESOURCE, shares(0, 3, 4, strategy=Strategy.MPS, one=True), Policy.SPREAD)


def test_where_each_share_has_to_be_of_another_gpu_two_of_one_are_refused() -> None:
    check_request(RESOURCE, [*shares(0, 0), *shares(1, 0)], Policy.DISTINCT)
    with pytest.raises(AllocationError, match="3 were asked for, each on another GPU, and too few GPUs have one left"):
        check_request(RESOURCE, [*shares(0, 0), *shares(1, 0, 1)], Policy.DISTINCT)


def test_whole_gpus_beside_a_share_count_as_devices_as_well() -> None:
    with pytest.raises(AllocationError, match="at most 1"):
        check_request(RESOURCE, [device(1), *shares(0, 0, one=True)], Policy.SPREAD)
    check_request(RESOURCE, whole(0, 1, 2), Policy.DISTINCT)


PART, OTHER = partition(gpu(0), "3g.71gb", 0, length=4, number=1), partition(gpu(0), "1g.18gb", 6, number=9)
CUT = cut(node(2), {0: [PART, OTHER]})
FORMS = Selection(strategy="mixed").forms(CUT)


def pod(resource: str, device: str, place: Place) -> Grant:
    hold = Hold(device=device, gpus=(place.gpu,), part=place.part, share_id=parts_of(device)[1])
    return Grant(holder=Holder(door=Door.LIMIT, id=f"{resource}/{device}", name=resource), holds=(hold,))


def claim(place: Place, *, admin: bool = False) -> Grant:
    hold = Hold(device="any", gpus=(place.gpu,), part=place.part, admin=admin)
    return Grant(holder=Holder(door=Door.CLAIM, id="uid", name="team/claim"), holds=(hold,))


def test_what_a_claim_has_of_a_gpu_takes_what_overlaps_it_and_nothing_else() -> None:
    assert taken(FORMS, [claim(PART.place)]) == {PART.uuid: "held by claim team/claim (uid)"}
    assert taken(FORMS, [claim(Place(gpu=A))]).keys() == {PART.uuid, OTHER.uuid}
    assert taken(FORMS, [claim(Place(gpu=B))]).keys() == {B}
    assert taken(FORMS, [claim(Place(gpu=A), admin=True)]) == {}


def test_a_pod_that_has_a_gpu_whole_keeps_what_it_was_cut_into_from_others() -> None:
    assert taken(FORMS, [pod(RESOURCE, "GPU-0", Place(gpu=A))]).keys() == {PART.uuid, OTHER.uuid}


def test_a_pod_that_has_a_part_keeps_its_gpu_from_others_once_that_is_whole_again() -> None:
    whole_again = Selection().forms(node(2))
    assert taken(whole_again, [pod("nvidia.com/mig-3g.71gb", PART.uuid, PART.place)]).keys() == {A}


def test_what_pods_have_of_the_same_is_in_nobodys_way_here() -> None:
    assert (
        taken(FORMS, [pod("nvidia.com/mig-3g.71gb", f"{PART.uuid}::1", PART.place), pod(RESOURCE, B, Place(gpu=B))])
        == {}
    )


def sick(**where: Any) -> HealthReport:
    cause = Cause(reason=Reason.XID, severity=Severity.WITHDRAWN, message="Xid 94", since=0.0, **where)
    return HealthReport(devices={A: DeviceHealth(causes=(cause,))})


def test_a_fault_of_one_partition_withdraws_that_and_a_fault_of_the_gpu_all_of_them() -> None:
    units = [FORMS[one.uuid].unit for one in (PART, OTHER)]
    of_one = sick(instance=Instance(id=PART.instance, compute=PART.compute_instance))
    assert [trouble_of(unit, of_one, {}, None) for unit in units] == ["Xid 94", None]
    assert [trouble_of(unit, sick(), {}, None) for unit in units] == ["Xid 94"] * 2
    of_a_link = sick(peers=frozenset({B}))
    assert [trouble_of(unit, of_a_link, {}, None) for unit in units] == [None, None]


def test_a_partition_is_not_offered_before_the_spec_names_it() -> None:
    unit = FORMS[PART.uuid].unit
    assert trouble_of(unit, HealthReport(), {}, reachable={A, OTHER.uuid}) == "no CDI spec names it yet"
    assert trouble_of(unit, HealthReport(), {}, reachable={PART.uuid}) is None


def test_a_gpu_that_claims_cut_is_not_given_out_whole_while_it_is_in_mig_mode() -> None:
    forms = Selection(strategy="mixed", on_demand=("0",)).forms(CUT)
    assert "for claims that want a part" in str(trouble_of(forms[A].unit, HealthReport(), {}, None))


def of_part() -> tuple[OfferedDevice, ...]:
    return (OfferedDevice(id=PART.uuid, gpu=A, index="0:1", part=PART.part),)


def test_a_partition_that_was_removed_is_gone_with_that_reason() -> None:
    (found,) = with_absent((), of_part(), cut(node(2), {0: [OTHER]}))
    assert (found.gone, found.trouble) == (True, "the MIG device was removed")


def test_partitions_that_cannot_be_listed_at_the_moment_are_expected_back() -> None:
    unread = replace(cut(node(2), {0: []}), unlisted={A: "Unknown Error"})
    (found,) = with_absent((), of_part(), unread)
    assert (found.gone, found.trouble) == (False, "Unknown Error")
    (lost,) = with_absent((), of_part(), Inventory(missing=(MissingGpu(index=0, uuid=A, reason="lost"),)))
    assert (lost.gone, lost.trouble) == (False, "lost")
