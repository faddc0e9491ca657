"""The binding talks to the simulated node inside the block, and to what it talked to before outside."""

from collections.abc import Iterator

import pynvml
import pytest

from node_agent.hardware.simulated import SimulatedNode, install, load_profile


@pytest.fixture
def untouched() -> Iterator[None]:
    """The binding as it is before anyone has loaded a library."""
    before = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache)
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()
    yield
    pynvml.nvmlLib = before[0]
    pynvml._nvmlGetFunctionPointer_cache.update(before[1])


def test_the_block_is_given_the_node() -> None:
    node = SimulatedNode(load_profile("l4-2"))
    with install(node) as given:
        assert given is node


def test_the_binding_loads_no_library_of_its_own(untouched: None) -> None:
    node = SimulatedNode(load_profile("l4-2"))
    with install(node):
        pynvml.nvmlInit()
        assert pynvml.nvmlLib is node.library
        assert pynvml.nvmlDeviceGetCount() == 2
        pynvml.nvmlShutdown()
    assert pynvml.nvmlLib is None


def test_functions_of_one_library_are_not_called_in_another(untouched: None) -> None:
    counts = []
    for name in ("l4-2", "h200-8", "none"):
        with install(SimulatedNode(load_profile(name))):
            pynvml.nvmlInit()
            counts.append(pynvml.nvmlDeviceGetCount())
            pynvml.nvmlShutdown()
        assert pynvml._nvmlGetFunctionPointer_cache == {}
    assert counts == [2, 8, 0]


def test_blocks_can_be_nested(untouched: None) -> None:
    with install(SimulatedNode(load_profile("l4-2"))):
        pynvml.nvmlInit()
        with install(SimulatedNode(load_profile("t4-4"))):
            pynvml.nvmlInit()
            assert pynvml.nvmlDeviceGetCount() == 4
        assert pynvml.nvmlDeviceGetCount() == 2


def test_an_error_in_the_block_puts_the_binding_back_too(untouched: None) -> None:
    with pytest.raises(RuntimeError), install(SimulatedNode(load_profile("l4-2"))):
        pynvml.nvmlInit()
        raise RuntimeError
    assert pynvml.nvmlLib is None
    assert pynvml._nvmlLib_refcount == 0
