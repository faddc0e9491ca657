"""Merging what is idle: at the least cost there is, never at that of what is in use, and by priority."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.model.gpu import PartitionMode, device_name
from node_agent.model.partition import Piece
from node_agent.partition.defragment import (
    WHOLE,
    Cost,
    CutGpu,
    Mode,
    Outcome,
    Policy,
    Request,
    Verdict,
    defragment,
    repacked,
)
from node_agent.partition.layout import Rules
from node_agent.partition.plan import Action, State
from tests.unit.partition.boards import piece, pieces, rules
from tests.unit.partition.test_plan import Driver
from tests.unit.partition.test_static import divided, lying_pieces

H200, A30 = rules("h200-8"), rules("a30-2")
ADVISE, ACT = Policy(), Policy(mode=Mode.ACT)


def cut(lying: str = "", used: str = "", *, number: int = 0, board: Rules = H200, resetless: bool = True) -> CutGpu:
    """A GPU with MIG on; ``used`` are in use beside the idle ``lying``."""
    busy = pieces(board, *used.split())
    state = State(mode=PartitionMode.ENABLED, lying=(*pieces(board, *lying.split()), *busy), in_use=frozenset(busy))
    return CutGpu(name=device_name(f"gpu-{number}"), rules=board, state=state, resetless=resetless)


def uncut(number: int = 0, *, busy: bool = False, board: Rules = H200, resetless: bool = True) -> CutGpu:
    state = State(mode=PartitionMode.DISABLED, busy=busy)
    return CutGpu(name=device_name(f"gpu-{number}"), rules=board, state=state, resetless=resetless)


def ask(*gpus: CutGpu, wants: str, policy: Policy = ADVISE, priority: int = 0) -> Outcome:
    (outcome,) = defragment(gpus, [Request(wants=wants, priority=priority)], policy)
    return outcome


def steps(outcome: Outcome) -> list[str]:
    return [str(step) for step in outcome.steps]


# By brute force


def arrangements(board: Rules, idle: Sequence[Piece]) -> Iterator[tuple[Piece, ...]]:
    """Every way to leave out idle pieces or to make them again elsewhere."""
    for chosen in product(*([None, *board.of(one.profile)] for one in idle)):
        yield tuple(one for one in chosen if one is not None)


def least(board: Rules, used: Sequence[Piece], idle: Sequence[Piece], wants: str) -> tuple[int, int] | None:
    """The fewest memory slices lost and, with these, the fewest steps; None where nothing lets the request in."""
    found = None
    lying = {*used, *idle}
    for wanted in board.of(wants):
        # One that is given out as it is is not lost.
        others = [one for one in idle if one != wanted]
        for arranged in arrangements(board, others):
            final = [*used, wanted, *arranged]
            if len(set(final)) == len(final) and board.legal(final):
                slices = Counter(one.placement.length for one in others)
                slices.subtract(one.placement.length for one in arranged)
                cost = sum(size * count for size, count in slices.items()), len(lying ^ set(final))
                found = cost if found is None else min(found, cost)
    return found


@pytest.mark.parametrize(("board", "most"), [(A30, 4), (H200, 4)], ids=["a30", "h200"])
@settings(max_examples=60)
@given(data=st.data())
def test_on_one_gpu_no_way_costs_less(board: Rules, most: int, data: st.DataObject) -> None:
    lying = data.draw(lying_pieces(board, most=most))
    used = tuple(one for one in lying if data.draw(st.booleans()))
    idle = tuple(one for one in lying if one not in used)
    wants = data.draw(st.sampled_from(sorted(board.by_name)))
    state = State(mode=PartitionMode.ENABLED, lying=lying, in_use=frozenset(used))
    outcome = ask(CutGpu(name=device_name("gpu-0"), rules=board, state=state), wants=wants)
    expected = least(board, used, idle, wants)
    if expected is None:
        assert outcome.verdict is Verdict.NONE
        assert outcome.reason
    else:
        assert (outcome.cost.lost_slices, outcome.cost.steps) == expected
        assert len(outcome.steps) == expected[1]
        assert sum(one.placement.length for one in outcome.lost) == expected[0]


@settings(max_examples=60)
@given(data=st.data())
def test_the_driver_carries_out_every_step_and_nothing_in_use_is_touched(data: st.DataObject) -> None:
    gpus = []
    for number in range(3):
        lying = data.draw(lying_pieces(H200, most=5))
        used = frozenset(one for one in lying if data.draw(st.integers(0, 2)) == 0)
        state = State(mode=PartitionMode.ENABLED, lying=lying, in_use=used)
        gpus.append(CutGpu(name=device_name(f"gpu-{number}"), rules=H200, state=state))
    wishes = data.draw(st.lists(st.tuples(st.sampled_from(sorted(H200.by_name)), st.integers(0, 2)), max_size=6))
    drivers = {gpu.name: Driver("h200-8", gpu.state.lying) for gpu in gpus}
    untouchable = {gpu.name: set(gpu.state.in_use) for gpu in gpus}
    for outcome in defragment(gpus, [Request(wants=name, priority=rank) for name, rank in wishes], ACT):
        if outcome.gpu is None or outcome.piece is None:
            assert outcome.verdict is Verdict.NONE
            continue
        for step in outcome.steps:
            assert step.action is Action.CREATE or step.piece not in untouchable[outcome.gpu]
            drivers[outcome.gpu].carry_out(step)
        assert outcome.piece in drivers[outcome.gpu].made
        assert outcome.piece not in untouchable[outcome.gpu], "nothing is given out twice"
        assert {new for _, new in outcome.moved} <= set(drivers[outcome.gpu].made)
        untouchable[outcome.gpu].add(outcome.piece)


@settings(max_examples=40)
@given(data=st.data())
def test_lower_priorities_change_nothing_for_higher_ones(data: st.DataObject) -> None:
    gpus = [cut(number=0, lying="1g.18gb@0 1g.18gb@4", used="1g.18gb@6"), cut(number=1, lying="2g.35gb@2"), uncut(2)]
    wishes = data.draw(
        st.lists(st.tuples(st.sampled_from([*sorted(H200.by_name), WHOLE]), st.integers(0, 3)), max_size=6)
    )
    requests = [Request(wants=name, priority=rank, name=str(number)) for number, (name, rank) in enumerate(wishes)]
    outcomes = defragment(gpus, requests, ADVISE)
    assert [one.request.priority for one in outcomes] == sorted((one.priority for one in requests), reverse=True)
    for least_rank in range(4):
        above = [one for one in requests if one.priority >= least_rank]
        assert defragment(gpus, above, ADVISE) == outcomes[: len(above)]


# Cases


def test_an_idle_partition_of_the_profile_serves_as_it_is() -> None:
    outcome = ask(cut("1g.18gb@0 3g.71gb@4"), wants="3g.71gb")
    assert (outcome.verdict, outcome.piece, outcome.steps) == (Verdict.IDLE, piece(H200, "3g.71gb@4"), ())


def test_free_room_is_taken_where_it_costs_least_outlook() -> None:
    outcome = ask(cut("", "4g.71gb@0", number=0), cut("", "1g.18gb@0", number=1), wants="1g.18gb")
    assert (outcome.verdict, outcome.gpu) == (Verdict.ROOM, "gpu-1")


def test_what_is_in_the_way_moves_if_there_is_room_elsewhere() -> None:
    outcome = ask(cut("1g.18gb@4", "1g.18gb@0"), wants="3g.71gb")
    assert outcome.verdict is Verdict.MERGE
    assert steps(outcome)[0] == "remove 1g.18gb at 4"
    assert "make 3g.71gb at 4" in steps(outcome)
    assert (len(outcome.moved), outcome.lost) == (1, ())


def test_what_has_no_room_elsewhere_is_lost_and_counted() -> None:
    outcome = ask(cut("1g.18gb@4 2g.35gb@0", "2g.35gb@2"), wants="4g.71gb")
    assert outcome.verdict is Verdict.NONE
    outcome = ask(cut("3g.71gb@0 3g.71gb@4"), wants="7g.141gb")
    assert (outcome.verdict, outcome.cost.lost_slices, outcome.cost.steps) == (Verdict.MERGE, 8, 3)
    assert set(outcome.lost) == set(pieces(H200, "3g.71gb@0", "3g.71gb@4"))


def test_an_idle_one_beside_the_way_moves_if_that_saves_a_larger_one() -> None:
    """The half can go to the other side only if the small one in its way moves, too."""
    outcome = ask(cut("2g.35gb@4 1g.18gb@1 1g.18gb@3"), wants="3g.71gb")
    assert (outcome.cost.lost_slices, outcome.lost) == (0, ())
    gone = {old for old, _ in outcome.moved}
    assert piece(H200, "2g.35gb@4") in gone or outcome.piece == piece(H200, "3g.71gb@0")


def test_merging_goes_before_turning_over_a_whole_gpu() -> None:
    outcome = ask(uncut(0), cut("1g.18gb@0 1g.18gb@4", number=1), wants="3g.71gb")
    assert (outcome.verdict, outcome.gpu) == (Verdict.MERGE, "gpu-1")


def test_an_idle_whole_gpu_is_turned_over_where_nothing_else_helps() -> None:
    outcome = ask(uncut(0), cut("", "4g.71gb@0 3g.71gb@4", number=1), wants="7g.141gb")
    assert (outcome.verdict, outcome.gpu) == (Verdict.CHANGE, "gpu-0")
    assert steps(outcome) == ["turn MIG on", "make 7g.141gb at 0"]
    assert outcome.cost == Cost(mode_changes=1, steps=2)


def test_a_gpu_that_needs_a_reset_for_it_is_the_last_choice() -> None:
    outcome = ask(uncut(0, resetless=False), uncut(1), wants="1g.18gb")
    assert outcome.gpu == "gpu-1"
    assert ask(uncut(0, resetless=False), wants="1g.18gb").cost.resets == 1


def test_a_whole_gpu_is_had_by_removing_all_that_is_idle() -> None:
    outcome = ask(cut("1g.18gb@0 3g.71gb@4"), wants=WHOLE)
    assert steps(outcome) == ["remove 1g.18gb at 0", "remove 3g.71gb at 4", "turn MIG off"]
    assert (outcome.verdict, outcome.piece, outcome.cost.lost_slices) == (Verdict.CHANGE, None, 5)


def test_a_gpu_that_is_whole_and_idle_serves_who_wants_one_and_only_once() -> None:
    first, second = defragment([uncut(0), cut("", "1g.18gb@0", number=1)], [Request(wants=WHOLE)] * 2, ADVISE)
    assert (first.verdict, first.gpu, first.steps) == (Verdict.IDLE, "gpu-0", ())
    assert second.verdict is Verdict.NONE
    assert second.reason == "gpu-0 is in use as a whole; gpu-1: 1g.18gb at 0 is in use"


def test_what_is_set_aside_for_one_is_not_taken_for_the_next() -> None:
    requests = [Request(wants="3g.71gb", priority=1), Request(wants="7g.141gb", priority=9)]
    first, second = defragment([cut("1g.18gb@0")], requests, ADVISE)
    assert (first.request.wants, first.verdict) == ("7g.141gb", Verdict.MERGE)
    assert (second.request.wants, second.verdict) == ("3g.71gb", Verdict.NONE)


def test_what_is_half_made_is_no_loss() -> None:
    half = divided(piece(H200, "1g.18gb@2"))
    gpu = CutGpu(
        name=device_name("gpu-0"),
        rules=H200,
        state=State(mode=PartitionMode.ENABLED, lying=(half,), in_use=frozenset()),
    )
    outcome = ask(gpu, wants="7g.141gb")
    assert (outcome.lost, outcome.cost.lost_slices, outcome.cost.steps) == ((), 0, 2)


def test_a_divided_instance_moves_as_it_is_divided() -> None:
    idle = divided(piece(H200, "2g.35gb@4"), 1, 1)
    (moved,) = repacked(H200, H200.room(pieces(H200, "3g.71gb@4")), [idle])
    assert (moved.profile, moved.computes) == ("2g.35gb", (1, 1))
    assert moved.placement.start < 4


# Policy


def test_nothing_is_found_where_the_policy_is_off() -> None:
    assert defragment([cut()], [Request(wants="1g.18gb")], Policy(mode=Mode.OFF)) == ()


@pytest.mark.parametrize(("policy", "act"), [(ADVISE, False), (ACT, True)])
def test_steps_are_for_taking_only_where_the_policy_says_so(policy: Policy, act: bool) -> None:
    assert ask(cut("3g.71gb@0"), wants="7g.141gb", policy=policy).act == act


@pytest.mark.parametrize(("priority", "verdict"), [(4, Verdict.NONE), (5, Verdict.MERGE)])
def test_only_requests_of_some_priority_merge(priority: int, verdict: Verdict) -> None:
    outcome = ask(cut("3g.71gb@0"), wants="7g.141gb", policy=Policy(least_priority=5), priority=priority)
    assert outcome.verdict is verdict
    assert outcome.reason == ("" if verdict is Verdict.MERGE else "gpu-0: the policy forbids it")


@pytest.mark.parametrize("gpu", [uncut(), cut("1g.18gb@0")])
def test_modes_are_not_changed_where_the_policy_forbids_it(gpu: CutGpu) -> None:
    policy = Policy(change_mode=False)
    wants = WHOLE if gpu.state.lying else "1g.18gb"
    assert ask(gpu, wants=wants, policy=policy).reason == "gpu-0: the policy forbids it"


def test_what_stands_in_the_way_is_said_of_each_gpu() -> None:
    outcome = ask(cut("", "3g.71gb@0 1g.18gb@5"), cut("", "7g.141gb@0", number=1), uncut(2, busy=True), wants="3g.71gb")
    assert outcome.reason == (
        "gpu-0: there is 3g.71gb at 0, in use; gpu-1: there is 7g.141gb at 0, in use; gpu-2 is in use as a whole"
    )
    assert ask(cut(), wants="1g.10gb").reason == "no GPU has a profile 1g.10gb"
