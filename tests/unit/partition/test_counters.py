"""The scheduler may allocate exactly what the driver can make: proved with its own arithmetic."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from node_agent.model.gpu import device_name
from node_agent.model.partition import Piece, Placement
from node_agent.partition.choose import order
from node_agent.partition.counters import counter_set, devices_of, draws_of, set_name
from node_agent.partition.layout import Rules, rules_of
from tests.unit.dra import scheduler
from tests.unit.dra.scheduler import Scheduler
from tests.unit.partition.boards import GRAPHICS, NODES, piece, rules

BOARDS = pytest.mark.parametrize("board", [*map(rules, NODES), GRAPHICS], ids=[*NODES, "graphics"])
GPU = device_name("gpu-3")
WHOLE = {"name": "gpus-0", "counters": {GPU: {"value": "1"}}}

Content = Mapping[str, Any]


def devices(board: Rules, gpu: str = GPU) -> dict[str, Piece]:
    return dict(devices_of(device_name(gpu), board))


def content(board: Rules, gpu: str = GPU) -> list[Content]:
    """The devices of one GPU as they are published."""
    name, kind = device_name(gpu), {"type": {"string": "mig"}}
    return [
        {"name": device, "attributes": kind, "consumesCounters": draws_of(name, board, one, "gpus-0")}
        for device, one in devices_of(name, board)
    ]


def of_one_gpu(board: Rules) -> Scheduler:
    whole = {
        "name": GPU,
        "attributes": {},
        "consumesCounters": [{"counterSet": "gpus-0", "counters": WHOLE["counters"]}],
    }
    return Scheduler([{"sharedCounters": [WHOLE, counter_set(GPU, board)]}, {"devices": [whole, *content(board)]}])


@BOARDS
@given(random=st.randoms(use_true_random=False))
def test_what_may_be_allocated_is_what_can_be_made(board: Rules, random: Any) -> None:
    """Whatever is allocated, in whatever order: a piece may follow where the driver can make it, and nowhere else."""
    sched, pieces = of_one_gpu(board), devices(board)
    wishes = [*pieces, GPU]
    random.shuffle(wishes)
    allocated: list[str] = []
    for name in wishes:
        lying = [pieces[other] for other in allocated if other in pieces]
        possible = not allocated if name == GPU else GPU not in allocated and board.legal([*lying, pieces[name]])
        assert sched.may_allocate(name, allocated) == possible
        if possible:
            allocated.append(name)
    assert all(left >= 0 for left in sched.left(allocated).values())


def test_every_allocation_there_is_can_be_made_and_every_layout_can_be_allocated() -> None:
    """All of them, on the board that has the fewest."""
    board = rules("a30-2")
    pieces = devices(board)
    allocations = {frozenset(found) for found in of_one_gpu(board).allocations()}
    assert all(board.legal(pieces[name] for name in found) for found in allocations - {frozenset([GPU])})
    for layout in board.maximal():
        names = frozenset(name for name, one in pieces.items() if one in layout)
        assert names in allocations


@BOARDS
def test_the_api_takes_the_counters_and_devices(board: Rules) -> None:
    scheduler.check_limits({"sharedCounters": [WHOLE, counter_set(GPU, board)]})
    scheduler.check_limits({"devices": content(board)})
    assert set_name(GPU) == counter_set(GPU, board)["name"]


@BOARDS
def test_pieces_that_fill_a_gpu_never_draw_more_than_all_of_it_and_one_piece_leaves_less(board: Rules) -> None:
    sched = of_one_gpu(board)
    for name in devices(board):
        left = sched.left([name])["gpus-0", GPU]
        assert 0 <= left < 1


def test_slices_that_do_not_divide_a_thousand_still_add_up() -> None:
    small, whole = (one for one in GRAPHICS.profiles if one.name in ("1g.24gb", "4g.96gb"))
    board = rules_of(
        (
            replace(small, placements=small.placements[:3], limit=3),
            replace(whole, slices=3, placements=(Placement(start=0, length=3),)),
        )
    )
    assert len(max(of_one_gpu(board).allocations(), key=len)) == 3


def test_devices_come_in_the_order_of_the_best_placements() -> None:
    board = rules("h200-8")
    assert tuple(devices(board).values()) == order(board)
    assert next(iter(devices(board))) == "gpu-3-mig-1g-18gb-6"


def test_a_piece_draws_on_two_sets_its_part_and_its_slices() -> None:
    board = rules("h200-8")
    whole, own = draws_of(GPU, board, piece(board, "1g.18gb+me@6"), "gpus-0")
    assert whole == {"counterSet": "gpus-0", "counters": {GPU: {"value": "125m"}}}
    assert own["counterSet"] == "gpu-3-mig"
    assert {name: counter["value"] for name, counter in own["counters"].items()} == {
        "memory-slice-6": "1",
        "compute-slices": "1",
        "decoders": "1",
        "jpeg-engines": "1",
        "ofa-engines": "1",
    }


@BOARDS
def test_amounts_are_spelled_as_the_api_server_spells_them(board: Rules) -> None:
    """What is sent and what is stored are compared: 1000m would come back as 1, and the publisher take it for lost."""
    spelled = {
        counter["value"]
        for device in content(board)
        for one in device["consumesCounters"]
        for counter in one["counters"].values()
    }
    assert "1" in spelled
    assert not any(value.endswith("000m") for value in spelled), spelled
