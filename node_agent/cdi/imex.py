"""IMEX: the device nodes by which GPUs of several nodes share memory over NVLink. ``nodes`` looks at those in ``/dev``.

A channel lets processes map each other's memory, and whoever has it may do so with all of its domain. The nodes need
not be there: the driver gives the numbers, and a runtime makes a node from these.
"""

import re

from node_agent.cdi.capabilities import described_nodes, number_in, numbered_node
from node_agent.cdi.edits import DeviceNode
from node_agent.cdi.roots import DriverRoots
from node_agent.errors import CdiError

USUAL_COUNT = 2048
"""How many channels the driver has where it does not say: its module's own default."""

_MAJOR = re.compile(r"^\s*(\d+) nvidia-caps-imex-channels$", re.MULTILINE)
_COUNT = re.compile(r"^ImexChannelCount: (\d+)$", re.MULTILINE)
_FOR_EVERYBODY = 0o666


def channel_place(number: int) -> str:
    """Where a channel's node is in a container, and by default on the host."""
    return f"/dev/nvidia-caps-imex-channels/channel{number}"


def has_channels(roots: DriverRoots) -> bool:
    """Whether the driver that is loaded has channels at all."""
    try:
        return channel_count(roots) > 0 and number_in(roots.proc / "devices", _MAJOR) > 0
    except CdiError:
        return False


def channel_count(roots: DriverRoots) -> int:
    """How many channels the driver has."""
    try:
        return number_in(roots.proc / "driver/nvidia/params", _COUNT)
    except CdiError:
        return USUAL_COUNT


def channel_nodes(roots: DriverRoots, count: int) -> tuple[DeviceNode, ...]:
    """The nodes of the first ``count`` channels. Raises CdiError where the driver has not so many."""
    major = number_in(roots.proc / "devices", _MAJOR)
    if (there := channel_count(roots)) < count:
        raise CdiError(f"the driver has {there} IMEX channels, and {count} are wanted: see NVreg_ImexChannelCount")
    return tuple(
        numbered_node(roots, channel_place(number), major=major, minor=number, file_mode=_FOR_EVERYBODY)
        for number in range(count)
    )


def management_node(roots: DriverRoots) -> DeviceNode:
    """The node that the IMEX daemon needs. Raises CdiError where the driver does not show it."""
    (node,) = described_nodes(roots, [roots.proc / "driver/nvidia/capabilities/fabric-imex-mgmt"])
    return node
