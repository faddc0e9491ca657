"""A folder with a short path, since a socket's path must fit into 107 bytes."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kubelet-", dir="/tmp") as name:
        # The kubelet has other folders beside it.
        folder = Path(name) / "dp"
        folder.mkdir()
        yield folder
