"""Plans carried out by the driver: every usual layout after every other, on the simulated library, through NVML."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.hardware.nvml.partitions import create, destroy, instances, set_mode
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.model.gpu import GpuUuid, PartitionMode
from node_agent.model.partition import Piece
from node_agent.partition.configs import Entry, usual
from node_agent.partition.plan import Action, Goal, Plan, State, plan
from tests.fakes.builders import gpu
from tests.unit.partition.boards import NODES, rules


class Board:
    """The first GPU of a simulated node, with MIG on or off as the plans want it."""

    def __init__(self, session: Session, node: SimulatedNode, name: str) -> None:
        self.session, self.node, self.rules = session, node, rules(name)
        self.uuid: GpuUuid = session.gpus[0]
        self.mode = PartitionMode.DISABLED

    def lying(self) -> tuple[Piece, ...]:
        return tuple(instance.piece for instance in instances(self.session, self.uuid))

    def busy(self) -> frozenset[Piece]:
        return frozenset(instance.piece for instance in instances(self.session, self.uuid) if instance.busy)

    def change(self, goal: Goal) -> Plan:
        state = State(mode=self.mode, lying=self.lying(), in_use=self.busy())
        found = plan(self.rules, state, goal)
        for step in [] if found.waiting else found.steps:
            if step.piece is None:
                self.mode = set_mode(self.session, self.uuid, enabled=step.action is Action.ENABLE)
            elif step.action is Action.CREATE:
                create(self.session, self.uuid, step.piece)
            else:
                destroy(self.session, self.uuid, step.piece)
        return found


@pytest.fixture(params=NODES)
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Board]:
    with install(SimulatedNode(load_profile(request.param))) as node:
        session = Session(sysfs=tmp_path)
        session.ensure_open()
        session.refresh()
        yield Board(session, node, request.param)
        session.close()


def goals(board: Board) -> Iterator[Goal]:
    """The usual layouts, and one after each that leads back from it."""
    entries: list[Entry] = [entry for entries in usual([(gpu(0), board.rules)]).values() for entry in entries]
    for one in entries:
        for entry in (one, entries[0], one):
            yield Goal(enabled=entry.mig_enabled, counts=entry.counts)


def test_every_usual_layout_is_made_whatever_was_there_before(board: Board) -> None:
    for goal in goals(board):
        board.change(goal)
        lying = board.lying()
        assert board.mode.active == goal.enabled
        assert Counter(one.profile for one in lying) == Counter(goal.counts)
        assert all(one.computes is None for one in lying)
        assert board.change(goal) == Plan(keeps=lying), "what is as wanted is left alone"


def test_parts_of_instances_are_made_and_give_way_to_whole_ones(board: Board) -> None:
    large = max((one for one in board.rules.profiles if one.slices > 1), key=lambda one: (one.limit > 1, one.slices))
    part = f"1c.{large.name}"
    board.change(Goal(enabled=True, counts={part: large.slices}))
    (made,) = instances(board.session, board.uuid)
    assert [one.profile for one in made.partitions] == [part] * large.slices
    board.change(Goal(enabled=True, counts={large.name: 1}))
    assert [(one.profile, one.computes) for one in board.lying()] == [(large.name, None)]


def test_what_processes_run_on_outlives_every_change_that_allows_it(board: Board) -> None:
    """The others go; and what would have to go is waited for, with all that lies there left as it is."""
    small = board.rules.profiles[0].name
    board.change(Goal(enabled=True, counts={small: 3}))
    used = instances(board.session, board.uuid)[1]
    board.node.faults.start_process(0, 4711, instance=used.id, compute_instance=0)
    board.change(Goal(enabled=True, counts={small: 1}))
    assert instances(board.session, board.uuid) == (used,)
    waiting = board.change(Goal(enabled=False))
    assert (waiting.waits_for, board.lying()) == ((used.piece,), (used.piece,))
    board.node.faults.stop_process(0, 4711)
    assert not board.change(Goal(enabled=False)).waiting
    assert board.lying() == ()
