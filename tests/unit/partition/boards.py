"""The rules of known boards, from what a simulated node's driver tells of them, and of one with stranger profiles."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from node_agent.hardware.nvml.profiles import profiles
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.profile import MigTable
from node_agent.model.partition import PartitionProfile, Piece, Placement
from node_agent.partition.layout import Rules, rules_of

NODES = ("h200-8", "h100-8", "a100-40gb-8", "a100-80gb-8", "b200-8", "gb200-4", "a30-2")


@cache
def rules(node: str = "h200-8") -> Rules:
    """The rules of a simulated node's first GPU."""
    with TemporaryDirectory() as sysfs, install(SimulatedNode(load_profile(node))):
        session = Session(sysfs=Path(sysfs))
        session.ensure_open()
        session.refresh()
        found = profiles(session, session.gpus[0])
        session.close()
    return rules_of(found)


@cache
def table(node: str = "h200-8") -> MigTable:
    """The same board as the simulator has it."""
    found = load_profile(node)
    mig = found.board_of(found.gpus[0]).mig
    assert mig is not None
    return mig


def piece(board: Rules, text: str) -> Piece:
    """``3g.71gb@4``."""
    name, _, start = text.partition("@")
    (place,) = [place for place in board.by_name[name].placements if place.start == int(start)]
    return Piece(profile=name, placement=place)


def pieces(board: Rules, *texts: str) -> tuple[Piece, ...]:
    return tuple(piece(board, text) for text in texts)


def _graphics(name: str, number: int, slices: int, limit: int, media: int) -> PartitionProfile:
    return PartitionProfile(
        name=name,
        id=number,
        slices=slices,
        memory=slices << 34,
        multiprocessors=46 * slices,
        limit=limit,
        placements=tuple(Placement(start=start, length=slices) for start in range(0, 4, slices)),
        decoders=media,
        encoders=media,
        jpeg_engines=media,
        optical_flow_engines=int(media == 4),
    )


GRAPHICS = Rules(
    profiles=(
        _graphics("1g.24gb", 14, 1, 4, 1),
        _graphics("1g.24gb+me.all", 22, 1, 1, 4),
        _graphics("1g.24gb-me", 23, 1, 4, 0),
        _graphics("1g.24gb+gfx", 24, 1, 4, 1),
        _graphics("2g.48gb", 5, 2, 2, 2),
        _graphics("2g.48gb+me.all", 6, 2, 1, 4),
        _graphics("4g.96gb", 0, 4, 1, 4),
    )
)
"""A workstation board with four slices: instances for graphics, with all of the media engines, and with none."""
