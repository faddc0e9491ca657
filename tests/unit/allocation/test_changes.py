"""What each change makes of the books, and what it refuses."""

from functools import partial

import pytest
from msgspec.structs import replace

from node_agent.allocation.changes import (
    after_boot,
    all_reserved,
    made,
    reconciled,
    recorded,
    released,
    reserved,
    unchanged,
)
from node_agent.allocation.grants import FRONT_DOORS, Books, Door, Grant, Hold, Holder, State
from node_agent.errors import AllocationError, DeviceHeld, HoldersUnknown, StateError
from tests.fakes.builders import uuid
from tests.unit.allocation.support import BOOT, grant

LOST = Books(unreconciled=FRONT_DOORS)


def books(*grants: Grant) -> Books:
    return Books(grants={one.holder.id: one for one in grants})


def prepared(name: str, *indices: int, boot_id: str = BOOT) -> Grant:
    one = grant(name, *indices, state=State.PREPARED)
    holds = tuple(replace(hold, cdi_ids=(f"vendor/claim={name}-{hold.device}",)) for hold in one.holds)
    return replace(one, holds=holds, boot_id=boot_id)


def test_a_reservation_adds_a_grant() -> None:
    assert reserved(books(grant("a", 0)), grant("b", 1)) == books(grant("a", 0), grant("b", 1))


def test_a_holder_that_asks_again_keeps_the_grant_it_has() -> None:
    assert reserved(books(prepared("a", 0)), grant("a", 0)) == books(prepared("a", 0))


@pytest.mark.parametrize("other", [grant("a", 1), grant("a", 0, 1), grant("a", 0, admin=True)])
def test_a_holder_that_asks_for_something_else_must_release_first(other: Grant) -> None:
    with pytest.raises(AllocationError, match="holds other devices already"):
        reserved(books(grant("a", 0)), other)


def test_the_second_taker_is_refused_by_name_whichever_door_it_comes_by() -> None:
    with pytest.raises(DeviceHeld, match=rf"gpu-0: {uuid(0)} is held by claim a \(uid-of-a\)"):
        reserved(books(grant("a", 0)), grant("b", 0, door=Door.LIMIT))
    with pytest.raises(DeviceHeld, match=r"held by limit a"):
        reserved(books(grant("a", 0, door=Door.LIMIT)), grant("b", 0))


def test_of_several_holders_all_are_served_or_none() -> None:
    before = books(grant("a", 0))
    after = all_reserved(before, [grant("b", 1), grant("c", 2)])
    assert after == books(grant("a", 0), grant("b", 1), grant("c", 2))
    with pytest.raises(DeviceHeld, match="a"):
        all_reserved(before, [grant("b", 1), grant("c", 0)])
    assert all_reserved(before, []) == before


@pytest.mark.parametrize("door", Door)
def test_no_new_claim_gets_a_device_while_a_door_has_not_told_its_holders(door: Door) -> None:
    with pytest.raises(HoldersUnknown, match=f"before the agent has heard of every {door} of this node"):
        reserved(Books(unreconciled=frozenset({door})), grant("a", 0))


def test_no_new_limit_gets_a_device_while_it_is_not_known_what_claims_hold() -> None:
    with pytest.raises(HoldersUnknown, match="before the agent has heard of every claim of this node"):
        reserved(LOST, grant("a", 0, door=Door.LIMIT))


def test_limits_do_not_wait_for_limits_since_the_kubelet_gives_nothing_out_twice() -> None:
    untold = Books(unreconciled=frozenset({Door.LIMIT}))
    assert set(reserved(untold, grant("a", 0, door=Door.LIMIT)).grants) == {"uid-of-a"}


def test_a_device_that_is_given_out_again_by_its_limit_is_held_anew_and_a_claim_as_long_as_before() -> None:
    """Or the next pod would lose it: who has held for long and is not admitted counts as gone."""
    for door, since in ((Door.LIMIT, 2.0), (Door.CLAIM, 1.0)):
        before = books(replace(grant("a", 0, door=door), since=1.0))
        after = reserved(before, replace(grant("a", 0, door=door), since=2.0))
        assert after.grants["uid-of-a"].since == since


def test_a_change_that_is_refused_leaves_the_next_one_what_was_there_before() -> None:
    def fails(_: Books) -> Books:
        raise ZeroDivisionError

    takes = partial(reserved, grant=grant("a", 0))
    after, answers = made(books(), [takes, fails, partial(reserved, grant=grant("b", 0)), unchanged])
    assert after == books(grant("a", 0))
    assert [answers[0], answers[3]] == [after, after]
    assert [type(answer) for answer in answers[1:3]] == [ZeroDivisionError, DeviceHeld]


def test_whoever_holds_already_is_served_while_holders_are_unknown() -> None:
    known = Books(grants=books(grant("a", 0)).grants, unreconciled=FRONT_DOORS)
    assert reserved(known, grant("a", 0)) == known


