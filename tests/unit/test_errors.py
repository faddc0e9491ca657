"""One tree of errors: whoever catches a kind catches all that belongs to it, and nothing else."""

import inspect
import re

import pytest

from node_agent import errors

ALL = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}


def drawn() -> dict[str, str | None]:
    """Each error in the picture of the module's docstring, and the one under which it stands."""
    parents: dict[str, str | None] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"(?P<branch>[│├└─ ]*)(?P<name>[A-Z]\w+)(\s{2,}|$)", line)
        if match:
            depth = len(match["branch"]) // 4
            above[depth:] = [match["name"]]
            parents[match["name"]] = above[depth - 1] if depth else None
    return parents


def test_the_picture_in_the_docstring_is_the_tree() -> None:
    bases = {name: kind.__mro__[1] for name, kind in ALL.items()}
    assert drawn() == {name: base.__name__ if base in ALL.values() else None for name, base in bases.items()}


@pytest.mark.parametrize("kind", ALL.values())
def test_every_error_belongs_to_the_root_and_keeps_its_message(kind: type[Exception]) -> None:
    error = kind("what is wrong, where, what to do")
    assert isinstance(error, errors.NodeAgentError)
    assert str(error) == "what is wrong, where, what to do"


def test_a_hardware_error_says_which_call_failed_and_with_which_code() -> None:
    error = errors.DeviceLost("gpu-2 has fallen off the bus", call="nvmlDeviceGetUUID", code=15)
    assert (error.call, error.code) == ("nvmlDeviceGetUUID", 15)
    assert (errors.HardwareError("no driver").call, errors.HardwareError("no driver").code) == (None, None)
