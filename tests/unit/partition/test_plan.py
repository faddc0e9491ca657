"""The steps to a wanted layout are as few as there can be, legal one by one, and leave alone what is in use."""

from collections import Counter, deque
from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.errors import LayoutRefused
from node_agent.hardware.simulated.mig import GpuInstance, Mig
from node_agent.model.gpu import PartitionMode
from node_agent.model.partition import Piece
from node_agent.partition.layout import Rules
from node_agent.partition.plan import Action, Goal, Plan, State, Step, plan
from tests.unit.partition.boards import piece, pieces, rules, table
from tests.unit.partition.test_static import divided, lying_pieces

H200, A30 = rules("h200-8"), rules("a30-2")
ON, OFF = PartitionMode.ENABLED, PartitionMode.DISABLED
ENABLE, DISABLE = Step(action=Action.ENABLE), Step(action=Action.DISABLE)


def make(one: Piece) -> Step:
    return Step(action=Action.CREATE, piece=one)


def remove(one: Piece) -> Step:
    return Step(action=Action.DESTROY, piece=one)


# By brute force

Node = tuple[bool, frozenset[Piece]]


def moves(board: Rules, node: Node) -> Iterator[Node]:
    """All that the driver allows next."""
    enabled, lying = node
    if not lying:
        yield not enabled, lying
    if enabled:
        yield from ((True, lying - {one}) for one in lying)
        yield from ((True, lying | {one}) for one in board.fitting(board.room(lying)))


def fewest_steps(board: Rules, start: Node, goal: Goal) -> int | None:
    """The length of the shortest way, by going every way; None where none leads there."""

    def reached(node: Node) -> bool:
        return node[0] == goal.enabled and Counter(one.profile for one in node[1]) == Counter(goal.counts)

    ways, seen = deque([(start, 0)]), {start}
    while ways:
        node, steps = ways.popleft()
        if reached(node):
            return steps
        for following in moves(board, node):
            if following not in seen:
                seen.add(following)
                ways.append((following, steps + 1))
    return None


@settings(max_examples=40)
@given(data=st.data())
def test_no_way_is_shorter(data: st.DataObject) -> None:
    enabled = data.draw(st.booleans())
    lying = data.draw(lying_pieces(A30)) if enabled else ()
    wanted = data.draw(st.lists(st.sampled_from(sorted(A30.by_name)), max_size=4))
    goal = Goal(enabled=bool(wanted) or data.draw(st.booleans()), counts=Counter(wanted))
    shortest = fewest_steps(A30, (enabled, frozenset(lying)), goal)
    try:
        found = plan(A30, State(mode=ON if enabled else OFF, lying=lying), goal)
    except LayoutRefused:
        assert shortest is None
    else:
        assert len(found.steps) == shortest
        assert not found.waiting


@settings(max_examples=100)
@given(data=st.data(), node=st.sampled_from(["h200-8", "a30-2"]))
def test_the_driver_carries_out_every_step(data: st.DataObject, node: str) -> None:
    board = rules(node)
    lying = data.draw(lying_pieces(board, most=7))
    in_use = frozenset(data.draw(st.lists(st.sampled_from(lying)) if lying else st.just([])))
    goal = Goal(enabled=True, counts=Counter(data.draw(lying_names(board))))
    found = plan(board, State(mode=ON, lying=lying, in_use=in_use), goal)
    driver = Driver(node, lying)
    for step in found.steps:
        driver.carry_out(step)
    assert Counter(one.profile for one in driver.made) == Counter(goal.counts)
    assert set(found.keeps) == set(lying) & set(driver.made)
    assert set(found.waits_for) == in_use - set(driver.made)


@st.composite
def lying_names(draw: st.DrawFn, board: Rules) -> list[str]:
    """Profiles that fit together."""
    return [one.profile for one in draw(lying_pieces(board, most=7))]


class Driver:
    """A GPU with MIG on, as the simulator has it; a refusal is an exception."""

    def __init__(self, node: str, lying: tuple[Piece, ...]) -> None:
        self.board = rules(node)
        self.mig = Mig(table=table(node), enabled=True, pending=True)
        self.made: dict[Piece, GpuInstance] = {}
        for one in lying:
            self.carry_out(make(one))

    def carry_out(self, step: Step) -> None:
        assert step.piece is not None
        if step.action is Action.DESTROY:
            self.mig.destroy(self.made.pop(step.piece))
        else:
            number = self.board.by_name[step.piece.profile].id
            self.made[step.piece] = self.mig.create(number, step.piece.placement.start)


@settings(max_examples=60)
@given(data=st.data())
def test_no_layout_that_is_wanted_disturbs_less_of_what_is_in_use(data: st.DataObject) -> None:
    lying = data.draw(lying_pieces(A30))
    in_use = frozenset(data.draw(st.lists(st.sampled_from(lying)) if lying else st.just([])))
    wanted = data.draw(lying_names(A30))
    found = plan(A30, State(mode=ON, lying=lying, in_use=in_use), Goal(enabled=True, counts=Counter(wanted)))
    ways = product(*([one for one in A30.pieces if one.profile == name] for name in wanted))
    fewest = min(len(in_use - set(way)) for way in ways if A30.legal(way))
    assert len(found.waits_for) == fewest