def test_a_record_replaces_the_grant_of_its_holder() -> None:
    assert recorded(books(grant("a", 0)), prepared("a", 0)) == books(prepared("a", 0))


@pytest.mark.parametrize("there", [books(), books(grant("a", 1))])
def test_nothing_is_recorded_for_a_holder_that_was_released_meanwhile(there: Books) -> None:
    with pytest.raises(StateError, match="released meanwhile"):
        recorded(there, prepared("a", 0))


def test_a_release_takes_the_holder_out_and_an_unknown_one_changes_nothing() -> None:
    assert released(books(grant("a", 0), grant("b", 1)), "uid-of-a") == books(grant("b", 1))
    assert released(books(grant("b", 1)), "uid-of-a") == books(grant("b", 1))


def test_a_release_of_what_was_held_then_leaves_whoever_got_it_since() -> None:
    there = books(replace(grant("a", 0, door=Door.LIMIT), since=2.0))
    assert released(there, "uid-of-a", since=1.0) == there
    assert released(there, "uid-of-a", since=2.0) == books()


def test_live_holders_of_a_lost_record_hold_again_and_are_to_be_prepared_again() -> None:
    told = reconciled(LOST, Door.CLAIM, [prepared("a", 0)])
    assert told == Books(
        grants=books(replace(grant("a", 0), boot_id=BOOT)).grants, unreconciled=frozenset({Door.LIMIT})
    )


def test_what_the_record_knows_is_not_replaced_by_what_is_told() -> None:
    known = Books(grants=books(prepared("a", 0)).grants, unreconciled=frozenset({Door.CLAIM}))
    assert reconciled(known, Door.CLAIM, [grant("a", 1)]) == books(prepared("a", 0))


def test_live_holders_that_stand_in_each_others_way_are_both_kept() -> None:
    told = reconciled(LOST, Door.CLAIM, [grant("a", 0), grant("b", 0)])
    assert set(told.grants) == {"uid-of-a", "uid-of-b"}
    with pytest.raises(DeviceHeld):
        reserved(released(told, "uid-of-a"), grant("c", 0))


def test_a_door_that_has_told_its_holders_is_not_asked_again() -> None:
    assert reconciled(books(), Door.CLAIM, [grant("a", 0)]) == books()


def test_after_a_reboot_claims_hold_their_gpus_but_must_be_prepared_again() -> None:
    (after,) = after_boot(books(replace(prepared("a", 0, 1), steps={"mps": {"pid": 7}})), "boot-2").grants.values()
    assert (after.state, [hold.cdi_ids for hold in after.holds]) == (State.PREPARING, [(), ()])
    assert after.same_hardware(grant("a", 0, 1))
    assert after.steps == {"mps": {"pid": 7}}


def test_claims_of_this_boot_stay_prepared() -> None:
    assert after_boot(books(prepared("a", 0)), BOOT) == books(prepared("a", 0))


def test_a_grant_without_a_boot_id_counts_as_one_of_this_boot() -> None:
    assert after_boot(books(prepared("a", 0, boot_id="")), "boot-2") == books(prepared("a", 0, boot_id="boot-2"))


def test_a_system_that_tells_no_boot_id_changes_nothing() -> None:
    assert after_boot(books(prepared("a", 0)), "") == books(prepared("a", 0))


def test_each_grant_has_a_boot_of_its_own_so_what_was_prepared_since_stays_prepared() -> None:
    """A second start in the new boot must not undo what the kubelet has prepared again already."""
    mixed = after_boot(books(prepared("a", 0, boot_id="boot-1"), prepared("b", 1, boot_id="boot-2")), "boot-2")
    assert [one.state for one in mixed.grants.values()] == [State.PREPARING, State.PREPARED]


def test_what_limits_hold_the_kubelet_remembers_over_a_reboot() -> None:
    limit = replace(grant("a", 0, door=Door.LIMIT, state=State.PREPARED), boot_id="boot-1")
    assert after_boot(books(limit), "boot-2") == books(replace(limit, boot_id="boot-2"))


@pytest.mark.parametrize("gpus", [(), (uuid(0), uuid(0))])
def test_a_hold_is_of_different_gpus(gpus: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="gpu-0: a hold is of one GPU or of several different ones"):
        Hold(device="gpu-0", gpus=gpus)  # type: ignore[arg-type]


def test_a_grant_is_of_something_and_a_holder_is_somebody() -> None:
    with pytest.raises(ValueError, match=r"claim c \(u\) holds nothing"):
        Grant(holder=Holder(door=Door.CLAIM, id="u", name="c"), holds=())
    with pytest.raises(ValueError, match="needs an id"):
        Holder(door=Door.CLAIM, id="", name="c")
