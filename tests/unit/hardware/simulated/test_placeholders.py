"""Placeholders of device nodes look like the nodes that they stand for."""

import os
import stat as modes
from pathlib import Path

import pytest

from node_agent.hardware.simulated import SimulatedNode, load_profile
from node_agent.hardware.simulated.placeholders import stat


def test_a_placeholder_looks_like_its_device_node(tmp_path: Path) -> None:
    SimulatedNode(load_profile("h200-8")).write_tree(tmp_path, devices="placeholder")
    found = stat(tmp_path / "dev" / "nvidia3")

    assert modes.S_ISCHR(found.st_mode)
    assert modes.S_IMODE(found.st_mode) == 0o666
    assert (os.major(found.st_rdev), os.minor(found.st_rdev)) == (195, 3)
    assert (found.st_uid, found.st_gid) == (0, 0)


@pytest.mark.parametrize("content", ["", "c 195:x\n", "c 195:3", "b 8:0\n", "c 195:3\n" * 10])
def test_any_other_file_is_what_it_is(tmp_path: Path, content: str) -> None:
    file = tmp_path / "file"
    file.write_text(content)
    assert modes.S_ISREG(stat(file).st_mode)


def test_what_is_not_there_is_an_error_as_ever(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        stat(tmp_path / "nvidia9")
