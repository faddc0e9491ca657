"""What the scheduler counts of a GPU that can be cut: every piece is a device, and draws on shared counters. Pure.

A device may draw on two counter sets:

- The node's counters of whole GPUs (``dra/slices``), one for each GPU: a whole GPU and a group take all of it, a piece
  the part that its memory slices are. So a GPU is given out whole or in pieces, never both.
- A set of the GPU's own with what ``layout`` counts: each memory slice, the compute slices, the media engines. The
  driver's rules and the counters are the same figures, so that the scheduler may allocate exactly what can be made.

The totals follow from the GPU's model alone and never change, whatever lies on it: a counter below what is allocated
would block the whole pool.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from node_agent.model.gpu import DeviceName
from node_agent.model.partition import Piece
from node_agent.partition.choose import order
from node_agent.partition.layout import Rules
from node_agent.partition.names import is_named, piece_name

Content = Mapping[str, Any]
"""A part of a slice's spec, as the API has it."""

# The API's unit for parts of one.
_MILLI = 1000


def set_name(gpu: DeviceName) -> str:
    return f"{gpu}-mig"


def counter_set(gpu: DeviceName, rules: Rules) -> Content:
    """The GPU's own counters, full."""
    return {"name": set_name(gpu), "counters": _values(rules.totals)}


def draws_of(gpu: DeviceName, rules: Rules, piece: Piece, gpus: str) -> list[Content]:
    """What a piece of a GPU draws; ``gpus`` is the counter set that counts the GPU as a whole."""
    return [
        {"counterSet": gpus, "counters": {gpu: {"value": _share(rules, piece)}}},
        {"counterSet": set_name(gpu), "counters": _values(rules.draws(piece))},
    ]


def devices_of(gpu: DeviceName, rules: Rules) -> Iterator[tuple[DeviceName, Piece]]:
    """Every piece of a GPU by its device's name, in the order in which the scheduler should try them."""
    return ((piece_name(gpu, piece), piece) for piece in order(rules) if is_named(piece.profile))


def _share(rules: Rules, piece: Piece) -> str:
    """The part of a GPU, spelled as the API server spells it: what is sent and what is stored are compared."""
    # Rounded down, so that pieces that fill the GPU never add up to more than it.
    share = max(1, _MILLI * piece.placement.length // rules.memory_slices)
    return "1" if share == _MILLI else f"{share}m"


def _values(amounts: Mapping[str, int]) -> Content:
    return {name: {"value": str(amount)} for name, amount in amounts.items()}
