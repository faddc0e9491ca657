"""The control program as it is run, and the folders of a daemon."""

import os
import stat
from pathlib import Path

import pytest

from node_agent.errors import MpsError
from node_agent.sharing.mps import place
from node_agent.sharing.mps.control import Control
from node_agent.sharing.mps.plan import Folders

mounting = pytest.mark.skipif(not place.may_mount(), reason="needs CAP_SYS_ADMIN")


def control(folder: Path, script: str, seconds: float = 5.0) -> Control:
    """A control program that does what ``script`` says."""
    path = folder / "control"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Control(program=path, environment={"CUDA_MPS_PIPE_DIRECTORY": "/p"}, answer_seconds=seconds)


async def test_commands_go_in_one_a_line_and_the_answer_comes_back(tmp_path: Path) -> None:
    assert await control(tmp_path, 'cat; echo "$CUDA_MPS_PIPE_DIRECTORY"').ask("one", "two") == "one\ntwo\n/p"


@pytest.mark.parametrize("answer", ["100.0", "25", "12.5"])
async def test_one_that_tells_its_percentage_works(tmp_path: Path, answer: str) -> None:
    await control(tmp_path, f"echo {answer}").check()


@pytest.mark.parametrize("answer", ["", "Cannot find MPS control daemon process", "100.0 50.0"])
async def test_one_that_says_anything_else_does_not_though_its_status_is_good(tmp_path: Path, answer: str) -> None:
    with pytest.raises(MpsError, match="should tell a percentage"):
        await control(tmp_path, f"echo {answer}").check()


async def test_a_failure_is_told_in_the_programs_words(tmp_path: Path) -> None:
    with pytest.raises(MpsError, match="does not answer quit: no daemon here"):
        await control(tmp_path, "echo no daemon here; exit 1").ask("quit")
    with pytest.raises(MpsError, match="does not answer quit: status 3"):
        await control(tmp_path, "exit 3").ask("quit")


async def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(MpsError, match=r"was not done within 0\.2 s"):
        await control(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60", 0.2).ask("quit")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = Control(program=tmp_path / "none", environment={})
    with pytest.raises(MpsError, match=rf"cannot run {tmp_path}/none: No such file"):
        await missing.ask("quit")


async def test_servers_are_told_by_their_pids(tmp_path: Path) -> None:
    assert await control(tmp_path, "printf '12\\n345\\n'").servers() == [12, 345]
    assert await control(tmp_path, "echo").servers() == []


async def test_settings_of_the_agents_own_surroundings_do_not_reach_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "5")
    monkeypatch.setenv("PATH", "/bin")
    said = await control(tmp_path, "env | grep -E '^(CUDA|PATH)' | sort").ask("anything")
    assert said.split() == ["CUDA_MPS_PIPE_DIRECTORY=/p", f"PATH={tmp_path}:/bin"]


def test_what_a_dead_daemon_left_is_cleared_and_the_folders_stay(tmp_path: Path) -> None:
    folders = Folders.below(tmp_path / "x", own_shm=False)
    place.make(folders)
    before = folders.pipe.stat().st_ino
    (folders.pipe / "control").write_text("")
    (folders.pipe / "below").mkdir()
    (folders.log / "control.log").write_text("what happened")
    place.make(folders)
    assert folders.pipe.stat().st_ino == before
    assert list(folders.pipe.iterdir()) == []
    assert (folders.log / "control.log").exists()
    place.remove(folders)
    place.remove(folders)
    assert not (tmp_path / "x").exists()


@mounting
def test_shared_memory_of_its_own_is_bounded_and_goes_with_the_daemon(tmp_path: Path) -> None:
    folders = Folders.below(tmp_path / "x", own_shm=True)
    assert folders.shm is not None
    place.make(folders)
    (folders.shm / "of-a-client").write_text("")
    place.make(folders)
    assert os.path.ismount(folders.shm)
    assert (folders.shm / "of-a-client").exists()
    assert stat.S_IMODE(folders.shm.stat().st_mode) == 0o1777
    size = os.statvfs(folders.shm).f_blocks * os.statvfs(folders.shm).f_frsize
    assert 0 < size < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
    place.remove(folders)
    assert not (tmp_path / "x").exists()


@mounting
async def test_a_daemon_sees_its_own_shared_memory_and_nobody_elses(tmp_path: Path) -> None:
    folders = Folders.below(tmp_path / "x", own_shm=True)
    place.make(folders)
    await control(tmp_path, "echo here > /dev/shm/node-agent-test").start(multi_user=False, shm=folders.shm)
    assert folders.shm is not None
    assert (folders.shm / "node-agent-test").read_text() == "here\n"
    assert not Path("/dev/shm/node-agent-test").exists()
    place.remove(folders)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(MpsError, match=rf"cannot make the folder of an MPS daemon {tmp_path}/x/pipe: Not a directory"):
        place.make(Folders.below(tmp_path / "x", own_shm=False))