@settings(max_examples=60)
@given(data=st.data(), node=st.sampled_from(["h200-8", "a30-2"]))
def test_a_plan_that_is_cut_short_goes_on_where_it_was(data: st.DataObject, node: str) -> None:
    """Whoever dies between two steps looks at what lies there and plans anew: the steps left are as many."""
    board = rules(node)
    lying = data.draw(lying_pieces(board, most=7))
    goal = Goal(enabled=True, counts=Counter(data.draw(lying_names(board))))
    whole = plan(board, State(mode=ON, lying=lying), goal)
    now = set(lying)
    for number, step in enumerate(whole.steps, start=1):
        assert step.piece is not None
        now ^= {step.piece}
        anew = plan(board, State(mode=ON, lying=tuple(now)), goal)
        assert len(anew.steps) == len(whole.steps) - number


# Cases


def test_nothing_is_done_where_all_is_as_wanted() -> None:
    lying = pieces(H200, "3g.71gb@0", "3g.71gb@4")
    found = plan(H200, State(mode=ON, lying=lying, in_use=frozenset(lying)), Goal(enabled=True, counts={"3g.71gb": 2}))
    assert found == Plan(keeps=lying)
    assert plan(H200, State(mode=OFF, busy=True), Goal(enabled=False)) == Plan()


def test_turning_mig_on_comes_before_making_and_waits_for_an_idle_gpu() -> None:
    goal = Goal(enabled=True, counts={"7g.141gb": 1})
    found = plan(H200, State(mode=OFF, busy=True), goal)
    assert found.steps == (ENABLE, make(piece(H200, "7g.141gb@0")))
    assert (found.needs_idle, found.waiting, found.may_need_reset) == (True, True, False)
    assert not plan(H200, State(mode=OFF), goal).waiting


def test_turning_mig_off_comes_after_removing_and_waits_for_what_is_in_use() -> None:
    lying = pieces(H200, "3g.71gb@0", "1g.18gb@4")
    found = plan(H200, State(mode=ON, lying=lying, in_use=frozenset(lying[:1])), Goal(enabled=False))
    assert found.steps == (*map(remove, lying), DISABLE)
    assert (found.waits_for, found.keeps) == (lying[:1], ())


@pytest.mark.parametrize(
    ("mode", "enabled", "steps", "needs_idle"),
    [
        (PartitionMode.ENABLE_PENDING, True, (ENABLE,), True),
        (PartitionMode.ENABLE_PENDING, False, (DISABLE,), False),
        (PartitionMode.DISABLE_PENDING, True, (ENABLE,), False),
        (PartitionMode.DISABLE_PENDING, False, (DISABLE,), True),
    ],
)
def test_a_change_that_is_pending_is_tried_again_or_called_off(
    mode: PartitionMode, enabled: bool, steps: tuple[Step, ...], needs_idle: bool
) -> None:
    """Calling it off changes nothing on the GPU and needs no idle one."""
    found = plan(H200, State(mode=mode, busy=True), Goal(enabled=enabled))
    assert (found.steps, found.needs_idle) == (steps, needs_idle)


@pytest.mark.parametrize(("resetless", "warned"), [(True, False), (False, True)])
def test_a_board_that_may_need_a_reset_is_warned_of(resetless: bool, warned: bool) -> None:
    assert plan(A30, State(mode=OFF), Goal(enabled=True), resetless=resetless).may_need_reset == warned
    assert not plan(A30, State(mode=ON), Goal(enabled=True), resetless=resetless).may_need_reset


def test_a_gpu_without_mig_can_be_left_without_it_and_not_be_cut() -> None:
    assert plan(H200, State(mode=None, busy=True), Goal(enabled=False)) == Plan()
    with pytest.raises(LayoutRefused, match="the GPU has no MIG"):
        plan(H200, State(mode=None), Goal(enabled=True))


def test_what_is_half_made_goes() -> None:
    half = divided(piece(H200, "3g.71gb@4"))
    found = plan(H200, State(mode=ON, lying=(half,)), Goal(enabled=True, counts={"3g.71gb": 1}))
    assert found.steps[0] == remove(half)
    assert len(found.steps) == 2


def test_an_instance_that_is_to_be_divided_otherwise_is_made_anew() -> None:
    whole = piece(H200, "3g.71gb@0")
    found = plan(H200, State(mode=ON, lying=(whole,)), Goal(enabled=True, counts={"1c.3g.71gb": 3}))
    assert [step.action for step in found.steps] == [Action.DESTROY, Action.CREATE]
    assert found.steps[1].piece is not None and found.steps[1].piece.computes == (1, 1, 1)


def test_steps_read_as_what_they_do() -> None:
    assert str(ENABLE) == "turn MIG on"
    assert str(remove(piece(H200, "3g.71gb@4"))) == "remove 3g.71gb at 4"
    assert str(make(piece(H200, "1g.18gb+me@6"))) == "make 1g.18gb+me at 6"
