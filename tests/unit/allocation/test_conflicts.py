"""No GPU has two holders who both believe it to be theirs, whatever is asked for in whatever order."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from node_agent.allocation.changes import released, reserved
from node_agent.allocation.conflicts import contested, find_conflict, held_gpus, holders_of
from node_agent.allocation.grants import Books, Door, Grant, Hold
from node_agent.errors import AllocationError, DeviceHeld
from node_agent.model.gpu import GpuUuid
from tests.fakes.builders import uuid
from tests.unit.allocation.support import grant, holder

SETS = ((0,), (1,), (2,), (3,), (0, 1), (2, 3), (0, 1, 2, 3))


@st.composite
def holds(draw: st.DrawFn) -> Hold:
    indices = draw(st.sampled_from(SETS))
    return Hold(
        device="-".join(map(str, indices)),
        gpus=tuple(uuid(i) for i in indices),
        share_id=draw(st.sampled_from((None, None, "share-a", "share-b"))),
        admin=draw(st.integers(0, 4)) == 0,
    )


grants = st.builds(
    Grant,
    holder=st.sampled_from([holder(name, door) for name in "abcdef" for door in Door]),
    holds=st.lists(holds(), min_size=1, max_size=3).map(tuple),
)


def users(all_grants: list[Grant]) -> dict[GpuUuid, list[tuple[str, str | None]]]:
    """The model: for each GPU who uses it and as which share, admin access left out."""
    found: dict[GpuUuid, list[tuple[str, str | None]]] = {}
    for one in all_grants:
        for hold in one.holds:
            for gpu in () if hold.admin else hold.gpus:
                found.setdefault(gpu, []).append((one.holder.id, hold.share_id))
    return found


def double_booked(all_grants: list[Grant]) -> bool:
    """Whether a GPU has users of different holders that are not different shares."""
    for booked in users(all_grants).values():
        for (one, one_share), (other, other_share) in combinations(booked, 2):
            if one != other and (one_share is None or other_share is None or one_share == other_share):
                return True
    return False


@given(st.lists(grants, max_size=12))
def test_no_history_of_reservations_books_a_gpu_twice(wanted: list[Grant]) -> None:
    books = Books()
    for one in wanted:
        try:
            books = reserved(books, one)
        except AllocationError:
            continue
        assert not double_booked(list(books.grants.values()))


@given(st.lists(grants, max_size=12))
def test_a_reservation_is_refused_only_where_it_would_book_a_gpu_twice(wanted: list[Grant]) -> None:
    books = Books()
    for one in wanted:
        if one.holder.id in books.grants:
            books = released(books, one.holder.id)
        would_be = double_booked([*books.grants.values(), one])
        try:
            books = reserved(books, one)
        except DeviceHeld:
            assert would_be
        else:
            assert not would_be


@given(holds(), holds())
def test_conflicts_are_mutual(one: Hold, other: Hold) -> None:
    assert contested(one, other) == contested(other, one)


@given(st.lists(grants, max_size=8, unique_by=lambda one: one.holder.id))
def test_both_views_of_who_holds_what_agree_with_the_grants(all_grants: list[Grant]) -> None:
    for gpu in (uuid(i) for i in range(4)):
        assert set(holders_of(gpu, all_grants)) == {
            one.holder for one in all_grants for hold in one.holds if gpu in hold.gpus
        }
    for door in Door:
        taken = users([one for one in all_grants if one.holder.door is door])
        assert held_gpus(door, all_grants) == frozenset(taken)


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
