"""A simulated node: its library, its faults and its files, grown from one profile."""

from difflib import get_close_matches
from functools import partial
from pathlib import Path

from node_agent.errors import SimulationError
from node_agent.hardware.simulated.driver import Driver
from node_agent.hardware.simulated.faults import Faults
from node_agent.hardware.simulated.library import Library
from node_agent.hardware.simulated.library.calls import CALLS
from node_agent.hardware.simulated.profile import NodeProfile
from node_agent.hardware.simulated.tree import DeviceNodes, write_tree


class SimulatedNode:
    """``library`` stands in for libnvidia-ml.so.1, ``faults`` breaks things, ``write_tree`` writes the node's files."""

    def __init__(self, profile: NodeProfile) -> None:
        # What contradicts itself only as a whole, such as links and ports, shows when the node is built.
        try:
            self._driver = Driver(profile)
        except ValueError as error:
            raise SimulationError(f"profile {profile.name}: {error}") from error
        _require_known_calls(profile)
        self.profile = profile
        self.library = Library(self._driver)
        self.faults = Faults(self._driver)

    @property
    def samples(self) -> int:
        """How many samples of performance were allocated and are not freed."""
        return len(self._driver.samples)

    def write_tree(self, root: Path, *, devices: DeviceNodes = "auto") -> None:
        """Write the node's /sys, /proc, /dev and driver files below ``root`` and keep them up to date; see ``tree``."""
        with self._driver.changed:
            write_tree(self._driver, root, devices)
            self._driver.followers.append(partial(write_tree, self._driver, root, devices))


def _require_known_calls(profile: NodeProfile) -> None:
    """A profile that takes away a call which is not simulated has misspelt it."""
    named = {f"boards.{name}.unsupported": board.unsupported for name, board in profile.boards.items()}
    for path, calls in {**named, "driver.missing_symbols": profile.driver.missing_symbols}.items():
        for call in sorted(set(calls) - CALLS.keys()):
            near = ", ".join(get_close_matches(call, CALLS)) or "nothing like it"
            raise SimulationError(f"profile {profile.name}: {path}: no call is {call!r}; there is {near}")
