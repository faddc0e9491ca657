"""Simulated hardware that outlives the agent whose process it is simulated in, as a GPU outlives whoever used it.

Each change is in a file before the call that made it returns; the next process finds the GPUs as the last left them.
"""

import os
import pickle
from pathlib import Path

from msgspec.structs import fields

from node_agent.hardware.simulated import SimulatedNode
from node_agent.hardware.simulated.gpu import SimulatedGpu
from node_agent.hardware.simulated.profile import NodeProfile
from tests.crash.boundaries import Library

# What a GPU is, and not how it stands.
NATURE = frozenset({"slot", "place", "board", "uuid", "serial", "links", "fabric"})
STATE = tuple(field.name for field in fields(SimulatedGpu) if field.name not in NATURE)


def lasting(profile: NodeProfile, file: Path) -> SimulatedNode:
    """The node as ``file`` has it, or as it is after boot; what becomes of it by calls is in the file at once."""
    node = SimulatedNode(profile)
    recall(node, file)
    changed = node._driver.changed
    wake = changed.notify_all

    def notify_all() -> None:
        wake()
        keep(node, file)

    # Whatever changes by a fault says so there; what calls change need not wake anybody.
    changed.notify_all = notify_all  # type: ignore[method-assign]
    node.library = Library(node.library, lambda name: None, lambda name: keep(node, file))  # type: ignore[assignment]
    return node


def keep(node: SimulatedNode, file: Path) -> None:
    """Write how the GPUs stand."""
    with node._driver.changed:
        content = pickle.dumps([{name: getattr(gpu, name) for name in STATE} for gpu in node._driver.gpus])
        new = file.with_suffix(".new")
        new.write_bytes(content)
        os.rename(new, file)


def recall(node: SimulatedNode, file: Path) -> None:
    """Have the GPUs stand as they were written; without a file they stay as they are."""
    if file.exists():
        for gpu, state in zip(node._driver.gpus, pickle.loads(file.read_bytes()), strict=True):
            for name, value in state.items():
                setattr(gpu, name, value)
