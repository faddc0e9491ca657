"""Simulated nodes below the real binding, initialised, for the length of a test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pynvml
import pytest

from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.profile import NodeProfile

Simulate = Callable[[str | NodeProfile], SimulatedNode]


@pytest.fixture
def simulate() -> Iterator[Simulate]:
    """Start a node of a profile; the binding talks to it until the test ends."""
    with ExitStack() as stack:

        def start(profile: str | NodeProfile) -> SimulatedNode:
            node = SimulatedNode(load_profile(profile) if isinstance(profile, str) else profile)
            stack.enter_context(install(node))
            pynvml.nvmlInit()
            stack.callback(_shut_down)
            return node

        yield start


@pytest.fixture
def h200(simulate: Simulate) -> SimulatedNode:
    return simulate("h200-8")


@pytest.fixture
def a100(simulate: Simulate) -> SimulatedNode:
    return simulate("a100-40gb-8")


def _shut_down() -> None:
    # A test may have shut the library down itself.
    with suppress(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlShutdown()
