"""The command line as its users meet it: the words after ``node-agent`` in, exit code and text out."""

import io
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from node_agent.cli.main import main

# A driver without the one function that everything begins with, so that no machine's own driver matters.
BROKEN_DRIVER = """
summary: A library that cannot be initialised
driver: {version: 580.95.05, cuda: "13.0", missing_symbols: [nvmlInitWithFlags]}
numa: {0: "0-3"}
gpus:
  - {board: l4, bus: "0000:01:00.0", minor: 0}
"""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Run = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands say where logs go; that ends with the test."""
    root, own = logging.getLogger(), logging.getLogger("node_agent")
    levels, handlers = (root.level, own.level), root.handlers[:]
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine is a setting."""
    for name in [name for name in os.environ if name not in ("PATH", "HOME", "TMPDIR")]:
        monkeypatch.delenv(name)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, plain_environment: None) -> Run:
    """Run a command in this process, through the entry point that the package installs."""

    def call(*words: object, stdin: str = "") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["node-agent", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        code: int | str | None = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        assert isinstance(code, int)
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: sockets are made in it."""
    with tempfile.TemporaryDirectory(prefix="cli-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def broken_driver(folder: Path) -> Path:
    """The profile of a node whose driver cannot be asked."""
    profile = folder / "broken.yaml"
    profile.write_text(BROKEN_DRIVER)
    return profile
