"""No GPU has two holders who both believe it to be theirs, whatever is asked for in whatever order."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from node_agent.allocation.changes import released, reserved
from node_agent.allocation.conflicts import find_conflict, held_gpus, held_places, holders_of
from node_agent.allocation.grants import Books, Door, Grant, Hold, Holder
from node_agent.errors import AllocationError, DeviceHeld, ModesDisagree
from node_agent.model.gpu import GpuUuid
from node_agent.model.partition import Part, Place, Placement
from tests.fakes.builders import uuid
from tests.unit.allocation.support import grant, holder

SETS = ((0,), (1,), (2,), (3,), (0, 1), (2, 3), (0, 1, 2, 3))
FIRST, SECOND = Placement(start=0, length=4), Placement(start=4, length=4)
PARTS = (
    Part(profile="3g.71gb", placement=FIRST),
    Part(profile="3g.71gb", placement=SECOND),
    Part(profile="1g.18gb", placement=Placement(start=1, length=1)),
    Part(profile="2c.3g.71gb", placement=FIRST, computes=(0, 2)),
    Part(profile="1c.3g.71gb", placement=FIRST, computes=(2, 1)),
)


@st.composite
def holds(draw: st.DrawFn) -> Hold:
    indices = draw(st.sampled_from(SETS))
    return Hold(
        part=draw(st.sampled_from((None, *PARTS))) if len(indices) == 1 else None,
        device="-".join(map(str, indices)),
        gpus=tuple(uuid(i) for i in indices),
        share_id=draw(st.sampled_from((None, None, "share-a", "share-b"))),
        admin=draw(st.integers(0, 4)) == 0,
        mode=draw(st.sampled_from(("", "", "short time slices", "MPS"))),
    )


grants = st.builds(
    Grant,
    holder=st.sampled_from([holder(name, door) for name in "abcdef" for door in Door]),
    holds=st.lists(holds(), min_size=1, max_size=3).map(tuple),
)


@dataclass(frozen=True)
class User:
    """One who uses a GPU."""

    holder: Holder
    share: str | None
    mode: str
    part: Part | None


def users(all_grants: Iterable[Grant]) -> dict[GpuUuid, list[User]]:
    """The model: for each GPU who uses it, in the order in which they came; admin access left out."""
    found: dict[GpuUuid, list[User]] = {}
    for one in all_grants:
        for hold in one.holds:
            for gpu in () if hold.admin else hold.gpus:
                found.setdefault(gpu, []).append(User(one.holder, hold.share_id, hold.mode, hold.part))
    return found


def double_booked(all_grants: Iterable[Grant]) -> bool:
    """Whether a GPU has two users who cannot both have it."""
    return any(not bearable(one, other) for booked in users(all_grants).values() for one, other in pairs(booked))


def pairs(booked: list[User]) -> Iterator[tuple[User, User]]:
    return combinations(booked, 2)


def bearable(first: User, later: User) -> bool:
    """Whether the later one may come to the first."""
    if first.part and later.part and not first.part.overlaps(later.part):
        return True
    if {first.mode, later.mode} == {"short time slices", "MPS"}:
        return False
    if first.holder == later.holder or first.holder.door is later.holder.door is Door.LAYOUT:
        return True
    if first.part != later.part:
        return False
    if first.holder.door is Door.LIMIT and later.holder.door is Door.LIMIT:
        return later.share is not None
    return (
        first.holder.door is later.holder.door and None not in (first.share, later.share) and first.share != later.share
    )


@given(st.lists(grants, max_size=12))
def test_no_history_of_reservations_books_a_gpu_twice(wanted: list[Grant]) -> None:
    books = Books()
    for one in wanted:
        try:
            books = reserved(books, one)
        except AllocationError:
            continue
        assert not double_booked(books.grants.values())


@given(st.lists(grants, max_size=12))
def test_a_reservation_is_refused_only_where_it_would_book_a_gpu_twice(wanted: list[Grant]) -> None:
    books = Books()
    for one in wanted:
        if one.holder.id in books.grants:
            books = released(books, one.holder.id)
        would_be = double_booked([*books.grants.values(), one])
        try:
            books = reserved(books, one)
        except (DeviceHeld, ModesDisagree):
            assert would_be
        else:
            assert not would_be


@given(grants, grants)
def test_conflicts_of_claims_are_mutual(one: Grant, other: Grant) -> None:
    one, other = (replace(each, holder=replace(each.holder, door=Door.CLAIM)) for each in (one, other))
    assume(find_conflict(one, []) is None and find_conflict(other, []) is None)
    assert (find_conflict(one, [other]) is None) == (find_conflict(other, [one]) is None)


@given(st.lists(grants, max_size=8, unique_by=lambda one: one.holder.id))
def test_both_views_of_who_holds_what_agree_with_the_grants(all_grants: list[Grant]) -> None:
    for gpu in (uuid(i) for i in range(4)):
        assert set(holders_of(gpu, all_grants)) == {
            one.holder for one in all_grants for hold in one.holds if gpu in hold.gpus
        }
    for door in Door:
        taken = users([one for one in all_grants if one.holder.door is door])
        assert held_gpus(door, all_grants) == frozenset(taken)
        assert held_places(door, all_grants) == {
            Place(gpu=gpu, part=user.part) for gpu, found in taken.items() for user in found
        }


def test_a_group_and_one_of_its_gpus_conflict_and_the_message_says_why() -> None:
    group = Grant(holder=holder("a"), holds=(Hold(device="group-2-0", gpus=(uuid(0), uuid(1))),))
    conflict = find_conflict(grant("b", 1), [group])
    assert conflict is not None
    assert str(conflict) == f"gpu-1: {uuid(1)} is held by claim a (uid-of-a) as part of group-2-0"


def test_a_holder_never_stands_in_its_own_way() -> None:
    assert find_conflict(grant("a", 0), [grant("a", 0, 1)]) is None


def test_admin_access_takes_a_gpu_from_nobody_and_gets_every_gpu() -> None:
    watcher, worker = grant("watcher", 0, admin=True), grant("worker", 0)
    assert find_conflict(watcher, [worker]) is None
    assert find_conflict(worker, [watcher]) is None
    assert held_gpus(Door.CLAIM, [watcher]) == frozenset()
    assert holders_of(uuid(0), [watcher, worker]) == (watcher.holder, worker.holder)


def test_different_shares_of_a_gpu_go_together_but_no_share_goes_with_the_whole() -> None:
    shares = [grant("a", 0, share_id="one"), grant("b", 0, share_id="two")]
    assert find_conflict(shares[0], shares[1:]) is None
    assert find_conflict(grant("c", 0, share_id="two"), shares) is not None
    assert find_conflict(grant("d", 0), shares) is not None


def test_shares_that_pods_have_by_limits_go_together_and_keep_claims_and_the_whole_gpu_out() -> None:
    shares = [grant(f"pod-{k}", 0, door=Door.LIMIT, share_id=f"{k}") for k in range(3)]
    assert find_conflict(grant("pod-3", 0, door=Door.LIMIT, share_id="3"), shares) is None
    assert find_conflict(grant("pod", 0, door=Door.LIMIT), shares) is not None
    assert find_conflict(grant("claim", 0), shares) is not None
    assert find_conflict(grant("claim", 0, share_id="a-share-of-a-claim"), shares) is not None


def test_a_pod_that_got_the_whole_gpu_before_it_was_shared_is_one_of_the_sharers() -> None:
    whole = grant("pod", 0, door=Door.LIMIT)
    assert find_conflict(grant("next", 0, door=Door.LIMIT, share_id="0"), [whole]) is None
    assert find_conflict(grant("next", 0, door=Door.LIMIT), [whole]) is not None


def with_mode(one: Grant, mode: str) -> Grant:
    return replace(one, holds=tuple(replace(hold, mode=mode) for hold in one.holds))


def test_two_claims_that_want_a_gpu_set_differently_are_both_named() -> None:
    there = with_mode(grant("a", 0, share_id="one"), "time slices Short")
    conflict = find_conflict(with_mode(grant("b", 0, share_id="two"), "MPS"), [there])
    assert conflict is not None
    error = conflict.error(holder("b"))
    assert isinstance(error, ModesDisagree)
    assert str(error) == (
        f"claim b (uid-of-b): gpu-0: {uuid(0)} is held by claim a (uid-of-a), which has it set to time slices Short: "
        "MPS does not go with that; ask for the same, or for another GPU"
    )


def test_who_wants_nothing_set_goes_with_everybody_and_the_same_goes_with_the_same() -> None:
    there = with_mode(grant("a", 0, share_id="one"), "MPS")
    assert find_conflict(grant("b", 0, share_id="two"), [there]) is None
    assert find_conflict(with_mode(grant("b", 0, share_id="two"), "MPS"), [there]) is None


def test_one_claim_cannot_have_two_shares_of_a_gpu_set_differently() -> None:
    holds = tuple(
        Hold(device="gpu-0", gpus=(uuid(0),), share_id=share, mode=mode) for share, mode in (("1", "a"), ("2", "b"))
    )
    conflict = find_conflict(Grant(holder=holder("a"), holds=holds), [])
    assert conflict is not None
    assert set(conflict.modes or ()) == {"a", "b"}


def of_part(name: str, part: Part | None, *, door: Door = Door.CLAIM, share_id: str | None = None) -> Grant:
    holds = (Hold(device=f"gpu-0-{name}", gpus=(uuid(0),), part=part, share_id=share_id),)
    return Grant(holder=holder(name, door), holds=holds)


@pytest.mark.parametrize("door", [Door.CLAIM, Door.LIMIT])
def test_parts_that_do_not_overlap_go_together_through_whatever_doors(door: Door) -> None:
    first, second = of_part("a", PARTS[0]), of_part("b", PARTS[1], door=door)
    assert find_conflict(first, [second]) is None
    assert find_conflict(of_part("c", PARTS[3]), [of_part("d", PARTS[4], door=door)]) is None


@pytest.mark.parametrize("share_id", [None, "1"])
def test_a_part_and_its_gpu_as_a_whole_never_go_together(share_id: str | None) -> None:
    for door in (Door.CLAIM, Door.LIMIT):
        part, whole = of_part("a", PARTS[0], share_id=share_id), of_part("b", None, door=door, share_id=share_id)
        assert find_conflict(part, [whole]) is not None
        assert find_conflict(whole, [part]) is not None


def test_shares_of_one_part_go_together_and_those_of_parts_that_overlap_do_not() -> None:
    one = of_part("a", PARTS[0], share_id="1", door=Door.LIMIT)
    assert find_conflict(of_part("b", PARTS[0], share_id="2", door=Door.LIMIT), [one]) is None
    assert find_conflict(of_part("b", PARTS[2], share_id="2", door=Door.LIMIT), [one]) is not None


def test_a_part_of_several_gpus_is_an_error() -> None:
    with pytest.raises(ValueError, match="a part is of one GPU"):
        Hold(device="any", gpus=(uuid(0), uuid(1)), part=PARTS[0])
