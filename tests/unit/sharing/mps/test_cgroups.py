"""A daemon leaves the agent's cgroup."""

import subprocess
import sys
from pathlib import Path

import pytest

from node_agent.sharing.mps import cgroups, place


def hierarchy(root: Path, *tops: str) -> list[Path]:
    """The files that take a process into a cgroup, at these places."""
    made = [root / top / "cgroup.procs" for top in tops]
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return made


def test_with_one_hierarchy_it_goes_to_the_top_and_into_nobodys_group(tmp_path: Path) -> None:
    top, services = hierarchy(tmp_path, ".", "system.slice")
    cgroups.leave(42, tmp_path)
    assert (top.read_text(), services.read_text()) == ("42", "")


def test_with_several_it_goes_to_the_top_of_each(tmp_path: Path) -> None:
    memory, pods, pids = hierarchy(tmp_path, "memory", "memory/kubepods", "pids")
    cgroups.leave(42, tmp_path)
    assert (memory.read_text(), pods.read_text(), pids.read_text()) == ("42", "", "42")


def test_what_hinders_it_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "cgroup.procs").mkdir()
    cgroups.leave(42, tmp_path)
    assert "the MPS daemon stays in the agent's cgroup, and may end with the agent" in caplog.messages


@pytest.mark.skipif(not place.may_mount(), reason="needs CAP_SYS_ADMIN")
def test_an_agent_that_is_the_first_process_leaves_it_where_it_is_and_says_so(tmp_path: Path) -> None:
    (top,) = hierarchy(tmp_path, ".")
    code = f"import pathlib, node_agent.sharing.mps.cgroups as it; it.leave(42, pathlib.Path({str(tmp_path)!r}))"
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert top.read_text() == ""
    assert "the manifest needs hostPID" in said
