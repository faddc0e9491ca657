"""A file is whole or not there, whatever goes wrong while it is written."""

import errno
import os
import resource
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.kit.files import ABANDONED_SECONDS, abandoned, remove, sync_folder, unfinished, write_atomic


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o444])
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_file_has_the_content_and_the_mode_whatever_the_umask(tmp_path: Path, mode: int, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "spec.json", b"{}", mode)
    finally:
        os.umask(before)
    assert (tmp_path / "spec.json").read_bytes() == b"{}"
    assert stat.S_IMODE((tmp_path / "spec.json").stat().st_mode) == mode


def test_other_programs_may_read_by_default(tmp_path: Path) -> None:
    write_atomic(tmp_path / "spec.json", b"{}")
    assert stat.S_IMODE((tmp_path / "spec.json").stat().st_mode) == 0o644


def test_a_new_content_replaces_the_old_and_nothing_else_stays(tmp_path: Path) -> None:
    write_atomic(tmp_path / "state", b"old and longer")
    write_atomic(tmp_path / "state", b"new")
    assert (tmp_path / "state").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["state"]


def test_one_who_has_the_old_file_open_keeps_reading_the_old_content(tmp_path: Path) -> None:
    write_atomic(tmp_path / "state", b"old")
    with open(tmp_path / "state", "rb") as reader:
        write_atomic(tmp_path / "state", b"new")
        assert reader.read() == b"old"


def test_a_relative_path_is_written_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_atomic(Path("state"), b"here")
    assert (tmp_path / "state").read_bytes() == b"here"


def test_a_disk_that_is_full_keeps_the_old_content_and_leaves_no_part(tmp_path: Path) -> None:
    """A real limit on the size of files makes the kernel refuse the write half-way."""
    write_atomic(tmp_path / "state", b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            write_atomic(tmp_path / "state", b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert (tmp_path / "state").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state"]


def test_a_place_that_cannot_be_replaced_leaves_no_part(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomic(tmp_path / "state", b"new")
    assert os.listdir(tmp_path) == ["state"]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "gone" / "state", b"new")


def test_a_read_only_folder_is_an_error_and_keeps_the_old_content() -> None:
    """``/proc`` refuses new files even to root."""
    with pytest.raises(OSError, match="/proc"):
        write_atomic(Path("/proc/self/comm"), b"new")
    assert Path("/proc/self/comm").read_bytes() != b"new"


def test_a_reader_of_the_folder_by_suffix_never_meets_an_unfinished_file(tmp_path: Path) -> None:
    """What container runtimes do with CDI specs: read every ``*.json``, at any time."""
    path, stop, partial = tmp_path / "spec.json", threading.Event(), list[bytes]()
    write_atomic(path, b"0" * 65536)

    def read() -> None:
        while not stop.is_set():
            for name in os.listdir(tmp_path):
                if name.endswith(".json"):
                    content = (tmp_path / name).read_bytes()
                    if len(content) != 65536 or len(set(content)) != 1:
                        partial.append(content)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(50):
            write_atomic(path, str(number % 10).encode() * 65536)
    finally:
        stop.set()
        reader.join()
    assert not partial


def test_a_writer_that_is_killed_never_leaves_a_part_in_place(tmp_path: Path) -> None:
    """Killed at a random moment, the file is one of the two contents, whole."""
    path = tmp_path / "state"
    write_atomic(path, b"a" * 200_000)
    program = textwrap.dedent(f"""
        from pathlib import Path
        from node_agent.kit.files import write_atomic
        print("ready", flush=True)
        while True:
            for letter in (b"a", b"b"):
                write_atomic(Path({str(path)!r}), letter * 200_000)
    """)
    for pause in (0.001, 0.004, 0.007):
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            threading.Event().wait(pause)
            writer.kill()
        assert path.read_bytes() in (b"a" * 200_000, b"b" * 200_000)


@given(content=st.binary(max_size=10_000))
def test_any_bytes_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any-bytes"
    write_atomic(path, content)
    assert path.read_bytes() == content


def test_removing_a_file_that_is_not_there_is_fine(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    remove(tmp_path / "state")
    remove(tmp_path / "state")
    remove(tmp_path / "no-folder" / "state")
    assert os.listdir(tmp_path) == []


def test_removing_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        remove(tmp_path / "folder")
    assert (tmp_path / "folder").is_dir()


def test_syncing_needs_a_folder_but_not_one_that_still_exists(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    sync_folder(tmp_path / "gone")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        sync_folder(tmp_path / "file")


def test_what_a_killed_writer_leaves_is_found_by_the_name_of_its_file(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from node_agent.kit.files import write_atomic
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        write_atomic(Path({str(tmp_path)!r}) / "state", b"new")
    """)
    (tmp_path / ".other.x81h").write_text("")
    (tmp_path / "state").write_text("old")
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    (left,) = unfinished(tmp_path, "state")
    assert left.read_bytes() == b"new"
    assert unfinished(tmp_path, "st*") == [left]
    assert (tmp_path / "state").read_text() == "old"


def test_what_may_still_be_written_is_not_abandoned(tmp_path: Path) -> None:
    young, old = tmp_path / ".state.x1", tmp_path / ".state.x2"
    for path, age in ((young, ABANDONED_SECONDS / 2), (old, ABANDONED_SECONDS * 2)):
        path.write_text("")
        os.utime(path, (time.time() - age,) * 2)
    (tmp_path / ".state.x3").symlink_to("gone")
    assert abandoned(tmp_path, "state") == [old]
    assert abandoned(tmp_path / "gone", "state") == []


def test_where_nothing_was_killed_nothing_is_unfinished(tmp_path: Path) -> None:
    write_atomic(tmp_path / "state", b"new")
    assert unfinished(tmp_path, "state") == []
    assert unfinished(tmp_path / "gone", "state") == []
