"""The files of a simulated node, for code that reads ``/sys``, ``/proc``, ``/dev`` and the driver's libraries.

``kernel`` says what the kernel shows, ``userland`` what a driver package installs, ``entries`` writes it.
"""

from pathlib import Path

from node_agent.hardware.simulated.driver import Driver
from node_agent.hardware.simulated.tree.entries import DeviceNodes, apply
from node_agent.hardware.simulated.tree.kernel import kernel_entries
from node_agent.hardware.simulated.tree.userland import userland_entries

__all__ = ["DeviceNodes", "write_tree"]


def write_tree(driver: Driver, root: Path, devices: DeviceNodes = "auto") -> None:
    """Write the node's files below ``root``, or bring those of an earlier call up to date.

    Device nodes are real ones where this process may make them (``"real"`` insists on it). Otherwise, or with
    ``"placeholder"``, a regular file with the text ``c <major>:<minor>`` stands in their place: code that asks ``stat``
    for a device's numbers finds none.
    """
    apply({**dict(kernel_entries(driver)), **dict(userland_entries(driver))}, root, devices)
